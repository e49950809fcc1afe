//! Verification lists all that is wrong.

mod common;

use std::collections::BTreeMap;

use common::{chunk, full_nodes, full_record};
use snapshot_format::fields::FieldWriter;
use snapshot_format::limits::MAX_DISK_BYTES;
use snapshot_format::map::{MapNode, NodeError};
use snapshot_format::*;

/// Nodes, and chunks of data of which some are missing.
struct Lookup<'a> {
    nodes: MapNodes,
    has: &'a dyn Fn(&ChunkRef) -> bool,
}

impl ChunkLookup for Lookup<'_> {
    fn has(&self, chunk: &ChunkRef) -> bool {
        (self.has)(chunk)
    }

    fn node(&self, node: &ChunkRef) -> Option<Vec<u8>> {
        self.nodes.get(node).map(<[u8]>::to_vec)
    }
}

/// What is wrong with the record's chunks, of which those that are not `has` are missing.
fn chunk_problems(
    record: &PointRecord,
    nodes: MapNodes,
    has: &dyn Fn(&ChunkRef) -> bool,
) -> Vec<Problem> {
    let found = verify_chunks(record, &Lookup { nodes, has });
    found.into_iter().map(|finding| finding.problem).collect()
}

/// A record that fits together.
fn sound() -> PointRecord {
    PointRecord {
        data_bytes: 4 << 16,
        ..full_record()
    }
}

fn problems(record: &PointRecord) -> Vec<Problem> {
    verify(record)
        .into_iter()
        .map(|finding| finding.problem)
        .collect()
}

#[test]
fn a_sound_record_has_no_findings() {
    assert_eq!(verify(&sound()), []);
    assert_eq!(verify_bytes(&sound().encode().unwrap()), []);
    assert_eq!(chunk_problems(&sound(), full_nodes(), &|_| true), []);
}

#[test]
fn each_missing_chunk_is_named_with_its_part() {
    let has = |found: &ChunkRef| ![chunk(3), chunk(4), chunk(7)].contains(found);
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
    assert_eq!(chunk_problems(&sound(), full_nodes(), &has), expected);
}

#[test]
fn many_missing_chunks_are_counted() {
    let (mut record, mut nodes) = (sound(), full_nodes());
    let chunks = (0..32).map(|n| (u64::from(n), chunk(n + 100)));
    record.memory[1].map = nodes.build(chunks).unwrap();
    let found = chunk_problems(&record, nodes, &|found| found.0[0] < 100);
    assert_eq!(found.len(), 17);
    let last = Problem::MoreMissingChunks {
        part: Part::Memory { index: 1 },
        count: 16,
    };
    assert_eq!(found[16], last);
}

#[test]
fn a_missing_or_malformed_node_is_named_with_what_it_covers() {
    let mut record = sound();
    let node = |level, children: [(u64, ChunkRef); 2]| {
        let mut nodes = MapNodes::new();
        let root = nodes.build(children).unwrap();
        let mut bytes = nodes.get(&root.node()).unwrap().to_vec();
        bytes[4] = level;
        bytes
    };
    let mut nodes = full_nodes();
    let leaf = nodes.insert(node(0, [(0, chunk(1)), (1, chunk(2))]));
    // Its second child is a leaf where a node of level 1 belongs, its third is not there.
    let top = nodes.insert(node(2, [(1, leaf), (2, chunk(9))]));
    record.memory[0].size_bytes = 1 << 30;
    record.memory[0].map = MapRoot::new(2, top).unwrap();
    let part = Part::Memory { index: 0 };
    let expected = [
        Problem::MalformedNode {
            part,
            index: 256,
            node: leaf,
            error: NodeError::Level {
                found: 0,
                expected: 1,
            },
        },
        Problem::MissingChunk {
            part,
            index: 512,
            chunk: chunk(9),
        },
    ];
    assert_eq!(chunk_problems(&record, nodes, &|_| true), expected);
}

#[test]
fn a_map_beyond_the_end_or_higher_than_need_be_is_found() {
    let (mut record, mut nodes) = (sound(), full_nodes());
    record.disks[0].map = nodes.build([(63, chunk(1)), (64, chunk(2))]).unwrap();
    let disk = Part::Disk { index: 0 };
    let beyond = Problem::BeyondEnd {
        part: disk,
        index: 64,
        chunks: 64,
    };
    assert_eq!(chunk_problems(&record, nodes.clone(), &|_| true), [beyond]);

    let map = nodes.build([(3, chunk(1))]).unwrap();
    let mut bytes = nodes.build([(0, map.node())]).unwrap().node();
    let mut higher = nodes.get(&bytes).unwrap().to_vec();
    higher[4] = 1;
    assert!(MapNode::decode(&higher, 1).is_ok());
    bytes = nodes.insert(higher);
    record.disks[0].map = MapRoot::new(1, bytes).unwrap();
    let needless = Problem::MalformedNode {
        part: disk,
        index: 0,
        node: bytes,
        error: NodeError::NeedlessLevel,
    };
    assert_eq!(chunk_problems(&record, nodes, &|_| true), [needless]);
}

/// Seven nodes that name each other name 16^7 chunks.
#[test]
fn a_map_of_shared_nodes_costs_its_nodes() {
    let mut nodes = MapNodes::new();
    let mut child = chunk(1);
    let mut map = MapRoot::ZEROS;
    for level in 0..7 {
        let children = (0..16).map(|position| (position, child));
        let root = nodes.build(children).unwrap();
        let mut bytes = nodes.get(&root.node()).unwrap().to_vec();
        bytes[4] = level;
        child = nodes.insert(bytes);
        map = MapRoot::new(level, child).unwrap();
    }
    let mut record = sound();
    record.disks[0].size_bytes = MAX_DISK_BYTES;
    record.disks[0].map = map;
    record.data_bytes = u64::MAX;
    let asked = std::cell::Cell::new(0);
    let has = |_: &ChunkRef| {
        asked.set(asked.get() + 1);
        true
    };
    let found = verify_chunks(
        &record,
        &Lookup {
            nodes: nodes.clone(),
            has: &has,
        },
    );
    let beyond = Problem::BeyondEnd {
        part: Part::Disk { index: 0 },
        index: (1 << 28) - 1,
        chunks: 1 << 27,
    };
    assert!(
        found.iter().any(|found| found.problem == beyond),
        "{found:?}"
    );
    assert!(asked.get() < 100, "{} look-ups", asked.get());
    let reader = MapReader::new(&nodes);
    let mut names = BTreeMap::new();
    let visit = &mut |name: ChunkRef| *names.entry(name).or_insert(0) += 1;
    reader
        .visit_distinct(&map, &mut Default::default(), visit)
        .unwrap();
    assert_eq!(names.len(), 8, "seven nodes and a chunk");
    assert_eq!(reader.get(&map, (1 << 28) - 1).unwrap(), chunk(1));
}

#[test]
fn findings_do_not_stop_at_the_first() {
    let mut record = sound();
    record.machine.clear();
    record.memory[1].start_gpa = 1 << 20;
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
    ];
    assert_eq!(problems(&record), expected);
    record.disks.clear();
    record.spec.vcpus = 0;
    assert!(problems(&record).contains(&Problem::NoRootDisk));
    assert!(problems(&record).contains(&Problem::NoVcpus));
}

#[test]
fn more_data_than_chunks_is_found() {
    let mut record = sound();
    record.data_bytes = 1 << 40;
    let problem = Problem::DataBytes {
        found: 1 << 40,
        most: 4 << 16,
    };
    assert_eq!(chunk_problems(&record, full_nodes(), &|_| true), [problem]);
}

#[test]
fn unreadable_bytes_are_one_finding_with_the_reason() {
    let mut bytes = sound().encode().unwrap();
    bytes[8] = 2;
    let found = verify_bytes(&bytes);
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
    let found = verify_bytes(&stored);
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
