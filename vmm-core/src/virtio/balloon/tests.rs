use vm_memory::Bytes;

use super::*;
use crate::hypervisor::Vm;
use crate::testing::{Driver, TestIrq, test_ram};
use crate::unit::StateUnit;
use crate::virtio::VirtioMmio;

struct NoVm;

impl Vm for NoVm {}

struct Bench {
    balloon: Arc<Balloon>,
    slot: Arc<VirtioMmio>,
    driver: Driver,
    tracker: DirtyTracker,
}

fn bench() -> Bench {
    let (ram, irq) = (test_ram().unwrap(), Arc::<TestIrq>::default());
    let tracker = DirtyTracker::new(ram.clone(), Arc::new(NoVm));
    let balloon = Arc::new(Balloon::new(tracker.clone()));
    let slot = VirtioMmio::new("balloon0", 3, balloon.clone(), ram.clone(), irq.clone());
    let slot = Arc::new(slot.unwrap());
    slot.resume();
    let driver = Driver::start(slot.clone(), ram, irq, 3, u64::MAX).unwrap();
    Bench {
        balloon,
        slot,
        driver,
        tracker,
    }
}

const PAGES: u64 = Driver::BUFFERS + 0x10_0000;

impl Bench {
    fn fill(&self, count: u64) {
        let data = vec![9; (count * PAGE_BYTES) as usize];
        self.driver
            .ram()
            .write_slice(&data, GuestAddress(PAGES))
            .unwrap();
        self.tracker.take().unwrap();
    }

    fn page(&self, index: u64) -> u8 {
        let at = GuestAddress(PAGES + index * PAGE_BYTES + 5);
        self.driver.ram().read_obj(at).unwrap()
    }

    fn hand_in(&mut self, queue: usize, buffer: (u64, u32, bool)) {
        self.driver.submit(queue, &[buffer]).unwrap();
        self.driver.notify(queue);
        self.driver.wait_used(queue).unwrap();
    }
}

#[test]
fn inflated_pages_are_given_back_and_count_as_written() {
    let mut bench = bench();
    bench.fill(6);
    let first = (PAGES / PAGE_BYTES) as u32;
    let mut list = Vec::new();
    // One of them is not in memory.
    for page in [first + 1, u32::MAX, first + 4, first + 2] {
        list.extend(page.to_le_bytes());
    }
    let at = GuestAddress(Driver::BUFFERS);
    bench.driver.ram().write_slice(&list, at).unwrap();
    bench.hand_in(INFLATE, (Driver::BUFFERS, list.len() as u32, false));
    let values: Vec<u8> = (0..6).map(|index| bench.page(index)).collect();
    assert_eq!(values, [9, 0, 0, 9, 0, 9]);
    let dirty = bench.tracker.take().unwrap();
    assert!(dirty.contains(Gpa(PAGES + PAGE_BYTES)));
    assert!(!dirty.contains(Gpa(PAGES)));
    assert_eq!(bench.balloon.stats().discarded_bytes, 3 * PAGE_BYTES);
    bench.hand_in(DEFLATE, (Driver::BUFFERS, list.len() as u32, false));
}

#[test]
fn reported_ranges_are_given_back_in_whole_pages() {
    let mut bench = bench();
    bench.fill(4);
    let odd = (PAGES + 100, 3 * PAGE_BYTES as u32, true);
    bench.hand_in(REPORTING, odd);
    let values: Vec<u8> = (0..4).map(|index| bench.page(index)).collect();
    assert_eq!(values, [9, 0, 0, 9], "the broken pages stay");
    bench.hand_in(REPORTING, (u64::MAX - 100, 4096, true));
    bench.hand_in(REPORTING, (15 << 20, 4 << 20, true));
    assert_eq!(bench.balloon.stats().discarded_bytes, 2 * PAGE_BYTES);
}

#[test]
fn a_target_is_announced_and_state_survives() {
    let bench = bench();
    bench.slot.quiesce();
    let saved = bench.slot.save().unwrap();
    let generation = bench.driver.read(0xfc);
    bench.balloon.set_target_pages(77);
    assert_ne!(bench.driver.read(0xfc), generation);
    assert_eq!(bench.driver.read(0x60) & 2, 2, "configuration interrupt");
    assert_eq!(bench.driver.config(0, 4), 77_u32.to_le_bytes());
    bench.driver.write(0x104, 70);
    assert_eq!(bench.balloon.stats().actual_pages, 70);
    assert_ne!(bench.slot.save().unwrap(), saved, "the change must be seen");
    bench.slot.restore(&saved).unwrap();
    assert_eq!(bench.slot.save().unwrap(), saved);
    assert_eq!(bench.balloon.stats().target_pages, 0);
}
