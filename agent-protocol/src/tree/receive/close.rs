//! Closing with a look at what comes of it.
#![allow(unsafe_code)] // the safe ways to close a descriptor do not say whether it worked

use std::io;
use std::os::fd::{IntoRawFd, OwnedFd};

use rustix::io::Errno;

/// Closes a descriptor. File systems over a network, and quotas, may refuse here what was written before.
pub(super) fn close(fd: OwnedFd) -> Result<(), Errno> {
    // SAFETY: the descriptor is ours and nobody's after this.
    if unsafe { libc::close(fd.into_raw_fd()) } == 0 {
        return Ok(());
    }
    match Errno::from_io_error(&io::Error::last_os_error()) {
        // It is closed all the same, and was not refused.
        Some(Errno::INTR) | None => Ok(()),
        Some(errno) => Err(errno),
    }
}
