//! The header of an overlay file, and where its parts lie. `docs/format.md` is normative.

use crate::error::OverlayError;
use crate::granule::{GRANULE_BYTES, GranuleRange, MAX_DISK_BYTES};

/// The first bytes of an overlay file.
pub const OVERLAY_MAGIC: [u8; 8] = *b"smolvmOV";

/// The version of the format that is written; no other is read.
pub const OVERLAY_VERSION: u32 = 1;

/// Bytes reserved for the header at the beginning of the file.
pub(crate) const HEADER_BYTES: u64 = 4096;

/// Bytes of the header that are in use, checksum included.
pub(crate) const HEADER_USED: usize = 60;

/// Granules whose entries share one byte of the map.
pub(crate) const GRANULES_PER_MAP_BYTE: u64 = 4;

/// The map fills whole pages.
pub(crate) const MAP_PAGE_BYTES: u64 = 4096;

/// The data region begins at a multiple of this.
const DATA_ALIGNMENT_BYTES: u64 = 64 << 10;

/// Where the parts of an overlay file for a disk of a given size lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Geometry {
    disk_bytes: u64,
}

impl Geometry {
    /// The geometry for a disk of this size.
    pub(crate) fn new(disk_bytes: u64) -> Result<Self, OverlayError> {
        let possible = (GRANULE_BYTES..=MAX_DISK_BYTES).contains(&disk_bytes)
            && disk_bytes.is_multiple_of(GRANULE_BYTES);
        if !possible {
            return Err(OverlayError::DiskSize {
                size_bytes: disk_bytes,
            });
        }
        Ok(Self { disk_bytes })
    }

    pub(crate) fn disk_bytes(self) -> u64 {
        self.disk_bytes
    }

    pub(crate) fn granules(self) -> u64 {
        self.disk_bytes / GRANULE_BYTES
    }

    pub(crate) fn map_offset(self) -> u64 {
        HEADER_BYTES
    }

    pub(crate) fn map_bytes(self) -> u64 {
        self.granules()
            .div_ceil(GRANULES_PER_MAP_BYTE)
            .next_multiple_of(MAP_PAGE_BYTES)
    }

    pub(crate) fn data_offset(self) -> u64 {
        (self.map_offset() + self.map_bytes()).next_multiple_of(DATA_ALIGNMENT_BYTES)
    }

    pub(crate) fn file_bytes(self) -> u64 {
        self.data_offset() + self.disk_bytes
    }

    /// The bytes of the map that hold the range's entries.
    pub(crate) fn map_byte_range(self, range: &GranuleRange) -> std::ops::Range<u64> {
        range.start / GRANULES_PER_MAP_BYTE..range.end.div_ceil(GRANULES_PER_MAP_BYTE)
    }

    /// The header's bytes in use.
    pub(crate) fn encode(self) -> [u8; HEADER_USED] {
        let mut bytes = [0; HEADER_USED];
        bytes[0..8].copy_from_slice(&OVERLAY_MAGIC);
        bytes[8..12].copy_from_slice(&OVERLAY_VERSION.to_le_bytes());
        // 12..16: flags, none yet.
        bytes[16..24].copy_from_slice(&GRANULE_BYTES.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.disk_bytes.to_le_bytes());
        bytes[32..40].copy_from_slice(&self.map_offset().to_le_bytes());
        bytes[40..48].copy_from_slice(&self.map_bytes().to_le_bytes());
        bytes[48..56].copy_from_slice(&self.data_offset().to_le_bytes());
        let checksum = crc32c::crc32c(&bytes[..56]);
        bytes[56..60].copy_from_slice(&checksum.to_le_bytes());
        bytes
    }

    /// Reads a header; every field must be what [`encode`](Self::encode) writes.
    pub(crate) fn decode(bytes: &[u8; HEADER_USED]) -> Result<Self, OverlayError> {
        if bytes[0..8] != OVERLAY_MAGIC {
            return Err(OverlayError::Magic);
        }
        let version = u32_at(bytes, 8);
        if version != OVERLAY_VERSION {
            return Err(OverlayError::Version { found: version });
        }
        let (stored, computed) = (u32_at(bytes, 56), crc32c::crc32c(&bytes[..56]));
        if stored != computed {
            return Err(OverlayError::Checksum { stored, computed });
        }
        let geometry = Self::new(u64_at(bytes, 24))?;
        let fields = [
            ("flags", u64::from(u32_at(bytes, 12)), 0),
            ("granule size", u64_at(bytes, 16), GRANULE_BYTES),
            ("map offset", u64_at(bytes, 32), geometry.map_offset()),
            ("map size", u64_at(bytes, 40), geometry.map_bytes()),
            ("data offset", u64_at(bytes, 48), geometry.data_offset()),
        ];
        match fields.iter().find(|(_, value, expected)| value != expected) {
            Some(&(field, value, _)) => Err(OverlayError::Field { field, value }),
            None => Ok(geometry),
        }
    }
}

fn u32_at(bytes: &[u8; HEADER_USED], at: usize) -> u32 {
    let mut field = [0; 4];
    field.copy_from_slice(&bytes[at..at + 4]);
    u32::from_le_bytes(field)
}

fn u64_at(bytes: &[u8; HEADER_USED], at: usize) -> u64 {
    let mut field = [0; 8];
    field.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(field)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The header with one field changed and the checksum made right again.
    fn patched(at: usize, value: &[u8]) -> [u8; HEADER_USED] {
        let mut bytes = Geometry::new(1 << 30).unwrap().encode();
        bytes[at..at + value.len()].copy_from_slice(value);
        let checksum = crc32c::crc32c(&bytes[..56]);
        bytes[56..60].copy_from_slice(&checksum.to_le_bytes());
        bytes
    }

    #[test]
    fn a_header_survives_its_bytes() {
        for size in [4096, 1 << 20, (1 << 30) + 4096, MAX_DISK_BYTES] {
            let geometry = Geometry::new(size).unwrap();
            assert_eq!(Geometry::decode(&geometry.encode()).unwrap(), geometry);
            assert!(geometry.data_offset() >= geometry.map_offset() + geometry.map_bytes());
        }
    }

    #[test]
    fn impossible_sizes_are_refused() {
        for size in [0, 1, 4095, 4097, MAX_DISK_BYTES + 4096, u64::MAX] {
            let error = Geometry::new(size).unwrap_err();
            assert!(matches!(error, OverlayError::DiskSize { .. }), "{size}");
            let error = Geometry::decode(&patched(24, &size.to_le_bytes())).unwrap_err();
            assert!(matches!(error, OverlayError::DiskSize { .. }), "{size}");
        }
    }

    #[test]
    fn every_damaged_byte_is_noticed() {
        let good = Geometry::new(1 << 30).unwrap().encode();
        for at in 0..HEADER_USED {
            let mut bytes = good;
            bytes[at] ^= 0x10;
            assert!(Geometry::decode(&bytes).is_err(), "byte {at}");
        }
    }

    #[test]
    fn unknown_values_are_named() {
        let error = Geometry::decode(&patched(12, &[1])).unwrap_err();
        assert!(matches!(
            error,
            OverlayError::Field {
                field: "flags",
                value: 1
            }
        ));
        let error = Geometry::decode(&patched(16, &8192u64.to_le_bytes())).unwrap_err();
        assert!(matches!(
            error,
            OverlayError::Field {
                field: "granule size",
                value: 8192
            }
        ));
        let error = Geometry::decode(&patched(8, &2u32.to_le_bytes())).unwrap_err();
        assert!(matches!(error, OverlayError::Version { found: 2 }));
        let error = Geometry::decode(&patched(0, b"x")).unwrap_err();
        assert!(matches!(error, OverlayError::Magic));
    }
}
