use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use crate::host_side::BlockBackend;

/// A disk in memory, whose flushes can be held up.
#[derive(Debug)]
pub struct MemoryDisk {
    data: Mutex<Vec<u8>>,
    read_only: bool,
    flushes: AtomicU64,
    flush_held: Mutex<bool>,
    flush_released: Condvar,
}

impl MemoryDisk {
    /// A disk of zeros.
    pub fn new(bytes: usize, read_only: bool) -> Self {
        Self {
            data: Mutex::new(vec![0; bytes]),
            read_only,
            flushes: AtomicU64::new(0),
            flush_held: Mutex::new(false),
            flush_released: Condvar::new(),
        }
    }

    /// The disk's contents.
    pub fn contents(&self) -> Vec<u8> {
        self.data().clone()
    }

    /// How many flushes were begun.
    pub fn flushes(&self) -> u64 {
        self.flushes.load(Ordering::SeqCst)
    }

    /// Makes flushes wait until they are released.
    pub fn hold_flushes(&self, hold: bool) {
        *self.held() = hold;
        self.flush_released.notify_all();
    }

    fn data(&self) -> MutexGuard<'_, Vec<u8>> {
        self.data.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn held(&self) -> MutexGuard<'_, bool> {
        self.flush_held
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn with_range(
        &self,
        offset_bytes: u64,
        length: usize,
        action: impl FnOnce(&mut [u8]),
    ) -> io::Result<()> {
        let mut data = self.data();
        let start = usize::try_from(offset_bytes).map_err(io::Error::other)?;
        let range = start
            .checked_add(length)
            .and_then(|end| data.get_mut(start..end))
            .ok_or(io::ErrorKind::UnexpectedEof)?;
        action(range);
        Ok(())
    }
}

impl BlockBackend for MemoryDisk {
    fn size_bytes(&self) -> u64 {
        self.data().len() as u64
    }

    fn read_only(&self) -> bool {
        self.read_only
    }

    fn read_at(&self, offset_bytes: u64, buffer: &mut [u8]) -> io::Result<()> {
        self.with_range(offset_bytes, buffer.len(), |range| {
            buffer.copy_from_slice(range);
        })
    }

    fn write_at(&self, offset_bytes: u64, data: &[u8]) -> io::Result<()> {
        self.with_range(offset_bytes, data.len(), |range| {
            range.copy_from_slice(data)
        })
    }

    fn flush(&self) -> io::Result<()> {
        self.flushes.fetch_add(1, Ordering::SeqCst);
        let held = self.flush_released.wait_while(self.held(), |held| *held);
        drop(held);
        Ok(())
    }

    fn discard(&self, offset_bytes: u64, length_bytes: u64) -> io::Result<()> {
        self.write_zeroes(offset_bytes, length_bytes)
    }

    fn write_zeroes(&self, offset_bytes: u64, length_bytes: u64) -> io::Result<()> {
        let length = usize::try_from(length_bytes).map_err(io::Error::other)?;
        self.with_range(offset_bytes, length, |range| range.fill(0))
    }
}
