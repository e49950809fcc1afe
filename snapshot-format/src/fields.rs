//! Numbered fields: `number: u16 LE, length: u32 LE, bytes`.
//!
//! A message is a run of fields in any order. A number may repeat (lists). Unknown numbers are
//! skipped by readers; integers that are absent read as zero, bytes that are absent as empty.
//! Integers are stored little-endian with trailing zero bytes dropped, so their width may grow
//! between versions; a stored integer wider than the one asked for is an error.

use thiserror::Error;

/// The most fields one message may hold.
pub const MAX_FIELDS: usize = 1 << 20;

/// Length in bytes of a field's header: its number and its length.
const HEADER_BYTES: usize = 6;

/// Why bytes are not a message of numbered fields, or a field not what was asked for.
#[derive(Debug, Error, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum FieldError {
    /// The bytes end inside a field.
    #[error("message is cut short at byte {offset} of {length}")]
    Truncated {
        /// Where the incomplete field begins.
        offset: usize,
        /// Length of the whole message.
        length: usize,
    },
    /// More fields than [`MAX_FIELDS`].
    #[error("message has more than {MAX_FIELDS} fields")]
    TooManyFields,
    /// A field's bytes do not fit the type asked for.
    #[error("field {number} has {length} bytes, at most {limit} fit")]
    TooLong {
        /// The field's number.
        number: u16,
        /// Its length in bytes.
        length: usize,
        /// The most bytes that the reader accepts.
        limit: usize,
    },
    /// A field of a fixed size has another one.
    #[error("field {number} has {length} bytes instead of {expected}")]
    WrongLength {
        /// The field's number.
        number: u16,
        /// Its length in bytes.
        length: usize,
        /// The length required.
        expected: usize,
    },
    /// A field that must be there is not.
    #[error("field {number} is missing")]
    Missing {
        /// The field's number.
        number: u16,
    },
    /// A text field is not UTF-8.
    #[error("field {number} is not valid text")]
    NotText {
        /// The field's number.
        number: u16,
    },
    /// A field's value is outside what its meaning allows.
    #[error("field {number} has the invalid value {value}")]
    Invalid {
        /// The field's number.
        number: u16,
        /// The value found.
        value: u64,
    },
}

/// Builds a message.
#[derive(Debug, Default, Clone)]
pub struct FieldWriter {
    bytes: Vec<u8>,
}

impl FieldWriter {
    /// An empty message.
    pub fn new() -> Self {
        Self::default()
    }

    /// A message whose bytes follow `prefix`, to save a copy of them.
    pub(crate) fn after(prefix: Vec<u8>) -> Self {
        Self { bytes: prefix }
    }

    /// Adds bytes as they are. A field longer than `u32::MAX` bytes is a programming error.
    pub fn bytes(&mut self, number: u16, value: &[u8]) -> &mut Self {
        let length = u32::try_from(value.len()).expect("a field is shorter than 4 GiB");
        self.bytes.extend_from_slice(&number.to_le_bytes());
        self.bytes.extend_from_slice(&length.to_le_bytes());
        self.bytes.extend_from_slice(value);
        self
    }

    /// Adds an integer; zero is written too, with no bytes.
    pub fn u64(&mut self, number: u16, value: u64) -> &mut Self {
        let raw = value.to_le_bytes();
        let used = 8 - (value.leading_zeros() / 8) as usize;
        self.bytes(number, &raw[..used])
    }

    /// Adds an integer.
    pub fn u32(&mut self, number: u16, value: u32) -> &mut Self {
        self.u64(number, u64::from(value))
    }

    /// Adds a truth value.
    pub fn bool(&mut self, number: u16, value: bool) -> &mut Self {
        self.u64(number, u64::from(value))
    }

    /// Adds a text.
    pub fn text(&mut self, number: u16, value: &str) -> &mut Self {
        self.bytes(number, value.as_bytes())
    }

    /// Adds a nested message.
    pub fn nested(&mut self, number: u16, build: impl FnOnce(&mut FieldWriter)) -> &mut Self {
        self.bytes.extend_from_slice(&number.to_le_bytes());
        self.bytes.extend_from_slice(&[0; 4]);
        let start = self.bytes.len();
        // The message is built in place: its bytes are not copied.
        let mut inner = FieldWriter {
            bytes: std::mem::take(&mut self.bytes),
        };
        build(&mut inner);
        self.bytes = inner.bytes;
        let length = self.bytes.len() - start;
        let length = u32::try_from(length).expect("a field is shorter than 4 GiB");
        self.bytes[start - 4..start].copy_from_slice(&length.to_le_bytes());
        self
    }

    /// The message's bytes.
    pub fn finish(self) -> Vec<u8> {
        self.bytes
    }
}

/// A parsed message; borrows its bytes.
#[derive(Debug, Clone)]
pub struct FieldReader<'a> {
    fields: Vec<(u16, &'a [u8])>,
}

impl<'a> FieldReader<'a> {
    /// Splits `bytes` into fields. Nothing is copied; the list is bounded by [`MAX_FIELDS`] and by
    /// the input's length.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, FieldError> {
        let mut fields = Vec::new();
        let mut offset = 0;
        while offset < bytes.len() {
            let truncated = FieldError::Truncated {
                offset,
                length: bytes.len(),
            };
            let header = bytes
                .get(offset..offset + HEADER_BYTES)
                .ok_or(truncated.clone())?;
            let number = u16::from_le_bytes([header[0], header[1]]);
            let length = u32::from_le_bytes([header[2], header[3], header[4], header[5]]) as usize;
            let start = offset + HEADER_BYTES;
            let end = start.checked_add(length).ok_or(truncated.clone())?;
            let value = bytes.get(start..end).ok_or(truncated)?;
            if fields.len() == MAX_FIELDS {
                return Err(FieldError::TooManyFields);
            }
            fields.push((number, value));
            offset = end;
        }
        Ok(Self { fields })
    }

    /// All values of `number`, in the order written.
    pub fn all(&self, number: u16) -> impl Iterator<Item = &'a [u8]> + '_ {
        self.fields
            .iter()
            .filter(move |(n, _)| *n == number)
            .map(|(_, value)| *value)
    }

    /// The last value of `number`, if there is one.
    pub fn get(&self, number: u16) -> Option<&'a [u8]> {
        self.fields
            .iter()
            .rev()
            .find(|(n, _)| *n == number)
            .map(|(_, value)| *value)
    }

    /// Bytes of at most `limit`; empty when absent.
    pub fn bytes(&self, number: u16, limit: usize) -> Result<&'a [u8], FieldError> {
        let value = self.get(number).unwrap_or_default();
        if value.len() > limit {
            return Err(FieldError::TooLong {
                number,
                length: value.len(),
                limit,
            });
        }
        Ok(value)
    }

    /// Exactly `N` bytes; missing is an error.
    pub fn array<const N: usize>(&self, number: u16) -> Result<[u8; N], FieldError> {
        let value = self.get(number).ok_or(FieldError::Missing { number })?;
        value.try_into().map_err(|_| FieldError::WrongLength {
            number,
            length: value.len(),
            expected: N,
        })
    }

    /// An integer; zero when absent.
    pub fn u64(&self, number: u16) -> Result<u64, FieldError> {
        self.get(number)
            .map_or(Ok(0), |value| decode_integer(number, value, 8))
    }

    /// An integer of at most 32 bits; zero when absent.
    pub fn u32(&self, number: u16) -> Result<u32, FieldError> {
        self.narrow(number, 4)
    }

    /// An integer of at most 16 bits; zero when absent.
    pub fn u16(&self, number: u16) -> Result<u16, FieldError> {
        self.narrow(number, 2)
    }

    /// An integer of at most 8 bits; zero when absent.
    pub fn u8(&self, number: u16) -> Result<u8, FieldError> {
        self.narrow(number, 1)
    }

    /// A truth value; false when absent, anything but 0 and 1 is an error.
    pub fn bool(&self, number: u16) -> Result<bool, FieldError> {
        match self.u64(number)? {
            0 => Ok(false),
            1 => Ok(true),
            value => Err(FieldError::Invalid { number, value }),
        }
    }

    /// A text of at most `limit` bytes; empty when absent.
    pub fn text(&self, number: u16, limit: usize) -> Result<&'a str, FieldError> {
        std::str::from_utf8(self.bytes(number, limit)?).map_err(|_| FieldError::NotText { number })
    }

    /// A nested message; missing is an error.
    pub fn nested(&self, number: u16) -> Result<FieldReader<'a>, FieldError> {
        FieldReader::parse(self.get(number).ok_or(FieldError::Missing { number })?)
    }

    fn narrow<T: TryFrom<u64>>(&self, number: u16, limit: usize) -> Result<T, FieldError> {
        let value = self
            .get(number)
            .map_or(Ok(0), |value| decode_integer(number, value, limit))?;
        T::try_from(value).map_err(|_| FieldError::Invalid { number, value })
    }
}

fn decode_integer(number: u16, value: &[u8], limit: usize) -> Result<u64, FieldError> {
    if value.len() > limit {
        return Err(FieldError::TooLong {
            number,
            length: value.len(),
            limit,
        });
    }
    let mut raw = [0; 8];
    raw[..value.len()].copy_from_slice(value);
    Ok(u64::from_le_bytes(raw))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_keep_their_value_and_drop_leading_zero_bytes() {
        for value in [0, 1, 255, 256, u64::from(u32::MAX), u64::MAX] {
            let mut writer = FieldWriter::new();
            writer.u64(7, value);
            let bytes = writer.finish();
            assert_eq!(FieldReader::parse(&bytes).unwrap().u64(7), Ok(value));
        }
        let mut writer = FieldWriter::new();
        writer.u64(1, 0);
        assert_eq!(writer.finish().len(), HEADER_BYTES);
    }

    #[test]
    fn a_wider_integer_than_asked_for_is_refused() {
        let mut writer = FieldWriter::new();
        writer.u64(1, 0x1_0000);
        let bytes = writer.finish();
        let reader = FieldReader::parse(&bytes).unwrap();
        assert!(matches!(reader.u16(1), Err(FieldError::TooLong { .. })));
        assert_eq!(reader.u32(1), Ok(0x1_0000));
    }

    #[test]
    fn every_cut_of_a_message_is_an_error_or_a_shorter_message() {
        let mut writer = FieldWriter::new();
        writer.u64(1, 77).text(2, "abc").nested(3, |inner| {
            inner.bool(1, true);
        });
        let bytes = writer.finish();
        let boundaries: Vec<usize> = (0..=bytes.len())
            .filter(|&cut| FieldReader::parse(&bytes[..cut]).is_ok())
            .collect();
        assert_eq!(
            boundaries.len(),
            4,
            "only field boundaries parse: {boundaries:?}"
        );
    }

    #[test]
    fn repeated_numbers_form_a_list_and_the_last_one_wins_as_a_value() {
        let mut writer = FieldWriter::new();
        writer.u64(1, 1).u64(1, 2);
        let bytes = writer.finish();
        let reader = FieldReader::parse(&bytes).unwrap();
        assert_eq!(reader.all(1).count(), 2);
        assert_eq!(reader.u64(1), Ok(2));
    }
}
