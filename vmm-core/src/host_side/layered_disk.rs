//! A disk of copy-on-write layers under a virtio-blk device (feature `cow-disk`).

use std::io;

use cow_disk::{BlockDevice, DiskError, LayeredDisk};

use super::BlockBackend;

impl BlockBackend for LayeredDisk {
    fn size_bytes(&self) -> u64 {
        BlockDevice::size_bytes(self)
    }

    fn read_only(&self) -> bool {
        false
    }

    fn read_at(&self, offset_bytes: u64, buffer: &mut [u8]) -> io::Result<()> {
        BlockDevice::read_at(self, offset_bytes, buffer).map_err(to_io)
    }

    fn write_at(&self, offset_bytes: u64, data: &[u8]) -> io::Result<()> {
        BlockDevice::write_at(self, offset_bytes, data).map_err(to_io)
    }

    fn flush(&self) -> io::Result<()> {
        BlockDevice::flush(self).map_err(to_io)
    }

    fn discard(&self, offset_bytes: u64, length_bytes: u64) -> io::Result<()> {
        BlockDevice::discard(self, offset_bytes, length_bytes).map_err(to_io)
    }

    fn write_zeroes(&self, offset_bytes: u64, length_bytes: u64) -> io::Result<()> {
        BlockDevice::write_zeroes(self, offset_bytes, length_bytes).map_err(to_io)
    }
}

fn to_io(error: DiskError) -> io::Error {
    io::Error::other(error)
}
