//! Messages with file descriptors over a local stream socket.
//!
//! A message is `length: u32 LE` and that many bytes of JSON; descriptors travel with the length. Used
//! between supervisor and VMM, and between a command and the supervisor. Both ends are of the same
//! version: they are the same program.

pub(crate) mod branch;
pub(crate) mod capture;
pub(crate) mod child;
pub(crate) mod control;
pub(crate) mod control_socket;
pub(crate) mod memory_file;
pub(crate) mod messages;
mod raw;
pub(crate) mod undo;

use std::io::{self, Read, Write};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;
use thiserror::Error;

/// Longest message in bytes.
pub(crate) const MAX_MESSAGE_BYTES: usize = 32 << 20;
/// Most descriptors with one message (below Linux's `SCM_MAX_FD`, 253).
pub(crate) const MAX_DESCRIPTORS: usize = 250;

/// Why a message could not be sent or received.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ChannelError {
    /// The other end is gone.
    #[error("the other process has closed the connection")]
    Closed,
    /// The socket failed.
    #[error("the connection failed")]
    Io(#[from] io::Error),
    /// The other end takes nothing more.
    #[error("the other process takes no messages")]
    Busy,
    /// A message larger than allowed.
    #[error("a message of {bytes} bytes is larger than {MAX_MESSAGE_BYTES}")]
    TooLong {
        /// Its length in bytes.
        bytes: usize,
    },
    /// Too many descriptors in one message.
    #[error("{count} descriptors in one message, at most {MAX_DESCRIPTORS} fit")]
    TooManyDescriptors {
        /// How many.
        count: usize,
    },
    /// Not a message of this program.
    #[error("the other process sent something else than a message")]
    Format(#[from] serde_json::Error),
}

/// A message and the descriptors that came with it.
#[derive(Debug)]
pub(crate) struct Received<M> {
    pub(crate) message: M,
    pub(crate) descriptors: Vec<OwnedFd>,
}

/// Sends `message` with `descriptors`, which stay open here.
pub(crate) fn send<M: Serialize>(
    mut socket: &UnixStream,
    message: &M,
    descriptors: &[BorrowedFd<'_>],
) -> Result<(), ChannelError> {
    let body = serde_json::to_vec(message)?;
    if body.len() > MAX_MESSAGE_BYTES {
        return Err(ChannelError::TooLong { bytes: body.len() });
    }
    if descriptors.len() > MAX_DESCRIPTORS {
        return Err(ChannelError::TooManyDescriptors {
            count: descriptors.len(),
        });
    }
    let header = (body.len() as u32).to_le_bytes();
    let sent = raw::send_with_descriptors(socket, &header, descriptors).map_err(closed)?;
    socket.write_all(&header[sent..]).map_err(closed)?;
    socket.write_all(&body).map_err(closed)
}

/// Sends a short message to a process that may be stopped: waits for at most `patience`, and then sends nothing of it.
pub(crate) fn send_within<M: Serialize>(
    socket: &UnixStream,
    message: &M,
    descriptors: &[BorrowedFd<'_>],
    patience: Duration,
) -> Result<(), ChannelError> {
    // A socket that is writable takes as much as a short message has, at once.
    if raw::is_writable(socket, patience)? {
        return send(socket, message, descriptors);
    }
    Err(ChannelError::Busy)
}

/// Whether there is something to be received, or nothing will be any more; waits for at most `patience`.
pub(crate) fn is_readable(socket: &UnixStream, patience: Duration) -> Result<bool, ChannelError> {
    Ok(raw::is_readable(socket, patience)?)
}

/// Receives the next message.
pub(crate) fn receive<M: DeserializeOwned>(
    mut socket: &UnixStream,
) -> Result<Received<M>, ChannelError> {
    let mut header = [0; 4];
    let (count, descriptors) =
        raw::receive_with_descriptors(socket, &mut header).map_err(closed)?;
    if count == 0 {
        return Err(ChannelError::Closed);
    }
    socket.read_exact(&mut header[count..]).map_err(closed)?;
    let bytes = u32::from_le_bytes(header) as usize;
    if bytes > MAX_MESSAGE_BYTES {
        return Err(ChannelError::TooLong { bytes });
    }
    let mut body = vec![0; bytes];
    socket.read_exact(&mut body).map_err(closed)?;
    Ok(Received {
        message: serde_json::from_slice(&body)?,
        descriptors,
    })
}

fn closed(error: io::Error) -> ChannelError {
    use io::ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof};
    match error.kind() {
        BrokenPipe | ConnectionReset | UnexpectedEof => ChannelError::Closed,
        _ => ChannelError::Io(error),
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn messages_and_descriptors_arrive_together() {
        let (a, b) = UnixStream::pair().unwrap();
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(b"here").unwrap();
        send(
            &a,
            &vec!["x".repeat(100_000)],
            &[file.as_fd(), file.as_fd()],
        )
        .unwrap();
        send(&a, &"second", &[]).unwrap();
        let first: Received<Vec<String>> = receive(&b).unwrap();
        assert_eq!(first.message[0].len(), 100_000);
        assert_eq!(first.descriptors.len(), 2);
        let received = File::from(first.descriptors.into_iter().next().unwrap());
        assert_eq!(received.metadata().unwrap().len(), 4);
        let second: Received<String> = receive(&b).unwrap();
        assert_eq!(
            (second.message.as_str(), second.descriptors.len()),
            ("second", 0)
        );
        drop(a);
        assert!(matches!(receive::<String>(&b), Err(ChannelError::Closed)));
    }

    #[test]
    fn a_process_that_does_not_read_holds_nobody() {
        let (a, b) = UnixStream::pair().unwrap();
        let text = "x".repeat(200);
        let mut sent = 0;
        let refused = loop {
            match send_within(&a, &text, &[], Duration::ZERO) {
                Ok(()) => sent += 1,
                Err(error) => break error,
            }
        };
        assert!(matches!(refused, ChannelError::Busy));
        // All of what was sent is whole, and there is room again once it is read.
        for _ in 0..sent {
            assert_eq!(receive::<String>(&b).unwrap().message, text);
        }
        send_within(&a, &text, &[], Duration::ZERO).unwrap();
        drop(b);
        let closed = send_within(&a, &text, &[], Duration::ZERO);
        assert!(matches!(closed, Err(ChannelError::Closed)));
    }

    #[test]
    fn rubbish_is_an_error() {
        let (mut a, b) = UnixStream::pair().unwrap();
        a.write_all(&u32::MAX.to_le_bytes()).unwrap();
        assert!(matches!(
            receive::<String>(&b),
            Err(ChannelError::TooLong { .. })
        ));
        let (mut a, b) = UnixStream::pair().unwrap();
        a.write_all(&[3, 0, 0, 0, b'{', b'{', b'{']).unwrap();
        assert!(matches!(
            receive::<String>(&b),
            Err(ChannelError::Format(_))
        ));
    }
}
