//! Names of chunks, packs and points: 32 bytes, written as 64 lower-case hexadecimal digits.

use std::fmt;

/// A text that is not 64 lower-case hexadecimal digits.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("not an id of 64 lower-case hexadecimal digits")]
pub struct InvalidId;

fn parse_hex(text: &str) -> Result<[u8; 32], InvalidId> {
    let digits = text.as_bytes();
    if digits.len() != 64 {
        return Err(InvalidId);
    }
    let mut bytes = [0u8; 32];
    for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
        *byte = nibble(pair[0])? << 4 | nibble(pair[1])?;
    }
    Ok(bytes)
}

fn nibble(digit: u8) -> Result<u8, InvalidId> {
    match digit {
        b'0'..=b'9' => Ok(digit - b'0'),
        b'a'..=b'f' => Ok(digit - b'a' + 10),
        _ => Err(InvalidId),
    }
}

macro_rules! id_type {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub [u8; 32]);

        impl $name {
            /// The bytes of the id.
            #[must_use]
            pub const fn as_bytes(&self) -> &[u8; 32] {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}({self})", stringify!($name))
            }
        }

        impl std::str::FromStr for $name {
            type Err = InvalidId;

            fn from_str(text: &str) -> Result<Self, InvalidId> {
                parse_hex(text).map(Self)
            }
        }

        impl From<[u8; 32]> for $name {
            fn from(bytes: [u8; 32]) -> Self {
                Self(bytes)
            }
        }
    };
}

id_type! {
    /// A chunk's name: BLAKE3 of its uncompressed bytes, or [`ChunkId::ZERO`].
    ChunkId
}

id_type! {
    /// A pack's name: BLAKE3 of its index bytes.
    PackId
}

id_type! {
    /// A point's name. The store does not look into it; the caller derives it from the record.
    PointId
}

impl ChunkId {
    /// The id of every chunk that holds only zero bytes, whatever its length. Such a chunk is never stored.
    /// (No input with this BLAKE3 digest is known, so it collides with no other chunk.)
    pub const ZERO: Self = Self([0; 32]);

    /// The id of `data`: [`ChunkId::ZERO`] if all bytes are zero (or there are none), else its BLAKE3 digest.
    #[must_use]
    pub fn of(data: &[u8]) -> Self {
        if is_zero(data) {
            Self::ZERO
        } else {
            Self(*blake3::hash(data).as_bytes())
        }
    }

    /// Whether this is [`ChunkId::ZERO`].
    #[must_use]
    pub fn is_zero(&self) -> bool {
        *self == Self::ZERO
    }
}

/// Whether every byte is zero. Works in blocks so that the compiler uses vector instructions.
#[must_use]
pub fn is_zero(data: &[u8]) -> bool {
    let mut blocks = data.chunks_exact(128);
    blocks
        .by_ref()
        .all(|block| block.iter().fold(0, |seen, byte| seen | byte) == 0)
        && blocks.remainder().iter().all(|byte| *byte == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hex_round_trip_and_refusals() {
        let id = ChunkId::of(b"some bytes");
        assert_eq!(id.to_string().parse(), Ok(id));
        let text = id.to_string();
        for bad in [
            "",
            "00",
            &text[1..],
            &text.to_uppercase(),
            &format!("{text}0"),
        ] {
            assert_eq!(bad.parse::<ChunkId>(), Err(InvalidId), "{bad:?}");
        }
    }

    #[test]
    fn zero_is_found_at_every_length_and_position() {
        for len in [0usize, 1, 127, 128, 129, 1000] {
            assert!(ChunkId::of(&vec![0; len]).is_zero());
            for at in 0..len {
                let mut data = vec![0; len];
                data[at] = 1;
                assert!(!ChunkId::of(&data).is_zero(), "{len} {at}");
            }
        }
    }
}
