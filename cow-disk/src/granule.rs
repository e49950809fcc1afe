//! Sizes, indices and the states of a granule.

use std::ops::Range;

/// Bytes per granule, the unit of copy-on-write.
pub const GRANULE_BYTES: u64 = 4096;

/// [`GRANULE_BYTES`] as a buffer length.
pub(crate) const GRANULE_LEN: usize = 4096;

/// The largest disk that an overlay describes (its map then takes 512 MiB, sparse).
pub const MAX_DISK_BYTES: u64 = 8 << 40;

/// A contiguous range of granule indices.
pub(crate) type GranuleRange = Range<u64>;

/// The granules that the byte range touches, partly or wholly.
pub(crate) fn touching(offset_bytes: u64, len_bytes: u64) -> GranuleRange {
    offset_bytes / GRANULE_BYTES..(offset_bytes + len_bytes).div_ceil(GRANULE_BYTES)
}

/// The granules that lie wholly inside the byte range; empty if there are none.
pub(crate) fn inside(offset_bytes: u64, len_bytes: u64) -> GranuleRange {
    let start = offset_bytes.div_ceil(GRANULE_BYTES);
    let end = (offset_bytes + len_bytes) / GRANULE_BYTES;
    start..end.max(start)
}

/// Whether every byte is zero.
pub(crate) fn is_zero(data: &[u8]) -> bool {
    // Blocks without an early exit inside let the compiler use vector instructions.
    let blocks = data.chunks_exact(64);
    let rest = blocks.remainder();
    blocks
        .map(|block| block.iter().fold(0, |acc, byte| acc | byte))
        .chain(rest.iter().copied())
        .all(|or| or == 0)
}

/// What the map in the file says of one granule (2 bits).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum MapEntry {
    /// Nothing here: the layer below decides.
    Absent = 0,
    /// Reads as zero, whatever the data region holds.
    Zero = 1,
    /// The data region decides, but an all-zero granule means `Absent`: its data did not reach
    /// the file before the crash.
    Tentative = 2,
    /// The data region decides, all-zero included.
    Firm = 3,
}

impl MapEntry {
    /// The entry of the low two bits.
    pub(crate) fn from_bits(bits: u8) -> Self {
        match bits & 3 {
            0 => Self::Absent,
            1 => Self::Zero,
            2 => Self::Tentative,
            _ => Self::Firm,
        }
    }
}

/// What is known of one granule while the overlay is open (4 bits in memory).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum State {
    /// Recorded absent; its data region is a hole.
    Absent = 0,
    /// Recorded zero; its data region is a hole.
    Zero = 1,
    /// Recorded tentative; its data is there and not all zero.
    Tentative = 2,
    /// Recorded firm.
    Firm = 3,
    /// Recorded tentative, but its data is not there (yet): reads as absent.
    Pending = 4,
    /// Recorded tentative by an earlier opening: its data says whether it is present.
    Unverified = 5,
    /// Recorded zero over tentative, perhaps not durably; the data region still holds what was
    /// discarded, to be punched by a flush.
    ZeroStale = 6,
    /// As `ZeroStale`, but a flush is just making the entry durable.
    ZeroSettling = 7,
}

impl State {
    /// The state of the low three bits.
    pub(crate) fn from_bits(bits: u8) -> Self {
        match bits & 7 {
            0 => Self::Absent,
            1 => Self::Zero,
            2 => Self::Tentative,
            3 => Self::Firm,
            4 => Self::Pending,
            5 => Self::Unverified,
            6 => Self::ZeroStale,
            _ => Self::ZeroSettling,
        }
    }

    /// The state a recorded entry has when the overlay is opened.
    pub(crate) fn on_open(entry: MapEntry) -> Self {
        match entry {
            MapEntry::Absent => Self::Absent,
            MapEntry::Zero => Self::ZeroStale,
            MapEntry::Tentative => Self::Unverified,
            MapEntry::Firm => Self::Firm,
        }
    }

    /// What the map in the file says of a granule in this state.
    pub(crate) fn recorded(self) -> MapEntry {
        match self {
            Self::Absent => MapEntry::Absent,
            Self::Zero | Self::ZeroStale | Self::ZeroSettling => MapEntry::Zero,
            Self::Tentative | Self::Pending | Self::Unverified => MapEntry::Tentative,
            Self::Firm => MapEntry::Firm,
        }
    }

    /// Where a reader finds the granule's bytes.
    pub(crate) fn source(self) -> Source {
        match self {
            Self::Absent | Self::Pending => Source::Below,
            Self::Zero | Self::ZeroStale | Self::ZeroSettling => Source::Zero,
            Self::Tentative | Self::Firm => Source::Data,
            Self::Unverified => Source::Unverified,
        }
    }
}

/// Where a reader finds a granule's bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Source {
    /// In the layer below.
    Below,
    /// Nowhere: they are zero.
    Zero,
    /// In this overlay's data region.
    Data,
    /// In the data region if that is not all zero, else below.
    Unverified,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_touching_and_inside() {
        assert_eq!(touching(0, 4096), 0..1);
        assert_eq!(touching(4095, 2), 0..2);
        assert_eq!(inside(0, 4096), 0..1);
        assert!(inside(1, 4096).is_empty());
        assert_eq!(inside(1, 8191), 1..2);
        assert!(inside(100, 10).is_empty());
    }

    #[test]
    fn zero_is_found_at_every_length() {
        for len in 0..200 {
            let mut data = vec![0; len];
            assert!(is_zero(&data));
            for i in 0..len {
                data[i] = 1;
                assert!(!is_zero(&data), "length {len}, byte {i}");
                data[i] = 0;
            }
        }
    }

    #[test]
    fn states_survive_their_bits() {
        for bits in 0..8u8 {
            assert_eq!(State::from_bits(bits) as u8, bits);
        }
        for bits in 0..4u8 {
            assert_eq!(MapEntry::from_bits(bits) as u8, bits);
            let entry = MapEntry::from_bits(bits);
            assert_eq!(State::on_open(entry).recorded(), entry);
        }
    }
}
