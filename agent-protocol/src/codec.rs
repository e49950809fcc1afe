//! The compact encoding of messages: little-endian integers, length-prefixed bytes, no padding.
//!
//! A message has exactly one encoding. Decoding never panics, never allocates more than the
//! input could fill, and rejects whatever is left over.

use thiserror::Error;

/// Most elements that one list of a message may have.
pub const MAX_LIST_ITEMS: usize = 65_536;

/// Why bytes are not a message.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum DecodeError {
    /// The message ended inside a field.
    #[error("message ends inside a field of {wanted} bytes, {left} left")]
    Truncated {
        /// Bytes that the field needs.
        wanted: usize,
        /// Bytes that are left.
        left: usize,
    },
    /// Bytes remain after the last field.
    #[error("{left} bytes left over after the message")]
    LeftOver {
        /// Bytes that remain.
        left: usize,
    },
    /// No variant of this type has that tag.
    #[error("unknown tag {tag} of {kind}")]
    UnknownTag {
        /// The type that was decoded.
        kind: &'static str,
        /// The tag found.
        tag: u8,
    },
    /// A list is longer than [`MAX_LIST_ITEMS`].
    #[error("list of {count} items, at most {MAX_LIST_ITEMS} are allowed")]
    ListTooLong {
        /// Items announced.
        count: usize,
    },
    /// A text field is not UTF-8.
    #[error("text is not UTF-8")]
    NotUtf8,
    /// A truth value is neither 0 nor 1.
    #[error("truth value {value}")]
    NotBool {
        /// The byte found.
        value: u8,
    },
}

/// Reads fields from the front of a message.
#[derive(Debug)]
pub struct Decoder<'a> {
    rest: &'a [u8],
}

impl<'a> Decoder<'a> {
    /// Starts at the first byte of `message`.
    #[must_use]
    pub fn new(message: &'a [u8]) -> Self {
        Self { rest: message }
    }

    /// Takes the next `count` bytes.
    ///
    /// # Errors
    /// [`DecodeError::Truncated`] when fewer are left.
    pub fn take(&mut self, count: usize) -> Result<&'a [u8], DecodeError> {
        let left = self.rest.len();
        let (head, tail) = self
            .rest
            .split_at_checked(count)
            .ok_or(DecodeError::Truncated {
                wanted: count,
                left,
            })?;
        self.rest = tail;
        Ok(head)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], DecodeError> {
        let mut out = [0; N];
        out.copy_from_slice(self.take(N)?);
        Ok(out)
    }

    fn length(&mut self) -> Result<usize, DecodeError> {
        Ok(u32::get(self)? as usize)
    }
}

/// A value with one encoding.
pub trait Wire: Sized {
    /// Appends the encoding.
    fn put(&self, out: &mut Vec<u8>);

    /// Reads the value from the front of what is left.
    ///
    /// # Errors
    /// [`DecodeError`] when the bytes are not an encoding of this type.
    fn get(from: &mut Decoder<'_>) -> Result<Self, DecodeError>;

    /// The whole message as bytes.
    fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        self.put(&mut out);
        out
    }

    /// Decodes a whole message.
    ///
    /// # Errors
    /// [`DecodeError`], also when bytes are left over.
    fn decode(message: &[u8]) -> Result<Self, DecodeError> {
        let mut from = Decoder::new(message);
        let value = Self::get(&mut from)?;
        match from.rest.len() {
            0 => Ok(value),
            left => Err(DecodeError::LeftOver { left }),
        }
    }
}

macro_rules! wire_integer {
    ($($kind:ty),*) => {$(
        impl Wire for $kind {
            fn put(&self, out: &mut Vec<u8>) {
                out.extend_from_slice(&self.to_le_bytes());
            }
            fn get(from: &mut Decoder<'_>) -> Result<Self, DecodeError> {
                Ok(Self::from_le_bytes(from.array()?))
            }
        }
    )*};
}
wire_integer!(u8, u16, u32, u64, i32, i64);

impl Wire for bool {
    fn put(&self, out: &mut Vec<u8>) {
        out.push(u8::from(*self));
    }

    fn get(from: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        match u8::get(from)? {
            0 => Ok(false),
            1 => Ok(true),
            value => Err(DecodeError::NotBool { value }),
        }
    }
}

/// Lengths come from memory that is at most a frame; a longer one is cut by the frame's own cap.
fn put_length(length: usize, out: &mut Vec<u8>) {
    u32::try_from(length).unwrap_or(u32::MAX).put(out);
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

impl Wire for Bytes {
    fn put(&self, out: &mut Vec<u8>) {
        put_length(self.0.len(), out);
        out.extend_from_slice(&self.0);
    }

    fn get(from: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        let length = from.length()?;
        Ok(Self(from.take(length)?.to_vec()))
    }
}

impl Wire for String {
    fn put(&self, out: &mut Vec<u8>) {
        put_length(self.len(), out);
        out.extend_from_slice(self.as_bytes());
    }

    fn get(from: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        let length = from.length()?;
        let text = std::str::from_utf8(from.take(length)?).map_err(|_| DecodeError::NotUtf8)?;
        Ok(text.to_owned())
    }
}

impl<const N: usize> Wire for [u8; N] {
    fn put(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(self);
    }

    fn get(from: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        from.array()
    }
}

impl<T: Wire> Wire for Option<T> {
    fn put(&self, out: &mut Vec<u8>) {
        self.is_some().put(out);
        if let Some(value) = self {
            value.put(out);
        }
    }

    fn get(from: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        Ok(if bool::get(from)? {
            Some(T::get(from)?)
        } else {
            None
        })
    }
}

impl<T: Wire> Wire for Vec<T> {
    fn put(&self, out: &mut Vec<u8>) {
        put_length(self.len(), out);
        for item in self {
            item.put(out);
        }
    }

    fn get(from: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        let count = from.length()?;
        if count > MAX_LIST_ITEMS {
            return Err(DecodeError::ListTooLong { count });
        }
        // Grows as items really arrive: an announced count costs nothing.
        let mut items = Self::new();
        for _ in 0..count {
            items.push(T::get(from)?);
        }
        Ok(items)
    }
}

/// Fields of a struct, in the order given.
macro_rules! wire_struct {
    ($name:ident { $($field:ident),* $(,)? }) => {
        impl $crate::codec::Wire for $name {
            fn put(&self, out: &mut Vec<u8>) {
                $($crate::codec::Wire::put(&self.$field, out);)*
            }
            fn get(
                from: &mut $crate::codec::Decoder<'_>,
            ) -> Result<Self, $crate::codec::DecodeError> {
                Ok(Self { $($field: $crate::codec::Wire::get(from)?),* })
            }
        }
    };
}
pub(crate) use wire_struct;

/// Variants of an enum with their tag bytes, each with the names of its fields.
macro_rules! wire_enum {
    ($name:ident {
        $($tag:literal => $variant:ident $(($inner:ident))? $({ $($field:ident),* })?),* $(,)?
    }) => {
        impl $crate::codec::Wire for $name {
            fn put(&self, out: &mut Vec<u8>) {
                match self {
                    $(Self::$variant $(($inner))? $({ $($field),* })? => {
                        out.push($tag);
                        $($crate::codec::Wire::put($inner, out);)?
                        $($($crate::codec::Wire::put($field, out);)*)?
                    })*
                }
            }
            fn get(
                from: &mut $crate::codec::Decoder<'_>,
            ) -> Result<Self, $crate::codec::DecodeError> {
                match <u8 as $crate::codec::Wire>::get(from)? {
                    $($tag => {
                        $(let $inner = $crate::codec::Wire::get(from)?;)?
                        $($(let $field = $crate::codec::Wire::get(from)?;)*)?
                        Ok(Self::$variant $(($inner))? $({ $($field),* })?)
                    })*
                    tag => Err($crate::codec::DecodeError::UnknownTag {
                        kind: stringify!($name),
                        tag,
                    }),
                }
            }
        }
    };
}
pub(crate) use wire_enum;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_huge_announced_list_costs_nothing() {
        let mut message = Vec::new();
        60_000u32.put(&mut message);
        assert!(matches!(
            Vec::<u64>::decode(&message),
            Err(DecodeError::Truncated { wanted: 8, left: 0 })
        ));
        let mut message = Vec::new();
        u32::MAX.put(&mut message);
        assert!(matches!(
            Vec::<bool>::decode(&message),
            Err(DecodeError::ListTooLong { .. })
        ));
    }

    #[test]
    fn left_over_bytes_and_odd_truth_values_are_refused() {
        assert_eq!(u8::decode(&[1, 2]), Err(DecodeError::LeftOver { left: 1 }));
        assert_eq!(bool::decode(&[2]), Err(DecodeError::NotBool { value: 2 }));
        assert_eq!(
            String::decode(&[1, 0, 0, 0, 0xff]),
            Err(DecodeError::NotUtf8)
        );
    }
}
