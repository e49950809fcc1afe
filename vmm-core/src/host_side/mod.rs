//! What devices need from the host: traits that the machine's owner implements.

mod file_disk;
#[cfg(feature = "cow-disk")]
mod layered_disk;

use std::io;
use std::os::unix::net::UnixStream;

pub use file_disk::FileDisk;

/// The disk under a virtio-blk device. Called from several threads at once.
pub trait BlockBackend: Send + Sync {
    /// Size in bytes, a multiple of 512.
    fn size_bytes(&self) -> u64;

    /// Whether writes are refused.
    fn read_only(&self) -> bool;

    /// Fills `buffer` from `offset_bytes`.
    fn read_at(&self, offset_bytes: u64, buffer: &mut [u8]) -> io::Result<()>;

    /// Writes `data` at `offset_bytes`.
    fn write_at(&self, offset_bytes: u64, data: &[u8]) -> io::Result<()>;

    /// Makes all completed writes durable.
    fn flush(&self) -> io::Result<()>;

    /// Gives the range up; each of its bytes reads as zero or as before afterwards.
    fn discard(&self, offset_bytes: u64, length_bytes: u64) -> io::Result<()>;

    /// Makes the range read as zeros.
    fn write_zeroes(&self, offset_bytes: u64, length_bytes: u64) -> io::Result<()>;
}

/// A connection that the host wants to make to a port of the guest.
#[derive(Debug)]
pub struct VsockDial {
    /// The port in the guest.
    pub port: u32,
    /// The host's end of the connection; what is read from it goes to the guest and back.
    pub stream: UnixStream,
}

/// The host's side of a vsock device.
pub trait VsockBackend: Send + Sync {
    /// A descriptor that is readable while [`next_dial`](Self::next_dial) has something.
    fn dial_ready(&self) -> io::Result<std::os::fd::OwnedFd>;

    /// The next connection to make, if one waits. Does not block.
    fn next_dial(&self) -> io::Result<Option<VsockDial>>;

    /// The guest connects to `port` of the host; an error refuses it.
    fn accept_from_guest(&self, port: u32) -> io::Result<UnixStream>;
}

/// The network behind a virtio-net device.
pub trait NetBackend: Send + Sync {
    /// Takes an Ethernet frame from the guest.
    fn send(&self, frame: &[u8]) -> io::Result<()>;

    /// The next frame for the guest, if one waits: its length in `buffer`.
    fn receive(&self, buffer: &mut [u8]) -> io::Result<Option<usize>>;

    /// A descriptor that is readable while [`receive`](Self::receive) has something.
    fn receive_ready(&self) -> io::Result<std::os::fd::OwnedFd>;
}
