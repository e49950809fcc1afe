//! The numbers of the pack format, version 1, all little-endian: header, index entry, footer.

use crate::error::{ChunkError, PackError};
use crate::{ChunkId, Codec, MAX_CHUNK_BYTES, PackId};

/// First bytes of a pack.
pub(crate) const HEADER_MAGIC: [u8; 8] = *b"SMOLPACK";
/// Last bytes of a sealed pack.
pub(crate) const FOOTER_MAGIC: [u8; 8] = *b"KCAPLOMS";
/// The version written, and the only one read.
pub(crate) const VERSION: u32 = 1;
/// Magic, version, reserved.
pub(crate) const HEADER_BYTES: usize = 16;
/// See [`Footer`].
pub(crate) const FOOTER_BYTES: usize = 64;
/// Length of an entry.
pub(crate) const ENTRY_BYTES: usize = 48;
/// Most entries in one pack: 16 GiB of data.
pub(crate) const MAX_ENTRIES: u32 = 262_144;
/// Flags in this half say that a reader which does not know them must refuse the pack.
const MUST_KNOW_FLAGS: u32 = 0xffff_0000;

/// Where one chunk lies in a pack.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) id: ChunkId,
    pub(crate) offset: u64,
    pub(crate) stored_len: u32,
    pub(crate) raw_len: u32,
    pub(crate) codec: u8,
}

impl Entry {
    pub(crate) fn encode(&self) -> [u8; ENTRY_BYTES] {
        let mut bytes = [0; ENTRY_BYTES];
        bytes[..32].copy_from_slice(&self.id.0);
        bytes[32..40].copy_from_slice(&self.offset.to_le_bytes());
        bytes[40..44].copy_from_slice(&self.stored_len.to_le_bytes());
        bytes[44..47].copy_from_slice(&self.raw_len.to_le_bytes()[..3]);
        bytes[47] = self.codec;
        bytes
    }

    /// Reads the first [`ENTRY_BYTES`] of `bytes`, which has at least so many.
    pub(crate) fn decode(bytes: &[u8]) -> Self {
        Self {
            id: ChunkId(array(bytes, 0)),
            offset: u64::from_le_bytes(array(bytes, 32)),
            stored_len: u32::from_le_bytes(array(bytes, 40)),
            raw_len: u32::from_le_bytes([bytes[44], bytes[45], bytes[46], 0]),
            codec: bytes[47],
        }
    }

    /// Checks lengths and place against the hard limits and the bodies' end.
    pub(crate) fn validate(&self, bodies_end: u64) -> Result<(), PackError> {
        let end = self.offset.checked_add(u64::from(self.stored_len));
        let inside = self.offset >= HEADER_BYTES as u64 && end.is_some_and(|end| end <= bodies_end);
        let lengths = (1..=MAX_CHUNK_BYTES as u32).contains(&self.raw_len)
            && (1..=self.raw_len).contains(&self.stored_len);
        if inside && lengths && !self.id.is_zero() {
            Ok(())
        } else {
            Err(PackError::BadEntry { chunk: self.id })
        }
    }

    pub(crate) fn codec(&self) -> Result<Codec, ChunkError> {
        Codec::from_number(self.codec)
    }
}

/// The last 64 bytes: where the index lies and its digest, which is the pack's id.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Footer {
    pub(crate) index_offset: u64,
    pub(crate) entries: u32,
    pub(crate) entry_bytes: u32,
    pub(crate) id: PackId,
    pub(crate) flags: u32,
}

impl Footer {
    pub(crate) fn encode(&self, header: &[u8; HEADER_BYTES]) -> [u8; FOOTER_BYTES] {
        let mut bytes = [0; FOOTER_BYTES];
        bytes[..8].copy_from_slice(&self.index_offset.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.entries.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.entry_bytes.to_le_bytes());
        bytes[16..48].copy_from_slice(&self.id.0);
        bytes[48..52].copy_from_slice(&self.flags.to_le_bytes());
        let sum = checksum(header, &bytes);
        bytes[52..56].copy_from_slice(&sum.to_le_bytes());
        bytes[56..].copy_from_slice(&FOOTER_MAGIC);
        bytes
    }

    /// Reads header and footer of a file of `file_len` bytes and checks them against each other and the limits.
    pub(crate) fn decode(
        header: &[u8; HEADER_BYTES],
        bytes: &[u8; FOOTER_BYTES],
        file_len: u64,
    ) -> Result<Self, PackError> {
        if header[..8] != HEADER_MAGIC {
            return Err(PackError::BadMagic { place: "header" });
        }
        let version = u32::from_le_bytes(array(header, 8));
        if version != VERSION {
            return Err(PackError::UnknownVersion { found: version });
        }
        if bytes[56..] != FOOTER_MAGIC {
            return Err(PackError::BadMagic { place: "footer" });
        }
        if u32::from_le_bytes(array(bytes, 52)) != checksum(header, bytes) {
            return Err(PackError::FooterChecksum);
        }
        let footer = Self {
            index_offset: u64::from_le_bytes(array(bytes, 0)),
            entries: u32::from_le_bytes(array(bytes, 8)),
            entry_bytes: u32::from_le_bytes(array(bytes, 12)),
            id: PackId(array(bytes, 16)),
            flags: u32::from_le_bytes(array(bytes, 48)),
        };
        if footer.flags & MUST_KNOW_FLAGS != 0 {
            return Err(PackError::UnknownFlags {
                found: footer.flags,
            });
        }
        footer.check_bounds(file_len)?;
        Ok(footer)
    }

    fn check_bounds(&self, file_len: u64) -> Result<(), PackError> {
        let limits = self.entries <= MAX_ENTRIES
            // The id does not cover it: with another length the same index would name other chunks.
            && self.entry_bytes as usize == ENTRY_BYTES;
        let end = self.index_offset.checked_add(self.index_len() as u64);
        let place = self.index_offset >= HEADER_BYTES as u64
            && end.and_then(|end| end.checked_add(FOOTER_BYTES as u64)) == Some(file_len);
        if limits && place {
            return Ok(());
        }
        Err(PackError::IndexBounds {
            entries: self.entries,
            entry_bytes: self.entry_bytes,
            offset: self.index_offset,
        })
    }

    /// Length of the index. At most 64 MiB once the limits were checked.
    pub(crate) fn index_len(&self) -> usize {
        (self.entries as usize).saturating_mul(self.entry_bytes as usize)
    }
}

/// The header of version 1.
pub(crate) fn header() -> [u8; HEADER_BYTES] {
    let mut bytes = [0; HEADER_BYTES];
    bytes[..8].copy_from_slice(&HEADER_MAGIC);
    bytes[8..12].copy_from_slice(&VERSION.to_le_bytes());
    bytes
}

/// CRC-32C over the header and the footer's first 52 bytes.
fn checksum(header: &[u8; HEADER_BYTES], footer: &[u8; FOOTER_BYTES]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(header), &footer[..52])
}

/// `N` bytes from `at`; the callers' buffers are of fixed, sufficient length.
fn array<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let mut out = [0; N];
    out.copy_from_slice(&bytes[at..at + N]);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn footer() -> Footer {
        Footer {
            index_offset: 16,
            entries: 2,
            entry_bytes: 48,
            id: PackId([9; 32]),
            flags: 0,
        }
    }

    #[test]
    fn round_trips() {
        let bytes = footer().encode(&header());
        assert_eq!(
            Footer::decode(&header(), &bytes, 16 + 96 + 64).unwrap(),
            footer()
        );
        let entry = Entry {
            id: ChunkId([3; 32]),
            offset: 1 << 40,
            stored_len: 5,
            raw_len: 65536,
            codec: 2,
        };
        assert_eq!(Entry::decode(&entry.encode()), entry);
    }

    #[test]
    fn every_flipped_bit_of_header_and_footer_is_noticed() {
        let good = (header(), footer().encode(&header()));
        for bit in 0..(HEADER_BYTES + FOOTER_BYTES) * 8 {
            let (mut head, mut foot) = good;
            match (bit / 8).checked_sub(HEADER_BYTES) {
                Some(at) => foot[at] ^= 1 << (bit % 8),
                None => head[bit / 8] ^= 1 << (bit % 8),
            }
            assert!(
                Footer::decode(&head, &foot, 16 + 96 + 64).is_err(),
                "bit {bit}"
            );
        }
    }

    #[test]
    fn limits_hold() {
        let sealed =
            |footer: Footer, len| Footer::decode(&header(), &footer.encode(&header()), len);
        let many = Footer {
            entries: MAX_ENTRIES + 1,
            ..footer()
        };
        assert!(matches!(
            sealed(many, u64::MAX),
            Err(PackError::IndexBounds { .. })
        ));
        let far = Footer {
            index_offset: u64::MAX - 4,
            ..footer()
        };
        assert!(matches!(
            sealed(far, 176),
            Err(PackError::IndexBounds { .. })
        ));
        let wide = Footer {
            entry_bytes: 96,
            ..footer()
        };
        assert!(matches!(
            sealed(wide, 16 + 192 + 64),
            Err(PackError::IndexBounds { .. })
        ));
        let flags = Footer {
            flags: 1 << 16,
            ..footer()
        };
        assert!(matches!(
            sealed(flags, 176),
            Err(PackError::UnknownFlags { .. })
        ));
        let may_ignore = Footer {
            flags: 1,
            ..footer()
        };
        assert!(sealed(may_ignore, 176).is_ok());
    }

    #[test]
    fn entries_outside_the_bodies_or_the_chunk_size_are_refused() {
        let good = Entry {
            id: ChunkId([1; 32]),
            offset: 16,
            stored_len: 4,
            raw_len: 4,
            codec: 0,
        };
        good.validate(20).unwrap();
        let bad = [
            Entry { offset: 15, ..good },
            Entry { offset: 17, ..good },
            Entry {
                offset: u64::MAX,
                ..good
            },
            Entry {
                stored_len: 0,
                ..good
            },
            Entry {
                stored_len: 5,
                ..good
            },
            Entry {
                raw_len: 65537,
                ..good
            },
            Entry {
                id: ChunkId::ZERO,
                ..good
            },
        ];
        for entry in bad {
            entry.validate(20).unwrap_err();
        }
    }
}
