//! Sockets between the guest and its host, `vsock(7)`.
#![allow(unsafe_code)] // addresses of a family that has no safe wrapper

use std::io;
use std::mem::size_of;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use rustix::net::{AddressFamily, SocketFlags, SocketType, listen, socket_with};

/// Connections that wait to be accepted.
const BACKLOG: i32 = 128;

fn address_length() -> libc::socklen_t {
    libc::socklen_t::try_from(size_of::<libc::sockaddr_vm>()).unwrap_or(0)
}

/// A listening stream socket on `port`.
pub(crate) fn listener(port: u32) -> io::Result<OwnedFd> {
    let socket = socket_with(
        AddressFamily::VSOCK,
        SocketType::STREAM,
        SocketFlags::CLOEXEC,
        None,
    )?;
    // SAFETY: an all-zero address is valid.
    let mut address: libc::sockaddr_vm = unsafe { std::mem::zeroed() };
    address.svm_family = libc::sa_family_t::try_from(libc::AF_VSOCK).unwrap_or(0);
    address.svm_cid = libc::VMADDR_CID_ANY;
    address.svm_port = port;
    // SAFETY: the address is a sockaddr_vm of that length, alive during the call.
    let result = unsafe {
        libc::bind(
            socket.as_raw_fd(),
            (&raw const address).cast(),
            address_length(),
        )
    };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    listen(&socket, BACKLOG)?;
    Ok(socket)
}

/// Waits for a connection and says whether it comes from the host: any process of the guest may
/// connect too where the kernel has a loopback transport.
pub(crate) fn accept(listener: &OwnedFd) -> io::Result<(OwnedFd, bool)> {
    // SAFETY: an all-zero address is valid.
    let mut address: libc::sockaddr_vm = unsafe { std::mem::zeroed() };
    let mut length = address_length();
    // SAFETY: address and length are alive during the call and the kernel writes at most `length`.
    let fd = unsafe {
        libc::accept4(
            listener.as_raw_fd(),
            (&raw mut address).cast(),
            &raw mut length,
            libc::SOCK_CLOEXEC,
        )
    };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: accept4 has just made this descriptor and nobody else has it.
    let connection = unsafe { OwnedFd::from_raw_fd(fd) };
    Ok((connection, address.svm_cid == libc::VMADDR_CID_HOST))
}
