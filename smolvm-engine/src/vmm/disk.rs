//! The root disk: overlays of [`cow_disk`] over chunks of [`cas_store`], under virtio-blk.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cow_disk::{BlockDevice, DiskError, LayeredDisk};
use vmm_core::host_side::BlockBackend;

/// A layered disk as the machine's devices want it.
pub(super) struct RootDisk {
    pub(super) disk: Arc<LayeredDisk>,
    /// Where a deterministic machine's writes are noted.
    pub(super) log: Option<Arc<WriteLog>>,
}

/// The digest of all that was written to a disk, in order.
#[derive(Default)]
pub(super) struct WriteLog(Mutex<blake3::Hasher>);

impl WriteLog {
    fn hasher(&self) -> MutexGuard<'_, blake3::Hasher> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn note(&self, what: &str, offset_bytes: u64, length_bytes: u64, data: &[u8]) {
        let mut hasher = self.hasher();
        hasher.update(what.as_bytes());
        hasher.update(&offset_bytes.to_le_bytes());
        hasher.update(&length_bytes.to_le_bytes());
        hasher.update(data);
    }

    pub(super) fn digest(&self) -> [u8; 32] {
        self.hasher().finalize().into()
    }
}

impl RootDisk {
    fn note(&self, what: &str, offset_bytes: u64, length_bytes: u64, data: &[u8]) {
        if let Some(log) = &self.log {
            log.note(what, offset_bytes, length_bytes, data);
        }
    }
}

impl BlockBackend for RootDisk {
    fn size_bytes(&self) -> u64 {
        self.disk.size_bytes()
    }

    fn read_only(&self) -> bool {
        false
    }

    fn read_at(&self, offset_bytes: u64, buffer: &mut [u8]) -> io::Result<()> {
        self.disk.read_at(offset_bytes, buffer).map_err(to_io)
    }

    fn write_at(&self, offset_bytes: u64, data: &[u8]) -> io::Result<()> {
        self.note("write", offset_bytes, data.len() as u64, data);
        self.disk.write_at(offset_bytes, data).map_err(to_io)
    }

    fn flush(&self) -> io::Result<()> {
        self.note("flush", 0, 0, &[]);
        self.disk.flush().map_err(to_io)
    }

    fn discard(&self, offset_bytes: u64, length_bytes: u64) -> io::Result<()> {
        self.note("discard", offset_bytes, length_bytes, &[]);
        self.disk.discard(offset_bytes, length_bytes).map_err(to_io)
    }

    fn write_zeroes(&self, offset_bytes: u64, length_bytes: u64) -> io::Result<()> {
        self.note("zeroes", offset_bytes, length_bytes, &[]);
        self.disk
            .write_zeroes(offset_bytes, length_bytes)
            .map_err(to_io)
    }
}

fn to_io(error: DiskError) -> io::Error {
    io::Error::other(error)
}
