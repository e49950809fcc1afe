//! Names of machines.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// Longest name in bytes.
pub const MAX_NAME_BYTES: usize = 63;

/// A machine's name: 1 to 63 of `a`–`z`, `0`–`9`, `-`, `_` and `.`, beginning with a letter or a
/// digit. It is always one plain path component.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct MachineName(String);

/// A text that is not a name.
#[derive(Debug, Error, Clone, PartialEq, Eq)]
#[error(
    "{name:?} is not a name: 1 to 63 of a-z 0-9 - _ . beginning with a letter or digit are allowed"
)]
pub struct InvalidName {
    /// The text, cut to a readable length.
    pub name: String,
}

impl MachineName {
    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The host name that the machine gets: `_` and `.` become `-`.
    pub fn hostname(&self) -> String {
        self.0
            .replace(['_', '.'], "-")
            .trim_end_matches('-')
            .to_owned()
    }
}

impl FromStr for MachineName {
    type Err = InvalidName;

    fn from_str(name: &str) -> Result<Self, InvalidName> {
        if guest_image::valid_name(name) {
            return Ok(Self(name.to_owned()));
        }
        Err(InvalidName {
            name: name.chars().take(80).collect(),
        })
    }
}

impl TryFrom<String> for MachineName {
    type Error = InvalidName;

    fn try_from(name: String) -> Result<Self, InvalidName> {
        name.parse()
    }
}

impl From<MachineName> for String {
    fn from(name: MachineName) -> Self {
        name.0
    }
}

impl fmt::Display for MachineName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_plain_names_are_names() {
        for good in ["agent", "a", "0", "try-a_1.x"] {
            assert_eq!(good.parse::<MachineName>().unwrap().as_str(), good);
        }
        let long = "x".repeat(64);
        for bad in ["", "../x", "a/b", ".x", "-x", "A", "a b", long.as_str()] {
            assert!(bad.parse::<MachineName>().is_err(), "{bad:?}");
        }
        assert_eq!("a_b.c".parse::<MachineName>().unwrap().hostname(), "a-b-c");
    }
}
