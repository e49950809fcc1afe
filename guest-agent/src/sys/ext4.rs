//! Online resizing of ext4, `Documentation/filesystems/ext4`.
#![allow(unsafe_code)] // an ioctl

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;

/// `_IOW('f', 16, __u64)`
const EXT4_IOC_RESIZE_FS: libc::Ioctl = 0x4008_6610;

/// Where a file system's superblock begins, in bytes.
const SUPERBLOCK_AT: u64 = 1024;
/// Offsets in it, little-endian: the lower half of the number of blocks, the incompatible features, and the
/// upper half.
const BLOCKS_LOW: usize = 0x04;
const INCOMPATIBLE: usize = 0x60;
const BLOCKS_HIGH: usize = 0x150;
/// Numbers of blocks have 64 bits.
const FEATURE_64BIT: u32 = 0x80;

/// The number of blocks of the file system on `device`, mounted or not
/// (`Documentation/filesystems/ext4/super.rst`).
pub(crate) fn block_count(device: &File) -> io::Result<u64> {
    let mut superblock = [0; 1024];
    device.read_exact_at(&mut superblock, SUPERBLOCK_AT)?;
    let word = |at: usize| {
        let mut bytes = [0; 4];
        bytes.copy_from_slice(&superblock[at..at + 4]);
        u32::from_le_bytes(bytes)
    };
    let high = match word(INCOMPATIBLE) & FEATURE_64BIT {
        0 => 0,
        _ => word(BLOCKS_HIGH),
    };
    Ok(u64::from(high) << 32 | u64::from(word(BLOCKS_LOW)))
}

/// Grows the file system of `directory` to `blocks` of its blocks.
pub(crate) fn resize(directory: &File, blocks: u64) -> io::Result<()> {
    // SAFETY: the kernel reads one u64 at the address, which is alive during the call.
    let result =
        unsafe { libc::ioctl(directory.as_raw_fd(), EXT4_IOC_RESIZE_FS, &raw const blocks) };
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(())
    }
}
