//! A socket on which a whole call has a time limit.
//!
//! A limit on each read or write would not do: a peer that sends one byte now and then could hold a
//! call up for as long as it likes.

use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// When the calls on one connection have to be over; clones share it.
#[derive(Debug, Clone, Default)]
pub struct Deadline(Arc<Mutex<Option<Limit>>>);

#[derive(Debug, Clone, Copy)]
struct Limit {
    at: Instant,
    /// What reads may still wait for after that, all of them together.
    patience: Duration,
}

impl Deadline {
    /// Gives what is done from now on this long, all of it together.
    pub fn set(&self, limit: Duration) {
        self.set_with_patience(limit, Duration::ZERO);
    }

    /// As [`Self::set`], but what has arrived can be read however late: afterwards only the time counts
    /// that reads wait for more, and `patience` is given to it. For a peer that keeps a limit of its own,
    /// and whose words may be read slowly.
    pub fn set_with_patience(&self, limit: Duration, patience: Duration) {
        let at = Instant::now().checked_add(limit);
        self.put(at.map(|at| Limit { at, patience }));
    }

    /// Takes the limit away.
    pub fn clear(&self) {
        self.put(None);
    }

    fn put(&self, limit: Option<Limit>) {
        *self.lock() = limit;
    }

    fn lock(&self) -> MutexGuard<'_, Option<Limit>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is left; `None` without a limit.
    fn left(&self) -> io::Result<Option<Duration>> {
        let Some(limit) = *self.lock() else {
            return Ok(None);
        };
        let left = limit.at.saturating_duration_since(Instant::now()) + limit.patience;
        match left.is_zero() {
            false => Ok(Some(left)),
            true => Err(io::ErrorKind::TimedOut.into()),
        }
    }

    /// Counts the time that a read has waited since `begun`.
    fn waited(&self, begun: Instant) {
        if let Some(limit) = &mut *self.lock() {
            let late = Instant::now().saturating_duration_since(begun.max(limit.at));
            limit.patience = limit.patience.saturating_sub(late);
        }
    }
}

/// The writing half of a connection that can end all of it.
pub trait HangUp {
    /// Ends both directions, also for who is waiting in a read. Errors mean that it has ended already.
    fn hang_up(&self);
}

impl HangUp for UnixStream {
    fn hang_up(&self) {
        let _ = self.shutdown(Shutdown::Both);
    }
}

impl HangUp for TimedStream {
    fn hang_up(&self) {
        self.stream.hang_up();
    }
}

/// A stream whose reads and writes end with [`io::ErrorKind::TimedOut`] once its [`Deadline`] has
/// passed.
#[derive(Debug)]
pub struct TimedStream {
    stream: UnixStream,
    deadline: Deadline,
    /// Whether the socket has timeouts from an earlier deadline.
    limited: bool,
}

/// Most bytes of one write under a deadline. A longer one would wait several times, each time with the
/// whole timeout.
const PIECE_BYTES: usize = 16 << 10;

impl TimedStream {
    /// Both ends of a connection over `stream`: a reader, a writer, and their common deadline, which
    /// is not set yet.
    ///
    /// # Errors
    /// When the descriptor cannot be duplicated.
    pub fn pair(stream: UnixStream) -> io::Result<(Self, Self, Deadline)> {
        let deadline = Deadline::default();
        let end = |stream| Self {
            stream,
            deadline: deadline.clone(),
            limited: false,
        };
        Ok((end(stream.try_clone()?), end(stream), deadline))
    }

    /// Prepares the socket for one operation; whether it has a limit.
    fn limit(
        &mut self,
        set: impl Fn(&UnixStream, Option<Duration>) -> io::Result<()>,
    ) -> io::Result<bool> {
        let left = self.deadline.left()?;
        if left.is_some() || self.limited {
            set(&self.stream, left)?;
        }
        self.limited = left.is_some();
        Ok(self.limited)
    }
}

/// A socket's timeout shows as `WouldBlock`.
fn timed_out(error: io::Error) -> io::Error {
    match error.kind() {
        io::ErrorKind::WouldBlock => io::ErrorKind::TimedOut.into(),
        _ => error,
    }
}

impl Read for TimedStream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let limited = self.limit(UnixStream::set_read_timeout)?;
        let begun = Instant::now();
        let read = self.stream.read(buffer);
        if limited {
            self.deadline.waited(begun);
        }
        read.map_err(timed_out)
    }
}

impl Write for TimedStream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let piece = match self.limit(UnixStream::set_write_timeout)? {
            true => &bytes[..bytes.len().min(PIECE_BYTES)],
            false => bytes,
        };
        self.stream.write(piece).map_err(timed_out)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::{ClientError, Connection};
    use crate::frame::FrameError;
    use crate::hello::{Hello, HelloError};

    fn is_late(error: &io::Error) -> bool {
        error.kind() == io::ErrorKind::TimedOut
    }

    /// An agent that answers the hello and then sends one byte of a long reply at a time.
    fn trickle(mut guest: UnixStream) {
        let _ = guest.write_all(&Hello::OURS.encode());
        let _ = guest.write_all(&[0, 0, 4, 0]);
        while guest.write_all(b"x").is_ok() {
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    #[test]
    fn a_peer_that_trickles_cannot_hold_a_call_up() {
        let (ours, guest) = UnixStream::pair().expect("socket pair");
        let agent = std::thread::spawn(move || trickle(guest));
        let (reader, writer, deadline) = TimedStream::pair(ours).expect("pair");
        let mut connection = Connection::open(reader, writer).expect("hello");
        deadline.set(Duration::from_millis(300));
        match connection.ping() {
            Err(ClientError::Frame(FrameError::Io(error))) => assert!(is_late(&error), "{error}"),
            other => panic!("{other:?}"),
        }
        drop(connection);
        agent.join().expect("agent");
    }

    #[test]
    fn a_hello_that_trickles_is_over_in_time_too() {
        let (ours, mut guest) = UnixStream::pair().expect("socket pair");
        let agent = std::thread::spawn(move || {
            for byte in Hello::OURS.encode().into_iter().take(11) {
                let _ = guest.write_all(&[byte]);
                std::thread::sleep(Duration::from_millis(5));
            }
            let _ = guest.read_to_end(&mut Vec::new());
        });
        let (reader, writer, deadline) = TimedStream::pair(ours).expect("pair");
        deadline.set(Duration::from_millis(300));
        match Connection::open(reader, writer) {
            Err(ClientError::Hello(HelloError::Io(error))) => assert!(is_late(&error), "{error}"),
            other => panic!("{other:?}"),
        }
        agent.join().expect("agent");
    }

    /// What a command wrote in its time is there for a slow reader; a guest that says nothing more, or
    /// trickles, is not waited for.
    #[test]
    fn what_has_arrived_can_be_read_late_and_nothing_else() {
        let (ours, mut guest) = UnixStream::pair().expect("socket pair");
        let (mut reader, _writer, deadline) = TimedStream::pair(ours).expect("pair");
        guest.write_all(&[7; 1000]).expect("fits");
        deadline.set_with_patience(Duration::ZERO, Duration::from_millis(200));
        for _ in 0..10 {
            std::thread::sleep(Duration::from_millis(50));
            reader.read_exact(&mut [0; 100]).expect("is there");
        }
        let agent = std::thread::spawn(move || trickle(guest));
        let error = loop {
            if let Err(error) = reader.read_exact(&mut [0; 1]) {
                break error;
            }
        };
        assert!(is_late(&error), "{error}");
        drop((reader, _writer));
        agent.join().expect("agent");
    }

    #[test]
    fn a_peer_that_takes_little_cannot_hold_a_write_up() {
        let (ours, mut guest) = UnixStream::pair().expect("socket pair");
        std::thread::spawn(move || {
            let mut bytes = [0; 64];
            while guest.read(&mut bytes).is_ok_and(|count| count > 0) {
                std::thread::sleep(Duration::from_millis(5));
            }
        });
        let (_reader, mut writer, deadline) = TimedStream::pair(ours).expect("pair");
        deadline.set(Duration::from_millis(300));
        let error = writer.write_all(&vec![0; 64 << 20]).expect_err("late");
        assert!(is_late(&error), "{error}");
    }
}
