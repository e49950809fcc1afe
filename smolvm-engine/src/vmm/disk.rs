//! The root disk: overlays of [`cow_disk`] over chunks of [`cas_store`], under virtio-blk.

use std::io;
use std::sync::Arc;

use cow_disk::{BlockDevice, DiskError, LayeredDisk};
use vmm_core::host_side::BlockBackend;

/// A layered disk as the machine's devices want it.
pub(super) struct RootDisk(pub(super) Arc<LayeredDisk>);

impl BlockBackend for RootDisk {
    fn size_bytes(&self) -> u64 {
        self.0.size_bytes()
    }

    fn read_only(&self) -> bool {
        false
    }

    fn read_at(&self, offset_bytes: u64, buffer: &mut [u8]) -> io::Result<()> {
        self.0.read_at(offset_bytes, buffer).map_err(to_io)
    }

    fn write_at(&self, offset_bytes: u64, data: &[u8]) -> io::Result<()> {
        self.0.write_at(offset_bytes, data).map_err(to_io)
    }

    fn flush(&self) -> io::Result<()> {
        self.0.flush().map_err(to_io)
    }

    fn discard(&self, offset_bytes: u64, length_bytes: u64) -> io::Result<()> {
        self.0.discard(offset_bytes, length_bytes).map_err(to_io)
    }

    fn write_zeroes(&self, offset_bytes: u64, length_bytes: u64) -> io::Result<()> {
        self.0
            .write_zeroes(offset_bytes, length_bytes)
            .map_err(to_io)
    }
}

fn to_io(error: DiskError) -> io::Error {
    io::Error::other(error)
}
