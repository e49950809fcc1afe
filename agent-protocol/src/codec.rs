//! The encoding of messages: CBOR (RFC 8949) with numbered fields, and runs of raw bytes.
//!
//! The first byte of a payload says what follows:
//!
//! | first byte | what follows |
//! |---|---|
//! | 0 | one message in CBOR |
//! | 1, 2, 3 | bytes of stdin, stdout or stderr, to the end of the frame |
//! | 4 | the offset in a file, 8 bytes little-endian, and bytes that belong there |
//! | 5 | bytes of the machine's log |
//!
//! In CBOR a struct is a map from field numbers to values, and an enum an array of the variant's
//! number and such a map. A field that a decoder does not know is skipped. A field that is missing is
//! an error unless its type is an `Option` or it is marked as having a default: whatever is added to
//! version 1 must be one of the two. Data never goes through CBOR.
//!
//! Decoding never panics and takes memory in proportion to the input. Lists have limits of their own.

use minicbor::{Decode, Decoder, Encode};
use thiserror::Error;

use crate::frame::MAX_FRAME_BYTES;

/// First byte of a payload that is a message in CBOR.
const MESSAGE: u8 = 0;

/// Why bytes are not a message.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum DecodeError {
    /// The payload has no first byte.
    #[error("the message is empty")]
    Empty,
    /// The bytes are no CBOR, or not of the type that was expected.
    #[error("the message is not valid")]
    Cbor(#[source] Box<minicbor::decode::Error>),
    /// The message is of a kind that this program does not know; its peer is newer.
    #[error("the message is of a kind that is not known here")]
    UnknownKind(#[source] Box<minicbor::decode::Error>),
    /// Bytes remain after the message.
    #[error("{left} bytes left over after the message")]
    LeftOver {
        /// Bytes that remain.
        left: usize,
    },
    /// Raw bytes of a kind that does not belong here, or data in a message.
    #[error("data of kind {kind} where none belongs")]
    MisplacedData {
        /// First byte of the payload.
        kind: u8,
    },
}

impl From<minicbor::decode::Error> for DecodeError {
    fn from(error: minicbor::decode::Error) -> Self {
        if error.is_unknown_variant() {
            Self::UnknownKind(Box::new(error))
        } else {
            Self::Cbor(Box::new(error))
        }
    }
}

/// What a run of raw bytes is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Data {
    /// Input of a command.
    Stdin,
    /// Output of a command.
    Stdout,
    /// Error output of a command.
    Stderr,
    /// Part of a file.
    File {
        /// Where it belongs.
        offset: u64,
    },
    /// Part of the machine's log.
    Log,
}

impl Data {
    fn kind(self) -> u8 {
        match self {
            Self::Stdin => 1,
            Self::Stdout => 2,
            Self::Stderr => 3,
            Self::File { .. } => 4,
            Self::Log => 5,
        }
    }

    fn put(self, bytes: &[u8], out: &mut Vec<u8>) {
        out.push(self.kind());
        if let Self::File { offset } = self {
            out.extend_from_slice(&offset.to_le_bytes());
        }
        out.extend_from_slice(bytes);
    }

    /// The kind and the bytes of a payload that is data.
    fn get(payload: &[u8]) -> Result<(Self, &[u8]), DecodeError> {
        let (&kind, rest) = payload.split_first().ok_or(DecodeError::Empty)?;
        let misplaced = DecodeError::MisplacedData { kind };
        Ok(match kind {
            1 => (Self::Stdin, rest),
            2 => (Self::Stdout, rest),
            3 => (Self::Stderr, rest),
            4 => {
                let (offset, rest) = rest.split_first_chunk().ok_or(misplaced)?;
                let offset = u64::from_le_bytes(*offset);
                (Self::File { offset }, rest)
            }
            5 => (Self::Log, rest),
            _ => return Err(misplaced),
        })
    }
}

/// What fits a frame: a type with a CBOR encoding, some of whose values may be raw bytes.
pub trait Wire: Sized + Encode<()> + for<'b> Decode<'b, ()> {
    /// Largest payload that is read or written.
    const MAX_BYTES: usize = MAX_FRAME_BYTES;

    /// What this value is, if it is data.
    fn as_data(&self) -> Option<(Data, &[u8])> {
        None
    }

    /// The value that is this data, if there is one.
    fn from_data(_data: Data, _bytes: &[u8]) -> Option<Self> {
        None
    }

    /// Appends the payload of a frame.
    fn put(&self, out: &mut Vec<u8>) {
        if let Some((data, bytes)) = self.as_data() {
            return data.put(bytes, out);
        }
        out.push(MESSAGE);
        // Neither a vector nor a derived encoder fails.
        let _ = minicbor::encode(self, out);
    }

    /// The payload of a frame.
    fn encode_payload(&self) -> Vec<u8> {
        let mut out = Vec::new();
        self.put(&mut out);
        out
    }

    /// Decodes the payload of a frame.
    ///
    /// # Errors
    /// [`DecodeError`], also when bytes are left over.
    fn decode_payload(payload: &[u8]) -> Result<Self, DecodeError> {
        if payload.first() != Some(&MESSAGE) {
            let (data, bytes) = Data::get(payload)?;
            let kind = data.kind();
            return Self::from_data(data, bytes).ok_or(DecodeError::MisplacedData { kind });
        }
        let mut from = Decoder::new(&payload[1..]);
        let value: Self = from.decode()?;
        if let Some((data, _)) = value.as_data() {
            let kind = data.kind();
            return Err(DecodeError::MisplacedData { kind });
        }
        match payload.len() - 1 - from.position() {
            0 => Ok(value),
            left => Err(DecodeError::LeftOver { left }),
        }
    }
}

/// A run of bytes: data, paths, names, arguments.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Bytes(pub Vec<u8>);

impl std::fmt::Debug for Bytes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        const SHOWN: usize = 64;
        let head = &self.0[..self.0.len().min(SHOWN)];
        write!(f, "\"{}\"", head.escape_ascii())?;
        if self.0.len() > SHOWN {
            write!(f, "… ({} bytes)", self.0.len())?;
        }
        Ok(())
    }
}

impl<T: AsRef<[u8]> + ?Sized> From<&T> for Bytes {
    fn from(bytes: &T) -> Self {
        Self(bytes.as_ref().to_vec())
    }
}

impl From<Vec<u8>> for Bytes {
    fn from(bytes: Vec<u8>) -> Self {
        Self(bytes)
    }
}

impl std::ops::Deref for Bytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl<C> Encode<C> for Bytes {
    fn encode<W: minicbor::encode::Write>(
        &self,
        to: &mut minicbor::Encoder<W>,
        _: &mut C,
    ) -> Result<(), minicbor::encode::Error<W::Error>> {
        to.bytes(&self.0)?.ok()
    }
}

impl<'b, C> Decode<'b, C> for Bytes {
    fn decode(from: &mut Decoder<'b>, _: &mut C) -> Result<Self, minicbor::decode::Error> {
        Ok(Self(from.bytes()?.to_vec()))
    }
}

/// Sixteen bytes that identify something.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Encode, Decode)]
#[cbor(transparent)]
pub struct Id(#[cbor(n(0), with = "minicbor::bytes")] pub [u8; 16]);

impl From<[u8; 16]> for Id {
    fn from(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }
}

/// Decodes a list of at most `MAX` items. It grows as items arrive: an announced length costs nothing.
pub(crate) fn bounded_list<'b, C, T: Decode<'b, C>, const MAX: usize>(
    from: &mut Decoder<'b>,
    context: &mut C,
) -> Result<Vec<T>, minicbor::decode::Error> {
    let mut items = Vec::new();
    for item in from.array_iter_with(context)? {
        if items.len() == MAX {
            return Err(minicbor::decode::Error::message(
                "a list with too many items",
            ));
        }
        items.push(item?);
    }
    Ok(items)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, PartialEq, Encode, Decode)]
    #[cbor(map)]
    struct Today {
        #[n(1)]
        name: Bytes,
        #[cbor(n(3), default, decode_with = "bounded_list::<_, _, 3>")]
        list: Vec<u64>,
    }
    impl Wire for Today {}

    /// What a later program may send: more fields, of any kind.
    #[derive(Encode, Decode)]
    #[cbor(map)]
    struct Tomorrow {
        #[n(0)]
        before: Vec<Vec<String>>,
        #[n(1)]
        name: Bytes,
        #[n(2)]
        between: Option<Id>,
        #[n(9)]
        behind: Today,
    }
    impl Wire for Tomorrow {}

    fn today() -> Today {
        Today {
            name: "x".into(),
            list: vec![1, 2, 3],
        }
    }

    #[test]
    fn unknown_fields_are_skipped_and_missing_ones_have_defaults() {
        let later = Tomorrow {
            before: vec![vec!["a".into()]; 3],
            name: "same".into(),
            between: Some(Id([7; 16])),
            behind: today(),
        };
        let seen = Today::decode_payload(&later.encode_payload()).expect("compatible");
        assert_eq!(
            seen,
            Today {
                name: "same".into(),
                list: Vec::new()
            }
        );
        // A required one is missing.
        let error = Tomorrow::decode_payload(&today().encode_payload());
        assert!(matches!(error, Err(DecodeError::Cbor(_))));
    }

    #[test]
    fn lists_have_a_limit_and_an_announced_length_costs_nothing() {
        let mut long = today();
        long.list.push(4);
        assert!(Today::decode_payload(&long.encode_payload()).is_err());
        // A map of one field, number 3, a list of 2^64 - 1 items that are not there.
        let mut bytes = vec![0, 0xa1, 3, 0x9b];
        bytes.extend([0xff; 8]);
        assert!(Today::decode_payload(&bytes).is_err());
    }

    #[test]
    fn left_over_bytes_and_misplaced_data_are_refused() {
        let mut bytes = today().encode_payload();
        bytes.push(0);
        assert!(matches!(
            Today::decode_payload(&bytes),
            Err(DecodeError::LeftOver { left: 1 })
        ));
        for kind in [1, 2, 3, 5] {
            assert!(matches!(
                Today::decode_payload(&[kind, 1, 2, 3, 4, 5, 6, 7, 8, 9]),
                Err(DecodeError::MisplacedData { .. })
            ));
        }
        assert!(matches!(
            Today::decode_payload(&[]),
            Err(DecodeError::Empty)
        ));
    }
}
