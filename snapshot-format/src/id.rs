//! Ids of checkpoints: the BLAKE3 digest of a record's bytes, and what people type to name one.

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

/// Digits of an id that are shown where a full id would be noise.
pub const SHORT_ID_DIGITS: usize = 12;
/// Fewest digits that may stand for an id.
pub const MIN_PREFIX_DIGITS: usize = 8;
/// Digits of a full id.
const ID_DIGITS: usize = 64;

/// A text that is neither an id nor the beginning of one.
#[derive(Debug, Error, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum InvalidId {
    /// A full id has 64 digits.
    #[error("an id has {ID_DIGITS} hexadecimal digits, this text has {length} characters")]
    WrongLength {
        /// Characters found.
        length: usize,
    },
    /// A prefix of an id has 8 to 64 digits.
    #[error(
        "an id is named by its first {MIN_PREFIX_DIGITS} to {ID_DIGITS} hexadecimal digits, this text has {length} characters"
    )]
    PrefixLength {
        /// Characters found.
        length: usize,
    },
    /// A character that is no hexadecimal digit.
    #[error("{found:?} is not a hexadecimal digit")]
    NotHex {
        /// The first such character.
        found: char,
    },
}

/// The name of a saved point: BLAKE3 of its record's bytes, nothing else.
///
/// Shown as 64 lower-case hexadecimal digits; `{:.12}` or [`short`](Self::short) gives the short form.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CheckpointId(pub [u8; 32]);

impl CheckpointId {
    /// The id of a record with these bytes, as they are stored.
    #[must_use]
    pub fn of_bytes(record: &[u8]) -> Self {
        Self(*blake3::hash(record).as_bytes())
    }

    /// The id's first 12 digits.
    #[must_use]
    pub fn short(&self) -> String {
        format!("{self:.SHORT_ID_DIGITS$}")
    }
}

impl fmt::Display for CheckpointId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // `pad` gives width and precision their meaning for texts.
        f.pad(&to_hex(&self.0))
    }
}

impl fmt::Debug for CheckpointId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CheckpointId({self})")
    }
}

impl FromStr for CheckpointId {
    type Err = InvalidId;

    /// Reads 64 hexadecimal digits of either case.
    fn from_str(text: &str) -> Result<Self, InvalidId> {
        let prefix = IdPrefix::parse(text).map_err(|error| match error {
            InvalidId::PrefixLength { length } => InvalidId::WrongLength { length },
            other => other,
        })?;
        prefix.full().ok_or(InvalidId::WrongLength {
            length: text.chars().count(),
        })
    }
}

/// The first 8 to 64 digits of an id, as typed by a person.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct IdPrefix {
    /// Lower-case digits.
    digits: String,
}

impl IdPrefix {
    /// Reads 8 to 64 hexadecimal digits of either case.
    ///
    /// # Errors
    /// The text has another length or another character.
    pub fn parse(text: &str) -> Result<Self, InvalidId> {
        if let Some(found) = text.chars().find(|c| !c.is_ascii_hexdigit()) {
            return Err(InvalidId::NotHex { found });
        }
        let length = text.len();
        if !(MIN_PREFIX_DIGITS..=ID_DIGITS).contains(&length) {
            return Err(InvalidId::PrefixLength { length });
        }
        Ok(Self {
            digits: text.to_ascii_lowercase(),
        })
    }

    /// Whether `id` begins so.
    #[must_use]
    pub fn matches(&self, id: &CheckpointId) -> bool {
        to_hex(&id.0).starts_with(&self.digits)
    }

    /// The id, if all of its digits are there.
    #[must_use]
    pub fn full(&self) -> Option<CheckpointId> {
        from_hex(&self.digits).map(CheckpointId)
    }
}

impl FromStr for IdPrefix {
    type Err = InvalidId;

    fn from_str(text: &str) -> Result<Self, InvalidId> {
        Self::parse(text)
    }
}

impl fmt::Display for IdPrefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.digits)
    }
}

/// Lower-case hexadecimal digits of `bytes`.
pub(crate) fn to_hex(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len() * 2);
    for byte in bytes {
        for nibble in [byte >> 4, byte & 15] {
            text.push(char::from_digit(u32::from(nibble), 16).unwrap_or('0'));
        }
    }
    text
}

fn from_hex(digits: &str) -> Option<[u8; 32]> {
    unhex(digits)?.try_into().ok()
}

/// The bytes that an even number of hexadecimal digits stands for.
pub(crate) fn unhex(digits: &str) -> Option<Vec<u8>> {
    let digits = digits.as_bytes();
    if !digits.len().is_multiple_of(2) {
        return None;
    }
    let nibble = |digit: u8| char::from(digit).to_digit(16);
    digits
        .chunks_exact(2)
        .map(|pair| u8::try_from(nibble(pair[0])? << 4 | nibble(pair[1])?).ok())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_the_digest_of_the_bytes() {
        // The published BLAKE3 test vector of the empty input.
        let empty = "af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262";
        let id = CheckpointId::of_bytes(b"");
        assert_eq!(id.to_string(), empty);
        assert_eq!(id.short(), "af1349b9f5f9");
        assert_eq!(empty.parse(), Ok(id));
        assert_eq!(empty.to_uppercase().parse(), Ok(id));
    }

    #[test]
    fn full_ids_need_every_digit() {
        assert_eq!(
            "af1349b9f5f9".parse::<CheckpointId>(),
            Err(InvalidId::WrongLength { length: 12 })
        );
        assert_eq!(
            "a".repeat(65).parse::<CheckpointId>(),
            Err(InvalidId::WrongLength { length: 65 })
        );
        assert_eq!(
            "x".repeat(64).parse::<CheckpointId>(),
            Err(InvalidId::NotHex { found: 'x' })
        );
    }

    #[test]
    fn a_prefix_has_eight_digits_or_more_and_matches_beginnings_only() {
        let id = CheckpointId::of_bytes(b"");
        assert!(IdPrefix::parse("AF1349B9").unwrap().matches(&id));
        assert!(IdPrefix::parse(&id.to_string()).unwrap().matches(&id));
        assert!(!IdPrefix::parse("1349b9f5").unwrap().matches(&id));
        assert_eq!(
            IdPrefix::parse("af1349b"),
            Err(InvalidId::PrefixLength { length: 7 })
        );
        assert_eq!(
            IdPrefix::parse("af1349\u{e4}9"),
            Err(InvalidId::NotHex { found: '\u{e4}' })
        );
    }
}
