//! Limits bind writers and readers alike.

use snapshot_format::fields::FieldWriter;
use snapshot_format::limits::*;
use snapshot_format::*;

type Change = fn(&mut PointRecord);
type Build = fn(&mut FieldWriter);

/// Each is refused although its neighbour at the limit is not.
const BEYOND: [(Change, Change); 11] = [
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
        // The highest node that a disk of one chunk more than 16 takes.
        |record| {
            record.disks = vec![DiskMap {
                size_bytes: 16 * CHUNK_BYTES + 1,
                map: MapRoot::new(1, ChunkRef([1; 32])).unwrap(),
                ..DiskMap::default()
            }]
        },
        |record| record.disks[0].size_bytes -= 1,
    ),
    (
        |record| record.spec.environment = pairs(1024, MAX_ENVIRONMENT_BYTES),
        |record| record.spec.environment[0].0.push('m'),
    ),
    (
        |record| record.spec.labels = pairs(512, MAX_LABELS_BYTES),
        |record| record.spec.labels[0].0.push('m'),
    ),
    (
        |record| {
            record.processes = Some(ProcessList {
                processes: vec![GuestProcess::default(); MAX_PROCESSES],
                unlisted: u64::MAX,
            })
        },
        |record| {
            let list = record.processes.as_mut().unwrap();
            list.processes.push(GuestProcess::default());
        },
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
        map: MapRoot::ZEROS,
    }
}

/// So many pairs of so many bytes together.
fn pairs(count: usize, total_bytes: usize) -> Vec<(String, String)> {
    let value = "v".repeat(total_bytes / count);
    vec![(String::new(), value); count]
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
fn maps_that_no_writer_writes_are_refused() {
    let name = [7; 32];
    let bodies: [(&str, Build); 4] = [
        ("a level without a node", |map| {
            map.u32(1, 1);
        }),
        ("a node of zeros", |map| {
            map.u32(1, 0).bytes(2, &[0; 32]);
        }),
        ("a short name", |map| {
            map.bytes(2, &[7; 31]);
        }),
        ("a level that does not exist", |map| {
            map.u32(1, 7).bytes(2, &[7; 32]);
        }),
    ];
    let record = |build: &dyn Fn(&mut FieldWriter)| {
        let mut writer = FieldWriter::new();
        writer.nested(9, |disk| {
            disk.text(1, "root").u64(2, MAX_DISK_BYTES).nested(3, build);
        });
        testing::record_around(&writer.finish())
    };
    for (what, build) in bodies {
        let found = PointRecord::decode(&record(&build));
        assert!(
            matches!(found, Err(DecodeError::Fields { part: "disk", .. })),
            "{what}: {found:?}"
        );
    }
    let sound = record(&|map| {
        map.u32(1, 6).bytes(2, &name);
    });
    assert!(PointRecord::decode(&sound).is_ok());
}

/// Every part at its limit is within the limit of the whole.
#[test]
fn the_largest_record_can_be_written_and_read() {
    let text = "t".repeat(MAX_TEXT_BYTES);
    let name = "n".repeat(MAX_NAME_BYTES);
    let (unit, note) = (name.clone(), "n".repeat(MAX_NOTE_BYTES));
    let state = |number| {
        let bytes = vec![7; MAX_STATE_TOTAL_BYTES / MAX_STATE_RECORDS];
        StateRecord::new(&format!("{number:064}"), &"k".repeat(64), u32::MAX, bytes)
    };
    let processes = (0..5000).map(|pid| GuestProcess {
        pid,
        parent_pid: u32::MAX,
        command: text.clone(),
    });
    let record = PointRecord {
        message: "m".repeat(MAX_MESSAGE_BYTES),
        spec: MachineSpec {
            environment: pairs(MAX_ENVIRONMENT, MAX_ENVIRONMENT_BYTES),
            labels: pairs(MAX_LABELS, MAX_LABELS_BYTES),
            working_directory: text.clone(),
            image: name,
            ..MachineSpec::default()
        },
        states: (0..MAX_STATE_RECORDS).map(state).collect(),
        in_flight: vec![InFlightNote { unit, note }; MAX_IN_FLIGHT],
        processes: Some(ProcessList::bounded(processes)),
        ..PointRecord::default()
    };
    let list = record.processes.as_ref().unwrap();
    assert_eq!((list.processes.len(), list.unlisted), (MAX_PROCESSES, 904));
    let bytes = record.encode().unwrap();
    assert_eq!(PointRecord::decode(&bytes).as_ref(), Ok(&record));
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
