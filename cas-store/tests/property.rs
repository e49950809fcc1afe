//! The store against a map: any sequence of operations gives what a `BTreeMap` would.

mod common;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use cas_store::testing::{MemoryBackend, fuzz};
use cas_store::{
    CaptureOptions, CheckLevel, ChunkId, Compression, FileBackend, PackSet, PointId, RepackOptions,
    Store,
};
use common::{chunk, chunks_of, read, record};
use proptest::prelude::*;

#[derive(Debug, Clone)]
enum Op {
    /// A capture of these chunks (by seed), kept as a point, as a directory, as both or not at all.
    Capture {
        seeds: Vec<u8>,
        codec: u8,
        keep: bool,
        publish: bool,
        seal: bool,
    },
    RemovePoint(u8),
    RemoveDirectory(u8),
    Sweep,
    Repack {
        dead_percent: u8,
        max_packs: u8,
    },
    LimitPacks {
        point: u8,
        max: u8,
    },
    Reopen,
    Crash,
}

fn op() -> impl Strategy<Value = Op> {
    let seeds = prop::collection::vec(0..24u8, 0..8);
    let capture = (
        seeds,
        0..3u8,
        any::<bool>(),
        any::<bool>(),
        prop::bool::weighted(0.9),
    )
        .prop_map(|(seeds, codec, keep, publish, seal)| Op::Capture {
            seeds,
            codec,
            keep,
            publish,
            seal,
        });
    prop_oneof![
        6 => capture,
        2 => any::<u8>().prop_map(Op::RemovePoint),
        1 => any::<u8>().prop_map(Op::RemoveDirectory),
        2 => Just(Op::Sweep),
        2 => (1..101u8, 0..6u8).prop_map(|(dead_percent, max_packs)| Op::Repack { dead_percent, max_packs }),
        1 => (any::<u8>(), 1..4u8).prop_map(|(point, max)| Op::LimitPacks { point, max }),
        1 => Just(Op::Reopen),
        1 => Just(Op::Crash),
    ]
}

/// Seed 0 is the zero chunk; lengths differ.
fn data(seed: u8) -> Vec<u8> {
    if seed == 0 {
        vec![0; 500]
    } else {
        chunk(seed.into(), 100 + usize::from(seed) * 37)
    }
}

struct Model {
    backend: MemoryBackend,
    store: Store,
    /// What each point kept in the store, and each directory, must give.
    points: BTreeMap<u8, BTreeSet<u8>>,
    directories: BTreeMap<u8, BTreeSet<u8>>,
    next: u8,
}

impl Model {
    fn new() -> Self {
        let backend = MemoryBackend::new();
        let store = open(&backend);
        Self {
            backend,
            store,
            points: BTreeMap::new(),
            directories: BTreeMap::new(),
            next: 0,
        }
    }

    fn apply(&mut self, op: Op) {
        match op {
            Op::Capture {
                seeds,
                codec,
                keep,
                publish,
                seal,
            } => {
                self.capture(&seeds, codec, keep, publish, seal);
            }
            Op::RemovePoint(choice) => {
                if let Some(name) = pick(&self.points, choice) {
                    self.points.remove(&name);
                    assert!(self.store.remove_point(&PointId([name; 32])).unwrap());
                }
            }
            Op::RemoveDirectory(choice) => {
                if let Some(name) = pick(&self.directories, choice) {
                    self.directories.remove(&name);
                    remove_durably(&self.backend, &directory(name));
                }
            }
            Op::Sweep => drop(self.store.sweep(&chunks_of, false).unwrap()),
            Op::Repack {
                dead_percent,
                max_packs,
            } => {
                let options = RepackOptions {
                    dead_percent,
                    max_packs: max_packs.into(),
                };
                let report = self.store.repack(&chunks_of, &options).unwrap();
                assert_eq!(report.left_alone, 0);
            }
            Op::LimitPacks { point, max } => self.limit_packs(point, max.into()),
            Op::Reopen => self.store = open(&self.backend),
            Op::Crash => {
                // Everything so far was called saved, so nothing may be lost.
                self.backend = self
                    .backend
                    .after_crash(cas_store::testing::Survivors::OnlySynced);
                self.store = open(&self.backend);
            }
        }
    }

    fn capture(&mut self, seeds: &[u8], codec: u8, keep: bool, publish: bool, seal: bool) {
        let compression = match codec {
            0 => Compression::None,
            1 => Compression::Lz4,
            _ => Compression::Zstd { level: 1 },
        };
        let options = CaptureOptions {
            compression,
            max_pack_chunks: 3,
            ..CaptureOptions::default()
        };
        let capture = self.store.begin_capture(options).unwrap();
        let ids: Vec<_> = seeds
            .iter()
            .map(|seed| capture.put(&data(*seed)).unwrap())
            .collect();
        let given: u64 = seeds
            .iter()
            .filter(|seed| **seed != 0)
            .map(|seed| data(*seed).len() as u64)
            .sum();
        assert_eq!(capture.stats().data_bytes, given);
        if !seal {
            return;
        }
        let sealed = capture.seal().unwrap();
        let name = self.next;
        self.next += 1;
        let id = PointId([name; 32]);
        let named: BTreeSet<u8> = seeds.iter().copied().collect();
        if publish {
            let dir = directory(name);
            self.backend.make_dirs(&dir.join("packs")).unwrap();
            sealed.pin_into(&dir.join("packs"), &ids).unwrap();
            let file = self.backend.create_new(&dir.join("point.record")).unwrap();
            file.write_all_at(&record(&ids), 0).unwrap();
            file.sync().unwrap();
            self.backend.sync_dir(&dir).unwrap();
            self.store
                .register_directory(&id, &dir, "published")
                .unwrap();
            self.directories.insert(name, named.clone());
        }
        if keep {
            self.store.put_point(&id, &record(&ids), "kept").unwrap();
            self.points.insert(name, named);
        }
    }

    /// Saves a point again so that it lies in few packs.
    fn limit_packs(&mut self, choice: u8, max: usize) {
        let Some(name) = pick(&self.points, choice) else {
            return;
        };
        let ids: Vec<_> = self.points[&name]
            .iter()
            .map(|seed| ChunkId::of(&data(*seed)))
            .collect();
        let capture = self.store.begin_capture(CaptureOptions::default()).unwrap();
        let adopted = capture.adopt(self.store.chunks(), &ids).unwrap();
        assert_eq!(adopted.missing, []);
        capture.limit_packs(&ids, max).unwrap();
        let sealed = capture.seal().unwrap();
        let target = Path::new("/limited");
        self.backend.make_dirs(target).unwrap();
        let packs = sealed.pin_into(target, &ids).unwrap().packs;
        // Chunks that are in an old and in the new pack may be taken from either.
        assert!(
            packs.len() <= max.max(1) + 1,
            "{} packs, at most {max}",
            packs.len()
        );
        remove_durably(&self.backend, target);
    }

    fn check(&self) {
        for (name, seeds) in &self.points {
            let stored = self
                .store
                .point_record(&PointId([*name; 32]))
                .unwrap()
                .unwrap();
            let ids: BTreeSet<_> = stored
                .chunks(32)
                .map(|id| ChunkId(id.try_into().unwrap()))
                .collect();
            let expected: BTreeSet<_> =
                seeds.iter().map(|seed| ChunkId::of(&data(*seed))).collect();
            assert_eq!(ids, expected);
            check_set(self.store.chunks(), seeds);
        }
        for (name, seeds) in &self.directories {
            let packs = directory(*name).join("packs");
            check_set(
                &PackSet::with_backend(Arc::new(self.backend.clone()), [packs]),
                seeds,
            );
        }
        let report = self
            .store
            .check(CheckLevel::Full, &chunks_of, &mut |_, _| {})
            .unwrap();
        assert!(report.is_clean(), "{:?}", report.findings);
        let log = self.store.points().unwrap();
        assert_eq!(
            log.iter().filter(|point| point.has_record).count(),
            self.points.len()
        );
    }
}

fn open(backend: &MemoryBackend) -> Store {
    Store::open_with(Arc::new(backend.clone()), "/store").unwrap()
}

fn remove_durably(backend: &MemoryBackend, dir: &Path) {
    backend.remove_tree(dir).unwrap();
    backend.sync_dir(dir.parent().unwrap()).unwrap();
}

fn directory(name: u8) -> PathBuf {
    format!("/out/{name}.checkpoint").into()
}

fn pick(map: &BTreeMap<u8, BTreeSet<u8>>, choice: u8) -> Option<u8> {
    map.keys()
        .nth(usize::from(choice) % map.len().max(1))
        .copied()
}

fn check_set(set: &PackSet, seeds: &BTreeSet<u8>) {
    for seed in seeds.iter().filter(|seed| **seed != 0) {
        let data = data(*seed);
        assert!(
            read(set, &ChunkId::of(&data)) == data,
            "chunk of seed {seed}"
        );
    }
}

proptest! {
    #[test]
    fn any_history_gives_what_was_saved(ops in prop::collection::vec(op(), 1..25)) {
        let mut model = Model::new();
        for op in ops {
            model.apply(op);
            model.check();
        }
        // When all is removed, nothing is left but the log.
        for name in model.directories.clone().into_keys() {
            model.backend.remove_tree(&directory(name)).unwrap();
        }
        for name in model.points.clone().into_keys() {
            model.store.remove_point(&PointId([name; 32])).unwrap();
        }
        model.store.sweep(&chunks_of, false).unwrap();
        let left: Vec<_> = model.backend.paths().into_iter()
            .filter(|path| path.extension().is_some_and(|end| end == "pack")).collect();
        prop_assert!(left.is_empty(), "{left:?}");
    }

    #[test]
    fn any_bytes_decode_or_fail(data in prop::collection::vec(any::<u8>(), 0..600)) {
        let _ = fuzz::pack_index(&data);
        fuzz::pack_footer(&data);
    }

    #[test]
    fn mutated_packs_decode_or_fail(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6),
        cut in any::<prop::sample::Index>(),
    ) {
        let mut data = sample_pack();
        let whole = fuzz::pack_index(&data);
        prop_assert_eq!(whole, 4);
        for (at, byte) in &changes {
            let at = at.index(data.len());
            data[at] = *byte;
        }
        prop_assert!(fuzz::pack_index(&data) <= 4);
        data.truncate(cut.index(data.len()));
        let _ = fuzz::pack_index(&data);
    }
}

/// The bytes of a pack with chunks of each codec.
fn sample_pack() -> Vec<u8> {
    let backend = MemoryBackend::new();
    let store = open(&backend);
    let capture = store.begin_capture(CaptureOptions::default()).unwrap();
    for (seed, compression) in [
        Compression::None,
        Compression::Lz4,
        Compression::Zstd { level: 3 },
        Compression::Lz4,
    ]
    .into_iter()
    .enumerate()
    {
        let data = chunk(seed as u64, 400);
        let prepared = cas_store::PreparedChunk::new(&data, compression).unwrap();
        assert!(capture.append(&prepared).unwrap());
    }
    let sealed = capture.seal().unwrap();
    let path = store
        .packs_dir()
        .join(cas_store::pack_file_name(&sealed.packs()[0]));
    let file = backend.open(&path).unwrap();
    let mut bytes = vec![0; file.len_bytes().unwrap() as usize];
    file.read_exact_at(&mut bytes, 0).unwrap();
    bytes
}
