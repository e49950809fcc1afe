//! Length-prefixed frames over any byte stream.
//!
//! A frame is a `u32` little-endian length and that many bytes, one message or a run of data
//! ([`codec`](crate::codec)). A length of zero or above the limit of what is expected
//! ([`Wire::MAX_BYTES`]) is an error: the stream is no longer in step and must be closed. A message
//! that does not decode leaves the stream in step.

use std::io::{self, Read, Write};

use thiserror::Error;

use crate::codec::{DecodeError, Wire};

/// Largest payload of a frame, but for those of [`Request`](crate::message::Request).
pub const MAX_FRAME_BYTES: usize = 1 << 20;
/// Data of streams and files is cut into pieces of at most this many bytes.
pub const MAX_DATA_BYTES: usize = 64 << 10;
/// Bytes of the length before each payload.
pub const FRAME_HEADER_BYTES: usize = 4;

/// Why a frame could not be read or written.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum FrameError {
    /// The peer closed the stream between two frames.
    #[error("the connection was closed by the other side")]
    Closed,
    /// The stream ended inside a frame.
    #[error("the connection ended inside a frame")]
    Cut,
    /// The frame's length is not allowed.
    #[error("frame of {length} bytes, 1 to {limit} are allowed")]
    BadLength {
        /// The length announced or asked for.
        length: usize,
        /// The largest one.
        limit: usize,
    },
    /// The payload is not the message expected.
    #[error("the frame holds no valid message")]
    Decode(#[from] DecodeError),
    /// The stream failed.
    #[error("the connection failed")]
    Io(#[source] io::Error),
}

impl FrameError {
    /// Whether the message was whole, but of a kind that a newer peer sends.
    #[must_use]
    pub fn is_unknown_kind(&self) -> bool {
        matches!(self, Self::Decode(DecodeError::UnknownKind(_)))
    }
}

fn checked_length<M: Wire>(header: [u8; FRAME_HEADER_BYTES]) -> Result<usize, FrameError> {
    let length = u32::from_le_bytes(header) as usize;
    let limit = M::MAX_BYTES;
    if length == 0 || length > limit {
        return Err(FrameError::BadLength { length, limit });
    }
    Ok(length)
}

/// Appends `message` as a frame to `out`.
///
/// # Errors
/// [`FrameError::BadLength`] when the message is larger than a frame; `out` is then unchanged.
pub fn push_frame<M: Wire>(message: &M, out: &mut Vec<u8>) -> Result<(), FrameError> {
    let start = out.len();
    out.extend_from_slice(&[0; FRAME_HEADER_BYTES]);
    message.put(out);
    let length = out.len() - start - FRAME_HEADER_BYTES;
    let limit = M::MAX_BYTES;
    let header = u32::try_from(length).ok().filter(|_| length <= limit);
    let Some(header) = header else {
        out.truncate(start);
        return Err(FrameError::BadLength { length, limit });
    };
    out[start..start + FRAME_HEADER_BYTES].copy_from_slice(&header.to_le_bytes());
    Ok(())
}

/// Writes `message` as one frame with one write.
///
/// # Errors
/// [`FrameError::BadLength`] before anything is written, [`FrameError::Io`] when the stream fails.
pub fn write_message<M: Wire>(to: &mut impl Write, message: &M) -> Result<(), FrameError> {
    let mut frame = Vec::new();
    push_frame(message, &mut frame)?;
    to.write_all(&frame)
        .and_then(|()| to.flush())
        .map_err(FrameError::Io)
}

/// Reads one frame and decodes its message; blocks until it is there.
///
/// # Errors
/// [`FrameError::Closed`] at an end between frames, and every other variant.
pub fn read_message<M: Wire>(from: &mut impl Read) -> Result<M, FrameError> {
    let mut header = [0; FRAME_HEADER_BYTES];
    if read_some(from, &mut header)? == 0 {
        return Err(FrameError::Closed);
    }
    let length = checked_length::<M>(header)?;
    let mut payload = vec![0; length];
    if read_some(from, &mut payload)? < length {
        return Err(FrameError::Cut);
    }
    Ok(M::decode_payload(&payload)?)
}

/// Fills `buffer`; 0 means an end before the first byte.
fn read_some(from: &mut impl Read, buffer: &mut [u8]) -> Result<usize, FrameError> {
    let mut done = 0;
    while done < buffer.len() {
        match from.read(&mut buffer[done..]) {
            Ok(0) if done == 0 => return Ok(0),
            Ok(0) => return Err(FrameError::Cut),
            Ok(count) => done += count,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(FrameError::Io(e)),
        }
    }
    Ok(done)
}

/// Takes bytes as they come and gives whole messages; for streams that are polled.
///
/// Holds at most one frame and what one [`FrameBuffer::push`] added.
#[derive(Debug, Default)]
pub struct FrameBuffer {
    bytes: Vec<u8>,
    start: usize,
}

impl FrameBuffer {
    /// Takes `N` bytes that are no frame, if so many are there.
    pub fn take_raw<const N: usize>(&mut self) -> Option<[u8; N]> {
        let bytes = *self.bytes[self.start..].first_chunk::<N>()?;
        self.start += N;
        Some(bytes)
    }

    /// What is left: bytes behind the last message taken out.
    #[must_use]
    pub fn into_rest(mut self) -> Vec<u8> {
        self.bytes.split_off(self.start)
    }

    /// Adds bytes from the stream. Take all messages out before adding more.
    pub fn push(&mut self, bytes: &[u8]) {
        if self.start > 0 {
            self.bytes.drain(..self.start);
            self.start = 0;
        }
        self.bytes.extend_from_slice(bytes);
    }

    /// The next whole message, or `None` when more bytes are needed.
    ///
    /// # Errors
    /// [`FrameError::BadLength`]; the stream is then out of step. [`FrameError::Decode`]; the next
    /// call goes on behind that message.
    pub fn next_message<M: Wire>(&mut self) -> Result<Option<M>, FrameError> {
        let rest = &self.bytes[self.start..];
        let Some((header, rest)) = rest.split_first_chunk::<FRAME_HEADER_BYTES>() else {
            return Ok(None);
        };
        let length = checked_length::<M>(*header)?;
        let Some(payload) = rest.get(..length) else {
            return Ok(None);
        };
        let message = M::decode_payload(payload);
        self.start += FRAME_HEADER_BYTES + length;
        Ok(Some(message?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::Bytes;

    impl Wire for Bytes {}

    #[test]
    fn frames_survive_any_cut_into_pieces() {
        let messages: Vec<Bytes> = (0..20usize).map(|n| Bytes(vec![7; n * 37])).collect();
        let mut stream = Vec::new();
        for message in &messages {
            push_frame(message, &mut stream).expect("small enough");
        }
        for piece in [1, 3, 64, 4096] {
            let (mut buffer, mut seen) = (FrameBuffer::default(), Vec::new());
            for part in stream.chunks(piece) {
                buffer.push(part);
                while let Some(message) = buffer.next_message::<Bytes>().expect("in step") {
                    seen.push(message);
                }
            }
            assert_eq!(seen, messages);
        }
    }

    #[test]
    fn lengths_are_checked_before_memory_is_taken() {
        let huge = u32::MAX.to_le_bytes();
        assert!(matches!(
            read_message::<Bytes>(&mut huge.as_slice()),
            Err(FrameError::BadLength { .. })
        ));
        assert!(matches!(
            read_message::<Bytes>(&mut [0u8; 4].as_slice()),
            Err(FrameError::BadLength { length: 0, .. })
        ));
        assert!(matches!(
            read_message::<Bytes>(&mut [].as_slice()),
            Err(FrameError::Closed)
        ));
        assert!(matches!(
            read_message::<Bytes>(&mut [5u8, 0, 0, 0, 1].as_slice()),
            Err(FrameError::Cut)
        ));
        let too_big = Bytes(vec![0; MAX_FRAME_BYTES]);
        let mut out = vec![1];
        assert!(matches!(
            push_frame(&too_big, &mut out),
            Err(FrameError::BadLength { .. })
        ));
        assert_eq!(out, [1]);
    }
}
