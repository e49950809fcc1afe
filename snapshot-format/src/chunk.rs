//! Names of chunks.

use std::fmt;

use crate::id::to_hex;

/// Bytes that one chunk covers; the last chunk of a part may cover fewer.
pub const CHUNK_BYTES: u64 = 64 << 10;

/// The name of a chunk: BLAKE3 of its bytes, or 32 zero bytes for a chunk that holds only zeros.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ChunkRef(pub [u8; 32]);

impl ChunkRef {
    /// A chunk of zeros, whatever its length. Its bytes are stored nowhere.
    pub const ZERO: Self = Self([0; 32]);

    /// The name of a chunk with these bytes, which are not all zero.
    #[must_use]
    pub fn of_bytes(bytes: &[u8]) -> Self {
        Self(*blake3::hash(bytes).as_bytes())
    }

    /// Whether this is a chunk of zeros.
    #[must_use]
    pub fn is_zero(&self) -> bool {
        *self == Self::ZERO
    }
}

impl fmt::Display for ChunkRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&to_hex(&self.0))
    }
}

impl fmt::Debug for ChunkRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ChunkRef({self})")
    }
}

/// How many chunks `size_bytes` take: one for each 64 KiB begun.
#[must_use]
pub fn chunks_in(size_bytes: u64) -> u64 {
    size_bytes.div_ceil(CHUNK_BYTES)
}
