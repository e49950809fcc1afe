//! Forking the agent off PID 1.
#![allow(unsafe_code)] // fork

use std::io;

/// Which side of a fork this is.
pub(crate) enum Fork {
    Child,
    Parent(i32),
}

/// Forks this process, which must have a single thread.
///
/// # Safety
/// With more than one thread the child could find locks taken for ever.
pub(crate) unsafe fn fork() -> io::Result<Fork> {
    // SAFETY: the caller has one thread only.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => Ok(Fork::Child),
        pid => Ok(Fork::Parent(pid)),
    }
}
