//! A connection to a guest that runs only while somebody waits for it.

use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use super::{Guest, PATIENCE, STEP};

/// The host's end of a connection. Whoever waits on it lets the guest run, a step at a time, until there
/// is something: so the guest gets and gives its bytes at counts that follow from the calls alone.
#[derive(Clone)]
pub(super) struct GuestStream {
    stream: Arc<UnixStream>,
    guest: Guest,
}

impl GuestStream {
    pub(super) fn new(stream: UnixStream, guest: Guest) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        Ok(Self {
            stream: Arc::new(stream),
            guest,
        })
    }

    /// Tries something until it does not have to wait any more.
    fn drive(&self, mut attempt: impl FnMut() -> io::Result<usize>) -> io::Result<usize> {
        let deadline = self.guest.count().saturating_add(PATIENCE);
        loop {
            match attempt() {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                result => return result,
            }
            if self.guest.count() >= deadline {
                return Err(ErrorKind::TimedOut.into());
            }
            self.guest.run_for(STEP).map_err(io::Error::other)?;
        }
    }
}

impl Read for GuestStream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.drive(|| (&*self.stream).read(buffer))
    }
}

impl Write for GuestStream {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        self.drive(|| (&*self.stream).write(data))
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
