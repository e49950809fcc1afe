use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use virtio_queue::{Queue, QueueOwnedT, QueueT};
use vm_memory::{Bytes, GuestAddress};

use super::gate::{Gate, Ticket};
use super::pace::Pace;
use super::segments::{ChainError, Segments};
use crate::irq::IrqLine;
use crate::ram::GuestRam;
use crate::warn_limit::WarnLimit;

/// Device status bit: the driver is ready.
pub(super) const STATUS_DRIVER_OK: u32 = 4;
/// Device status bit: the device met something it cannot recover from.
pub(super) const STATUS_NEEDS_RESET: u32 = 0x40;

/// Interrupt status bit: a buffer was used.
const INTERRUPT_USED_RING: u32 = 1;
/// Interrupt status bit: the configuration (or the device status) changed.
const INTERRUPT_CONFIG: u32 = 2;

/// Sizes in a used ring: what precedes its elements, and one of them. The event index follows them.
const USED_HEADER_BYTES: u64 = 4;
const USED_ELEMENT_BYTES: u64 = 8;

/// How often a worker looks again for a chain that came in while notifications were switched on.
const MAX_NOTIFICATION_RACES: usize = 16;

/// What a device's workers see of their transport: memory, queues, interrupts.
#[derive(Debug)]
pub struct DeviceIo {
    ram: GuestRam,
    irq: IrqHandle,
    /// There are several workers.
    share_work: bool,
    pub(super) gate: Gate,
    pub(super) pace: Pace,
    pub(super) queues: Vec<Mutex<Queue>>,
    pub(super) status: AtomicU32,
    pub(super) interrupt_status: AtomicU32,
    pub(super) config_generation: AtomicU32,
    /// Low and high half of the accepted features.
    accepted: [AtomicU32; 2],
    warnings: WarnLimit,
}

struct IrqHandle(Arc<dyn IrqLine>);

impl std::fmt::Debug for IrqHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("IrqHandle")
    }
}

/// A descriptor chain that a worker took from a queue and has to [finish](DeviceIo::finish).
#[derive(Debug)]
pub struct Taken<'a> {
    /// What the device may read, or why the chain is unusable.
    pub buffers: Result<Buffers, ChainError>,
    queue: usize,
    head: u16,
    ticket: Ticket<'a>,
}

/// The two directions of a descriptor chain.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Buffers {
    /// What the device reads.
    pub readable: Segments,
    /// What the device writes.
    pub writable: Segments,
}

impl Taken<'_> {
    /// Index of the chain's first descriptor: its name towards the driver.
    pub fn head(&self) -> u16 {
        self.head
    }
}

impl DeviceIo {
    pub(super) fn new(
        ram: GuestRam,
        irq: Arc<dyn IrqLine>,
        gate: Gate,
        pace: Pace,
        queues: Vec<Mutex<Queue>>,
        share_work: bool,
    ) -> Self {
        Self {
            share_work,
            ram,
            irq: IrqHandle(irq),
            gate,
            pace,
            queues,
            status: AtomicU32::new(0),
            interrupt_status: AtomicU32::new(0),
            config_generation: AtomicU32::new(0),
            accepted: [AtomicU32::new(0), AtomicU32::new(0)],
            warnings: WarnLimit::default(),
        }
    }

    /// The guest's memory.
    pub fn ram(&self) -> &GuestRam {
        &self.ram
    }

    /// Features that the driver accepted.
    pub fn accepted_features(&self) -> u64 {
        let half = |index: usize| u64::from(self.accepted[index].load(Ordering::Acquire));
        half(1) << 32 | half(0)
    }

    pub(super) fn set_accepted_features(&self, features: u64) {
        self.accepted[0].store(features as u32, Ordering::Release);
        self.accepted[1].store((features >> 32) as u32, Ordering::Release);
    }

    /// Whether the driver is ready and nothing is broken.
    pub fn is_live(&self) -> bool {
        let status = self.status.load(Ordering::Acquire);
        status & (STATUS_DRIVER_OK | STATUS_NEEDS_RESET) == STATUS_DRIVER_OK
    }

    /// Waits until a queue was kicked; false when the worker has to end.
    pub fn wait(&self) -> bool {
        self.gate.wait_work().is_some()
    }

    /// Waits until the device runs; `None` when the worker has to end.
    pub fn begin(&self) -> Option<Ticket<'_>> {
        self.gate.begin()
    }

    /// A ticket, unless the device is at rest or stopped.
    pub fn try_begin(&self) -> Option<Ticket<'_>> {
        self.gate.try_begin()
    }

    /// Readable when there is work, for a device that polls.
    pub fn wake_fd(&self) -> Option<BorrowedFd<'_>> {
        self.gate.waker().map(super::waker::Waker::as_fd)
    }

    /// Takes the wake-ups that made [`wake_fd`](Self::wake_fd) readable.
    pub fn clear_wake(&self) {
        if let Some(waker) = self.gate.waker() {
            waker.clear();
        }
    }

    /// Makes a worker look at `queue`; in a machine without workers the device is served soon.
    pub fn kick(&self, queue: usize) {
        if !self.pace.plan() {
            self.gate.kick(queue);
        }
    }

    /// The time that the device goes by, from some moment of the past.
    pub fn now(&self) -> Duration {
        self.pace.now()
    }

    /// Has the device served again at `time`, in a machine without workers.
    pub fn serve_at(&self, time: Duration) {
        self.pace.plan_at(time);
    }

    fn queue(&self, index: usize) -> Option<MutexGuard<'_, Queue>> {
        let queue = self.queues.get(index)?;
        Some(queue.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Takes the next available chain. `None`: there is none (a new one will kick), or the device
    /// is coming to rest, or it is broken.
    pub fn take(&self, queue: usize) -> Option<Taken<'_>> {
        let ticket = self.gate.try_begin()?;
        if !self.is_live() {
            return None;
        }
        let mut guard = self.queue(queue)?;
        if !guard.ready() {
            return None;
        }
        for _ in 0..MAX_NOTIFICATION_RACES {
            let next = match guard.iter(&self.ram) {
                Ok(mut chains) => chains.next(),
                Err(_) => {
                    drop(guard);
                    self.fail();
                    return None;
                }
            };
            if let Some(chain) = next {
                let more = guard.avail_idx(&self.ram, Ordering::Acquire).ok();
                let more = more.is_some_and(|index| index.0 != guard.next_avail());
                drop(guard);
                if more && self.share_work {
                    // Another worker may go on with the next one.
                    self.kick(queue);
                }
                return Some(self.taken(queue, chain, ticket));
            }
            match guard.enable_notification(&self.ram) {
                Ok(false) => return None,
                Ok(true) if chain_is_readable(&guard, &self.ram) => {}
                _ => {
                    drop(guard);
                    self.fail();
                    return None;
                }
            }
        }
        // A driver that makes the index come and go: come back later, with the ticket given back.
        drop(guard);
        self.kick(queue);
        None
    }

    fn taken<'a>(
        &'a self,
        queue: usize,
        chain: virtio_queue::DescriptorChain<&GuestRam>,
        ticket: Ticket<'a>,
    ) -> Taken<'a> {
        let head = chain.head_index();
        let buffers =
            Segments::split(chain).map(|(readable, writable)| Buffers { readable, writable });
        Taken {
            buffers,
            queue,
            head,
            ticket,
        }
    }

    /// The available ring's index: how many chains the driver has made available, modulo 65536.
    pub fn available_index(&self, queue: usize) -> Option<u16> {
        let guard = self.queue(queue)?;
        let index = guard.avail_idx(&self.ram, Ordering::Acquire).ok()?;
        Some(index.0)
    }

    /// Has the driver kick with the next chain that it makes available, also while others wait that were not taken (virtio
    /// 1.2, section 2.7.10). Returns the available ring's index until then.
    pub fn ask_for_kick(&self, queue: usize) -> Option<u16> {
        let mut guard = self.queue(queue)?;
        // Asks for a kick only with the chain after the last one that was taken, where event indices are in use.
        guard.enable_notification(&self.ram).ok()?;
        let index = guard.avail_idx(&self.ram, Ordering::Acquire).ok()?.0;
        if guard.event_idx_enabled() {
            let event = USED_HEADER_BYTES + USED_ELEMENT_BYTES * u64::from(guard.size());
            let event = guard.used_ring().checked_add(event)?;
            let asked = self
                .ram
                .store(index.to_le(), GuestAddress(event), Ordering::SeqCst);
            asked.ok()?;
        }
        Some(index)
    }

    /// Puts a chain into the used ring, `written` bytes of it filled, and interrupts the driver if
    /// it wants that.
    pub fn finish(&self, taken: Taken<'_>, written: u32) {
        self.put_used(taken.queue, taken.head, written, &taken.ticket);
    }

    /// As [`finish`](Self::finish), for a chain that was parked without its ticket.
    pub fn put_used(&self, queue: usize, head: u16, written: u32, _ticket: &Ticket<'_>) {
        let Some(mut guard) = self.queue(queue) else {
            return;
        };
        let notify = guard
            .add_used(&self.ram, head, written)
            .and_then(|()| guard.needs_notification(&self.ram));
        drop(guard);
        match notify {
            Ok(true) => self.interrupt(INTERRUPT_USED_RING),
            Ok(false) => {}
            Err(_) => self.fail(),
        }
    }

    /// Tells the driver that the configuration space changed.
    pub fn config_changed(&self) {
        self.config_generation.fetch_add(1, Ordering::AcqRel);
        if self.status.load(Ordering::Acquire) & STATUS_DRIVER_OK != 0 {
            self.interrupt(INTERRUPT_CONFIG);
        }
    }

    /// The rings are unusable: no queue is served any more until the driver resets the device.
    pub fn fail(&self) {
        let before = self.status.fetch_or(STATUS_NEEDS_RESET, Ordering::AcqRel);
        if before & STATUS_NEEDS_RESET == 0 {
            if let Some(left_out) = self.warnings.admit() {
                tracing::warn!(
                    left_out,
                    "virtio driver broke its rings; device needs a reset"
                );
            }
            self.interrupt(INTERRUPT_CONFIG);
        }
    }

    fn interrupt(&self, bit: u32) {
        self.interrupt_status.fetch_or(bit, Ordering::AcqRel);
        self.irq.0.pulse();
    }
}

/// Whether the available ring's next entry lies in memory: the iterator is silent about that.
fn chain_is_readable(queue: &Queue, ram: &GuestRam) -> bool {
    let slot = u64::from(queue.next_avail() % queue.size().max(1));
    let entry = queue.avail_ring().checked_add(4 + 2 * slot);
    entry.is_some_and(|entry| ram.read_obj::<u16>(GuestAddress(entry)).is_ok())
}
