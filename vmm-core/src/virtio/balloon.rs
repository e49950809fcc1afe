//! Memory given back (virtio 1.2, section 5.5): balloon, free-page reporting, statistics.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};

use snapshot_format::fields::{FieldReader, FieldWriter};
use vm_memory::GuestAddress;

use super::device::{DeviceError, VirtioDevice, read_config_bytes};
use super::io::{DeviceIo, Taken};
use super::mmio::lock;
use crate::Gpa;
use crate::ram::PAGE_BYTES;
use crate::tracker::DirtyTracker;

/// Device type.
const DEVICE_ID: u32 = 5;
/// Sizes of the inflate, deflate and reporting queues. Without `VIRTIO_BALLOON_F_STATS_VQ` and
/// `VIRTIO_BALLOON_F_FREE_PAGE_HINT`, reporting is the third queue.
const QUEUE_SIZES: [u16; 3] = [128, 128, 128];
const INFLATE: usize = 0;
const DEFLATE: usize = 1;
const REPORTING: usize = 2;
/// Most page numbers in one inflate request; Linux sends 256.
const MAX_PAGES: u64 = 4096;
/// Length of the configuration space in bytes: up to `poison_val`.
const CONFIG_BYTES: usize = 16;

/// Feature bit: the guest may take pages back without asking.
const F_DEFLATE_ON_OOM: u64 = 1 << 2;
/// Feature bit: the guest reports free pages.
const F_REPORTING: u64 = 1 << 5;

/// What a balloon has done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct BalloonStats {
    /// Pages of 4 KiB that the host asks for.
    pub target_pages: u32,
    /// Pages that the guest says are in the balloon.
    pub actual_pages: u32,
    /// Bytes given back to the host since the device was made.
    pub discarded_bytes: u64,
}

/// A balloon. Pages given back are discarded through the [`DirtyTracker`].
pub struct Balloon {
    tracker: DirtyTracker,
    target_pages: AtomicU32,
    actual_pages: AtomicU32,
    discarded_bytes: Mutex<u64>,
    /// Size in bytes of what the host maps memory in: smaller pieces stay.
    host_page_bytes: u64,
    io: OnceLock<Weak<DeviceIo>>,
}

impl Balloon {
    /// An empty balloon; discards go through `tracker`.
    pub fn new(tracker: DirtyTracker) -> Self {
        Self {
            tracker,
            target_pages: AtomicU32::new(0),
            actual_pages: AtomicU32::new(0),
            discarded_bytes: Mutex::new(0),
            host_page_bytes: rustix::param::page_size() as u64,
            io: OnceLock::new(),
        }
    }

    /// Asks the guest to put so many pages of 4 KiB into the balloon (0: to take all back).
    pub fn set_target_pages(&self, pages: u32) {
        self.target_pages.store(pages, Ordering::Release);
        if let Some(io) = self.io.get().and_then(Weak::upgrade) {
            io.config_changed();
        }
    }

    /// Target and progress.
    pub fn stats(&self) -> BalloonStats {
        BalloonStats {
            target_pages: self.target_pages.load(Ordering::Acquire),
            actual_pages: self.actual_pages.load(Ordering::Acquire),
            discarded_bytes: *lock(&self.discarded_bytes),
        }
    }

    /// An inflate request: little-endian page numbers.
    fn inflate(&self, io: &DeviceIo, taken: &Taken<'_>) {
        let Ok(buffers) = &taken.buffers else {
            return;
        };
        let count = (buffers.readable.bytes() / 4).min(MAX_PAGES) as usize;
        let mut raw = vec![0; count * 4];
        if buffers.readable.read(io.ram(), 0, &mut raw).is_err() {
            return;
        }
        let (numbers, _) = raw.as_chunks::<4>();
        let mut pages: Vec<u64> = numbers
            .iter()
            .map(|number| u64::from(u32::from_le_bytes(*number)))
            .collect();
        pages.sort_unstable();
        for run in pages.chunk_by(|a, b| a + 1 == *b) {
            self.discard(run[0] * PAGE_BYTES, run.len() as u64 * PAGE_BYTES);
        }
    }

    /// A report: every buffer is a range of free pages.
    fn report(&self, taken: &Taken<'_>) {
        let Ok(buffers) = &taken.buffers else {
            return;
        };
        for &(GuestAddress(start), bytes) in buffers.writable.parts() {
            self.discard(start, bytes.into());
        }
    }

    /// Discards the whole host pages of a range. A range outside of RAM is the guest's mistake.
    fn discard(&self, start: u64, bytes: u64) {
        let mask = self.host_page_bytes - 1;
        let Some(end) = start.checked_add(bytes) else {
            return;
        };
        let Some(first) = start.checked_add(mask).map(|address| address & !mask) else {
            return;
        };
        let length = (end & !mask).saturating_sub(first);
        if length == 0 {
            return;
        }
        match self.tracker.discard(Gpa(first), length) {
            Ok(()) => *lock(&self.discarded_bytes) += length,
            Err(error) => tracing::debug!(%error, "balloon discard failed"),
        }
    }

    fn answer(&self, io: &DeviceIo, queue: usize) {
        while let Some(taken) = io.take(queue) {
            match queue {
                INFLATE => self.inflate(io, &taken),
                REPORTING => self.report(&taken),
                // Deflating needs nothing: the next access brings zero pages.
                _ => {}
            }
            io.finish(taken, 0);
        }
    }
}

impl VirtioDevice for Balloon {
    fn device_id(&self) -> u32 {
        DEVICE_ID
    }

    fn kind(&self) -> &'static str {
        "virtio-balloon"
    }

    fn features(&self) -> u64 {
        F_DEFLATE_ON_OOM | F_REPORTING
    }

    fn queue_sizes(&self) -> &[u16] {
        &QUEUE_SIZES
    }

    fn attach(&self, io: &Arc<DeviceIo>) {
        // A device is attached once; a second time would be a mistake of the builder's.
        let _ = self.io.set(Arc::downgrade(io));
    }

    fn read_config(&self, offset: u64, data: &mut [u8]) {
        let mut config = [0; CONFIG_BYTES];
        config[..4].copy_from_slice(&self.target_pages.load(Ordering::Acquire).to_le_bytes());
        config[4..8].copy_from_slice(&self.actual_pages.load(Ordering::Acquire).to_le_bytes());
        read_config_bytes(&config, offset, data);
    }

    fn write_config(&self, offset: u64, data: &[u8]) {
        // `actual` is the one field that the driver writes.
        if let (4, Ok(value)) = (offset, data.try_into()) {
            self.actual_pages
                .store(u32::from_le_bytes(value), Ordering::Release);
        }
    }

    fn reset(&self) {
        self.actual_pages.store(0, Ordering::Release);
    }

    fn serve(&self, io: &DeviceIo, _scratch: &mut Vec<u8>) {
        for queue in [INFLATE, DEFLATE, REPORTING] {
            self.answer(io, queue);
        }
    }

    fn save(&self, state: &mut FieldWriter) {
        state
            .u32(1, self.target_pages.load(Ordering::Acquire))
            .u32(2, self.actual_pages.load(Ordering::Acquire));
    }

    fn restore(&self, state: &FieldReader<'_>) -> Result<(), DeviceError> {
        let (target, actual) = (state.u32(1)?, state.u32(2)?);
        self.target_pages.store(target, Ordering::Release);
        self.actual_pages.store(actual, Ordering::Release);
        Ok(())
    }
}

#[cfg(test)]
mod tests;
