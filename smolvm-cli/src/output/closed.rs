//! Whether stdout was closed when we were started.
#![allow(unsafe_code)] // runs before `main`: the standard library opens /dev/null in place of a closed stream

use std::fs::File;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, Ordering};

static CLOSED: AtomicBool = AtomicBool::new(false);

#[used]
// SAFETY: the linker gathers pointers to functions of this type in that section, and the C library calls
// each once, on the only thread. What it does needs nothing of Rust's runtime.
#[cfg_attr(target_os = "linux", unsafe(link_section = ".init_array"))]
#[cfg_attr(
    target_vendor = "apple",
    unsafe(link_section = "__DATA,__mod_init_func")
)]
static LOOK: extern "C" fn() = look;

extern "C" fn look() {
    // SAFETY: only asks whether the number is a descriptor; it is not kept.
    let stdout = unsafe { BorrowedFd::borrow_raw(1) };
    if rustix::io::fcntl_getfd(stdout) == Err(rustix::io::Errno::BADF) {
        CLOSED.store(true, Ordering::Relaxed);
    }
}

/// In place of a closed stdout: what is written to it fails, as it would have there.
pub(super) fn instead_of_stdout() -> Option<io::Result<File>> {
    let closed = CLOSED.load(Ordering::Relaxed);
    closed.then(|| File::open("/dev/null"))
}
