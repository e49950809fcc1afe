use std::io;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use virtio_queue::{Queue, QueueT};

use super::device::VirtioDevice;
use super::gate::Gate;
use super::io::{DeviceIo, STATUS_DRIVER_OK, STATUS_NEEDS_RESET};
use super::pace::Pace;
use super::waker::Waker;
use crate::bus::BusDevice;
use crate::irq::IrqLine;
use crate::ram::GuestRam;
use crate::schedule::Schedule;

/// `virt` in little-endian, the first register (virtio 1.2, table 4.1).
const MAGIC: u32 = 0x7472_6976;
/// Version of the register layout.
const MMIO_VERSION: u32 = 2;
/// `SMLV`: the device's vendor.
const VENDOR: u32 = 0x564c_4d53;

/// Device status bit: features are settled.
const STATUS_FEATURES_OK: u32 = 8;
/// The device status bits that a driver may set.
const STATUS_DRIVER_BITS: u32 = 0x8f;

/// Feature bit: indirect descriptors.
const F_INDIRECT_DESC: u32 = 28;
/// Feature bit: `used_event` and `avail_event`.
pub(super) const F_EVENT_IDX: u32 = 29;
/// Feature bit: the device follows virtio 1.
const F_VERSION_1: u32 = 32;
/// What the transport itself offers.
pub(super) const TRANSPORT_FEATURES: u64 =
    1 << F_INDIRECT_DESC | 1 << F_EVENT_IDX | 1 << F_VERSION_1;

/// Register offsets (virtio 1.2, table 4.1).
mod reg {
    pub(super) const MAGIC: u64 = 0x00;
    pub(super) const VERSION: u64 = 0x04;
    pub(super) const DEVICE_ID: u64 = 0x08;
    pub(super) const VENDOR_ID: u64 = 0x0c;
    pub(super) const DEVICE_FEATURES: u64 = 0x10;
    pub(super) const DEVICE_FEATURES_SEL: u64 = 0x14;
    pub(super) const DRIVER_FEATURES: u64 = 0x20;
    pub(super) const DRIVER_FEATURES_SEL: u64 = 0x24;
    pub(super) const QUEUE_SEL: u64 = 0x30;
    pub(super) const QUEUE_NUM_MAX: u64 = 0x34;
    pub(super) const QUEUE_NUM: u64 = 0x38;
    pub(super) const QUEUE_READY: u64 = 0x44;
    pub(super) const QUEUE_NOTIFY: u64 = 0x50;
    pub(super) const INTERRUPT_STATUS: u64 = 0x60;
    pub(super) const INTERRUPT_ACK: u64 = 0x64;
    pub(super) const STATUS: u64 = 0x70;
    pub(super) const QUEUE_DESC_LOW: u64 = 0x80;
    pub(super) const QUEUE_DESC_HIGH: u64 = 0x84;
    pub(super) const QUEUE_DRIVER_LOW: u64 = 0x90;
    pub(super) const QUEUE_DRIVER_HIGH: u64 = 0x94;
    pub(super) const QUEUE_DEVICE_LOW: u64 = 0xa0;
    pub(super) const QUEUE_DEVICE_HIGH: u64 = 0xa4;
    /// Lengths and addresses of shared memory regions: all ones, there are none.
    pub(super) const SHM_FIRST: u64 = 0xb0;
    pub(super) const SHM_LAST: u64 = 0xbc;
    pub(super) const CONFIG_GENERATION: u64 = 0xfc;
    pub(super) const CONFIG: u64 = 0x100;
}

/// One slot of the machine: transport, queues and worker threads of a [`VirtioDevice`].
///
/// See the [module documentation](super) for its life cycle.
pub struct VirtioMmio {
    pub(super) unit: String,
    pub(super) slot: u8,
    pub(super) device: Arc<dyn VirtioDevice>,
    pub(super) io: Arc<DeviceIo>,
    pub(super) registers: Mutex<Registers>,
    workers: Mutex<Vec<JoinHandle<()>>>,
}

/// What the driver selected and negotiated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Registers {
    pub(super) offered_features: u64,
    pub(super) device_features_sel: u32,
    pub(super) driver_features_sel: u32,
    pub(super) queue_sel: u32,
}

impl VirtioMmio {
    /// Puts a device into a slot and starts its workers, quiesced. `unit` names its saved state.
    pub fn new(
        unit: &str,
        slot: u8,
        device: Arc<dyn VirtioDevice>,
        ram: GuestRam,
        irq: Arc<dyn IrqLine>,
    ) -> io::Result<Self> {
        Self::paced(unit, slot, device, (ram, irq), None)
    }

    /// As [`new`](Self::new); with a schedule the device has no workers, but a place in that.
    pub(crate) fn paced(
        unit: &str,
        slot: u8,
        device: Arc<dyn VirtioDevice>,
        (ram, irq): (GuestRam, Arc<dyn IrqLine>),
        schedule: Option<Arc<Schedule>>,
    ) -> io::Result<Self> {
        let pace = Pace::new(schedule);
        let threads = pace.has_threads();
        let waker = (threads && device.polls()).then(Waker::new).transpose()?;
        let queues = device.queue_sizes().iter().map(|size| Queue::new(*size));
        let queues: Result<Vec<_>, _> = queues.map(|queue| queue.map(Mutex::new)).collect();
        let queues = queues.map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
        let io = Arc::new(DeviceIo::new(
            ram,
            irq,
            Gate::new_paused(waker),
            pace,
            queues,
            threads && device.workers() > 1,
        ));
        device.attach(&io);
        let transport = Self {
            unit: unit.to_owned(),
            slot,
            registers: Mutex::new(Registers {
                offered_features: device.features() | TRANSPORT_FEATURES,
                device_features_sel: 0,
                driver_features_sel: 0,
                queue_sel: 0,
            }),
            device,
            io,
            workers: Mutex::default(),
        };
        if threads {
            transport.start_workers()?;
        } else {
            transport.enter_schedule();
        }
        Ok(transport)
    }

    /// The schedule serves the device.
    fn enter_schedule(&self) {
        let (device, io) = (self.device.clone(), Arc::downgrade(&self.io));
        let scratch = Mutex::new(Vec::new());
        self.io.pace.set_work(|| {
            Box::new(move || {
                if let Some(io) = io.upgrade() {
                    device.serve(&io, &mut lock(&scratch));
                }
            })
        });
    }

    /// Whether the device takes input of the host by itself.
    pub(crate) fn takes_host_input(&self) -> bool {
        self.device.polls()
    }

    /// In a machine without workers: has the device served before the guest's next instruction.
    pub(crate) fn serve_now(&self) {
        self.io.pace.plan_now();
    }

    fn start_workers(&self) -> io::Result<()> {
        for index in 0..self.device.workers() {
            let (device, io) = (self.device.clone(), self.io.clone());
            let worker = std::thread::Builder::new()
                .name(format!("{}-{index}", self.unit))
                .spawn(move || device.run(&io))?;
            lock(&self.workers).push(worker);
        }
        Ok(())
    }

    /// The slot's number.
    pub fn slot(&self) -> u8 {
        self.slot
    }

    /// Comes to rest: no chain is taken any more, those taken are completed first. Calls nest.
    pub fn quiesce(&self) {
        self.io.gate.pause();
    }

    /// Takes one [`quiesce`](Self::quiesce), or the initial state of rest, back.
    pub fn resume(&self) {
        self.io.gate.resume();
    }

    /// Ends the workers and waits for them. Nothing is taken from the queues afterwards.
    pub fn stop(&self) {
        self.io.gate.stop();
        let workers = std::mem::take(&mut *lock(&self.workers));
        for worker in workers {
            if worker.join().is_err() {
                tracing::error!(unit = %self.unit, "virtio worker panicked");
            }
        }
    }

    fn read_register(&self, offset: u64) -> u32 {
        let registers = lock(&self.registers);
        match offset {
            reg::MAGIC => MAGIC,
            reg::VERSION => MMIO_VERSION,
            reg::DEVICE_ID => self.device.device_id(),
            reg::VENDOR_ID => VENDOR,
            reg::DEVICE_FEATURES => half(registers.offered_features, registers.device_features_sel),
            reg::QUEUE_NUM_MAX => self.queue(&registers).map_or(0, |q| q.max_size().into()),
            reg::QUEUE_READY => self.queue(&registers).map_or(0, |q| q.ready().into()),
            reg::INTERRUPT_STATUS => self.io.interrupt_status.load(Ordering::Acquire),
            reg::STATUS => self.io.status.load(Ordering::Acquire),
            reg::SHM_FIRST..=reg::SHM_LAST => u32::MAX,
            reg::CONFIG_GENERATION => self.io.config_generation.load(Ordering::Acquire),
            _ => 0,
        }
    }

    fn write_register(&self, offset: u64, value: u32) {
        // These two are hot and need no selector.
        match offset {
            reg::QUEUE_NOTIFY => {
                if (value as usize) < self.io.queues.len() {
                    self.io.kick(value as usize);
                }
                return;
            }
            reg::INTERRUPT_ACK => {
                self.io.interrupt_status.fetch_and(!value, Ordering::AcqRel);
                return;
            }
            _ => {}
        }
        let mut registers = lock(&self.registers);
        match offset {
            reg::DEVICE_FEATURES_SEL => registers.device_features_sel = value,
            reg::DRIVER_FEATURES_SEL => registers.driver_features_sel = value,
            reg::DRIVER_FEATURES => self.accept_features(registers.driver_features_sel, value),
            reg::QUEUE_SEL => registers.queue_sel = value,
            reg::STATUS => self.write_status(&mut registers, value),
            _ => self.write_queue_register(&registers, offset, value),
        }
    }

    fn accept_features(&self, selector: u32, value: u32) {
        if self.status() & STATUS_FEATURES_OK != 0 {
            return;
        }
        let before = self.io.accepted_features();
        let after = match selector {
            0 => before & !0xffff_ffff | u64::from(value),
            1 => before & 0xffff_ffff | u64::from(value) << 32,
            _ => return,
        };
        self.io.set_accepted_features(after);
    }

    fn status(&self) -> u32 {
        self.io.status.load(Ordering::Acquire)
    }

    fn write_status(&self, registers: &mut Registers, value: u32) {
        if value == 0 {
            return self.reset(registers);
        }
        let before = self.status();
        let mut set = value & STATUS_DRIVER_BITS & !before;
        if set & STATUS_FEATURES_OK != 0 && !self.features_are_fine(registers) {
            set &= !STATUS_FEATURES_OK;
        }
        let settled = (before | set) & STATUS_FEATURES_OK != 0;
        if set & STATUS_DRIVER_OK != 0 && !settled {
            set &= !STATUS_DRIVER_OK;
        }
        let starts = set & STATUS_DRIVER_OK != 0;
        if starts {
            self.enter_queues();
        }
        self.io.status.fetch_or(set, Ordering::AcqRel);
        if starts {
            for queue in 0..self.io.queues.len() {
                self.io.kick(queue);
            }
        }
    }

    fn features_are_fine(&self, registers: &Registers) -> bool {
        let accepted = self.io.accepted_features();
        accepted & !registers.offered_features == 0 && accepted >> F_VERSION_1 & 1 == 1
    }

    /// The driver is ready: the rings have to be in memory from here on.
    fn enter_queues(&self) {
        let event_idx = self.io.accepted_features() >> F_EVENT_IDX & 1 == 1;
        let mut usable = true;
        for queue in &self.io.queues {
            let mut queue = lock(queue);
            queue.set_event_idx(event_idx);
            usable &= !queue.ready() || queue.is_valid(self.io.ram());
        }
        if !usable {
            self.io.fail();
        }
    }

    fn reset(&self, registers: &mut Registers) {
        self.io.gate.pause();
        self.io.status.store(0, Ordering::Release);
        self.io.interrupt_status.store(0, Ordering::Release);
        self.io.set_accepted_features(0);
        for queue in &self.io.queues {
            lock(queue).reset();
        }
        registers.device_features_sel = 0;
        registers.driver_features_sel = 0;
        registers.queue_sel = 0;
        self.device.reset();
        self.io.gate.resume();
    }

    fn queue(&self, registers: &Registers) -> Option<MutexGuard<'_, Queue>> {
        let queue = self.io.queues.get(registers.queue_sel as usize)?;
        Some(lock(queue))
    }

    fn write_queue_register(&self, registers: &Registers, offset: u64, value: u32) {
        if self.status() & (STATUS_DRIVER_OK | STATUS_NEEDS_RESET) != 0 {
            return;
        }
        let Some(mut queue) = self.queue(registers) else {
            return;
        };
        if offset == reg::QUEUE_READY {
            queue.set_ready(value == 1);
            return;
        }
        if queue.ready() {
            return;
        }
        match offset {
            reg::QUEUE_NUM => queue.set_size(u16::try_from(value).unwrap_or(0)),
            reg::QUEUE_DESC_LOW => queue.set_desc_table_address(Some(value), None),
            reg::QUEUE_DESC_HIGH => queue.set_desc_table_address(None, Some(value)),
            reg::QUEUE_DRIVER_LOW => queue.set_avail_ring_address(Some(value), None),
            reg::QUEUE_DRIVER_HIGH => queue.set_avail_ring_address(None, Some(value)),
            reg::QUEUE_DEVICE_LOW => queue.set_used_ring_address(Some(value), None),
            reg::QUEUE_DEVICE_HIGH => queue.set_used_ring_address(None, Some(value)),
            _ => {}
        }
    }
}

impl Drop for VirtioMmio {
    fn drop(&mut self) {
        self.stop();
    }
}

impl BusDevice for VirtioMmio {
    fn read(&self, offset: u64, data: &mut [u8]) {
        data.fill(0);
        if let Some(offset) = offset.checked_sub(reg::CONFIG) {
            self.device.read_config(offset, data);
        } else if data.len() == 4 && offset.is_multiple_of(4) {
            data.copy_from_slice(&self.read_register(offset).to_le_bytes());
        }
    }

    fn write(&self, offset: u64, data: &[u8]) {
        if let Some(offset) = offset.checked_sub(reg::CONFIG) {
            self.device.write_config(offset, data);
        } else if let Ok(value) = <[u8; 4]>::try_from(data)
            && offset.is_multiple_of(4)
        {
            self.write_register(offset, u32::from_le_bytes(value));
        }
    }
}

/// The 32 bits of `features` that `selector` names.
fn half(features: u64, selector: u32) -> u32 {
    match selector {
        0 => features as u32,
        1 => (features >> 32) as u32,
        _ => 0,
    }
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
