//! The first bytes in each direction: a magic and the range of versions spoken.
//!
//! The client sends its hello first, the agent answers with its own. Both then speak the highest
//! version that lies in both ranges; without one, both close.
//!
//! | bytes | field |
//! |---|---|
//! | 0–7 | `SMOLAGNT` |
//! | 8–9 | lowest version spoken, little-endian |
//! | 10–11 | highest version spoken, little-endian |

use std::io::{Read, Write};

use thiserror::Error;

const MAGIC: [u8; 8] = *b"SMOLAGNT";
/// Length of a hello.
pub const HELLO_BYTES: usize = 12;
/// Lowest protocol version that this crate speaks.
pub const MIN_VERSION: u16 = 1;
/// Highest protocol version that this crate speaks.
pub const MAX_VERSION: u16 = 1;

/// Why two sides cannot talk.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum HelloError {
    /// The other side does not speak this protocol.
    #[error("the other side is not a smolvm agent or its client")]
    BadMagic,
    /// The range is empty.
    #[error("the other side speaks versions {min} to {max}, an empty range")]
    EmptyRange {
        /// Lowest version announced.
        min: u16,
        /// Highest version announced.
        max: u16,
    },
    /// No version in common.
    #[error(
        "the other side speaks agent protocol {min} to {max}, this one {MIN_VERSION} to {MAX_VERSION}"
    )]
    NoCommonVersion {
        /// Lowest version announced.
        min: u16,
        /// Highest version announced.
        max: u16,
    },
    /// The stream failed.
    #[error("the connection failed during the hello")]
    Io(#[from] std::io::Error),
}

/// The versions one side speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hello {
    /// Lowest version.
    pub min: u16,
    /// Highest version.
    pub max: u16,
}

impl Hello {
    /// What this crate speaks.
    pub const OURS: Self = Self {
        min: MIN_VERSION,
        max: MAX_VERSION,
    };

    /// The hello as bytes.
    #[must_use]
    pub fn encode(self) -> [u8; HELLO_BYTES] {
        let mut out = [0; HELLO_BYTES];
        out[..8].copy_from_slice(&MAGIC);
        out[8..10].copy_from_slice(&self.min.to_le_bytes());
        out[10..].copy_from_slice(&self.max.to_le_bytes());
        out
    }

    /// Reads a hello from its bytes.
    ///
    /// # Errors
    /// [`HelloError::BadMagic`], [`HelloError::EmptyRange`].
    pub fn decode(bytes: [u8; HELLO_BYTES]) -> Result<Self, HelloError> {
        if bytes[..8] != MAGIC {
            return Err(HelloError::BadMagic);
        }
        let min = u16::from_le_bytes([bytes[8], bytes[9]]);
        let max = u16::from_le_bytes([bytes[10], bytes[11]]);
        if min > max {
            return Err(HelloError::EmptyRange { min, max });
        }
        Ok(Self { min, max })
    }

    /// The version to speak with a peer that announced `self`.
    ///
    /// # Errors
    /// [`HelloError::NoCommonVersion`].
    pub fn agree(self) -> Result<u16, HelloError> {
        let version = self.max.min(MAX_VERSION);
        if version < self.min.max(MIN_VERSION) {
            return Err(HelloError::NoCommonVersion {
                min: self.min,
                max: self.max,
            });
        }
        Ok(version)
    }
}

fn receive(from: &mut impl Read) -> Result<Hello, HelloError> {
    let mut bytes = [0; HELLO_BYTES];
    from.read_exact(&mut bytes)?;
    Hello::decode(bytes)
}

fn send(to: &mut impl Write) -> Result<(), HelloError> {
    to.write_all(&Hello::OURS.encode())?;
    Ok(to.flush()?)
}

/// The client's side: speaks first. Returns what the agent speaks, which has a version in common with
/// this crate.
///
/// # Errors
/// Any [`HelloError`].
pub fn greet(from: &mut impl Read, to: &mut impl Write) -> Result<Hello, HelloError> {
    send(to)?;
    let theirs = receive(from)?;
    theirs.agree()?;
    Ok(theirs)
}

/// The agent's side: answers. Its hello is sent also when no version fits, so that the client can
/// say which versions the agent speaks.
///
/// # Errors
/// Any [`HelloError`].
pub fn welcome(from: &mut impl Read, to: &mut impl Write) -> Result<u16, HelloError> {
    let theirs = receive(from)?;
    send(to)?;
    theirs.agree()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_highest_common_version_is_taken() {
        assert_eq!(
            Hello { min: 0, max: 9 }.agree().expect("common"),
            MAX_VERSION
        );
        assert!(matches!(
            Hello { min: 2, max: 3 }.agree(),
            Err(HelloError::NoCommonVersion { min: 2, max: 3 })
        ));
        assert!(matches!(
            Hello::decode(Hello { min: 2, max: 1 }.encode()),
            Err(HelloError::EmptyRange { .. })
        ));
        assert!(matches!(
            Hello::decode([0; HELLO_BYTES]),
            Err(HelloError::BadMagic)
        ));
    }

    #[test]
    fn both_sides_agree() {
        let mut answer = Vec::new();
        let hello = Hello::OURS.encode();
        assert_eq!(
            welcome(&mut hello.as_slice(), &mut answer).expect("agree"),
            1
        );
        let mut sent = Vec::new();
        let agent = greet(&mut answer.as_slice(), &mut sent).expect("agree");
        assert_eq!(agent, Hello::OURS);
        assert_eq!(sent, hello);
    }
}
