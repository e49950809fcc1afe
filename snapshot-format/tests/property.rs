//! Properties of records, maps and lineages against naive models.

use std::collections::{BTreeMap, BTreeSet};

use proptest::collection::{btree_map, vec};
use proptest::prelude::*;
use snapshot_format::limits::MAX_VCPUS;
use snapshot_format::map::{MAX_LEVEL, SeenNodes};
use snapshot_format::*;

fn any_chunk() -> impl Strategy<Value = ChunkRef> {
    prop_oneof![
        2 => Just(ChunkRef::ZERO),
        1 => (1..=255u8).prop_map(|byte| ChunkRef([byte; 32])),
        2 => any::<[u8; 32]>().prop_map(ChunkRef),
    ]
}

/// Any root; nothing reads its nodes here. `fits` is the size of the part.
fn any_map(size_bytes: u64) -> impl Strategy<Value = MapRoot> {
    let levels = (0..=MAX_LEVEL).filter(move |level| {
        let below = 16u64.pow(u32::from(*level)) * CHUNK_BYTES;
        size_bytes > 0 && (*level == 0 || below < size_bytes)
    });
    let highest = levels.max();
    let named = (0..=highest.unwrap_or(0), any::<[u8; 32]>());
    named.prop_map(move |(level, node)| match highest {
        None => MapRoot::ZEROS,
        Some(_) => MapRoot::new(level, ChunkRef(node)).unwrap(),
    })
}

/// The content of a map: places that are close to one another, and far.
fn any_chunks() -> impl Strategy<Value = BTreeMap<u64, ChunkRef>> {
    let place = prop_oneof![0..40u64, 0..1000u64, 0..1u64 << 28, Just((1 << 28) - 1)];
    btree_map(place, any_chunk(), 0..40)
}

fn without_zeros(chunks: &BTreeMap<u64, ChunkRef>) -> Vec<(u64, ChunkRef)> {
    let data = chunks.iter().filter(|(_, chunk)| !chunk.is_zero());
    data.map(|(index, chunk)| (*index, *chunk)).collect()
}

fn any_pairs() -> impl Strategy<Value = Vec<(String, String)>> {
    vec((".{0,8}", ".{0,8}"), 0..4)
}

fn any_host() -> impl Strategy<Value = HostContract> {
    let words = [(); 4].map(|()| prop_oneof![0..6u32, any::<u32>()]);
    let numbers = (any::<u64>(), any::<u64>(), any::<u32>());
    (words, ".{0,12}", numbers).prop_map(|(words, cpu_vendor, numbers)| {
        let [guest_os, arch, backend, cpu_profile] = words;
        let (tsc_khz, page_size_bytes, machine_model) = numbers;
        HostContract {
            guest_os: GuestOs::from_number(guest_os),
            arch: Arch::from_number(arch),
            backend: BackendKind::from_number(backend),
            cpu_vendor,
            cpu_profile: CpuProfile::from_number(cpu_profile),
            tsc_khz,
            page_size_bytes,
            machine_model: MachineModel(machine_model),
        }
    })
}

fn any_spec() -> impl Strategy<Value = MachineSpec> {
    let numbers = (0..=MAX_VCPUS, 0..=1u64 << 40, 0..=8u64 << 40);
    let texts = [(); 3].map(|()| ".{0,12}");
    (numbers, any_pairs(), any_pairs(), texts).prop_map(|(numbers, environment, labels, texts)| {
        let (vcpus, memory_bytes, disk_bytes) = numbers;
        let [working_directory, image, kernel] = texts;
        MachineSpec {
            vcpus,
            memory_bytes,
            disk_bytes,
            environment,
            working_directory,
            labels,
            image,
            kernel,
        }
    })
}

fn any_blob() -> impl Strategy<Value = Blob> {
    sized(4 << 30).prop_map(|(size_bytes, map)| Blob::new(size_bytes, map))
}

/// A part of at most `limit` bytes with a map that fits it.
fn sized(limit: u64) -> impl Strategy<Value = (u64, MapRoot)> {
    let size = prop_oneof![Just(0), 1..5 * CHUNK_BYTES, 0..=limit];
    size.prop_flat_map(|size_bytes| (Just(size_bytes), any_map(size_bytes)))
}

fn any_boot() -> impl Strategy<Value = BootBlobs> {
    (any_blob(), any_blob(), ".{0,40}").prop_map(|(kernel, initramfs, command_line)| BootBlobs {
        kernel,
        initramfs,
        command_line,
    })
}

fn any_region() -> impl Strategy<Value = MemoryRegion> {
    (0..u64::MAX / 2, sized(1 << 38)).prop_map(|(start_gpa, (size_bytes, map))| MemoryRegion {
        start_gpa,
        size_bytes,
        map,
    })
}

fn any_disk() -> impl Strategy<Value = DiskMap> {
    (".{0,8}", sized(8 << 40)).prop_map(|(name, (size_bytes, map))| DiskMap {
        name,
        size_bytes,
        map,
    })
}

fn any_processes() -> impl Strategy<Value = ProcessList> {
    let process = (any::<u32>(), any::<u32>(), ".{0,20}");
    (vec(process, 0..4), any::<u64>()).prop_map(|(processes, unlisted)| ProcessList {
        processes: processes
            .into_iter()
            .map(|(pid, parent_pid, command)| GuestProcess {
                pid,
                parent_pid,
                command,
            })
            .collect(),
        unlisted,
    })
}

fn any_state() -> impl Strategy<Value = StateRecord> {
    (".{0,8}", ".{0,8}", any::<u32>(), vec(any::<u8>(), 0..40))
        .prop_map(|(unit, kind, version, bytes)| StateRecord::new(&unit, &kind, version, bytes))
}

fn any_note() -> impl Strategy<Value = InFlightNote> {
    (".{0,8}", ".{0,20}").prop_map(|(unit, note)| InFlightNote { unit, note })
}

prop_compose! {
    fn any_record()(
        (machine, message) in (".{0,12}", ".{0,40}"),
        (seconds, nanos) in (0..253_402_300_800u64, 0..1_000_000_000u32),
        parent in proptest::option::of(any::<[u8; 32]>()),
        (host, spec, boot) in (any_host(), any_spec(), any_boot()),
        memory in vec(any_region(), 0..4),
        disks in vec(any_disk(), 0..4),
        states in vec(any_state(), 0..5),
        (agent, data_bytes) in (any::<u32>(), any::<u64>()),
        in_flight in vec(any_note(), 0..3),
        (processes, autosave, disks_written) in
            (proptest::option::of(any_processes()), any::<bool>(), any::<bool>()),
    ) -> PointRecord {
        PointRecord {
            machine,
            taken: WallTime { seconds, nanos },
            message,
            parent: parent.map(CheckpointId),
            host,
            spec,
            memory,
            disks,
            boot,
            states,
            agent: AgentVersion(agent),
            data_bytes,
            in_flight,
            processes,
            autosave,
            disks_written,
        }
    }
}

proptest! {
    #[test]
    fn a_record_survives_and_has_one_encoding(record in any_record()) {
        let bytes = record.encode().unwrap();
        let decoded = PointRecord::decode(&bytes).unwrap();
        prop_assert_eq!(&decoded, &record);
        prop_assert_eq!(decoded.encode().unwrap(), bytes);
    }

    #[test]
    fn different_records_have_different_bytes(a in any_record(), b in any_record()) {
        prop_assert_eq!(a == b, a.encode().unwrap() == b.encode().unwrap());
    }

    #[test]
    fn damage_is_refused_and_changes_the_id(
        record in any_record(),
        cut in any::<prop::sample::Index>(),
        bits in vec(any::<prop::sample::Index>(), 1..4),
    ) {
        let bytes = record.encode().unwrap();
        prop_assert!(PointRecord::decode(&bytes[..cut.index(bytes.len())]).is_err());
        let mut damaged = bytes.clone();
        for bit in bits {
            let bit = bit.index(bytes.len() * 8);
            damaged[bit / 8] ^= 1 << (bit % 8);
        }
        if damaged != bytes {
            prop_assert!(PointRecord::decode(&damaged).is_err());
            prop_assert_ne!(CheckpointId::of_bytes(&damaged), CheckpointId::of_bytes(&bytes));
        }
    }

    #[test]
    fn a_map_is_its_list_of_chunks(chunks in any_chunks(), at in 0..1u64 << 29) {
        let mut nodes = MapNodes::new();
        let map = nodes.build(chunks.clone()).unwrap();
        prop_assert_eq!(nodes.chunks(&map).unwrap(), without_zeros(&chunks));
        let reader = MapReader::new(&nodes);
        for index in chunks.keys().flat_map(|at| [at.saturating_sub(1), *at, at + 1]).chain([at]) {
            let expected = chunks.get(&index).copied().unwrap_or(ChunkRef::ZERO);
            prop_assert_eq!(reader.get(&map, index).unwrap(), expected);
        }
        let range = at / 3..at;
        let mut expected = without_zeros(&chunks);
        expected.retain(|(index, _)| range.contains(index));
        let found: Result<Vec<_>, _> = reader.data_in(&map, range).collect();
        prop_assert_eq!(found.unwrap(), expected);
        reader.check_top(&map).unwrap();
        // Its distinct names are its data and the nodes that were made.
        let mut names = BTreeSet::new();
        let mut seen = SeenNodes::default();
        let visit = &mut |name| {
            names.insert(name);
        };
        let count = reader.visit_distinct(&map, &mut seen, visit).unwrap();
        prop_assert_eq!(count, without_zeros(&chunks).len() as u64);
        let again = reader.visit_distinct(&map, &mut seen, &mut |_| panic!("seen")).unwrap();
        prop_assert_eq!(again, count);
        let mut expected: BTreeSet<_> = nodes.iter().map(|(name, _)| *name).collect();
        expected.extend(chunks.values().filter(|chunk| !chunk.is_zero()));
        prop_assert_eq!(names, expected);
    }

    /// However a map came about, equal content is an equal map, and what did not change is not written again.
    #[test]
    fn a_changed_map_is_the_map_of_the_changed_chunks(
        before in any_chunks(),
        changes in vec(any_chunks(), 1..4),
    ) {
        let mut nodes = MapNodes::new();
        let (mut map, mut chunks) = (nodes.build(before.clone()).unwrap(), before);
        for changes in changes {
            let known: BTreeSet<_> = nodes.iter().map(|(name, _)| *name).collect();
            let mut written = 0;
            let changed = MapReader::new(&nodes).change(&map, &changes, &mut |bytes| {
                written += 1;
                Ok::<_, std::convert::Infallible>(ChunkRef::of_bytes(bytes))
            }).unwrap();
            let most = changes.len() * (usize::from(MAX_LEVEL) + 1) + usize::from(MAX_LEVEL);
            prop_assert!(written <= most, "{} nodes for {} changes", written, changes.len());
            map = nodes.change(&map, &changes).unwrap();
            prop_assert_eq!(map, changed);
            chunks.extend(&changes);
            let mut anew = MapNodes::new();
            prop_assert_eq!(anew.build(chunks.clone()).unwrap(), map);
            for (name, bytes) in anew.iter() {
                prop_assert_eq!(nodes.get(name), Some(bytes));
            }
            prop_assert!(anew.len() <= known.len() + written);
        }
    }

    #[test]
    fn followed_lineages_are_the_walk_along_parents(
        parents in vec(proptest::option::of(0..12usize), 1..12),
        own in any::<prop::sample::Index>(),
        removed in vec(any::<bool>(), 12),
    ) {
        // Any graph of parents, cycles included, from which some points were removed.
        let id = |n: usize| CheckpointId([n as u8; 32]);
        let own = own.index(parents.len());
        let here = |n: usize| n < parents.len() && !removed[n];
        let entries = parents.iter().enumerate().filter(|(n, _)| here(*n));
        let entries = entries.map(|(n, parent)| entry(id(n), parent.map(id)));
        let mut expected = Vec::new();
        let mut next = Some(own);
        while let Some(n) = next.filter(|n| here(*n) && !expected.contains(n)) {
            expected.push(n);
            next = parents[n];
        }
        match Lineage::follow(id(own), entries) {
            Err(error) => {
                prop_assert!(removed[own]);
                prop_assert_eq!(error, LineageError::NotThere { id: id(own) });
            }
            Ok(lineage) => {
                let found = lineage.entries().iter().map(|entry| entry.id);
                prop_assert!(found.eq(expected.iter().map(|n| id(*n))));
                for (generation, n) in expected.iter().enumerate() {
                    let tilde = lineage.resolve(&format!("~{generation}")).unwrap();
                    prop_assert_eq!(tilde.id, id(*n));
                    prop_assert_eq!(lineage.resolve(&id(*n).to_string()).unwrap().id, id(*n));
                }
            }
        }
    }

    #[test]
    fn lines_about_points_survive(
        parent in proptest::option::of(any::<[u8; 32]>()),
        (seconds, nanos) in (0..253_402_300_800u64, 0..1_000_000_000u32),
        (machine, message) in (".{0,15}", ".{0,100}"),
        (data_bytes, autosave) in (any::<u64>(), any::<bool>()),
    ) {
        let entry = LineageEntry {
            taken: WallTime { seconds, nanos },
            machine,
            message,
            data_bytes,
            autosave,
            ..entry(CheckpointId([1; 32]), parent.map(CheckpointId))
        };
        let line = entry.to_line();
        prop_assert!(line.len() <= MAX_LINE_BYTES && line.is_ascii());
        prop_assert_eq!(LineageEntry::from_line(entry.id, &line), Ok(entry));
    }
}

fn entry(id: CheckpointId, parent: Option<CheckpointId>) -> LineageEntry {
    LineageEntry {
        id,
        parent,
        taken: WallTime::default(),
        machine: "worker".into(),
        message: String::new(),
        data_bytes: 0,
        autosave: false,
    }
}
