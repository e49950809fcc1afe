//! Metadata checksums: CRC-32C without the final inversion.

/// A running checksum.
#[derive(Debug, Clone, Copy)]
pub(super) struct Checksum(u32);

impl Checksum {
    /// Begins with all bits set.
    pub(super) fn new() -> Self {
        Self(!0)
    }

    /// Continues over `bytes`.
    pub(super) fn update(self, bytes: &[u8]) -> Self {
        Self(!crc32c::crc32c_append(!self.0, bytes))
    }

    /// Continues over a little-endian number.
    pub(super) fn update32(self, value: u32) -> Self {
        self.update(&value.to_le_bytes())
    }

    /// The checksum so far.
    pub(super) fn value(self) -> u32 {
        self.0
    }

    /// The seed of everything that belongs to one inode (generation 0).
    pub(super) fn for_inode(self, number: u32) -> Self {
        self.update32(number).update32(0)
    }
}
