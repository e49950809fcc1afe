//! Limits bind writers and readers alike.

use snapshot_format::fields::FieldWriter;
use snapshot_format::limits::*;
use snapshot_format::*;

type Change = fn(&mut PointRecord);
type Build = fn(&mut FieldWriter);

/// Each is refused although its neighbour at the limit is not.
const BEYOND: [(Change, Change); 8] = [
    (
        |record| record.machine = "m".repeat(MAX_MACHINE_NAME_BYTES),
        |record| record.machine.push('m'),
    ),
    (
        |record| record.message = "m".repeat(MAX_MESSAGE_BYTES),
        |record| record.message.push('m'),
    ),
    (
        |record| record.spec.vcpus = MAX_VCPUS,
        |record| record.spec.vcpus += 1,
    ),
    (
        |record| record.memory = vec![region(0, MAX_MEMORY_BYTES - 5), region(MAX_MEMORY_BYTES, 5)],
        |record| record.memory[1].size_bytes += 1,
    ),
    (
        |record| record.disks = vec![DiskMap::default(); MAX_DISKS],
        |record| record.disks.push(DiskMap::default()),
    ),
    (
        |record| {
            record.disks = vec![DiskMap {
                size_bytes: MAX_DISK_BYTES,
                ..DiskMap::default()
            }]
        },
        |record| record.disks[0].size_bytes += 1,
    ),
    (
        |record| {
            record.disks = vec![DiskMap {
                chunks: ChunkMap::zeros(MAX_DISK_BYTES),
                ..DiskMap::default()
            }]
        },
        |record| record.disks[0].chunks.push_zeros(1),
    ),
    (
        |record| record.memory = vec![region(u64::MAX - 5, 5)],
        |record| record.memory[0].size_bytes += 1,
    ),
];

fn region(start_gpa: u64, size_bytes: u64) -> MemoryRegion {
    MemoryRegion {
        start_gpa,
        size_bytes,
        chunks: ChunkMap::new(),
    }
}

#[test]
fn writers_stop_right_at_the_limit() {
    for (number, (at_limit, beyond)) in BEYOND.into_iter().enumerate() {
        let mut record = PointRecord::default();
        at_limit(&mut record);
        let bytes = record.encode().unwrap();
        assert_eq!(
            PointRecord::decode(&bytes).as_ref(),
            Ok(&record),
            "limit {number}"
        );
        beyond(&mut record);
        assert!(record.encode().is_err(), "limit {number}");
        assert!(Point::seal(record.clone()).is_err(), "limit {number}");
        let mut out = Vec::new();
        assert!(
            record.write_to(&mut out).is_err() && out.is_empty(),
            "limit {number}"
        );
    }
}

#[test]
fn readers_refuse_what_no_writer_writes() {
    let bodies: [(&str, Build); 5] = [
        ("a long machine name", |w| {
            w.text(1, &"m".repeat(64));
        }),
        ("a time after the year 9999", |w| {
            w.u64(2, 253_402_300_800);
        }),
        ("seventeen vCPUs", |w| {
            w.nested(7, |spec| {
                spec.u32(1, 17);
            });
        }),
        ("sixty-five disks", |w| {
            for _ in 0..65 {
                w.nested(9, |_| {});
            }
        }),
        ("a region that wraps", |w| {
            w.nested(8, |region| {
                region.u64(1, u64::MAX).u64(2, 1);
            });
        }),
    ];
    for (what, build) in bodies {
        let mut writer = FieldWriter::new();
        build(&mut writer);
        let bytes = testing::record_around(&writer.finish());
        let found = PointRecord::decode(&bytes);
        assert!(
            matches!(found, Err(DecodeError::Limit(_))),
            "{what}: {found:?}"
        );
    }
}

#[test]
fn what_follows_a_record_is_refused() {
    let mut zeros = std::io::repeat(0);
    let mut head = Vec::new();
    PointRecord::default().write_to(&mut head).unwrap();
    let reader = std::io::Read::chain(head.as_slice(), std::io::Read::take(&mut zeros, 5));
    assert!(matches!(
        Point::read_from(reader),
        Err(ReadError::Decode(DecodeError::WrongLength { .. }))
    ));
}
