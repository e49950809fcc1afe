//! Online resizing of ext4, `Documentation/filesystems/ext4`.
#![allow(unsafe_code)] // an ioctl

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

/// `_IOW('f', 16, __u64)`
const EXT4_IOC_RESIZE_FS: libc::Ioctl = 0x4008_6610;

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
