//! The fixed header of an entry, and the numbers in it.

use super::{RECORD_BYTES, TarError};
use crate::image::tree::Timestamp;

/// One 512-byte header record.
pub(super) struct Header {
    pub(super) bytes: [u8; RECORD_BYTES],
    pub(super) offset: u64,
}

impl Header {
    pub(super) fn bad(&self, what: &'static str) -> TarError {
        TarError::Header {
            offset: self.offset,
            what,
        }
    }

    /// The sum of all bytes, its own field counted as spaces.
    pub(super) fn check_sum(&self) -> Result<(), TarError> {
        let sum = self.bytes.iter().enumerate().fold(0u64, |sum, (at, byte)| {
            sum + u64::from(if (148..156).contains(&at) {
                b' '
            } else {
                *byte
            })
        });
        if self.number(148, 8)? != sum {
            return Err(self.bad("checksum mismatch (not a tar archive, or damaged)"));
        }
        Ok(())
    }

    /// A numeric field: octal digits, or base-256 with the top bit set.
    pub(super) fn number(&self, at: usize, len: usize) -> Result<u64, TarError> {
        numeric(&self.bytes[at..at + len]).ok_or_else(|| self.bad("bad number"))
    }

    pub(super) fn u32(&self, at: usize, len: usize) -> Result<u32, TarError> {
        u32::try_from(self.number(at, len)?).map_err(|_| self.bad("number too large"))
    }

    pub(super) fn mtime(&self) -> Result<Timestamp, TarError> {
        let field = &self.bytes[136..148];
        // Base-256 of a time before 1970 is a negative number.
        let seconds = if field[0] == 0xff {
            i64::from_be_bytes(field[4..12].try_into().unwrap_or([0; 8]))
        } else {
            i64::try_from(self.number(136, 12)?).map_err(|_| self.bad("bad time"))?
        };
        Ok(Timestamp {
            seconds,
            nanoseconds: 0,
        })
    }

    /// Name and, for POSIX headers, its prefix.
    pub(super) fn path(&self) -> Vec<u8> {
        let name = until_nul(&self.bytes[..100]);
        let prefix = until_nul(&self.bytes[345..500]);
        if &self.bytes[257..263] == b"ustar\0" && !prefix.is_empty() {
            return [prefix, b"/", name].concat();
        }
        name.to_vec()
    }
}

/// An octal or base-256 number; `None` if it is neither.
pub(super) fn numeric(field: &[u8]) -> Option<u64> {
    if field[0] & 0x80 != 0 {
        let (high, low) = field.split_at(field.len().saturating_sub(8));
        // Eight-byte fields carry the marker bit in the number itself.
        let high_zero = high
            .iter()
            .enumerate()
            .all(|(i, b)| *b == if i == 0 { 0x80 } else { 0 });
        let mut bytes = [0; 8];
        bytes[8 - low.len()..].copy_from_slice(low);
        if high.is_empty() {
            bytes[0] &= 0x7f;
        }
        return high_zero.then(|| u64::from_be_bytes(bytes));
    }
    let text = field.iter().skip_while(|b| **b == b' ');
    let digits: Vec<u8> = text
        .copied()
        .take_while(|b| *b != 0 && *b != b' ')
        .collect();
    digits.iter().try_fold(0u64, |value, digit| match digit {
        b'0'..=b'7' => value.checked_mul(8)?.checked_add(u64::from(digit - b'0')),
        _ => None,
    })
}

pub(super) fn until_nul(bytes: &[u8]) -> &[u8] {
    bytes.split(|b| *b == 0).next().unwrap_or(bytes)
}
