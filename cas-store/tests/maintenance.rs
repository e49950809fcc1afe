//! Copies instead of links, check and repair.

mod common;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use cas_store::testing::{FaultBackend, MemoryBackend, Operation, Plan, Survivors};
use cas_store::{
    CaptureOptions, CheckLevel, ChunkId, Compression, FileBackend, FindingKind, PackId, PackSet,
    PointId, ReadError, Severity, Store, StoreError, pack_file_name, repair_packs,
};
use common::{capture, chunk, chunks_of, open, put, read, record, set};

const EPERM: i32 = 1;
const EXDEV: i32 = 18;
const EMLINK: i32 = 31;

fn pack_in(dir: &Path, id: &PackId) -> PathBuf {
    dir.join(pack_file_name(id))
}

#[test]
fn where_links_are_refused_packs_are_copied_and_verified() {
    for errno in [EXDEV, EMLINK, EPERM] {
        let memory = MemoryBackend::new();
        let backend = FaultBackend::new(memory.clone(), Plan::FailFrom(Operation::Link, 0, errno));
        let store = Store::open_with(Arc::new(backend), "/store").unwrap();
        let session = capture(&store);
        let ids = put(&session, 1..9);
        let sealed = session.seal().unwrap();
        memory.make_dirs(Path::new("/target")).unwrap();
        let pinned = sealed.pin_into(Path::new("/target"), &ids).unwrap();
        assert_eq!(pinned.linked_bytes, 0);
        assert!(pinned.copied_bytes > 3000);
        let original = pack_in(&store.packs_dir(), &sealed.packs()[0]);
        let copy = pack_in(Path::new("/target"), &sealed.packs()[0]);
        let stat = |path: &Path| memory.stat(path).unwrap();
        assert_eq!(stat(&original).len_bytes, stat(&copy).len_bytes);
        assert!(!stat(&original).same_file(&stat(&copy)));
        assert_eq!(stat(&copy).mode, 0o400);
        for (seed, id) in (1..9).zip(&ids) {
            assert!(read(&set(&memory, "/target"), id) == chunk(seed, 3000));
        }
        // The copy is durable.
        let after = memory.after_crash(Survivors::OnlySynced);
        assert!(set(&after, "/target").contains(&ids[0]).unwrap());
        // Damage is not copied.
        memory.make_dirs(Path::new("/second")).unwrap();
        memory.damage(&original, |bytes| bytes[100] ^= 1).unwrap();
        let error = sealed.pin_into(Path::new("/second"), &ids).unwrap_err();
        assert!(
            matches!(error, StoreError::Read(ReadError::DamagedChunk { .. })),
            "{error}"
        );
        assert!(memory.list(Path::new("/second")).unwrap().is_empty());
    }
}

#[test]
#[cfg(target_os = "linux")]
fn another_file_system_gets_a_copy() {
    let here = tempfile::tempdir().unwrap();
    let there = tempfile::tempdir_in("/dev/shm").unwrap();
    let store = Store::open(here.path()).unwrap();
    let session = capture(&store);
    let ids = put(&session, 1..5);
    let sealed = session.seal().unwrap();
    let pinned = sealed.pin_into(there.path(), &ids).unwrap();
    assert!(pinned.linked_bytes + pinned.copied_bytes > 0);
    assert!(read(&PackSet::open([there.path()]), &ids[3]) == chunk(4, 3000));
}

#[test]
fn check_tells_what_is_damaged_and_how_badly() {
    let memory = MemoryBackend::new();
    let store = open(&memory);
    let options = CaptureOptions {
        compression: Compression::None,
        max_pack_chunks: 4,
        ..CaptureOptions::default()
    };
    let session = store.begin_capture(options).unwrap();
    let ids = put(&session, 1..13);
    let sealed = session.seal().unwrap();
    let packs = sealed.packs().to_vec();
    store
        .put_point(&PointId([1; 32]), &record(&ids), "all")
        .unwrap();
    memory.make_dirs(Path::new("/good")).unwrap();
    sealed.pin_into(Path::new("/good"), &ids).unwrap();
    drop(sealed);
    // The good copies become files of their own.
    for id in &packs {
        let path = pack_in(Path::new("/good"), id);
        let file = memory.open(&path).unwrap();
        let mut bytes = vec![0; file.len_bytes().unwrap() as usize];
        file.read_exact_at(&mut bytes, 0).unwrap();
        memory.remove(&path).unwrap();
        memory
            .create_new(&path)
            .unwrap()
            .write_all_at(&bytes, 0)
            .unwrap();
    }
    let clean = store
        .check(CheckLevel::Full, &chunks_of, &mut |_, _| {})
        .unwrap();
    assert_eq!(
        (clean.packs, clean.chunks, clean.verified_chunks),
        (3, 12, 12)
    );
    assert!(clean.is_clean());

    let damaged = pack_in(&store.packs_dir(), &packs[0]);
    memory.damage(&damaged, |bytes| bytes[20] ^= 1).unwrap();
    let headless = pack_in(&store.packs_dir(), &packs[1]);
    memory
        .damage(&headless, |bytes| bytes.truncate(3000))
        .unwrap();
    let quick = store
        .check(CheckLevel::Quick, &chunks_of, &mut |_, _| {})
        .unwrap();
    assert_eq!(quick.verified_chunks, 0);
    let missing = quick
        .findings
        .iter()
        .filter(|found| matches!(found.kind, FindingKind::Missing(_)))
        .count();
    assert_eq!(
        (quick.findings.len(), missing, quick.bad_chunks.len()),
        (5, 4, 4)
    );
    let mut steps = 0;
    let full = store
        .check(CheckLevel::Full, &chunks_of, &mut |_, _| steps += 1)
        .unwrap();
    assert_eq!((full.verified_chunks, steps), (8, 8));
    assert_eq!(full.bad_chunks.len(), 5);
    assert!(
        full.findings
            .iter()
            .all(|found| found.severity == Severity::Error)
    );
    let both = PackSet::with_backend(
        Arc::new(memory.clone()),
        [store.packs_dir(), "/good".into()],
    );
    let both = both.check(CheckLevel::Full, &mut |_, _| {}).unwrap();
    let warning = both
        .findings
        .iter()
        .find(|found| matches!(found.kind, FindingKind::Chunk(..)));
    assert_eq!(warning.unwrap().severity, Severity::Warning);

    // A sweep keeps the damaged packs: what is missing may be in them.
    let swept = store.sweep(&chunks_of, false).unwrap();
    assert_eq!(
        (
            swept.removed_packs,
            swept.damaged_packs,
            swept.missing_chunks
        ),
        (0, 1, 4)
    );

    let nothing = store
        .repair_from(&set(&memory, "/nowhere"), &chunks_of)
        .unwrap();
    assert_eq!(
        (
            nothing.recovered_chunks,
            nothing.lost_chunks.len(),
            nothing.kept_packs
        ),
        (0, 5, 2)
    );
    let repaired = store
        .repair_from(&set(&memory, "/good"), &chunks_of)
        .unwrap();
    assert_eq!(
        (repaired.recovered_chunks, repaired.lost_chunks.len()),
        (5, 0)
    );
    assert_eq!((repaired.replaced_packs, repaired.kept_packs), (2, 0));
    assert!(
        store
            .check(CheckLevel::Full, &chunks_of, &mut |_, _| {})
            .unwrap()
            .is_clean()
    );
    for (seed, id) in (1..13).zip(&ids) {
        assert!(read(store.chunks(), id) == chunk(seed, 3000));
    }
}

/// A save or restore that is under way reads from the pack that it has pinned, and lists no others.
#[test]
fn repair_takes_no_pinned_pack_away() {
    let memory = MemoryBackend::new();
    let store = open(&memory);
    let session = capture(&store);
    let ids = put(&session, 1..5);
    let sealed = session.seal().unwrap();
    let pack = pack_in(&store.packs_dir(), &sealed.packs()[0]);
    memory.make_dirs(Path::new("/good")).unwrap();
    let mut bytes = Vec::new();
    memory
        .damage(&pack, |damaged| {
            bytes.clone_from(damaged);
            damaged[20] ^= 1;
        })
        .unwrap();
    let good = pack_in(Path::new("/good"), &sealed.packs()[0]);
    memory
        .create_new(&good)
        .unwrap()
        .write_all_at(&bytes, 0)
        .unwrap();

    let repair = || {
        open(&memory)
            .repair_from(&set(&memory, "/good"), &chunks_of)
            .unwrap()
    };
    let report = repair();
    assert_eq!((report.replaced_packs, report.kept_packs), (0, 1));
    assert!(memory.stat(&pack).is_ok(), "it is pinned");
    for (seed, id) in (1..5).zip(&ids) {
        assert!(read(open(&memory).chunks(), id) == chunk(seed, 3000));
    }
    drop(sealed);
    let report = repair();
    assert_eq!((report.replaced_packs, report.kept_packs), (1, 0));
    assert!(memory.stat(&pack).is_err(), "nobody needs it");
}

#[test]
fn repair_that_makes_the_same_pack_again_keeps_it() {
    let memory = MemoryBackend::new();
    let store = open(&memory);
    let session = capture(&store);
    let id = put(&session, 1..2)[0];
    let sealed = session.seal().unwrap();
    memory.make_dirs(Path::new("/x")).unwrap();
    let path = pack_in(Path::new("/x"), &sealed.packs()[0]);
    memory
        .create_new(&path)
        .unwrap()
        .write_all_at(b"not a pack", 0)
        .unwrap();
    let damaged = set(&memory, "/x");
    let report = repair_packs(&damaged, Path::new("/x"), &[id], store.chunks()).unwrap();
    assert_eq!((report.recovered_chunks, report.replaced_packs), (1, 1));
    assert!(read(&set(&memory, "/x"), &id) == chunk(1, 3000));
}

#[test]
fn a_capture_stores_again_what_an_unreadable_pack_held() {
    let memory = MemoryBackend::new();
    let store = open(&memory);
    let session = capture(&store);
    let id = put(&session, 1..2)[0];
    let pack = session.seal().unwrap().packs()[0];
    memory
        .damage(&pack_in(&store.packs_dir(), &pack), |bytes| {
            bytes.truncate(50)
        })
        .unwrap();
    let store = open(&memory);
    let session = capture(&store);
    assert_eq!(put(&session, 1..2), [id]);
    let sealed = session.seal().unwrap();
    assert_eq!(sealed.packs(), [pack], "the same pack, made anew");
    assert!(read(&set(&memory, "/store/packs"), &id) == chunk(1, 3000));
}

#[test]
fn a_sample_looks_at_some() {
    let memory = MemoryBackend::new();
    let store = open(&memory);
    let session = capture(&store);
    put(&session, 1..401);
    drop(session.seal().unwrap());
    let report = store
        .chunks()
        .check(CheckLevel::Sample(25), &mut |_, _| {})
        .unwrap();
    assert!(
        (20..250).contains(&report.verified_chunks),
        "{}",
        report.verified_chunks
    );
}

#[test]
fn copies_cut_short_by_a_kill_are_removed_but_not_running_ones() {
    let memory = MemoryBackend::new();
    let store = open(&memory);
    memory.make_dirs(Path::new("/machine")).unwrap();
    let session = capture(&store);
    let ids = put(&session, 1..3);
    let sealed = session.seal().unwrap();
    sealed.pin_into(Path::new("/machine"), &ids).unwrap();
    let pinned = sealed.packs()[0];
    let running = format!("/store/packs/.{pinned}-0123456789abcdef.tmp");
    let dead = [
        format!("/store/packs/.{}-0123456789abcdef.tmp", PackId([7; 32])),
        "/store/packs/.repair-0123456789abcdef-0.tmp".to_owned(),
        format!("/machine/.{pinned}-0123456789abcdef.tmp"),
    ];
    for path in dead.iter().chain([&running]) {
        memory.create_new(Path::new(path)).unwrap();
    }
    store.sweep(&chunks_of, true).unwrap();
    assert!(
        dead.iter().all(|path| memory.stat(Path::new(path)).is_ok()),
        "a dry run"
    );
    store.sweep(&chunks_of, false).unwrap();
    set(&memory, "/machine").keep_only(&ids).unwrap();
    assert!(
        dead.iter()
            .all(|path| memory.stat(Path::new(path)).is_err())
    );
    assert!(memory.stat(Path::new(&running)).is_ok());
    assert!(read(&set(&memory, "/machine"), &ids[0]) == chunk(1, 3000));
    drop(sealed);
    store.sweep(&chunks_of, false).unwrap();
    assert!(memory.stat(Path::new(&running)).is_err());
}

#[test]
fn a_machine_lets_go_of_what_its_head_does_not_need() {
    let memory = MemoryBackend::new();
    let store = open(&memory);
    memory.make_dirs(Path::new("/machine")).unwrap();
    let mut heads = Vec::new();
    for start in [1, 11] {
        let session = capture(&store);
        let ids = put(&session, start..start + 5);
        session
            .seal()
            .unwrap()
            .pin_into(Path::new("/machine"), &ids)
            .unwrap();
        heads.push(ids);
    }
    let machine = set(&memory, "/machine");
    assert_eq!(machine.packs().unwrap().len(), 2);
    let error = machine.keep_only(&[ChunkId::of(b"unknown")]).unwrap_err();
    assert!(matches!(
        error,
        StoreError::Read(ReadError::NotFound { .. })
    ));
    assert_eq!(machine.packs().unwrap().len(), 2);
    assert!(machine.keep_only(&heads[1]).unwrap().removed_bytes > 3000);
    assert_eq!(machine.packs().unwrap().len(), 1);
    assert!(read(&machine, &heads[1][4]) == chunk(15, 3000));
    assert!(!machine.contains(&heads[0][0]).unwrap());
}

#[test]
#[cfg(target_os = "linux")]
fn a_set_of_very_many_packs_keeps_few_descriptors() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path()).unwrap();
    let options = CaptureOptions {
        max_pack_chunks: 1,
        ..CaptureOptions::default()
    };
    let session = store.begin_capture(options).unwrap();
    let ids: Vec<_> = (1..401)
        .map(|seed| session.put(&chunk(seed, 100)).unwrap())
        .collect();
    drop(session.seal().unwrap());
    let packs = PackSet::open([store.packs_dir()]);
    for _ in 0..2 {
        for (seed, id) in (1..401).zip(&ids) {
            assert!(read(&packs, id) == chunk(seed, 100));
        }
    }
    let held = std::fs::read_dir("/proc/self/fd").unwrap().filter(|entry| {
        let link = std::fs::read_link(entry.as_ref().unwrap().path());
        link.is_ok_and(|path| path.starts_with(store.packs_dir()))
    });
    let held = held.count();
    assert!((100..=256).contains(&held), "{held}");
    // Gone under a closed descriptor: listed again, then not found.
    assert_eq!(store.sweep(&chunks_of, false).unwrap().removed_packs, 400);
    let errors = ids
        .iter()
        .filter(|id| packs.get(id, &mut [0; 100]).is_err())
        .count();
    assert!(errors >= 144, "{errors}");
}

#[test]
fn a_capture_shares_nothing_with_a_pack_in_which_damage_was_found() {
    let memory = MemoryBackend::new();
    let store = open(&memory);
    let session = capture(&store);
    let id = put(&session, 1..2)[0];
    let pack = session.seal().unwrap().packs()[0];
    let path = pack_in(&store.packs_dir(), &pack);
    memory.damage(&path, |bytes| bytes[20] ^= 1).unwrap();
    let found = store
        .check(CheckLevel::Full, &chunks_of, &mut |_, _| {})
        .unwrap();
    assert_eq!(found.damaged_packs, [pack]);
    let session = capture(&store);
    assert_eq!(put(&session, 1..2), [id]);
    assert_eq!(session.stats().shared_bytes, 0);
    session.seal().unwrap();
    let found = store
        .check(CheckLevel::Full, &chunks_of, &mut |_, _| {})
        .unwrap();
    assert!(found.bad_chunks.is_empty(), "{:?}", found.findings);
}
