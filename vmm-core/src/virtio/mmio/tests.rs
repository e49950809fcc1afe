use vm_memory::{Bytes, GuestAddress};

use super::*;
use crate::testing::{Driver, MemoryDisk, TestIrq, test_ram};
use crate::unit::StateUnit;
use crate::virtio::Blk;
use crate::warn_limit::testing::assert_limited;

fn slot_and(ram: &GuestRam, irq: &Arc<TestIrq>, disk: Arc<MemoryDisk>) -> Arc<VirtioMmio> {
    let blk = Arc::new(Blk::new(disk, "disk").unwrap());
    let slot = VirtioMmio::new("blk0", 0, blk, ram.clone(), irq.clone()).unwrap();
    slot.resume();
    Arc::new(slot)
}

fn bare() -> (Arc<VirtioMmio>, GuestRam, Arc<TestIrq>) {
    let (ram, irq) = (test_ram().unwrap(), Arc::<TestIrq>::default());
    let disk = Arc::new(MemoryDisk::new(1 << 20, false));
    (slot_and(&ram, &irq, disk), ram, irq)
}

#[test]
fn the_registers_identify_the_device() {
    let (slot, ..) = bare();
    assert_eq!(slot.read_register(reg::MAGIC), 0x7472_6976);
    assert_eq!(slot.read_register(reg::VERSION), 2);
    assert_eq!(slot.read_register(reg::DEVICE_ID), 2);
    assert_eq!(slot.read_register(reg::SHM_FIRST), u32::MAX);
    slot.write_register(reg::QUEUE_SEL, 9);
    assert_eq!(slot.read_register(reg::QUEUE_NUM_MAX), 0, "no such queue");
    let mut byte = [0xaa];
    BusDevice::read(&*slot, 0, &mut byte);
    assert_eq!(byte, [0], "registers are read whole");
}

#[test]
fn features_are_settled_only_if_they_are_offered() {
    let (slot, ram, irq) = bare();
    slot.write_register(reg::STATUS, 3);
    slot.write_register(reg::STATUS, 11);
    assert_eq!(
        slot.read_register(reg::STATUS),
        3,
        "version 1 is compulsory"
    );
    slot.write_register(reg::DRIVER_FEATURES_SEL, 1);
    slot.write_register(reg::DRIVER_FEATURES, 1 | 1 << 30);
    slot.write_register(reg::STATUS, 11);
    assert_eq!(slot.read_register(reg::STATUS), 3, "never offered");
    slot.write_register(reg::STATUS, 15);
    assert_eq!(slot.read_register(reg::STATUS), 3, "no start before that");
    assert!(Driver::start(slot.clone(), ram, irq, 1, u64::MAX).is_some());
    let accepted = slot.io.accepted_features();
    slot.write_register(reg::DRIVER_FEATURES, 0);
    assert_eq!(slot.io.accepted_features(), accepted, "settled");
}

#[test]
fn a_running_queue_cannot_be_moved() {
    let (slot, ram, irq) = bare();
    Driver::start(slot.clone(), ram, irq, 1, u64::MAX).unwrap();
    let before = slot.save().unwrap();
    for offset in [0x38, 0x44, 0x80, 0x84, 0x90, 0x94, 0xa0, 0xa4] {
        slot.write_register(offset, 0x40);
    }
    assert_eq!(slot.save().unwrap(), before);
}

/// A driver that starts the device with a ring outside of memory.
fn start_outside_of_memory(slot: &VirtioMmio) {
    slot.write_register(reg::STATUS, 3);
    slot.write_register(reg::DRIVER_FEATURES_SEL, 1);
    slot.write_register(reg::DRIVER_FEATURES, 1);
    slot.write_register(reg::STATUS, 11);
    slot.write_register(reg::QUEUE_DESC_HIGH, 0x77);
    slot.write_register(reg::QUEUE_READY, 1);
    slot.write_register(reg::STATUS, 15);
    assert_eq!(slot.read_register(reg::STATUS), 15 | STATUS_NEEDS_RESET);
}

#[test]
fn rings_outside_of_memory_need_a_reset() {
    let (slot, ram, irq) = bare();
    start_outside_of_memory(&slot);
    assert!(Driver::start(slot, ram, irq, 1, u64::MAX).is_some());
}

#[test]
fn a_driver_that_breaks_its_rings_again_and_again_does_not_fill_the_log() {
    let (slot, _, _) = bare();
    assert_limited(|| {
        slot.write_register(reg::STATUS, 0);
        start_outside_of_memory(&slot);
    });
}

#[test]
fn an_index_that_runs_away_needs_a_reset() {
    let (slot, ram, irq) = bare();
    let driver = Driver::start(slot.clone(), ram.clone(), irq.clone(), 1, 0).unwrap();
    // The index of the driver's available ring, further ahead than the queue is long.
    ram.write_obj(500_u16, GuestAddress(0x1_8002)).unwrap();
    driver.notify(0);
    while slot.read_register(reg::STATUS) & STATUS_NEEDS_RESET == 0 {
        std::thread::yield_now();
    }
    while irq.pulses() == 0 {
        std::thread::yield_now();
    }
    assert_eq!(slot.read_register(reg::INTERRUPT_STATUS), 2);
}

/// Requests 32 deep over many pauses; the disk ends up as a model says and every request completes
/// exactly once.
#[test]
fn requests_in_flight_survive_pauses() {
    const SECTORS: u64 = 256;
    let (ram, irq) = (test_ram().unwrap(), Arc::<TestIrq>::default());
    let disk = Arc::new(MemoryDisk::new((SECTORS * 512) as usize, false));
    let slot = slot_and(&ram, &irq, disk.clone());
    let mut driver = Driver::start(slot.clone(), ram.clone(), irq, 1, u64::MAX).unwrap();
    let mut model = vec![0_u8; SECTORS as usize];
    // 32 lanes, each with sectors of its own, so that the order between lanes does not matter.
    let mut lane_of = vec![None; 128];
    let mut free: Vec<u64> = (0..32).collect();
    let (mut submitted, mut completed, mut pauses) = (0_u64, 0_u64, 0);
    while completed < 20_000 {
        while let Some(lane) = free.pop() {
            let value = (submitted % 251) as u8;
            let sector = lane * 8 + submitted % 8;
            let base = Driver::BUFFERS + lane * 0x1000;
            let mut header = [0; 16];
            header[0] = 1;
            header[8..].copy_from_slice(&sector.to_le_bytes());
            ram.write_slice(&header, GuestAddress(base)).unwrap();
            ram.write_obj(0xff_u8, GuestAddress(base + 0x100)).unwrap();
            ram.write_slice(&[value; 512], GuestAddress(base + 0x200))
                .unwrap();
            let chain = [
                (base, 16, false),
                (base + 0x200, 512, false),
                (base + 0x100, 1, true),
            ];
            let head = driver.submit(0, &chain).unwrap();
            assert_eq!(lane_of[usize::from(head)].replace(lane), None);
            model[sector as usize] = value;
            submitted += 1;
        }
        driver.notify(0);
        if submitted % 5 == 0 {
            slot.quiesce();
            let saved = slot.save().unwrap();
            let at_rest = disk.contents();
            std::thread::yield_now();
            assert!(disk.contents() == at_rest, "written while at rest");
            assert_eq!(slot.save().unwrap(), saved);
            slot.restore(&saved).unwrap();
            slot.resume();
            pauses += 1;
        }
        let (mut head, mut written) = driver.wait_used(0).unwrap();
        loop {
            let lane: u64 = lane_of[usize::from(head)].take().expect("completed twice");
            let status = GuestAddress(Driver::BUFFERS + lane * 0x1000 + 0x100);
            assert_eq!((ram.read_obj::<u8>(status).unwrap(), written), (0, 1));
            free.push(lane);
            completed += 1;
            match driver.used(0) {
                Some(next) => (head, written) = next,
                None => break,
            }
        }
    }
    while free.len() < 32 {
        let (head, _) = driver.wait_used(0).unwrap();
        free.push(lane_of[usize::from(head)].take().unwrap());
    }
    assert!(pauses > 100, "{pauses} pauses");
    let contents = disk.contents();
    for (sector, value) in model.iter().enumerate() {
        assert_eq!(
            contents[sector * 512..][..512],
            [*value; 512],
            "sector {sector}"
        );
    }
}
