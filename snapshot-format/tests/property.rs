//! Properties of records, maps and lineages against naive models.

use proptest::collection::vec;
use proptest::prelude::*;
use snapshot_format::limits::MAX_VCPUS;
use snapshot_format::*;

fn any_chunk() -> impl Strategy<Value = ChunkRef> {
    prop_oneof![
        2 => Just(ChunkRef::ZERO),
        1 => (1..=255u8).prop_map(|byte| ChunkRef([byte; 32])),
        2 => any::<[u8; 32]>().prop_map(ChunkRef),
    ]
}

fn any_map() -> impl Strategy<Value = ChunkMap> {
    vec((any_chunk(), 0..5u64), 0..12).prop_map(|parts| {
        let mut map = ChunkMap::new();
        for (chunk, zeros) in parts {
            map.push(chunk);
            map.push_zeros(zeros);
        }
        map
    })
}

fn any_pairs() -> impl Strategy<Value = Vec<(String, String)>> {
    vec((".{0,8}", ".{0,8}"), 0..4)
}

fn any_host() -> impl Strategy<Value = HostContract> {
    let texts = [(); 5].map(|()| ".{0,12}");
    let numbers = (any::<u64>(), any::<u64>(), any::<u32>());
    (texts, numbers).prop_map(|(texts, (tsc_khz, page_size_bytes, machine_model))| {
        let [guest_os, architecture, backend, cpu_vendor, cpu_profile] = texts;
        HostContract {
            guest_os,
            architecture,
            backend,
            cpu_vendor,
            cpu_profile,
            tsc_khz,
            page_size_bytes,
            machine_model,
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
    (0..=4u64 << 30, any_map()).prop_map(|(size_bytes, chunks)| Blob::new(size_bytes, chunks))
}

fn any_boot() -> impl Strategy<Value = BootBlobs> {
    (any_blob(), any_blob(), ".{0,40}").prop_map(|(kernel, initramfs, command_line)| BootBlobs {
        kernel,
        initramfs,
        command_line,
    })
}

fn any_region() -> impl Strategy<Value = MemoryRegion> {
    (0..u64::MAX / 2, 0..=1u64 << 38, any_map()).prop_map(|(start_gpa, size_bytes, chunks)| {
        MemoryRegion {
            start_gpa,
            size_bytes,
            chunks,
        }
    })
}

fn any_disk() -> impl Strategy<Value = DiskMap> {
    (".{0,8}", 0..=8u64 << 40, any_map()).prop_map(|(name, size_bytes, chunks)| DiskMap {
        name,
        size_bytes,
        chunks,
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
        (agent_protocol, data_bytes) in (any::<u32>(), any::<u64>()),
        in_flight in vec(any_note(), 0..3),
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
            agent_protocol,
            data_bytes,
            in_flight,
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
    fn a_map_is_its_list_of_chunks(chunks in vec(any_chunk(), 0..40), at in 0..45u64) {
        let map: ChunkMap = chunks.iter().copied().collect();
        prop_assert_eq!(map.iter().collect::<Vec<_>>(), chunks.clone());
        prop_assert_eq!(map.len(), chunks.len() as u64);
        prop_assert_eq!(map.get(at), chunks.get(at as usize).copied());
        let data: Vec<_> = (0..)
            .zip(chunks.iter().copied())
            .filter(|(_, chunk)| !chunk.is_zero())
            .collect();
        prop_assert_eq!(map.iter_data().collect::<Vec<_>>(), data.clone());
        prop_assert_eq!(map.data_len(), data.len() as u64);
        // However a map came about, equal content is an equal map.
        let mut other = ChunkMap::new();
        for chunk in chunks {
            if chunk.is_zero() {
                other.push_zeros(1);
                other.push_zeros(0);
            } else {
                other.extend([chunk]);
            }
        }
        prop_assert_eq!(other, map);
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
        data_bytes in any::<u64>(),
    ) {
        let entry = LineageEntry {
            taken: WallTime { seconds, nanos },
            machine,
            message,
            data_bytes,
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
    }
}
