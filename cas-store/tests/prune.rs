//! Prune: points go, and with them what only they needed; what it says beforehand is what it does.

mod common;

use std::path::Path;
use std::sync::Arc;

use cas_store::testing::{FaultBackend, MemoryBackend, Operation, Plan, Survivors};
use cas_store::{
    CaptureOptions, CheckLevel, ChunkId, FileBackend, PointId, PruneOptions, PruneReport,
    PruneStep, RepackOptions, Store, StoreError,
};
use common::{capture, chunk, chunks_of, open, put, read, record, set};

const POINTS: u8 = 5;

fn id(number: u8) -> PointId {
    PointId([number; 32])
}

/// Points of which each has ten chunks of its own, ten that it shares with the next, and all the first ten.
fn history(store: &Store) -> Vec<Vec<ChunkId>> {
    let mut points = Vec::new();
    for number in 0..u64::from(POINTS) {
        let capture = capture(store);
        let mut ids = put(&capture, 1..11);
        ids.extend(put(&capture, 100 * number + 100..100 * number + 110));
        ids.extend(put(&capture, 10 * number + 20..10 * number + 40));
        let sealed = capture.seal().unwrap();
        let point = id(number as u8);
        store.put_point(&point, &record(&ids), "a line").unwrap();
        drop(sealed);
        points.push(ids);
    }
    points
}

/// A checkpoint directory with what the point has of its own and half of what it shares.
fn publish(memory: &MemoryBackend, store: &Store, ids: &[ChunkId]) {
    let dir = Path::new("/x.checkpoint");
    memory.make_dirs(&dir.join("packs")).unwrap();
    store.pin_into(&dir.join("packs"), ids).unwrap();
    let file = memory.create_new(&dir.join("point.record")).unwrap();
    file.write_all_at(&record(ids), 0).unwrap();
    file.sync().unwrap();
    for dir in [dir, Path::new("/")] {
        memory.sync_dir(dir).unwrap();
    }
    store.register_directory(&id(9), dir, "x").unwrap();
}

fn options(give_up: impl IntoIterator<Item = u8>, dry_run: bool) -> PruneOptions {
    PruneOptions {
        give_up: give_up.into_iter().map(id).collect(),
        repack: RepackOptions {
            dead_percent: 10,
            ..RepackOptions::default()
        },
        dry_run,
    }
}

fn prune(store: &Store, options: &PruneOptions) -> PruneReport {
    store.prune(&chunks_of, options, &mut |_| ()).unwrap()
}

fn store_bytes(memory: &MemoryBackend) -> u64 {
    let names = memory.list(Path::new("/store/packs")).unwrap();
    let len = |name| memory.stat(&Path::new("/store/packs").join(name)).unwrap();
    names.into_iter().map(|name| len(name).len_bytes).sum()
}

fn check(store: &Store) {
    let report = store
        .check(CheckLevel::Full, &chunks_of, &mut |_, _| {})
        .unwrap();
    assert!(report.is_clean(), "{:?}", report.findings);
}

#[test]
fn whatever_points_go_the_others_stay_and_a_dry_run_says_so_exactly() {
    for gone in 0..1_u8 << POINTS {
        let is_gone = |number: &u8| gone >> number & 1 == 1;
        let memory = MemoryBackend::new();
        let store = open(&memory);
        let points = history(&store);
        let paths = memory.paths();
        let dry = prune(&store, &options((0..POINTS).filter(is_gone), true));
        assert_eq!(memory.paths(), paths, "a dry run changes nothing");
        let before = store_bytes(&memory);
        let done = prune(&store, &options((0..POINTS).filter(is_gone), false));
        assert_eq!(dry, done, "{gone:b}");
        assert_eq!(done.given_up.len() as u32, gone.count_ones());
        let freed = done.freed_bytes() - done.record_bytes;
        assert_eq!(before - store_bytes(&memory), freed, "{gone:b}");
        check(&store);
        let left: Vec<u8> = (0..POINTS).filter(|number| !is_gone(number)).collect();
        for number in &left {
            let read = |id| read(store.chunks(), id).len();
            assert!(
                points[usize::from(*number)]
                    .iter()
                    .all(|id| read(id) == 3000)
            );
            assert!(store.point_record(&id(*number)).unwrap().is_some());
        }
        assert_eq!(store.points().unwrap().len(), usize::from(POINTS), "lines");
        // Nothing is left that nobody needs.
        let fresh = MemoryBackend::new();
        let anew = capture(&open(&fresh));
        for number in &left {
            for id in &points[usize::from(*number)] {
                anew.put(&read(store.chunks(), id)).unwrap();
            }
        }
        drop(anew.seal().unwrap());
        let (found, least) = (store_bytes(&memory), store_bytes(&fresh));
        assert!(found * 10 <= least * 12, "{gone:b}: {found}, {least}");
        // Done once, it has nothing more to do.
        let again = prune(&store, &options([], false));
        assert_eq!((again.freed_bytes(), again.repack), (0, Default::default()));
    }
}

#[test]
fn a_point_that_is_read_stays_until_it_was() {
    let memory = MemoryBackend::new();
    let store = open(&memory);
    history(&store);
    let used = store.use_point(&id(1)).unwrap().unwrap();
    let second = store.use_point(&id(1)).unwrap();
    assert!(matches!(
        store.remove_point(&id(1)),
        Err(StoreError::InUse { point }) if point == id(1)
    ));
    for dry_run in [true, false] {
        let report = prune(&store, &options([1, 2], dry_run));
        assert_eq!((report.given_up, report.in_use), (vec![id(2)], vec![id(1)]));
    }
    check(&store);
    drop((used, second));
    assert!(store.remove_point(&id(1)).unwrap());
    assert!(!store.remove_point(&id(1)).unwrap());
    assert!(store.use_point(&id(1)).unwrap().is_none());
}

#[test]
fn what_sessions_pin_stays_and_what_dead_ones_pinned_does_not() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path()).unwrap();
    let keep = |seed, point| {
        let capture = store.begin_capture(CaptureOptions::default()).unwrap();
        let id = capture.put(&chunk(seed, 5000)).unwrap();
        let sealed = capture.seal().unwrap();
        store.put_point(&point, id.as_bytes(), "").unwrap();
        (id, sealed)
    };
    let (pinned, sealed) = keep(1, id(0));
    drop(keep(2, id(1)));
    // A session whose process is gone: its lock is free.
    let pack = store
        .chunks()
        .info(&keep(3, id(2)).0)
        .unwrap()
        .unwrap()
        .pack;
    let name = "0123456789abcdef";
    let pins = dir.path().join("pins");
    std::fs::write(pins.join(format!("{name}.lock")), "").unwrap();
    std::fs::write(pins.join(format!("{name}.pin")), format!("{pack}\n")).unwrap();
    let dry = prune(&store, &options([0, 1, 2], true));
    assert!(pins.join(format!("{name}.pin")).exists());
    let done = prune(&store, &options([0, 1, 2], false));
    assert_eq!(dry, done);
    assert_eq!((done.sweep.removed_packs, done.sweep.pinned_packs), (2, 1));
    assert!(read(store.chunks(), &pinned) == chunk(1, 5000));
    drop(sealed);
    assert_eq!(prune(&store, &options([], false)).sweep.removed_packs, 1);
}

#[test]
fn a_crash_at_any_step_loses_nothing_and_the_next_prune_ends_it() {
    let prepare = || {
        let memory = MemoryBackend::new();
        let store = open(&memory);
        let points = history(&store);
        publish(&memory, &store, &points[2][..25]);
        (memory.after_crash(Survivors::Everything), points)
    };
    let whole = {
        let (memory, _) = prepare();
        prune(&open(&memory), &options([0, 2, 3], false));
        store_bytes(&memory)
    };
    let mut steps = Vec::new();
    for operation in [Operation::Sync, Operation::Rename, Operation::Link] {
        for at in 0..12 {
            for survivors in [
                Survivors::OnlySynced,
                Survivors::AllNames,
                Survivors::Everything,
            ] {
                let (memory, points) = prepare();
                let plan = Plan::Crash(operation, at);
                let backend = Arc::new(FaultBackend::new(memory.clone(), plan));
                let mut last = None;
                if let Ok(store) = Store::open_with(backend, "/store") {
                    // It fails where the power does.
                    let _ = store.prune(&chunks_of, &options([0, 2, 3], false), &mut |step| {
                        last = Some(step);
                    });
                }
                steps.push(last);
                let after = memory.after_crash(survivors);
                let store = open(&after);
                check(&store);
                for number in [1, 4] {
                    for id in &points[number] {
                        assert_eq!(read(&set(&after, "/store/packs"), id).len(), 3000);
                    }
                }
                let directory = set(&after, "/x.checkpoint/packs");
                let whole_directory = || {
                    let read = |id| read(&directory, id).len();
                    assert!(points[2][..25].iter().all(|id| read(id) == 3000));
                };
                whole_directory();
                prune(&store, &options([0, 2, 3], false));
                check(&store);
                whole_directory();
                let again = prune(&store, &options([], true));
                assert_eq!((again.freed_bytes(), again.repack), (0, Default::default()));
                assert_eq!(store_bytes(&after), whole, "{operation:?} {at}");
            }
        }
    }
    for step in [
        None,
        Some(PruneStep::PacksSwept),
        Some(PruneStep::DirectoriesChanged),
        Some(PruneStep::PacksReplaced),
    ] {
        assert!(steps.contains(&step), "{steps:?}");
    }
}

#[test]
fn what_a_point_has_for_itself_is_what_deleting_it_gives_back() {
    let memory = MemoryBackend::new();
    let store = open(&memory);
    let points = history(&store);
    let usage = store.point_usage(&chunks_of).unwrap();
    assert_eq!(usage.len(), usize::from(POINTS));
    for (number, point) in usage.iter().enumerate() {
        assert_eq!(point.id, id(number as u8));
        let stored = |chunk: &ChunkId| {
            let info = store.chunks().info(chunk).unwrap().unwrap();
            u64::from(info.stored_bytes)
        };
        let others = points
            .iter()
            .enumerate()
            .filter(|(other, _)| *other != number);
        let others: std::collections::HashSet<_> = others.flat_map(|(_, ids)| ids).collect();
        let of = |own: bool| {
            let mut ids = points[number].clone();
            ids.sort_unstable();
            ids.dedup();
            ids.retain(|id| others.contains(id) != own);
            ids.iter().map(stored).sum::<u64>()
        };
        let bytes = point.bytes.unwrap();
        assert_eq!((bytes.own_bytes, bytes.shared_bytes), (of(true), of(false)));
    }
    // What somebody else has by links is not given back.
    memory.make_dirs(Path::new("/machine")).unwrap();
    store.pin_into(Path::new("/machine"), &points[0]).unwrap();
    let own = store.point_usage(&chunks_of).unwrap()[0].bytes.unwrap();
    assert_eq!(own.own_bytes, 0);
    // One that cannot be read harms no other.
    store.put_point(&id(0), b"?", "").unwrap();
    let usage = store.point_usage(&chunks_of).unwrap();
    assert!(usage[0].bytes.is_none() && usage[1].bytes.is_some());
}
