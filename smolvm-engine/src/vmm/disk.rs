//! The root disk: overlays of [`cow_disk`] over chunks of [`cas_store`], under virtio-blk.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use cow_disk::{BlockDevice, DiskError, LayeredDisk};
use vmm_core::host_side::BlockBackend;

/// A layered disk as the machine's devices want it.
pub(super) struct RootDisk {
    pub(super) disk: Arc<LayeredDisk>,
    /// Where a deterministic machine's writes are noted.
    pub(super) log: Option<Arc<WriteLog>>,
    /// What of it did not fit onto the host.
    pub(super) full: Arc<FullNote>,
}

/// How many of a guest's writes failed since the host's file system was full. A guest that writes all the time takes no more room with
/// them than one message at a time.
#[derive(Default)]
pub(super) struct FullNote {
    failed: AtomicU64,
    /// The last one was not told yet.
    untold: AtomicBool,
    nudge: OnceLock<Box<dyn Fn() + Send + Sync>>,
}

impl FullNote {
    /// `nudge` is called when there is something to be taken again. Only the first one counts.
    pub(super) fn on_failure(&self, nudge: impl Fn() + Send + Sync + 'static) {
        // Two cannot be wanted: there is one machine.
        let _ = self.nudge.set(Box::new(nudge));
    }

    /// How many there were.
    pub(super) fn take(&self) -> u64 {
        self.untold.store(false, Ordering::SeqCst);
        self.failed.load(Ordering::SeqCst)
    }

    /// Looks at why a write failed.
    fn note(&self, error: &DiskError) {
        let kind = match error {
            DiskError::Write { source, .. } | DiskError::Sync { source } => source.kind(),
            _ => return,
        };
        let is_full = matches!(
            kind,
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded
        );
        if !is_full {
            return;
        }
        self.failed.fetch_add(1, Ordering::SeqCst);
        if !self.untold.swap(true, Ordering::SeqCst)
            && let Some(nudge) = self.nudge.get()
        {
            nudge();
        }
    }
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

impl RootDisk {
    fn wrote(&self, result: Result<(), DiskError>) -> io::Result<()> {
        result
            .inspect_err(|error| self.full.note(error))
            .map_err(to_io)
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
        self.wrote(self.disk.write_at(offset_bytes, data))
    }

    fn flush(&self) -> io::Result<()> {
        self.note("flush", 0, 0, &[]);
        self.wrote(self.disk.flush())
    }

    fn discard(&self, offset_bytes: u64, length_bytes: u64) -> io::Result<()> {
        self.note("discard", offset_bytes, length_bytes, &[]);
        self.wrote(self.disk.discard(offset_bytes, length_bytes))
    }

    fn write_zeroes(&self, offset_bytes: u64, length_bytes: u64) -> io::Result<()> {
        self.note("zeroes", offset_bytes, length_bytes, &[]);
        self.wrote(self.disk.write_zeroes(offset_bytes, length_bytes))
    }
}

fn to_io(error: DiskError) -> io::Error {
    io::Error::other(error)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use super::*;

    #[test]
    fn writes_that_do_not_fit_are_counted_and_told_one_message_at_a_time() {
        let (full, nudges) = (FullNote::default(), Arc::new(AtomicUsize::new(0)));
        let count = nudges.clone();
        full.on_failure(move || {
            count.fetch_add(1, Ordering::SeqCst);
        });
        let failed = |kind: io::ErrorKind| DiskError::Write {
            offset_bytes: 0,
            source: kind.into(),
        };
        for _ in 0..100 {
            full.note(&failed(io::ErrorKind::StorageFull));
            full.note(&failed(io::ErrorKind::PermissionDenied));
        }
        assert_eq!(nudges.load(Ordering::SeqCst), 1);
        assert_eq!(full.take(), 100);
        full.note(&failed(io::ErrorKind::QuotaExceeded));
        assert_eq!((nudges.load(Ordering::SeqCst), full.take()), (2, 101));
    }
}
