use thiserror::Error;

use super::{CHUNK_BYTES, ChunkIndex};
use crate::Gpa;

/// RAM comes in multiples of this many bytes.
pub const RAM_UNIT_BYTES: u64 = 2 << 20;

/// A contiguous range of RAM in the guest's physical address space.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryRegion {
    /// First address.
    pub start: Gpa,
    /// Length in bytes.
    pub bytes: u64,
}

impl MemoryRegion {
    /// The first address behind the region.
    pub fn end(&self) -> Gpa {
        Gpa(self.start.0 + self.bytes)
    }

    /// Whether `gpa` lies in the region.
    pub fn contains(&self, gpa: Gpa) -> bool {
        gpa >= self.start && gpa < self.end()
    }
}

/// Why regions do not make a layout.
#[derive(Debug, Error, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum RamLayoutError {
    /// No region at all.
    #[error("a guest needs memory")]
    Empty,
    /// A region that is empty or not a multiple of 2 MiB.
    #[error("memory of {bytes} bytes at {start} is not a multiple of 2 MiB")]
    Unit {
        /// First address.
        start: Gpa,
        /// Length in bytes.
        bytes: u64,
    },
    /// Regions out of order, overlapping or past the end of the address space.
    #[error("memory at {start} overlaps the region before it or the end of the address space")]
    Overlap {
        /// First address of the region in question.
        start: Gpa,
    },
}

/// The regions of a guest's RAM: ascending, disjoint, multiples of 2 MiB.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RamLayout {
    regions: Vec<MemoryRegion>,
}

impl RamLayout {
    /// Checks the regions.
    pub fn new(regions: Vec<MemoryRegion>) -> Result<Self, RamLayoutError> {
        let mut end = 0;
        for region in &regions {
            let MemoryRegion { start, bytes } = *region;
            if bytes == 0 || bytes % RAM_UNIT_BYTES != 0 || start.0 % RAM_UNIT_BYTES != 0 {
                return Err(RamLayoutError::Unit { start, bytes });
            }
            let overlap = RamLayoutError::Overlap { start };
            if start.0 < end {
                return Err(overlap);
            }
            end = start.0.checked_add(bytes).ok_or(overlap)?;
        }
        if regions.is_empty() {
            return Err(RamLayoutError::Empty);
        }
        Ok(Self { regions })
    }

    /// The regions in ascending order.
    pub fn regions(&self) -> &[MemoryRegion] {
        &self.regions
    }

    /// All RAM in bytes.
    pub fn total_bytes(&self) -> u64 {
        self.regions.iter().map(|region| region.bytes).sum()
    }

    /// Number of 64 KiB chunks.
    pub fn chunks(&self) -> usize {
        (self.total_bytes() / CHUNK_BYTES) as usize
    }

    /// The chunk that holds `gpa`.
    pub fn chunk_at(&self, gpa: Gpa) -> Option<ChunkIndex> {
        let (index, offset) = self.find(gpa)?;
        let before: u64 = self.regions[..index]
            .iter()
            .map(|region| region.bytes)
            .sum();
        Some(ChunkIndex(((before + offset) / CHUNK_BYTES) as usize))
    }

    /// The first address of a chunk.
    pub fn chunk_gpa(&self, chunk: ChunkIndex) -> Option<Gpa> {
        let mut offset = (chunk.0 as u64).checked_mul(CHUNK_BYTES)?;
        for region in &self.regions {
            if offset < region.bytes {
                return Some(Gpa(region.start.0 + offset));
            }
            offset -= region.bytes;
        }
        None
    }

    /// The region that holds `gpa` and the offset in it.
    pub fn find(&self, gpa: Gpa) -> Option<(usize, u64)> {
        let index = self.regions.partition_point(|region| region.end() <= gpa);
        let region = self.regions.get(index)?;
        region
            .contains(gpa)
            .then(|| (index, gpa.0 - region.start.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_found_in_their_region_only() {
        let layout = RamLayout::new(vec![
            MemoryRegion {
                start: Gpa(0),
                bytes: 4 << 20,
            },
            MemoryRegion {
                start: Gpa(1 << 32),
                bytes: 2 << 20,
            },
        ])
        .unwrap();
        assert_eq!(layout.find(Gpa(0)), Some((0, 0)));
        assert_eq!(layout.find(Gpa((4 << 20) - 1)), Some((0, (4 << 20) - 1)));
        assert_eq!(layout.find(Gpa(4 << 20)), None);
        assert_eq!(layout.find(Gpa((1 << 32) + 5)), Some((1, 5)));
        assert_eq!(layout.find(Gpa((1 << 32) + (2 << 20))), None);
        assert_eq!(layout.total_bytes(), 6 << 20);
        assert_eq!(layout.chunks(), 96);
        for (gpa, chunk) in [
            (0x1_2345, 1),
            (1 << 32, 64),
            ((1 << 32) + (2 << 20) - 1, 95),
        ] {
            assert_eq!(layout.chunk_at(Gpa(gpa)), Some(ChunkIndex(chunk)));
            assert_eq!(
                layout.chunk_gpa(ChunkIndex(chunk)),
                Some(Gpa(gpa & !0xffff))
            );
        }
        assert_eq!(layout.chunk_at(Gpa(4 << 20)), None);
        assert_eq!(layout.chunk_gpa(ChunkIndex(96)), None);
    }

    #[test]
    fn bad_layouts_are_named() {
        let region = |start, bytes| MemoryRegion {
            start: Gpa(start),
            bytes,
        };
        assert_eq!(RamLayout::new(vec![]), Err(RamLayoutError::Empty));
        assert!(matches!(
            RamLayout::new(vec![region(0, 4096)]),
            Err(RamLayoutError::Unit { .. })
        ));
        assert!(matches!(
            RamLayout::new(vec![region(0, 4 << 20), region(2 << 20, 4 << 20)]),
            Err(RamLayoutError::Overlap { .. })
        ));
        assert!(matches!(
            RamLayout::new(vec![region(u64::MAX - (2 << 20) + 1, 4 << 20)]),
            Err(RamLayoutError::Overlap { .. })
        ));
    }
}
