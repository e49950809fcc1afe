use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;

/// Makes a thread leave `poll`: a socket pair, readable after [`wake`](Self::wake).
#[derive(Debug)]
pub(super) struct Waker {
    sender: UnixStream,
    receiver: UnixStream,
}

impl Waker {
    pub(super) fn new() -> io::Result<Self> {
        let (sender, receiver) = UnixStream::pair()?;
        sender.set_nonblocking(true)?;
        receiver.set_nonblocking(true)?;
        Ok(Self { sender, receiver })
    }

    pub(super) fn wake(&self) {
        // A full buffer means that a wake-up is under way already.
        let _ = (&self.sender).write(&[1]);
    }

    /// Takes all wake-ups.
    pub(super) fn clear(&self) {
        let mut buffer = [0; 64];
        while matches!((&self.receiver).read(&mut buffer), Ok(n) if n == buffer.len()) {}
    }

    pub(super) fn as_fd(&self) -> BorrowedFd<'_> {
        self.receiver.as_fd()
    }
}
