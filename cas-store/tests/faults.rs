//! Crashes at every sync, failures of every write, and what must be true afterwards.

mod common;

use std::path::Path;
use std::sync::Arc;

use cas_store::testing::{FaultBackend, MemoryBackend, Operation, Plan, Survivors};
use cas_store::{
    CaptureOptions, CheckLevel, ChunkId, FileBackend, PackSet, PointId, Store, StoreError,
};
use common::{chunk, chunks_of, read, record};

const ENOSPC: i32 = 28;
const EIO: i32 = 5;
const ALL_SURVIVORS: [Survivors; 3] = [
    Survivors::OnlySynced,
    Survivors::AllNames,
    Survivors::Everything,
];

fn options() -> CaptureOptions {
    CaptureOptions {
        max_pack_chunks: 2,
        ..CaptureOptions::default()
    }
}

/// One capture of a few chunks, some of which exist, that ends in a point and in a checkpoint directory.
fn save(store: &Store, backend: &dyn FileBackend, round: u8) -> Result<Vec<ChunkId>, StoreError> {
    let capture = store.begin_capture(options())?;
    let mut ids = Vec::new();
    for seed in [
        0,
        u64::from(round) * 3 + 1,
        u64::from(round) * 3 + 2,
        u64::from(round) * 3 + 3,
    ] {
        ids.push(capture.put(&chunk(seed, 2000))?);
    }
    let sealed = capture.seal()?;
    let dir = format!("/out-{round}/packs");
    durable_files::create_durable_dirs(backend, Path::new(&dir))?;
    sealed.pin_into(Path::new(&dir), &ids)?;
    store.put_point(&PointId([round; 32]), &record(&ids), "line")?;
    Ok(ids)
}

/// Everything that a store promises, whatever happened before: what was saved is whole, the rest leaves no trace.
fn verify(backend: MemoryBackend, saved: &[(u8, Vec<ChunkId>)], context: &str) {
    let store = Store::open_with(Arc::new(backend.clone()), "/store").unwrap();
    for (round, ids) in saved {
        let kept = store.point_record(&PointId([*round; 32])).unwrap();
        assert_eq!(kept.unwrap(), record(ids), "{context}");
        let outside =
            PackSet::with_backend(Arc::new(backend.clone()), [format!("/out-{round}/packs")]);
        for id in ids {
            assert_eq!(read(store.chunks(), id).len(), 2000, "{context}");
            assert_eq!(read(&outside, id).len(), 2000, "{context}");
        }
    }
    let report = store
        .check(CheckLevel::Full, &chunks_of, &mut |_, _| {})
        .unwrap();
    assert!(report.is_clean(), "{context}: {:?}", report.findings);
    let leftover: Vec<_> = backend
        .paths()
        .into_iter()
        .filter(|path| path.starts_with("/store/staging") || path.starts_with("/store/pins"))
        .collect();
    assert!(leftover.is_empty(), "{context}: {leftover:?}");
    // And it goes on working.
    save(&store, &backend, 99).unwrap();
    store.sweep(&chunks_of, false).unwrap();
    let report = store
        .check(CheckLevel::Full, &chunks_of, &mut |_, _| {})
        .unwrap();
    assert!(report.is_clean(), "{context}: {:?}", report.findings);
}

/// Runs three rounds under `plan`; returns what claimed success.
fn run(memory: &MemoryBackend, plan: Plan) -> (Vec<(u8, Vec<ChunkId>)>, u64) {
    let backend = FaultBackend::new(memory.clone(), plan);
    let mut saved = Vec::new();
    let open = || Store::open_with(Arc::new(backend.clone()), "/store");
    // What a creation that failed left is taken up.
    if let Ok(store) = open().or_else(|_| open()) {
        for round in 1..=3 {
            if let Ok(ids) = save(&store, &backend, round) {
                saved.push((round, ids));
            }
            if round == 2 {
                // May fail; must not harm.
                let _ = store.sweep(&chunks_of, false);
            }
        }
    }
    (saved, backend.seen())
}

#[test]
fn a_crash_at_any_sync_loses_nothing_that_was_called_saved() {
    let (saved, syncs) = run(&MemoryBackend::new(), Plan::Count(Operation::Sync));
    assert_eq!(saved.len(), 3);
    assert!(syncs > 20, "{syncs}");
    for at in 0..=syncs {
        for survivors in ALL_SURVIVORS {
            let memory = MemoryBackend::new();
            let (saved, _) = run(&memory, Plan::Crash(Operation::Sync, at));
            verify(
                memory.after_crash(survivors),
                &saved,
                &format!("sync {at} {survivors:?}"),
            );
        }
    }
}

#[test]
fn a_crash_at_any_rename_or_link_loses_nothing_that_was_called_saved() {
    for operation in [Operation::Rename, Operation::Link, Operation::Create] {
        let (_, count) = run(&MemoryBackend::new(), Plan::Count(operation));
        assert!(count > 3);
        for at in 0..=count {
            for survivors in ALL_SURVIVORS {
                let memory = MemoryBackend::new();
                let (saved, _) = run(&memory, Plan::Crash(operation, at));
                let context = format!("{operation:?} {at} {survivors:?}");
                verify(memory.after_crash(survivors), &saved, &context);
            }
        }
    }
}

#[test]
fn a_failed_write_fails_its_round_and_no_other() {
    for operation in [
        Operation::Write,
        Operation::Create,
        Operation::Rename,
        Operation::Link,
    ] {
        let (_, count) = run(&MemoryBackend::new(), Plan::Count(operation));
        for at in 0..count {
            let memory = MemoryBackend::new();
            let (saved, _) = run(&memory, Plan::FailOnce(operation, at, ENOSPC));
            assert!(
                saved.len() >= 2,
                "{operation:?} {at}: only {} rounds",
                saved.len()
            );
            verify(memory, &saved, &format!("{operation:?} {at}"));
        }
    }
}

#[test]
fn a_full_disk_publishes_nothing_and_keeps_what_was_there() {
    let (_, count) = run(&MemoryBackend::new(), Plan::Count(Operation::Write));
    for at in 0..count {
        let memory = MemoryBackend::new();
        let (saved, _) = run(&memory, Plan::FailFrom(Operation::Write, at, ENOSPC));
        assert!(saved.len() < 3);
        verify(memory, &saved, &format!("write {at}"));
    }
}

#[test]
fn after_a_failed_sync_nothing_claims_success() {
    let (_, count) = run(&MemoryBackend::new(), Plan::Count(Operation::Sync));
    let mut poisoned = 0;
    for at in 0..count {
        let memory = MemoryBackend::new();
        let backend = FaultBackend::new(memory.clone(), Plan::FailOnce(Operation::Sync, at, EIO));
        let Ok(store) = Store::open_with(Arc::new(backend.clone()), "/store") else {
            continue;
        };
        let mut failed_in_store = false;
        for round in 1..=3 {
            match save(&store, &backend, round) {
                Ok(_) => assert!(!failed_in_store, "sync {at}: success after a failed sync"),
                Err(StoreError::Io {
                    action: "sync",
                    path,
                    ..
                }) if path.starts_with("/store") => {
                    failed_in_store = true;
                }
                Err(StoreError::Poisoned { .. }) => {
                    assert!(failed_in_store);
                    poisoned += 1;
                }
                // The directory outside is the caller's; the store is not at fault.
                Err(StoreError::Io { action: "sync", .. }) => {}
                Err(error) => panic!("sync {at}: {error}"),
            }
        }
    }
    assert!(poisoned > 10, "{poisoned}");
}

#[test]
fn what_a_failed_removal_leaves_goes_with_the_next_opening() {
    let outside = Path::new("/outside");
    let (mut failed, mut count) = (0, u64::MAX);
    for at in 0..20 {
        let memory = MemoryBackend::new();
        memory.create_dir(outside).unwrap();
        memory.create_dir(&outside.join("gone")).unwrap();
        drop(memory.create_new(&outside.join("gone/file")).unwrap());
        drop(Store::open_with(Arc::new(memory.clone()), "/store").unwrap());
        // Opening takes some syncs, too.
        let backend = FaultBackend::new(memory.clone(), Plan::FailOnce(Operation::Sync, at, EIO));
        let Ok(store) = Store::open_with(Arc::new(backend.clone()), "/store") else {
            continue;
        };
        let removed = store.remove_outside(&outside.join("gone"), &mut |_| {});
        drop(store);
        count = count.min(backend.seen());
        failed += u64::from(removed.is_err());
        drop(Store::open_with(Arc::new(memory.clone()), "/store").unwrap());
        let left = memory.list(outside).unwrap();
        let whole = memory.stat(&outside.join("gone/file")).is_ok();
        assert!(
            left.is_empty() || (removed.is_err() && whole),
            "sync {at}: {left:?}"
        );
    }
    assert!(failed >= 2, "{failed} of {count}");
}

#[test]
fn the_next_opening_remembers_a_failed_sync() {
    let (_, count) = run(&MemoryBackend::new(), Plan::Count(Operation::Sync));
    let poisoned = |memory: &MemoryBackend| memory.stat(Path::new("/store/poisoned")).is_ok();
    let mut seen = 0;
    for at in 0..count {
        let memory = MemoryBackend::new();
        let (saved, _) = run(&memory, Plan::FailOnce(Operation::Sync, at, EIO));
        if !poisoned(&memory) {
            continue;
        }
        seen += 1;
        // As long as syncs fail nobody gets on.
        for later in 0..3 {
            let plan = Plan::FailFrom(Operation::Sync, later, EIO);
            let failing = FaultBackend::new(memory.clone(), plan);
            Store::open_with(Arc::new(failing), "/store").unwrap_err();
            assert!(poisoned(&memory));
        }
        let syncs = FaultBackend::new(memory.clone(), Plan::Count(Operation::Sync));
        Store::open_with(Arc::new(syncs.clone()), "/store").unwrap();
        let packs = memory.list(Path::new("/store/packs")).unwrap().len() as u64;
        assert!(syncs.seen() > packs && !poisoned(&memory));
        // What was there is shared only after it was read again.
        assert!(memory.stat(Path::new("/store/verified")).is_err());
        verify(
            memory.after_crash(Survivors::OnlySynced),
            &saved,
            &format!("sync {at}"),
        );
    }
    assert!(seen > 10, "{seen}");
}

#[test]
fn reads_that_fail_are_errors_not_other_bytes() {
    let memory = MemoryBackend::new();
    let (saved, _) = run(&memory, Plan::Count(Operation::Read));
    let mut failures = 0;
    for at in 0..40 {
        let backend = FaultBackend::new(memory.clone(), Plan::FailOnce(Operation::Read, at, EIO));
        let packs = PackSet::with_backend(Arc::new(backend), ["/store/packs"]);
        for id in saved.iter().flat_map(|(_, ids)| ids) {
            let mut buf = vec![0; 2000];
            match packs.get(id, &mut buf) {
                Ok(len) => assert_eq!(ChunkId::of(&buf[..len]), *id),
                Err(_) => failures += 1,
            }
        }
    }
    assert!(failures > 10, "{failures}");
}

/// Damage to every byte of a pack: either it does not matter to a chunk or that chunk is an error.
#[test]
fn no_damaged_byte_gives_other_data() {
    let memory = MemoryBackend::new();
    let store = Store::open_with(Arc::new(memory.clone()), "/store").unwrap();
    let capture = store.begin_capture(CaptureOptions::default()).unwrap();
    let ids: Vec<_> = (0..3)
        .map(|seed| capture.put(&chunk(seed, 300)).unwrap())
        .collect();
    let sealed = capture.seal().unwrap();
    let path = store
        .packs_dir()
        .join(cas_store::pack_file_name(&sealed.packs()[0]));
    let len = memory.stat(&path).unwrap().len_bytes as usize;
    for at in 0..len {
        memory.damage(&path, |bytes| bytes[at] ^= 0x10).unwrap();
        let packs = PackSet::with_backend(Arc::new(memory.clone()), ["/store/packs"]);
        let mut errors = 0;
        for (seed, id) in ids.iter().enumerate() {
            let mut buf = vec![0; 300];
            match packs.get(id, &mut buf) {
                Ok(read) => assert!(buf[..read] == chunk(seed as u64, 300), "byte {at}"),
                Err(_) => errors += 1,
            }
        }
        // Nothing in a pack is unchecked but the reserved bytes, which the checksum covers as well.
        assert!(errors > 0, "byte {at} of {len}");
        let report = packs.check(CheckLevel::Full, &mut |_, _| {}).unwrap();
        assert!(!report.is_clean(), "byte {at}");
        memory.damage(&path, |bytes| bytes[at] ^= 0x10).unwrap();
    }
    for cut in 0..len {
        let packs = PackSet::with_backend(Arc::new(memory.clone()), ["/store/packs"]);
        let mut whole = Vec::new();
        memory
            .damage(&path, |bytes| {
                whole = bytes.clone();
                bytes.truncate(cut)
            })
            .unwrap();
        assert!(packs.get(&ids[0], &mut [0; 300]).is_err(), "cut at {cut}");
        memory.damage(&path, |bytes| *bytes = whole).unwrap();
    }
}
