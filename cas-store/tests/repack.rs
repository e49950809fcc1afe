//! Repack: dead chunks go, directories with links to old packs get new ones.

mod common;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use cas_store::testing::{FaultBackend, MemoryBackend, Operation, Plan, Survivors};
use cas_store::{
    CheckLevel, ChunkId, FileBackend, PackSet, PointId, ReadError, RepackOptions, Store,
    pack_file_name,
};
use common::{capture, chunk, chunks_of, open, put, read, record, set};

/// A checkpoint directory as the engine lays it out.
fn publish(backend: &MemoryBackend, store: &Store, name: &str, ids: &[ChunkId], from: &PackSet) {
    let dir = PathBuf::from(format!("/{name}.checkpoint"));
    backend.make_dirs(&dir.join("packs")).unwrap();
    backend.make_dirs(&dir.join("generations")).unwrap();
    from.pin_into(&dir.join("packs"), ids).unwrap();
    let file = backend.create_new(&dir.join("point.record")).unwrap();
    file.write_all_at(&record(ids), 0).unwrap();
    let mut id = [0; 32];
    id[..name.len()].copy_from_slice(name.as_bytes());
    store.register_directory(&PointId(id), &dir, name).unwrap();
}

#[test]
fn repack_frees_dead_chunks_also_in_registered_directories() {
    let memory = MemoryBackend::new();
    let store = open(&memory);
    let session = capture(&store);
    let ids = put(&session, 1..101);
    let sealed = session.seal().unwrap();
    let old = sealed.packs()[0];
    publish(&memory, &store, "a", &ids[..3], sealed.chunks());
    publish(&memory, &store, "b", &ids[2..5], sealed.chunks());
    store
        .put_point(&PointId([9; 32]), &record(&ids[..1]), "kept")
        .unwrap();

    // A pack that a session pins stays.
    let report = store.repack(&chunks_of, &RepackOptions::default()).unwrap();
    assert_eq!((report.replaced_packs, report.left_alone), (0, 1));
    drop(sealed);
    // A reader that opened its pack before goes on; one that only knows the name looks again.
    let early = set(&memory, "/a.checkpoint/packs");
    assert_eq!(early.packs().unwrap(), [old]);
    let report = store.repack(&chunks_of, &RepackOptions::default()).unwrap();
    assert_eq!(
        (report.replaced_packs, report.new_packs, report.left_alone),
        (1, 1, 0)
    );
    assert!(report.written_bytes * 10 < report.freed_bytes);
    assert!(read(&early, &ids[2]) == chunk(3, 3000));
    let names = memory.paths();
    assert!(
        !names
            .iter()
            .any(|path| path.ends_with(pack_file_name(&old))),
        "{names:?}"
    );
    for (name, range) in [("a", 0..3), ("b", 2..5)] {
        let packs = set(&memory, format!("/{name}.checkpoint/packs"));
        for at in range {
            assert!(read(&packs, &ids[at]) == chunk(at as u64 + 1, 3000));
        }
    }
    assert!(read(store.chunks(), &ids[0]) == chunk(1, 3000));
    assert!(matches!(
        store.chunks().get(&ids[50], &mut [0; 3000]),
        Err(ReadError::NotFound { .. })
    ));
    // Done once, it has nothing more to do.
    let again = store.repack(&chunks_of, &RepackOptions::default()).unwrap();
    assert_eq!(again, Default::default());
}

#[test]
fn repack_leaves_packs_alone_that_unknown_places_link() {
    let memory = MemoryBackend::new();
    let store = open(&memory);
    let session = capture(&store);
    let ids = put(&session, 1..101);
    let sealed = session.seal().unwrap();
    publish(&memory, &store, "a", &ids[..3], sealed.chunks());
    memory.make_dirs(Path::new("/machine")).unwrap();
    sealed.pin_into(Path::new("/machine"), &ids).unwrap();
    drop(sealed);
    let report = store.repack(&chunks_of, &RepackOptions::default()).unwrap();
    assert_eq!((report.replaced_packs, report.left_alone), (0, 1));
    // A directory whose record is unreadable keeps its links too.
    memory.remove_tree(Path::new("/machine")).unwrap();
    memory
        .damage(Path::new("/a.checkpoint/point.record"), |bytes| {
            bytes.truncate(40)
        })
        .unwrap();
    let report = store.repack(&chunks_of, &RepackOptions::default()).unwrap();
    assert_eq!((report.left_alone, report.lost_directories), (1, 1));
    assert!(read(&set(&memory, "/a.checkpoint/packs"), &ids[0]) == chunk(1, 3000));
}

/// A store with 20 chunks: three are in the directory `a`, two in the point `kept`.
fn mostly_dead(memory: &MemoryBackend) -> (Store, Vec<ChunkId>) {
    let store = open(memory);
    let session = capture(&store);
    let ids = put(&session, 1..21);
    let sealed = session.seal().unwrap();
    publish(memory, &store, "a", &ids[..3], sealed.chunks());
    store
        .put_point(&PointId([9; 32]), &record(&ids[3..5]), "kept")
        .unwrap();
    (store, ids)
}

#[test]
fn a_directory_that_cannot_be_changed_keeps_its_old_packs() {
    let memory = MemoryBackend::new();
    let (plain, ids) = mostly_dead(&memory);
    // The only link of a repack is the new pack's into the directory.
    let backend = FaultBackend::new(memory.clone(), Plan::FailFrom(Operation::Link, 0, 2));
    let store = Store::open_with(Arc::new(backend), "/store").unwrap();
    let report = store.repack(&chunks_of, &RepackOptions::default()).unwrap();
    assert_eq!((report.replaced_packs, report.lost_directories), (1, 1));
    assert!(read(&set(&memory, "/a.checkpoint/packs"), &ids[2]) == chunk(3, 3000));
    assert!(read(plain.chunks(), &ids[4]) == chunk(5, 3000));
}

#[test]
fn a_crash_at_any_step_of_a_repack_loses_nothing() {
    let prepare = || {
        let memory = MemoryBackend::new();
        let (store, ids) = mostly_dead(&memory);
        drop(store);
        (memory.after_crash(Survivors::Everything), ids)
    };
    for operation in [Operation::Sync, Operation::Rename, Operation::Link] {
        let mut replaced = 0;
        for at in 0..12 {
            for survivors in [
                Survivors::OnlySynced,
                Survivors::AllNames,
                Survivors::Everything,
            ] {
                let (memory, ids) = prepare();
                let plan = Plan::Crash(operation, at);
                let backend = Arc::new(FaultBackend::new(memory.clone(), plan));
                let store = Store::open_with(backend, "/store").unwrap();
                replaced +=
                    usize::from(store.repack(&chunks_of, &RepackOptions::default()).is_ok());
                let after = memory.after_crash(survivors);
                let store = open(&after);
                let directory = set(&after, "/a.checkpoint/packs");
                for seed in 0..5u64 {
                    let packs = if seed < 3 { &directory } else { store.chunks() };
                    assert!(read(packs, &ids[seed as usize]) == chunk(seed + 1, 3000));
                }
                let report = store
                    .check(CheckLevel::Full, &chunks_of, &mut |_, _| {})
                    .unwrap();
                assert!(report.is_clean(), "{operation:?} {at} {survivors:?}");
            }
        }
        assert!(
            (1..36).contains(&replaced),
            "{operation:?}: {replaced} of 36 went through"
        );
    }
}
