//! A standard stream as it is.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;

use rustix::event::{PollFd, PollFlags, poll};

/// One of our standard streams, unbuffered. Whoever started us may have made it non-blocking, or still does, since it is theirs as
/// well: it is waited for all the same.
pub(crate) struct RawStream(File);

impl RawStream {
    pub(super) fn new(descriptor: OwnedFd) -> Self {
        Self(descriptor.into())
    }

    /// Does `attempt` until it need not wait for `flags`.
    fn waiting<T>(
        &mut self,
        flags: PollFlags,
        mut attempt: impl FnMut(&mut File) -> io::Result<T>,
    ) -> io::Result<T> {
        loop {
            match attempt(&mut self.0) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    rustix::io::retry_on_intr(|| poll(&mut [PollFd::new(&self.0, flags)], None))?;
                }
                other => return other,
            }
        }
    }
}

impl Read for RawStream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.waiting(PollFlags::IN, |file| file.read(buffer))
    }
}

impl Write for RawStream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.waiting(PollFlags::OUT, |file| file.write(bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nonblocking(descriptor: &OwnedFd) {
        let flags = rustix::fs::fcntl_getfl(descriptor).unwrap();
        rustix::fs::fcntl_setfl(descriptor, flags | rustix::fs::OFlags::NONBLOCK).unwrap();
    }

    #[test]
    fn a_stream_that_does_not_block_is_waited_for() {
        let (reader, writer) = rustix::pipe::pipe().unwrap();
        nonblocking(&reader);
        nonblocking(&writer);
        let bytes: Vec<u8> = (0..1_000_000).map(|number| (number % 251) as u8).collect();
        let theirs = bytes.clone();
        let writing = std::thread::spawn(move || RawStream::new(writer).write_all(&theirs));
        let mut read = Vec::new();
        RawStream::new(reader).read_to_end(&mut read).unwrap();
        writing.join().unwrap().unwrap();
        assert!(read == bytes);
    }
}
