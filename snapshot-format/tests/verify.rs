//! Verification lists all that is wrong.

mod common;

use common::{chunk, full_record};
use snapshot_format::fields::FieldWriter;
use snapshot_format::*;

const ALL_THERE: &dyn ChunkLookup = &|_: &ChunkRef| true;

/// A record that fits together.
fn sound() -> PointRecord {
    PointRecord {
        data_bytes: 4 << 16,
        ..full_record()
    }
}

fn problems(record: &PointRecord) -> Vec<Problem> {
    verify(record, ALL_THERE)
        .into_iter()
        .map(|finding| finding.problem)
        .collect()
}

#[test]
fn a_sound_record_has_no_findings() {
    assert_eq!(verify(&sound(), ALL_THERE), []);
    assert_eq!(verify_bytes(&sound().encode().unwrap(), ALL_THERE), []);
}

#[test]
fn each_missing_chunk_is_named_with_its_part() {
    let lookup = |found: &ChunkRef| ![chunk(3), chunk(4), chunk(7)].contains(found);
    let found: Vec<_> = verify(&sound(), &lookup)
        .into_iter()
        .map(|found| found.problem)
        .collect();
    let missing = |part, index, seed| Problem::MissingChunk {
        part,
        index,
        chunk: chunk(seed),
    };
    let expected = [
        missing(Part::Memory { index: 0 }, 31, 3),
        missing(Part::Disk { index: 0 }, 1, 4),
        missing(Part::Initramfs, 0, 7),
    ];
    assert_eq!(found, expected);
}

#[test]
fn many_missing_chunks_are_counted() {
    let mut record = sound();
    record.memory[1].chunks = (0..32).map(|n| chunk(n + 100)).collect();
    let lookup = |found: &ChunkRef| found.0[0] < 100;
    let found = verify(&record, &lookup);
    assert_eq!(found.len(), 17);
    let last = Problem::MoreMissingChunks {
        part: Part::Memory { index: 1 },
        count: 16,
    };
    assert_eq!(found[16].problem, last);
}

#[test]
fn findings_do_not_stop_at_the_first() {
    let mut record = sound();
    record.machine.clear();
    record.memory[1].start_gpa = 1 << 20;
    record.memory[1].chunks.push_zeros(1);
    record.spec.memory_bytes += 1;
    record.spec.disk_bytes += 1;
    record.states[1].unit = "vcpu0".into();
    record
        .states
        .push(StateRecord::new("vcpu7", "x86-vcpu", 1, vec![]));
    record.states.push(StateRecord::new("", "rng", 1, vec![]));
    record.in_flight[0].unit = "blk9".into();
    record.disks.push(record.disks[0].clone());
    record.boot.kernel = Blob::default();
    record.data_bytes = 1 << 40;
    let expected = [
        Problem::Nameless { what: "machine" },
        Problem::MemorySize {
            found: 4 << 20,
            expected: (4 << 20) + 1,
        },
        Problem::RegionOrder { index: 1 },
        Problem::RootDiskSize {
            found: 4 << 20,
            expected: (4 << 20) + 1,
        },
        Problem::DuplicateDisk {
            name: "root".into(),
        },
        Problem::DuplicateUnit {
            unit: "vcpu0".into(),
        },
        Problem::NamelessUnit,
        Problem::InFlightUnit {
            unit: "blk9".into(),
        },
        Problem::MissingVcpu {
            unit: "vcpu1".into(),
        },
        Problem::ExtraVcpu {
            unit: "vcpu7".into(),
        },
        Problem::NoKernel,
        Problem::DataBytes {
            found: 1 << 40,
            most: 5 << 16,
        },
        Problem::MapLength {
            part: Part::Memory { index: 1 },
            found: 33,
            expected: 32,
        },
    ];
    assert_eq!(problems(&record), expected);
    record.disks.clear();
    record.spec.vcpus = 0;
    assert!(problems(&record).contains(&Problem::NoRootDisk));
    assert!(problems(&record).contains(&Problem::NoVcpus));
}

#[test]
fn unreadable_bytes_are_one_finding_with_the_reason() {
    let mut bytes = sound().encode().unwrap();
    bytes[8] = 2;
    let found = verify_bytes(&bytes, ALL_THERE);
    let version = DecodeError::UnsupportedVersion { found: 2 };
    assert_eq!(
        found,
        [Finding {
            level: Level::Error,
            problem: Problem::Unreadable(version)
        }]
    );
    assert_eq!(
        found[0].to_string(),
        "point record has format version 2, this program reads up to 1"
    );
}

#[test]
fn fields_of_later_writers_are_skipped_noted_and_part_of_the_id() {
    let bytes = sound().encode().unwrap();
    let mut later = FieldWriter::new();
    later.text(9_999, "something new");
    let body = [&bytes[24..bytes.len() - 4], &later.finish()].concat();
    let stored = testing::record_around(&body);
    let point = Point::decode(&stored).unwrap();
    assert_eq!(point.record(), &sound());
    assert_eq!(point.id(), CheckpointId::of_bytes(&stored));
    assert_ne!(point.id(), CheckpointId::of_bytes(&bytes));
    let found = verify_bytes(&stored, ALL_THERE);
    assert_eq!(
        found,
        [Finding {
            level: Level::Note,
            problem: Problem::OtherEncoding
        }]
    );
}

#[test]
fn state_of_unknown_kinds_and_versions_is_found() {
    let newest = |kind: &str| match kind {
        "x86-vcpu" => Some(1),
        "virtio-blk" => Some(2),
        _ => None,
    };
    let mut states = full_record().states;
    states.push(StateRecord::new("gpu0", "virtio-gpu", 1, vec![]));
    let found: Vec<_> = verify_states(&states, &newest)
        .iter()
        .map(Finding::to_string)
        .collect();
    let expected = [
        "unit \"blk0\" (\"virtio-blk\") has state version 3, this program reads up to 2",
        "unit \"gpu0\" is of the unknown kind \"virtio-gpu\"",
    ];
    assert_eq!(found, expected);
}
