//! Several threads in one capture, several captures beside a sweep, several processes in one store.

mod common;

use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use cas_store::{CaptureOptions, CheckLevel, ChunkId, PackSet, PointId, RepackOptions, Store};
use common::{chunk, chunks_of, read, record};

#[test]
fn threads_put_the_same_chunks_and_each_is_stored_once() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path()).unwrap();
    let options = CaptureOptions {
        max_pack_bytes: 200_000,
        ..CaptureOptions::default()
    };
    let capture = store.begin_capture(options).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let capture = &capture;
            scope.spawn(move || {
                for at in 0..100 {
                    capture
                        .put(&chunk((at + thread * 25) % 100, 20_000))
                        .unwrap();
                }
            });
        }
    });
    let stats = capture.stats();
    assert_eq!(stats.data_bytes, 400 * 20_000);
    assert_eq!(stats.shared_bytes, 300 * 20_000);
    let sealed = capture.seal().unwrap();
    assert!(sealed.packs().len() > 3);
    let mut count = 0;
    sealed.chunks().for_each_chunk(|_, _| count += 1).unwrap();
    assert_eq!(count, 100);
    // Readers share one set.
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for seed in 0..100 {
                    let data = chunk(seed, 20_000);
                    assert!(read(store.chunks(), &ChunkId::of(&data)) == data);
                }
            });
        }
    });
}

/// One saver: captures with shared and own chunks, publishes, registers, keeps or drops.
fn saver(root: &Path, name: u8, rounds: u8) {
    let store = Store::open(root.join("store")).unwrap();
    for round in 0..rounds {
        let capture = store.begin_capture(CaptureOptions::default()).unwrap();
        let seeds = [
            1,
            u64::from(round % 3) + 2,
            1000 * u64::from(name) + u64::from(round),
        ];
        let ids: Vec<_> = seeds
            .iter()
            .map(|seed| capture.put(&chunk(*seed, 3000)).unwrap())
            .collect();
        let sealed = capture.seal().unwrap();
        let checkpoint = root.join(format!("{name}-{round}.checkpoint"));
        let packs = checkpoint.join("packs");
        std::fs::create_dir_all(&packs).unwrap();
        sealed.pin_into(&packs, &ids).unwrap();
        std::fs::write(checkpoint.join("point.record"), record(&ids)).unwrap();
        let mut id = [name; 32];
        id[1] = round;
        store
            .register_directory(&PointId(id), &checkpoint, "line")
            .unwrap();
        if round % 2 == 0 {
            store
                .put_point(&PointId(id), &record(&ids), "line")
                .unwrap();
        }
        drop(sealed);
        match round % 4 {
            1 => std::fs::remove_dir_all(&checkpoint).unwrap(),
            2 => drop(store.remove_point(&PointId(id)).unwrap()),
            _ => {}
        }
    }
}

/// All that is still there is whole.
fn verify(root: &Path) {
    let store = Store::open(root.join("store")).unwrap();
    let report = store
        .check(CheckLevel::Full, &chunks_of, &mut |_, _| {})
        .unwrap();
    assert!(report.is_clean(), "{:?}", report.findings);
    let mut checkpoints = 0;
    for entry in std::fs::read_dir(root).unwrap() {
        let path = entry.unwrap().path();
        let Ok(record) = std::fs::read(path.join("point.record")) else {
            continue;
        };
        let set = PackSet::open([path.join("packs")]);
        chunks_of(&record, &mut |id| assert_eq!(read(&set, &id).len(), 3000)).unwrap();
        checkpoints += 1;
    }
    assert!(checkpoints > 5);
}

#[test]
fn captures_beside_sweep_and_repack_lose_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path().join("store")).unwrap();
    let done = Arc::new(AtomicBool::new(false));
    std::thread::scope(|scope| {
        let sweeper = scope.spawn(|| {
            let mut replaced = 0;
            while !done.load(Ordering::Relaxed) {
                store.sweep(&chunks_of, false).unwrap();
                let options = RepackOptions {
                    dead_percent: 10,
                    max_packs: 4,
                };
                replaced += store.repack(&chunks_of, &options).unwrap().replaced_packs;
                std::thread::sleep(Duration::from_millis(1));
            }
            replaced
        });
        let savers: Vec<_> = (1..=3)
            .map(|name| {
                let root = dir.path();
                scope.spawn(move || saver(root, name, 16))
            })
            .collect();
        let ended: Vec<_> = savers.into_iter().map(|saver| saver.join()).collect();
        done.store(true, Ordering::Relaxed);
        assert!(ended.iter().all(Result::is_ok));
        sweeper.join().unwrap();
    });
    verify(dir.path());
    let options = RepackOptions {
        dead_percent: 1,
        max_packs: 2,
    };
    store.sweep(&chunks_of, false).unwrap();
    store.repack(&chunks_of, &options).unwrap();
    verify(dir.path());
}

const CHILD_ROOT: &str = "CAS_STORE_TEST_CHILD_ROOT";
const CHILD_NAME: &str = "CAS_STORE_TEST_CHILD_NAME";

/// Not a test by itself: what the processes below run.
#[test]
fn child_process() {
    let Ok(root) = std::env::var(CHILD_ROOT) else {
        return;
    };
    let root = Path::new(&root);
    let name = std::env::var(CHILD_NAME).unwrap();
    if name == "hang" {
        let store = Store::open(root.join("store")).unwrap();
        let capture = store.begin_capture(CaptureOptions::default()).unwrap();
        capture.put(&chunk(7, 50_000)).unwrap();
        let staged = root.join(".x.checkpoint.staging-1");
        std::fs::create_dir(&staged).unwrap();
        capture.stage_outside(&staged).unwrap();
        std::fs::write(root.join("ready"), "").unwrap();
        std::thread::sleep(Duration::from_secs(60));
        return;
    }
    saver(root, name.parse().unwrap(), 16);
}

fn spawn_child(root: &Path, name: &str) -> std::process::Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child_process"])
        .env(CHILD_ROOT, root)
        .env(CHILD_NAME, name)
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap()
}

#[test]
fn processes_share_a_store() {
    let dir = tempfile::tempdir().unwrap();
    let mut children: Vec<_> = ["1", "2", "3"]
        .iter()
        .map(|name| spawn_child(dir.path(), name))
        .collect();
    let store = Store::open(dir.path().join("store")).unwrap();
    while children
        .iter_mut()
        .any(|child| child.try_wait().unwrap().is_none())
    {
        store.sweep(&chunks_of, false).unwrap();
        std::thread::sleep(Duration::from_millis(2));
    }
    for mut child in children {
        assert!(child.wait().unwrap().success());
    }
    verify(dir.path());
}

#[test]
fn what_a_killed_process_staged_is_removed_by_the_next_opening_only() {
    let dir = tempfile::tempdir().unwrap();
    let mut child = spawn_child(dir.path(), "hang");
    let begun = Instant::now();
    while !dir.path().join("ready").exists() {
        assert!(
            begun.elapsed() < Duration::from_secs(50),
            "the child never began"
        );
        std::thread::sleep(Duration::from_millis(5));
    }
    let count = |part: &str| {
        std::fs::read_dir(dir.path().join("store").join(part))
            .unwrap()
            .count()
    };
    // While it lives, nobody touches its files.
    let store = Store::open(dir.path().join("store")).unwrap();
    store.sweep(&chunks_of, false).unwrap();
    assert_eq!((count("staging"), count("pins")), (1, 3));
    assert!(dir.path().join(".x.checkpoint.staging-1").exists());
    child.kill().unwrap();
    child.wait().unwrap();
    Store::open(dir.path().join("store")).unwrap();
    assert_eq!((count("staging"), count("pins")), (0, 0));
    assert!(!dir.path().join(".x.checkpoint.staging-1").exists());
}
