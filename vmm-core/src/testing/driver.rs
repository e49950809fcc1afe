use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use vm_memory::{Bytes, GuestAddress};

use crate::Gpa;
use crate::bus::BusDevice;
use crate::irq::IrqLine;
use crate::ram::{GuestRam, MemoryRegion, RamBacking, RamError, RamLayout};

/// Where the driver keeps its rings; buffers of tests begin at [`Driver::BUFFERS`].
const RINGS: u64 = 0x1_0000;
/// Room for one queue's rings.
const RING_BYTES: u64 = 0x1_0000;
const DESC_NEXT: u16 = 1;
const DESC_WRITE: u16 = 2;
/// Flag of a used ring: the device wants no notifications.
const USED_NO_NOTIFY: u16 = 1;
/// `RING_EVENT_IDX`.
const F_EVENT_IDX: u64 = 1 << 29;

/// Guest memory for device tests: 16 MiB from address 0, and 2 MiB at 4 GiB.
pub fn test_ram() -> Result<GuestRam, RamError> {
    let region = |start, bytes| MemoryRegion {
        start: Gpa(start),
        bytes,
    };
    let layout = RamLayout::new(vec![region(0, 16 << 20), region(1 << 32, 2 << 20)]);
    GuestRam::new(
        layout.map_err(|_| RamError::Regions)?,
        &RamBacking::Anonymous,
    )
}

/// An interrupt line that counts.
#[derive(Debug, Default)]
pub struct TestIrq {
    pulses: AtomicU64,
    lock: Mutex<()>,
    pulsed: Condvar,
}

impl TestIrq {
    /// How many edges there were.
    pub fn pulses(&self) -> u64 {
        self.pulses.load(Ordering::SeqCst)
    }

    /// Waits until there were more than `seen` edges, or a short while.
    fn wait_beyond(&self, seen: u64) {
        let guard = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        let pause = Duration::from_millis(20);
        drop(
            self.pulsed
                .wait_timeout_while(guard, pause, |()| self.pulses() <= seen),
        );
    }
}

impl IrqLine for TestIrq {
    fn pulse(&self) {
        let guard = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        self.pulses.fetch_add(1, Ordering::SeqCst);
        drop(guard);
        self.pulsed.notify_all();
    }
}

/// A driver that keeps to the rules.
pub struct Driver {
    device: Arc<dyn BusDevice>,
    ram: GuestRam,
    irq: Arc<TestIrq>,
    queues: Vec<DriverQueue>,
    event_idx: bool,
}

#[derive(Debug, Clone)]
struct DriverQueue {
    size: u16,
    base: u64,
    /// Free descriptors.
    free: Vec<u16>,
    /// Descriptors of each chain in flight, by head.
    chains: Vec<Vec<u16>>,
    next_avail: u16,
    last_used: u16,
}

impl DriverQueue {
    fn avail(&self) -> u64 {
        self.base + 0x8000
    }

    fn used(&self) -> u64 {
        self.base + 0xc000
    }
}

impl Driver {
    /// First address that rings do not use.
    pub const BUFFERS: u64 = 0x10_0000;

    /// Takes all features that the device offers (and `mask` lets through) and sets up `queues`
    /// queues of their greatest size. `None`: the device did not agree.
    pub fn start(
        device: Arc<dyn BusDevice>,
        ram: GuestRam,
        irq: Arc<TestIrq>,
        queues: usize,
        mask: u64,
    ) -> Option<Self> {
        let mut driver = Self {
            device,
            ram,
            irq,
            queues: Vec::new(),
            event_idx: false,
        };
        driver.write(0x70, 0);
        driver.write(0x70, 1);
        driver.write(0x70, 3);
        let features = driver.features() & (mask | 1 << 32);
        driver.event_idx = features & F_EVENT_IDX != 0;
        for half in 0..2 {
            driver.write(0x24, half);
            driver.write(0x20, (features >> (32 * half)) as u32);
        }
        driver.write(0x70, 11);
        if driver.read(0x70) != 11 {
            return None;
        }
        for index in 0..queues {
            driver.set_up_queue(index);
        }
        driver.write(0x70, 15);
        Some(driver)
    }

    /// The same driver, in front of another device: for a machine restored from a state.
    pub fn moved_to(&self, device: Arc<dyn BusDevice>, ram: GuestRam, irq: Arc<TestIrq>) -> Self {
        Self {
            device,
            ram,
            irq,
            queues: self.queues.clone(),
            event_idx: self.event_idx,
        }
    }

    /// The features that the device offers.
    pub fn features(&self) -> u64 {
        let half = |selector| {
            self.write(0x14, selector);
            u64::from(self.read(0x10))
        };
        half(0) | half(1) << 32
    }

    /// The guest's memory.
    pub fn ram(&self) -> &GuestRam {
        &self.ram
    }

    /// Reads a register.
    pub fn read(&self, offset: u64) -> u32 {
        let mut raw = [0; 4];
        self.device.read(offset, &mut raw);
        u32::from_le_bytes(raw)
    }

    /// Writes a register.
    pub fn write(&self, offset: u64, value: u32) {
        self.device.write(offset, &value.to_le_bytes());
    }

    /// Reads the configuration space.
    pub fn config(&self, offset: u64, length: usize) -> Vec<u8> {
        let mut data = vec![0; length];
        self.device.read(0x100 + offset, &mut data);
        data
    }

    fn set_up_queue(&mut self, index: usize) {
        self.write(0x30, index as u32);
        let size = self.read(0x34) as u16;
        let queue = DriverQueue {
            size,
            base: RINGS + RING_BYTES * index as u64,
            free: (0..size).collect(),
            chains: vec![Vec::new(); size.into()],
            next_avail: 0,
            last_used: 0,
        };
        for (register, address) in [
            (0x80, queue.base),
            (0x90, queue.avail()),
            (0xa0, queue.used()),
        ] {
            self.write(register, address as u32);
            self.write(register + 4, (address >> 32) as u32);
        }
        self.write(0x38, size.into());
        self.write(0x44, 1);
        self.queues.push(queue);
    }

    /// Makes a chain of buffers `(address, length, device writes)` available; its head, or `None`
    /// if too few descriptors are free. The device is not told yet.
    pub fn submit(&mut self, queue: usize, buffers: &[(u64, u32, bool)]) -> Option<u16> {
        let ram = self.ram.clone();
        let queue = &mut self.queues[queue];
        if queue.free.len() < buffers.len() || buffers.is_empty() {
            return None;
        }
        let chain = queue.free.split_off(queue.free.len() - buffers.len());
        for (position, (address, length, writes)) in buffers.iter().enumerate() {
            let next = chain.get(position + 1).copied();
            let mut raw = [0; 16];
            raw[..8].copy_from_slice(&address.to_le_bytes());
            raw[8..12].copy_from_slice(&length.to_le_bytes());
            let flags =
                if *writes { DESC_WRITE } else { 0 } | if next.is_some() { DESC_NEXT } else { 0 };
            raw[12..14].copy_from_slice(&flags.to_le_bytes());
            raw[14..].copy_from_slice(&next.unwrap_or(0).to_le_bytes());
            put(&ram, queue.base + 16 * u64::from(chain[position]), &raw);
        }
        let head = chain[0];
        queue.chains[usize::from(head)] = chain;
        let slot = u64::from(queue.next_avail % queue.size);
        put(&ram, queue.avail() + 4 + 2 * slot, &head.to_le_bytes());
        queue.next_avail = queue.next_avail.wrapping_add(1);
        std::sync::atomic::fence(Ordering::SeqCst);
        put(&ram, queue.avail() + 2, &queue.next_avail.to_le_bytes());
        std::sync::atomic::fence(Ordering::SeqCst);
        Some(head)
    }

    /// Tells the device about new chains.
    pub fn notify(&self, queue: usize) {
        self.write(0x50, queue as u32);
    }

    /// Tells the device about the last chain only if it asked for that, as real drivers do. Returns whether it was told.
    pub fn notify_if_asked(&self, queue: usize) -> bool {
        let (index, ring) = (queue, &self.queues[queue]);
        let asked = if self.event_idx {
            let event = ring.used() + 4 + 8 * u64::from(ring.size);
            u16::from_le_bytes(get(&self.ram, event)) == ring.next_avail.wrapping_sub(1)
        } else {
            u16::from_le_bytes(get(&self.ram, ring.used())) & USED_NO_NOTIFY == 0
        };
        if asked {
            self.notify(index);
        }
        asked
    }

    /// The next chain that the device has used: its head and the bytes written.
    pub fn used(&mut self, queue: usize) -> Option<(u16, u32)> {
        let ram = self.ram.clone();
        let event_idx = self.event_idx;
        let queue = &mut self.queues[queue];
        let index = u16::from_le_bytes(get(&ram, queue.used() + 2));
        if index == queue.last_used {
            return None;
        }
        let slot = u64::from(queue.last_used % queue.size);
        let head: [u8; 4] = get(&ram, queue.used() + 4 + 8 * slot);
        let length: [u8; 4] = get(&ram, queue.used() + 8 + 8 * slot);
        queue.last_used = queue.last_used.wrapping_add(1);
        if event_idx {
            let event = queue.avail() + 4 + 2 * u64::from(queue.size);
            put(&ram, event, &queue.last_used.to_le_bytes());
        }
        let head = u32::from_le_bytes(head) as u16;
        let chain = std::mem::take(&mut queue.chains[usize::from(head)]);
        queue.free.extend(chain);
        Some((head, u32::from_le_bytes(length)))
    }

    /// As [`used`](Self::used), waiting for up to 20 s; `None` then.
    pub fn wait_used(&mut self, queue: usize) -> Option<(u16, u32)> {
        for _ in 0..1000 {
            let seen = self.irq.pulses();
            if let Some(used) = self.used(queue) {
                // Acknowledges as an interrupt handler would.
                self.write(0x64, self.read(0x60));
                return Some(used);
            }
            self.irq.wait_beyond(seen);
        }
        None
    }
}

fn put(ram: &GuestRam, address: u64, data: &[u8]) {
    ram.write_slice(data, GuestAddress(address))
        .expect("the driver's rings are in memory");
}

fn get<const N: usize>(ram: &GuestRam, address: u64) -> [u8; N] {
    let mut raw = [0; N];
    ram.read_slice(&mut raw, GuestAddress(address))
        .expect("the driver's rings are in memory");
    raw
}
