//! The loopback interface, `netdevice(7)`.
#![allow(unsafe_code)] // ioctls with struct ifreq

use std::io;
use std::os::fd::AsRawFd;

use rustix::net::{AddressFamily, SocketType, socket};

/// Brings `lo` up; the kernel then gives it its addresses.
pub(crate) fn bring_up_loopback() -> io::Result<()> {
    let socket = socket(AddressFamily::INET, SocketType::DGRAM, None)?;
    // SAFETY: an all-zero ifreq is valid.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(b"lo") {
        *to = libc::c_char::from_ne_bytes_of(*from);
    }
    let flags = libc::IFF_UP | libc::IFF_RUNNING;
    request.ifr_ifru.ifru_flags = libc::c_short::try_from(flags).unwrap_or(libc::c_short::MAX);
    // SAFETY: the kernel reads one ifreq, alive during the call, whose name ends with a NUL.
    let result = unsafe {
        libc::ioctl(
            socket.as_raw_fd(),
            libc::SIOCSIFFLAGS as libc::Ioctl,
            &raw const request,
        )
    };
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(())
    }
}

/// `c_char` is signed on some architectures.
trait FromByte {
    fn from_ne_bytes_of(byte: u8) -> Self;
}

impl FromByte for libc::c_char {
    #[allow(clippy::cast_possible_wrap, clippy::unnecessary_cast)] // ASCII
    fn from_ne_bytes_of(byte: u8) -> Self {
        byte as libc::c_char
    }
}
