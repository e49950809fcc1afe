//! Writers in parallel with freezes: every request is wholly before or wholly after each.

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use cow_disk::testing::MemoryFile;
use cow_disk::{Base, BlockDevice, FrozenView, LayeredDisk, Overlay};

const SLOT: usize = 3000;
const SLOTS: u64 = 64;
const DISK: u64 = (SLOTS * SLOT as u64).next_multiple_of(4096);
const WRITERS: u64 = 4;

fn overlay() -> Overlay {
    Overlay::create(MemoryFile::default(), DISK).unwrap()
}

/// Slot contents are one number all over; odd sizes make neighbours share granules.
fn slots(read: impl Fn(u64, &mut [u8])) -> Vec<u64> {
    let mut buf = vec![0; SLOT];
    (0..SLOTS)
        .map(|slot| {
            read(slot * SLOT as u64, &mut buf);
            let number = u64::from_le_bytes(buf[..8].try_into().unwrap());
            let whole = buf.chunks_exact(8).all(|word| word == number.to_le_bytes());
            assert!(whole, "slot {slot} is torn");
            number
        })
        .collect()
}

/// Writes rising numbers to its own slots, round and round; ends with the last number written.
fn writer(disk: &LayeredDisk, writer: u64, stop: &AtomicBool, progress: &AtomicU64) {
    let mut number = 0;
    while !stop.load(Ordering::Relaxed) {
        number += 1;
        let slot = slot_of(writer, number);
        let data = number.to_le_bytes().repeat(SLOT / 8);
        disk.write_at(slot * SLOT as u64, &data).unwrap();
        progress.fetch_add(1, Ordering::Relaxed);
    }
}

/// Where a writer's request goes.
fn slot_of(writer: u64, number: u64) -> u64 {
    number % (SLOTS / WRITERS) * WRITERS + writer
}

/// Each writer's slots in a view must be what some number of its requests left.
fn check_prefixes(slots: &[u64]) -> [u64; WRITERS as usize] {
    std::array::from_fn(|writer| {
        let writer = writer as u64;
        let mine = || (0..SLOTS).filter(|slot| slot % WRITERS == writer);
        let last = mine().map(|slot| slots[slot as usize]).max().unwrap();
        let mut model = HashMap::new();
        (1..=last).for_each(|number| {
            model.insert(slot_of(writer, number), number);
        });
        for slot in mine() {
            let expected = model.get(&slot).copied().unwrap_or(0);
            assert_eq!(
                slots[slot as usize], expected,
                "slot {slot} of writer {writer}"
            );
        }
        last
    })
}

fn view_slots(view: &FrozenView) -> Vec<u64> {
    slots(|at, buf| view.read_at(at, buf).unwrap())
}

#[test]
fn each_of_ten_views_is_a_prefix() {
    let disk = LayeredDisk::new(Base::zeroes(), Vec::new(), overlay()).unwrap();
    let stop = AtomicBool::new(false);
    let progress = AtomicU64::new(0);
    let mut views = Vec::new();
    thread::scope(|scope| {
        for number in 0..WRITERS {
            let (disk, stop, progress) = (&disk, &stop, &progress);
            scope.spawn(move || writer(disk, number, stop, progress));
        }
        scope.spawn(|| {
            // What it reads is in flux; it must only get in nobody's way.
            let mut buf = vec![0; DISK as usize];
            while !stop.load(Ordering::Relaxed) {
                disk.flush().unwrap();
                disk.read_at(0, &mut buf).unwrap();
            }
        });
        for round in 1..=10 {
            while progress.load(Ordering::Relaxed) < round * 500 {
                thread::sleep(Duration::from_millis(1));
            }
            let view = disk.freeze(overlay()).unwrap();
            let first = view_slots(&view);
            check_prefixes(&first);
            views.push((view, first));
            if round % 4 == 0 {
                flatten(&disk);
            }
        }
        stop.store(true, Ordering::Relaxed);
    });
    let mut before = [0; WRITERS as usize];
    for (view, first) in &views {
        assert_eq!(&view_slots(view), first, "a view has changed");
        let last = check_prefixes(first);
        assert!(
            last.iter()
                .zip(before)
                .all(|(last, before)| *last >= before)
        );
        before = last;
    }
    check_prefixes(&slots(|at, buf| disk.read_at(at, buf).unwrap()));
}

fn flatten(disk: &LayeredDisk) {
    let through = disk.layers()[disk.layers().len() - 2].id();
    disk.flatten(through, overlay(), &mut |_, _| ControlFlow::Continue(()))
        .unwrap();
}
