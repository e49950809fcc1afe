use std::sync::Arc;

use vm_memory::{Bytes, GuestAddress};

use super::Blk;
use crate::ram::GuestRam;
use crate::testing::{Driver, MemoryDisk, TestIrq, test_ram};
use crate::unit::StateUnit;
use crate::virtio::VirtioMmio;

const HEADER: u64 = Driver::BUFFERS;
const STATUS: u64 = Driver::BUFFERS + 0x100;
const DATA: u64 = Driver::BUFFERS + 0x1000;
const DISK_BYTES: usize = 1 << 20;

fn copy_ram(source: &GuestRam) -> GuestRam {
    let mut all = vec![0; 16 << 20];
    source.read_slice(&mut all, GuestAddress(0)).unwrap();
    let copy = test_ram().unwrap();
    copy.write_slice(&all, GuestAddress(0)).unwrap();
    copy
}

struct Bench {
    disk: Arc<MemoryDisk>,
    slot: Arc<VirtioMmio>,
    driver: Driver,
}

fn slot(disk: &Arc<MemoryDisk>, ram: &GuestRam, irq: &Arc<TestIrq>) -> Arc<VirtioMmio> {
    let blk = Arc::new(Blk::new(disk.clone(), "disk0").unwrap());
    Arc::new(VirtioMmio::new("blk0", 0, blk, ram.clone(), irq.clone()).unwrap())
}

fn bench_with(disk: MemoryDisk, mask: u64) -> Bench {
    let (disk, ram, irq) = (Arc::new(disk), test_ram().unwrap(), Arc::default());
    let slot = slot(&disk, &ram, &irq);
    slot.resume();
    let driver = Driver::start(slot.clone(), ram, irq, 1, mask).unwrap();
    Bench { disk, slot, driver }
}

fn bench() -> Bench {
    bench_with(MemoryDisk::new(DISK_BYTES, false), u64::MAX)
}

impl Bench {
    fn header(&self, kind: u32, sector: u64) {
        let mut header = [0; 16];
        header[..4].copy_from_slice(&kind.to_le_bytes());
        header[8..].copy_from_slice(&sector.to_le_bytes());
        let ram = self.driver.ram();
        ram.write_slice(&header, GuestAddress(HEADER)).unwrap();
        ram.write_obj(0xff_u8, GuestAddress(STATUS)).unwrap();
    }

    /// One request with one data buffer; status and used length.
    fn request(&mut self, kind: u32, sector: u64, data: Option<(u32, bool)>) -> (u8, u32) {
        self.header(kind, sector);
        let mut chain = vec![(HEADER, 16, false)];
        chain.extend(data.map(|(length, writes)| (DATA, length, writes)));
        chain.push((STATUS, 1, true));
        self.driver.submit(0, &chain).unwrap();
        self.driver.notify(0);
        let (_, length) = self.driver.wait_used(0).unwrap();
        (self.status(), length)
    }

    fn status(&self) -> u8 {
        self.driver.ram().read_obj(GuestAddress(STATUS)).unwrap()
    }

    fn put(&self, data: &[u8]) {
        let ram = self.driver.ram();
        ram.write_slice(data, GuestAddress(DATA)).unwrap();
    }

    fn get(&self, length: usize) -> Vec<u8> {
        let mut data = vec![0; length];
        let ram = self.driver.ram();
        ram.read_slice(&mut data, GuestAddress(DATA)).unwrap();
        data
    }
}

#[test]
fn what_is_written_is_read_back_and_lies_on_the_disk() {
    for mask in [u64::MAX, 0] {
        let mut bench = bench_with(MemoryDisk::new(DISK_BYTES, false), mask);
        // More than a worker's buffer, so that it goes in pieces.
        let data: Vec<u8> = (0..600 << 10).map(|i| (i / 7) as u8).collect();
        bench.put(&data);
        assert_eq!(bench.request(1, 3, Some((600 << 10, false))), (0, 1));
        bench.put(&vec![0; 600 << 10]);
        assert_eq!(
            bench.request(0, 3, Some((600 << 10, true))),
            (0, (600 << 10) + 1)
        );
        assert_eq!(bench.get(600 << 10), data);
        assert_eq!(bench.disk.contents()[3 * 512..][..600 << 10], data);
    }
}

#[test]
fn requests_that_cannot_be_served_fail_with_their_status() {
    let mut bench = bench();
    let last = (DISK_BYTES / 512) as u64;
    assert_eq!(
        bench.request(0, last, Some((512, true))).0,
        1,
        "past the end"
    );
    assert_eq!(bench.request(0, u64::MAX, Some((512, true))).0, 1);
    assert_eq!(bench.request(1, 0, Some((100, false))).0, 1, "not a sector");
    assert_eq!(bench.request(77, 0, None).0, 2, "unknown");
    assert_eq!(bench.request(4, 0, None), (0, 1), "flush");
    assert_eq!(bench.disk.flushes(), 1);
    let mut read_only = bench_with(MemoryDisk::new(DISK_BYTES, true), u64::MAX);
    assert_eq!(read_only.driver.features() >> 5 & 1, 1);
    assert_eq!(read_only.request(1, 0, Some((512, false))).0, 1);
    assert_eq!(read_only.request(0, 0, Some((512, true))).0, 0);
}

#[test]
fn identity_discard_and_write_zeroes() {
    let mut bench = bench();
    assert_eq!(bench.request(8, 0, Some((20, true))), (0, 21));
    assert_eq!(&bench.get(6), b"disk0\0");
    bench.put(&[7; 4096]);
    assert_eq!(bench.request(1, 8, Some((4096, false))).0, 0);
    let range = |sector: u64, sectors: u32, flags: u32| {
        let mut raw = sector.to_le_bytes().to_vec();
        raw.extend(sectors.to_le_bytes());
        raw.extend(flags.to_le_bytes());
        raw
    };
    bench.put(&range(8, 2, 0));
    assert_eq!(bench.request(11, 0, Some((16, false))).0, 0, "discard");
    bench.put(&range(12, 2, 1));
    assert_eq!(bench.request(13, 0, Some((16, false))).0, 0, "write zeroes");
    let contents = bench.disk.contents();
    for (sector, value) in [(8, 0), (9, 0), (10, 7), (11, 7), (12, 0), (13, 0), (14, 7)] {
        assert_eq!(contents[sector * 512], value, "sector {sector}");
    }
    bench.put(&range(8, 2, 1));
    assert_eq!(
        bench.request(11, 0, Some((16, false))).0,
        2,
        "discard has no flags"
    );
    bench.put(&range(2047, 2, 0));
    assert_eq!(bench.request(11, 0, Some((16, false))).0, 1, "past the end");
}

#[test]
fn the_configuration_space_shows_size_and_limits() {
    let bench = bench();
    let config = bench.driver.config(0, 60);
    assert_eq!(config[..8], 2048_u64.to_le_bytes());
    assert_eq!(config[12..16], 126_u32.to_le_bytes());
    assert_eq!(config[20..24], 512_u32.to_le_bytes());
    assert_eq!(bench.driver.config(60, 4), [0; 4], "nothing behind it");
    assert_eq!(bench.driver.config(u64::MAX - 0x100, 4), [0; 4]);
}

#[test]
fn state_survives_and_changes_are_undone() {
    let mut bench = bench();
    bench.put(&[1; 512]);
    bench.request(1, 0, Some((512, false)));
    bench.slot.quiesce();
    let saved = bench.slot.save().unwrap();
    let ram = copy_ram(bench.driver.ram());
    let irq: Arc<TestIrq> = Arc::default();
    let copy = slot(&bench.disk, &ram, &irq);
    let driver = bench.driver.moved_to(copy.clone(), ram, irq);
    bench.slot.resume();
    bench.request(1, 0, Some((512, false)));
    bench.slot.quiesce();
    assert_ne!(bench.slot.save().unwrap(), saved, "the change must be seen");
    bench.slot.restore(&saved).unwrap();
    assert_eq!(bench.slot.save().unwrap(), saved);
    // A second device takes the state too, and goes on where the first one was.
    copy.restore(&saved).unwrap();
    assert_eq!(copy.save().unwrap(), saved);
    copy.resume();
    bench.driver = driver;
    bench.slot = copy;
    assert_eq!(bench.request(0, 0, Some((512, true))), (0, 513));
    assert_eq!(bench.get(512), [1; 512]);
}

#[test]
fn another_disk_or_slot_does_not_take_the_state() {
    let bench = bench();
    bench.slot.quiesce();
    let saved = bench.slot.save().unwrap();
    let (ram, irq) = (test_ram().unwrap(), Arc::default());
    let smaller = slot(&Arc::new(MemoryDisk::new(512, false)), &ram, &irq);
    assert!(smaller.restore(&saved).is_err());
    let read_only = slot(&Arc::new(MemoryDisk::new(DISK_BYTES, true)), &ram, &irq);
    assert!(read_only.restore(&saved).is_err(), "writes were offered");
    let mut cut = saved.clone();
    cut.bytes.truncate(cut.bytes.len() - 1);
    assert!(bench.slot.restore(&cut).is_err());
    assert_eq!(
        bench.slot.save().unwrap(),
        saved,
        "a refusal changes nothing"
    );
}

#[test]
fn a_flush_does_not_hold_a_pause_up_and_is_not_lost() {
    let mut bench = bench();
    bench.disk.hold_flushes(true);
    bench.header(4, 0);
    bench
        .driver
        .submit(0, &[(HEADER, 16, false), (STATUS, 1, true)])
        .unwrap();
    bench.driver.notify(0);
    while bench.disk.flushes() == 0 {
        std::thread::yield_now();
    }
    bench.slot.quiesce();
    let saved = bench.slot.save().unwrap();
    assert_eq!(bench.driver.used(0), None);
    // The copy has memory of its own.
    let (ram, irq) = (copy_ram(bench.driver.ram()), Arc::<TestIrq>::default());
    let disk = Arc::new(MemoryDisk::new(DISK_BYTES, false));
    let copy = slot(&disk, &ram, &irq);
    copy.restore(&saved).unwrap();
    assert_eq!(copy.save().unwrap(), saved, "not yet reissued");
    let mut driver = bench.driver.moved_to(copy.clone(), ram, irq);
    copy.resume();
    assert!(driver.wait_used(0).is_some(), "reissued in the copy");
    assert_eq!(disk.flushes(), 1);
    // And goes on in the source.
    bench.disk.hold_flushes(false);
    assert_eq!(bench.driver.used(0), None, "at rest nothing completes");
    bench.slot.resume();
    assert!(bench.driver.wait_used(0).is_some());
    assert_eq!((bench.status(), bench.disk.flushes()), (0, 1));
}

#[test]
fn a_reset_forgets_a_flush() {
    let mut bench = bench();
    bench.disk.hold_flushes(true);
    bench.header(4, 0);
    bench
        .driver
        .submit(0, &[(HEADER, 16, false), (STATUS, 1, true)])
        .unwrap();
    bench.driver.notify(0);
    while bench.disk.flushes() == 0 {
        std::thread::yield_now();
    }
    bench.driver.write(0x70, 0);
    bench.disk.hold_flushes(false);
    bench.slot.stop();
    assert_eq!(bench.status(), 0xff, "nothing is written after a reset");
}

#[test]
fn a_flush_in_flight_is_for_the_disk_that_takes_the_place() {
    let (first, second) = (disk_of(DISK_BYTES), disk_of(DISK_BYTES));
    let (ram, irq) = (test_ram().unwrap(), Arc::<TestIrq>::default());
    let blk = Arc::new(Blk::new(first.clone(), "disk0").unwrap());
    let slot = VirtioMmio::new("blk0", 0, blk.clone(), ram.clone(), irq.clone());
    let slot = Arc::new(slot.unwrap());
    slot.resume();
    let driver = Driver::start(slot.clone(), ram, irq, 1, u64::MAX).unwrap();
    let mut bench = Bench {
        disk: first,
        slot,
        driver,
    };
    bench.disk.hold_flushes(true);
    bench.header(4, 0);
    let chain = [(HEADER, 16, false), (STATUS, 1, true)];
    bench.driver.submit(0, &chain).unwrap();
    bench.driver.notify(0);
    while bench.disk.flushes() == 0 {
        std::thread::yield_now();
    }
    bench.slot.quiesce();
    assert!(blk.exchange(disk_of(DISK_BYTES / 2)).is_err());
    blk.exchange(second.clone()).unwrap();
    // What the old disk answers does not count.
    second.hold_flushes(true);
    bench.slot.resume();
    while second.flushes() == 0 {
        std::thread::yield_now();
    }
    bench.disk.hold_flushes(false);
    bench.put(&[5; 512]);
    assert_eq!(bench.request(1, 3, Some((512, false))), (0, 1));
    assert_eq!(second.contents()[3 * 512..][..512], [5; 512]);
    assert_eq!(bench.disk.contents()[3 * 512], 0);
    bench.header(0, 0);
    second.hold_flushes(false);
    assert!(bench.driver.wait_used(0).is_some());
    assert_eq!(bench.status(), 0);
    assert_eq!(bench.driver.used(0), None, "the flush was answered once");
}

fn disk_of(bytes: usize) -> Arc<MemoryDisk> {
    Arc::new(MemoryDisk::new(bytes, false))
}

/// A buffer of no bytes counts for nothing, wherever it lies.
#[test]
fn the_status_goes_into_the_last_byte_past_buffers_of_no_bytes() {
    let mut bench = bench();
    bench.header(0, 0);
    let nowhere = STATUS + 0x80;
    bench
        .driver
        .ram()
        .write_obj(0xee_u8, GuestAddress(nowhere))
        .unwrap();
    let chain = [
        (HEADER, 16, false),
        (nowhere, 0, false),
        (DATA, 512, true),
        (nowhere, 0, true),
        (STATUS, 1, true),
        (nowhere, 0, true),
    ];
    bench.driver.submit(0, &chain).unwrap();
    bench.driver.notify(0);
    let (_, length) = bench.driver.wait_used(0).unwrap();
    assert_eq!((bench.status(), length), (0, 513));
    let untouched: u8 = bench.driver.ram().read_obj(GuestAddress(nowhere)).unwrap();
    assert_eq!(untouched, 0xee);
}
