//! Connections to the guest, handed over by the supervisor.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use vmm_core::host_side::{VsockBackend, VsockDial};

use crate::channel::{self, ChannelError};

/// Takes connections from a socket: each message is a port, its descriptor the stream.
pub(super) struct DialSocket {
    socket: UnixStream,
}

impl DialSocket {
    pub(super) fn new(socket: UnixStream) -> Self {
        Self { socket }
    }

    fn is_readable(&self) -> io::Result<bool> {
        let mut descriptors = [PollFd::new(&self.socket, PollFlags::IN)];
        let now = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        Ok(poll(&mut descriptors, Some(&now))? > 0)
    }
}

impl VsockBackend for DialSocket {
    fn dial_ready(&self) -> io::Result<OwnedFd> {
        self.socket.as_fd().try_clone_to_owned()
    }

    fn next_dial(&self) -> io::Result<Option<VsockDial>> {
        if !self.is_readable()? {
            return Ok(None);
        }
        let received = match channel::receive::<u32>(&self.socket) {
            Ok(received) => received,
            Err(ChannelError::Closed) => return Err(io::ErrorKind::BrokenPipe.into()),
            Err(error) => return Err(io::Error::other(error)),
        };
        let stream = received
            .descriptors
            .into_iter()
            .next()
            .map(UnixStream::from);
        let stream = stream.ok_or_else(|| io::Error::other("a dial without a stream"))?;
        Ok(Some(VsockDial {
            port: received.message,
            stream,
        }))
    }

    fn accept_from_guest(&self, _port: u32) -> io::Result<UnixStream> {
        Err(io::ErrorKind::ConnectionRefused.into())
    }
}
