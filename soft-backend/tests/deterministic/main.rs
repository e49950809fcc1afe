//! Deterministic mode: the same input gives the same machine, whatever the host does meanwhile.

mod guest_code;
mod machine;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use vmm_core::machine::MachineEvent;

use guest_code::{LOG, LOG_ENTRIES, LOG_INDEX, REQUESTS, TICKS};
use machine::{Machine, Picture};

/// Instructions of a run: thousands of ticks and messages, hundreds of disk requests.
const RUN: u64 = 6_000_000;

/// Runs a new machine to `RUN` by the stops given.
fn run(vcpus: u8, seed: u64, stops: &[u64]) -> (Machine, Picture) {
    let mut machine = Machine::new(vcpus, seed);
    for stop in stops.iter().chain([&RUN]) {
        let event = machine.running.run_until(*stop).unwrap();
        assert_eq!(event, MachineEvent::CountReached);
    }
    let picture = machine.picture();
    (machine, picture)
}

/// What makes a comparison worth something: everything has been at work, on all vCPUs, in turns.
fn assert_busy(machine: &Machine, vcpus: u8) {
    for vcpu in 0..u64::from(vcpus) {
        let ticks = machine.read_u32(TICKS + 4 * vcpu);
        assert!(ticks > 100, "vCPU {vcpu} had {ticks} ticks");
    }
    assert!(machine.read_u32(REQUESTS) > 100);
    let entries = machine.read_u32(LOG_INDEX).min(LOG_ENTRIES);
    let writer = |entry: u32| machine.read_u32(LOG + 8 * u64::from(entry) + 4);
    let writers: Vec<u32> = (0..entries).map(writer).collect();
    let changes = writers.windows(2).filter(|pair| pair[0] != pair[1]).count();
    assert!(vcpus == 1 || changes > 100, "{changes} changes of the vCPU");
    assert!((0..u32::from(vcpus)).all(|vcpu| writers.contains(&vcpu)));
}

#[test]
fn two_runs_are_equal_and_another_seed_gives_another_run() {
    for vcpus in [1, 2, 4] {
        let (machine, first) = run(vcpus, 1, &[]);
        assert_busy(&machine, vcpus);
        assert!(first.writes.0 > 50, "{} disk writes", first.writes.0);
        assert_eq!(run(vcpus, 1, &[]).1, first, "{vcpus} vCPUs");
        let (_, other) = run(vcpus, 2, &[]);
        assert_ne!(other.ram, first.ram, "{vcpus} vCPUs");
        assert_ne!(other.writes, first.writes, "{vcpus} vCPUs");
    }
}

#[test]
fn a_busy_host_changes_nothing() {
    let quiet = [1, 2, 4].map(|vcpus| run(vcpus, 7, &[]).1);
    let done = AtomicBool::new(false);
    let busy = std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
        }
        let busy = [1, 2, 4].map(|vcpus| run(vcpus, 7, &[]).1);
        done.store(true, Ordering::Relaxed);
        busy
    });
    assert_eq!(busy, quiet);
}

/// Most of this guest's code is of 32 bits, which is never translated; whole systems are compared by
/// `examples/boot.rs`.
#[test]
fn the_tier_changes_nothing() {
    for vcpus in [1, 2, 4] {
        let picture = |after| {
            let mut machine = Machine::translating(vcpus, 11, after);
            machine.running.run_until(RUN).unwrap();
            machine.picture()
        };
        let interpreted = picture(None);
        for after in [1, 8, 64] {
            assert_eq!(picture(Some(after)), interpreted, "{vcpus} vCPUs, {after}");
        }
    }
}

#[test]
fn stops_between_change_nothing() {
    let (_, straight) = run(2, 3, &[]);
    let stops: Vec<u64> = (1..15).map(|n| n * 377_001).collect();
    let (_, stopped) = run(2, 3, &stops);
    assert_eq!(stopped, straight);
}

#[test]
fn what_the_host_asks_meanwhile_changes_nothing() {
    let (_, alone) = run(2, 5, &[]);
    let mut machine = Machine::new(2, 5);
    let tracker = machine.running.tracker().clone();
    tracker.start().unwrap();
    let done = AtomicBool::new(false);
    let pages = std::thread::scope(|scope| {
        let asker = scope.spawn(|| {
            let mut pages = 0;
            while !done.load(Ordering::Relaxed) {
                pages += tracker.take().unwrap().pages().count();
                std::thread::sleep(Duration::from_micros(300));
            }
            pages
        });
        machine.running.run_until(RUN).unwrap();
        done.store(true, Ordering::Relaxed);
        asker.join().unwrap()
    });
    assert!(pages > 10, "the tracker saw {pages} pages");
    assert_eq!(machine.picture(), alone);
}

#[test]
fn restored_machines_go_on_alike() {
    let (mut machine, _) = run(2, 9, &[]);
    let records = machine.running.pause().unwrap().save().unwrap();
    let restore = || {
        let (built, disk) = Machine::build(2, 9);
        machine.copy_ram_to(built.ram());
        let running = built.restore(&records).unwrap();
        let mut restored = Machine { running, disk };
        restored.running.run_until(RUN / 2).unwrap();
        restored.picture()
    };
    let first = restore();
    assert!(first.writes.0 > 10, "{} disk writes", first.writes.0);
    assert_eq!(restore(), first);
}
