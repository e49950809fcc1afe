//! Guest memory has one door: [`GuestRam`].
//!
//! Devices, loaders and agents reach RAM only through it, so that each write is seen by dirty
//! tracking and by a software CPU's code cache. It implements [`vm_memory::GuestMemory`], hence also
//! `vm_memory::Bytes`: never is guest memory a `&[u8]`.

mod layout;
mod mapping;
mod page_map;
mod populated;

use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use thiserror::Error;
use vm_memory::bitmap::BS;
use vm_memory::guest_memory::{GuestMemorySliceIterator, Permissions};
use vm_memory::{
    GuestAddress, GuestMemory, GuestMemoryBackend, GuestMemoryMmap, GuestMemoryRegion,
    GuestRegionMmap,
};

pub use layout::{MemoryRegion, RAM_UNIT_BYTES, RamLayout, RamLayoutError};
pub use page_map::{PAGE_BYTES, PageMap};

use crate::Gpa;

/// Why guest memory could not be made or used.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum RamError {
    /// The host did not map the memory.
    #[error("cannot map {bytes} bytes of guest memory")]
    Map {
        /// Size of the region in bytes.
        bytes: u64,
        /// The host's answer.
        #[source]
        source: std::io::Error,
    },
    /// The mapped regions do not form a guest memory.
    #[error("the memory regions overlap or are empty")]
    Regions,
    /// A range that is not in RAM.
    #[error("guest memory has no {bytes} bytes at {gpa}")]
    OutOfRange {
        /// First address of the range.
        gpa: Gpa,
        /// Its length in bytes.
        bytes: u64,
    },
    /// The host did not give the pages back.
    #[error("cannot discard {bytes} bytes of guest memory at {gpa}")]
    Discard {
        /// First address of the range.
        gpa: Gpa,
        /// Its length in bytes.
        bytes: u64,
        /// The host's answer.
        #[source]
        source: std::io::Error,
    },
}

/// What lies behind guest memory on the host.
#[derive(Debug)]
pub enum RamBacking {
    /// Private anonymous pages, zero at first.
    Anonymous,
    /// A private, copy-on-write mapping of a file that holds all regions one after the other,
    /// in the layout's order: writes never reach the file.
    PrivateFile(File),
}

/// The guest's memory; cheap to clone, all clones are the same memory.
#[derive(Clone, Debug)]
pub struct GuestRam {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    memory: GuestMemoryMmap<PageMap>,
    layout: RamLayout,
    file_backed: bool,
    any_stale_code: Arc<AtomicBool>,
}

impl GuestRam {
    /// Maps memory of the given layout.
    pub fn new(layout: RamLayout, backing: &RamBacking) -> Result<Self, RamError> {
        let any_stale_code = Arc::new(AtomicBool::new(false));
        let mut regions = Vec::new();
        let mut file_offset = 0;
        for region in layout.regions() {
            let map = PageMap::new(region.bytes, any_stale_code.clone());
            let mapping = mapping::map(region.bytes, backing, file_offset, map)?;
            file_offset += region.bytes;
            regions
                .push(GuestRegionMmap::new(mapping, region.start.into()).ok_or(RamError::Regions)?);
        }
        let memory = GuestMemoryMmap::from_regions(regions).map_err(|_| RamError::Regions)?;
        let file_backed = matches!(backing, RamBacking::PrivateFile(_));
        Ok(Self {
            inner: Arc::new(Inner {
                memory,
                layout,
                file_backed,
                any_stale_code,
            }),
        })
    }

    /// Where the memory lies in the guest's physical address space.
    pub fn layout(&self) -> &RamLayout {
        &self.inner.layout
    }

    /// The page flags of region `index` of the layout.
    pub fn page_map(&self, index: usize) -> Option<&PageMap> {
        self.inner
            .memory
            .iter()
            .nth(index)
            .map(|region| region.bitmap_ref())
    }

    /// The host address and length in bytes of region `index`, for backends that map it into a
    /// guest or that run guest code themselves.
    ///
    /// Whoever writes through it reports the pages: to a hypervisor's dirty log or by
    /// [`PageMap::set_dirty`]. The pointer is valid while any clone of this memory lives.
    pub fn host_region(&self, index: usize) -> Option<(*mut u8, u64)> {
        let region = self.inner.memory.iter().nth(index)?;
        Some((region.as_ptr(), region.len()))
    }

    /// Sets the bits of those pages of region `index` that have host memory behind them, one bit per 4 KiB page. The
    /// others are zero; one that is touched meanwhile may be missing. Where a file lies behind the
    /// memory, that is every page.
    ///
    /// # Errors
    /// The host does not tell (it is no Linux, or has no `/proc`).
    pub fn add_populated(&self, index: usize, into: &mut [u64]) -> std::io::Result<()> {
        let Some((address, bytes)) = self.host_region(index) else {
            return Ok(());
        };
        if self.inner.file_backed {
            let pages = (bytes / PAGE_BYTES) as usize;
            (0..pages).for_each(|page| into[page / 64] |= 1 << (page % 64));
            return Ok(());
        }
        populated::add(address.addr(), bytes, into)
    }

    /// True once, after devices wrote to pages that hold decoded code; see [`PageMap`].
    #[inline]
    pub fn take_code_is_stale(&self) -> bool {
        self.inner.any_stale_code.load(Ordering::Relaxed)
            && self.inner.any_stale_code.swap(false, Ordering::AcqRel)
    }

    /// Gives the pages of a range back to the host: they read as zero from now on, and count as
    /// written. `gpa` and `bytes` are multiples of the host's page size.
    pub fn discard(&self, gpa: Gpa, bytes: u64) -> Result<(), RamError> {
        let out_of_range = || RamError::OutOfRange { gpa, bytes };
        let length = usize::try_from(bytes).map_err(|_| out_of_range())?;
        let (region, start) = self
            .inner
            .memory
            .to_region_addr(gpa.into())
            .ok_or_else(out_of_range)?;
        if start
            .0
            .checked_add(bytes)
            .is_none_or(|end| end > region.len())
        {
            return Err(out_of_range());
        }
        mapping::discard(region, start.0 as usize, length, self.inner.file_backed)
            .map_err(|source| RamError::Discard { gpa, bytes, source })?;
        use vm_memory::bitmap::Bitmap;
        region.bitmap_ref().mark_dirty(start.0 as usize, length);
        Ok(())
    }
}

/// Access to a region's own page map.
trait RegionBitmap {
    fn bitmap_ref(&self) -> &PageMap;
}

impl RegionBitmap for GuestRegionMmap<PageMap> {
    fn bitmap_ref(&self) -> &PageMap {
        // The region derefs to its mapping, which owns the map.
        std::ops::Deref::deref(self).bitmap()
    }
}

impl GuestMemory for GuestRam {
    type PhysicalMemory = GuestMemoryMmap<PageMap>;
    type Bitmap = PageMap;

    fn check_range(&self, addr: GuestAddress, count: usize, access: Permissions) -> bool {
        GuestMemory::check_range(&self.inner.memory, addr, count, access)
    }

    fn get_slices<'a>(
        &'a self,
        addr: GuestAddress,
        count: usize,
        access: Permissions,
    ) -> Result<impl GuestMemorySliceIterator<'a, BS<'a, Self::Bitmap>>, vm_memory::GuestMemoryError>
    {
        // Where memory is still being filled, pages are made present here before they are handed out.
        GuestMemory::get_slices(&self.inner.memory, addr, count, access)
    }

    fn physical_memory(&self) -> Option<&Self::PhysicalMemory> {
        Some(&self.inner.memory)
    }
}

#[cfg(test)]
mod tests {
    use vm_memory::Bytes;

    use super::*;

    fn ram() -> GuestRam {
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
        GuestRam::new(layout, &RamBacking::Anonymous).unwrap()
    }

    #[test]
    fn writes_are_read_back_and_marked_in_their_region() {
        let ram = ram();
        ram.write_obj(0x1122_3344_u32, GuestAddress((1 << 32) + 4094))
            .unwrap();
        assert_eq!(
            ram.read_obj::<u32>(GuestAddress((1 << 32) + 4094)).unwrap(),
            0x1122_3344
        );
        let high = ram.page_map(1).unwrap();
        assert!(high.is_dirty(0) && high.is_dirty(1) && !high.is_dirty(2));
        assert!(!ram.page_map(0).unwrap().is_dirty(0));
    }

    #[test]
    fn nothing_reaches_past_a_region() {
        let ram = ram();
        assert!(
            ram.write_slice(&[0; 16], GuestAddress((4 << 20) - 8))
                .is_err()
        );
        assert!(ram.discard(Gpa(4 << 20), 4096).is_err());
        assert!(ram.discard(Gpa(u64::MAX - 4095), 4096).is_err());
    }

    #[test]
    fn discarded_pages_are_zero_and_dirty() {
        let ram = ram();
        ram.write_slice(&[7; 8192], GuestAddress(8192)).unwrap();
        let mut set = vec![0; ram.page_map(0).unwrap().words()];
        ram.page_map(0).unwrap().take_dirty(&mut set);
        ram.discard(Gpa(8192), 4096).unwrap();
        assert_eq!(ram.read_obj::<u64>(GuestAddress(8192)).unwrap(), 0);
        assert_eq!(ram.read_obj::<u8>(GuestAddress(12288)).unwrap(), 7);
        assert!(ram.page_map(0).unwrap().is_dirty(2));
        assert!(!ram.page_map(0).unwrap().is_dirty(3));
    }

    const NONE: Vec<usize> = Vec::new();

    /// The pages with memory behind them, of both regions.
    fn populated(ram: &GuestRam) -> [Vec<usize>; 2] {
        [0, 1].map(|region| {
            let mut words = vec![0; ram.page_map(region).unwrap().words()];
            ram.add_populated(region, &mut words).unwrap();
            let set = |page: &usize| words[page / 64] >> (page % 64) & 1 == 1;
            (0..words.len() * 64).filter(set).collect()
        })
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn only_what_was_touched_is_populated() {
        let ram = ram();
        assert_eq!(populated(&ram), [NONE, NONE]);
        ram.write_slice(&[7; 8192], GuestAddress(300 * 4096))
            .unwrap();
        let [low, high] = populated(&ram);
        assert!(low.contains(&300) && low.contains(&301), "{low:?}");
        // The host may give a larger page, which may reach over both mappings, but not everything.
        assert!(low.len() + high.len() <= 1024, "{} pages", low.len());
        ram.discard(Gpa(0), 4 << 20).unwrap();
        assert_eq!(populated(&ram)[0], NONE);
    }

    #[test]
    fn all_of_a_file_is_populated() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(6 << 20).unwrap();
        let layout = ram().layout().clone();
        let ram = GuestRam::new(layout, &RamBacking::PrivateFile(file)).unwrap();
        assert_eq!(populated(&ram).map(|pages| pages.len()), [1024, 512]);
    }

    #[test]
    fn a_discard_over_a_file_does_not_bring_the_file_back() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(6 << 20).unwrap();
        std::os::unix::fs::FileExt::write_all_at(&file, &[9; 4096], 0).unwrap();
        let layout = ram().layout().clone();
        let ram = GuestRam::new(layout, &RamBacking::PrivateFile(file)).unwrap();
        assert_eq!(ram.read_obj::<u8>(GuestAddress(0)).unwrap(), 9);
        ram.discard(Gpa(0), 4096).unwrap();
        assert_eq!(ram.read_obj::<u8>(GuestAddress(0)).unwrap(), 0);
    }
}
