//! Guest memory has one door: [`GuestRam`].
//!
//! Devices, loaders and agents reach RAM only through it, so that each write is seen by dirty
//! tracking and by a software CPU's code cache, and no chunk is used before it is there. It implements
//! [`vm_memory::GuestMemory`], hence also `vm_memory::Bytes`: never is guest memory a `&[u8]`.
//!
//! # What lies behind it
//!
//! Each region is one reserved range of host addresses that never moves. Its parts are [extents](Extent):
//! anonymous memory, or a private mapping of a file (a memfd that several machines share, a file made for a
//! restore). Replacing an extent changes what lies behind the addresses, never the addresses: a hypervisor's memory slots and a
//! software CPU's pointers stay valid. Extents begin and end at multiples of [`CHUNK_BYTES`].
//!
//! # Memory that is filled while it is used
//!
//! After [`GuestRam::begin_fill`] chunks are absent until somebody needs them. Devices find out here; a
//! backend calls [`GuestRam::make_present`] before it uses a page for the first time, or says that it cannot
//! ([`Vm::checks_presence`](crate::hypervisor::Vm::checks_presence)).

mod background;
mod door;
mod extents;
mod layout;
mod page_map;
mod populated;
mod presence;
#[cfg(test)]
mod property;
mod reservation;
mod shared;

use std::collections::BTreeSet;
use std::fs::File;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use thiserror::Error;
use vm_memory::{GuestMemoryBackend, GuestMemoryMmap, GuestRegionMmap};

use self::extents::ExtentMap;
use self::presence::Presence;
use self::reservation::Reservation;
use crate::Gpa;

pub use background::BackgroundFill;
pub use extents::{Extent, ExtentBacking, FileRange};
pub use layout::{MemoryRegion, RAM_UNIT_BYTES, RamLayout, RamLayoutError};
pub use page_map::{PAGE_BYTES, PageMap};
pub use presence::{ChunkIndex, FillProgress, FillSource, LostListener, MemoryLost};
pub(crate) use shared::Layer;
pub use shared::{SharedPart, SharedRam, SharedRamError};

/// Memory is filled, and its extents are cut, in chunks of this many bytes.
pub const CHUNK_BYTES: u64 = 64 << 10;
/// Pages in a chunk.
const CHUNK_PAGES: usize = (CHUNK_BYTES / PAGE_BYTES) as usize;

/// Most extents of one memory: the host allows a process about 65,000 mappings, and more of them make every
/// page fault slower.
pub const MAX_EXTENTS: usize = 8192;

/// Why guest memory could not be made or used.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum RamError {
    /// The host did not map the memory.
    #[error("cannot map {bytes} bytes of guest memory")]
    Map {
        /// Size of the mapping in bytes.
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
    /// An extent that does not begin and end at a multiple of [`CHUNK_BYTES`].
    #[error("an extent of {bytes} bytes at {gpa} is not made of whole chunks")]
    Granule {
        /// First address of the extent.
        gpa: Gpa,
        /// Its length in bytes.
        bytes: u64,
    },
    /// There would be more than [`MAX_EXTENTS`].
    #[error("guest memory cannot have more than {MAX_EXTENTS} extents")]
    TooManyExtents,
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
    /// A chunk cannot be had from the source that memory is filled from.
    #[error(transparent)]
    Lost(#[from] MemoryLost),
}

/// What lies behind guest memory on the host when it is made.
#[derive(Debug)]
pub enum RamBacking {
    /// Private anonymous pages, zero at first.
    Anonymous,
    /// A private, copy-on-write mapping of a file that holds all regions one after the other,
    /// in the layout's order: writes never reach the file.
    PrivateFile(Arc<File>),
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
    reservations: Vec<Arc<Reservation>>,
    /// What lies behind each region. Held while that changes.
    extents: Mutex<Vec<ExtentMap>>,
    presence: Presence,
    /// Chunks whose contents were replaced without counting as written.
    replaced: Mutex<BTreeSet<ChunkIndex>>,
    any_stale_code: Arc<AtomicBool>,
}

/// A range of one region.
#[derive(Debug, Clone, Copy)]
struct RegionPart {
    region: usize,
    offset: u64,
    bytes: u64,
}

impl GuestRam {
    /// Maps memory of the given layout.
    pub fn new(layout: RamLayout, backing: &RamBacking) -> Result<Self, RamError> {
        let any_stale_code = Arc::new(AtomicBool::new(false));
        let (mut regions, mut reservations) = (Vec::new(), Vec::new());
        for region in layout.regions() {
            let bytes = region.bytes;
            let failed = |source| RamError::Map { bytes, source };
            let size = bytes.try_into();
            let size = size.map_err(|_| failed(std::io::ErrorKind::OutOfMemory.into()))?;
            let reservation = Arc::new(Reservation::new(size).map_err(failed)?);
            let pages = PageMap::new(bytes, any_stale_code.clone(), Some(reservation.clone()));
            let mapping = reservation.region(pages).map_err(failed)?;
            reservations.push(reservation);
            let region = GuestRegionMmap::new(mapping, region.start.into());
            regions.push(region.ok_or(RamError::Regions)?);
        }
        let memory = GuestMemoryMmap::from_regions(regions).map_err(|_| RamError::Regions)?;
        let extents = layout.regions().iter();
        let extents = extents.map(|region| ExtentMap::anonymous(region.bytes));
        let ram = Self {
            inner: Arc::new(Inner {
                memory,
                extents: Mutex::new(extents.collect()),
                presence: Presence::new(layout.chunks()),
                replaced: Mutex::default(),
                layout,
                reservations,
                any_stale_code,
            }),
        };
        if let RamBacking::PrivateFile(file) = backing {
            let mut offset = 0;
            for region in ram.layout().regions() {
                let file = file.clone();
                ram.map_file(region.start, region.bytes, FileRange { file, offset })?;
                offset += region.bytes;
            }
        }
        Ok(ram)
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
    /// [`PageMap::set_dirty`]. Whoever uses a page calls [`make_present`](Self::make_present) first. The pointer is
    /// valid while any clone of this memory lives, whatever becomes of the extents.
    pub fn host_region(&self, index: usize) -> Option<(*mut u8, u64)> {
        let reservation = self.inner.reservations.get(index)?;
        let region = self.layout().regions().get(index)?;
        Some((reservation.base(), region.bytes))
    }

    /// Sets the bits of those pages of region `index` that may be other than zero, one bit per 4 KiB page: those that have host memory or a
    /// file behind them, and those that are not filled in yet. One that is touched meanwhile may be missing.
    ///
    /// # Errors
    /// The host does not tell (it is no Linux, or has no `/proc`).
    pub fn add_populated(&self, index: usize, into: &mut [u64]) -> std::io::Result<()> {
        let Some((address, bytes)) = self.host_region(index) else {
            return Ok(());
        };
        let mut set = |offset: u64| {
            let page = (offset / PAGE_BYTES) as usize;
            into[page / 64] |= 1 << (page % 64);
        };
        for extent in self.extents(index) {
            if let ExtentBacking::File(_) = extent.backing {
                extent.range.step_by(PAGE_BYTES as usize).for_each(&mut set);
            }
        }
        if !self.is_complete()
            && let Some(region) = self.layout().regions().get(index)
        {
            let absent = |offset: &u64| {
                let chunk = self.layout().chunk_at(Gpa(region.start.0 + offset));
                chunk.is_some_and(|chunk| !self.inner.presence.is_present(chunk))
            };
            let pages = (0..bytes).step_by(PAGE_BYTES as usize);
            pages.filter(absent).for_each(&mut set);
        }
        populated::add(address.addr(), bytes, into)
    }

    /// What [`Self::take_code_is_stale`] looks at, for whoever only wants to know whether to stop for it. It lies there as
    /// long as this memory.
    pub fn stale_code_flag(&self) -> &AtomicBool {
        &self.inner.any_stale_code
    }

    /// True once, after devices wrote to pages that hold decoded code; see [`PageMap`].
    #[inline]
    pub fn take_code_is_stale(&self) -> bool {
        self.inner.any_stale_code.load(Ordering::Relaxed)
            && self.inner.any_stale_code.swap(false, Ordering::AcqRel)
    }

    /// What lies behind region `index`.
    pub fn extents(&self, index: usize) -> Vec<Extent> {
        self.lock_extents()
            .get(index)
            .map_or_else(Vec::new, ExtentMap::all)
    }

    /// Puts a private mapping of a file behind a range that begins and ends at multiples of [`CHUNK_BYTES`]. Nobody uses the
    /// range meanwhile; nothing is marked as written.
    pub fn map_file(&self, gpa: Gpa, bytes: u64, file: FileRange) -> Result<(), RamError> {
        let part = self.find(gpa, bytes)?;
        if !(part.offset | bytes).is_multiple_of(CHUNK_BYTES) || bytes == 0 {
            return Err(RamError::Granule { gpa, bytes });
        }
        self.give_up_chunks(part);
        if let Some(ChunkIndex(first)) = self.layout().chunk_at(gpa) {
            let last = first + (bytes / CHUNK_BYTES) as usize;
            self.note_replaced((first..last).map(ChunkIndex));
        }
        let mut extents = self.lock_extents();
        if !has_room(&extents) {
            return Err(RamError::TooManyExtents);
        }
        let range = part.offset..part.offset + bytes;
        self.inner.reservations[part.region]
            .map_file((part.offset, bytes), &file.file, file.offset)
            .map_err(|source| RamError::Map { bytes, source })?;
        extents[part.region].replace(range, ExtentBacking::File(file));
        Ok(())
    }

    /// Gives the pages of a range back to the host: they read as zero from now on, and count as
    /// written. `gpa` and `bytes` are multiples of the host's page size.
    pub fn discard(&self, gpa: Gpa, bytes: u64) -> Result<(), RamError> {
        let part = self.find(gpa, bytes)?;
        if bytes == 0 {
            return Ok(());
        }
        self.settle(part)?;
        let zeroed = self.zero(part);
        // Also where it failed: some of it may be zero already.
        if let Some(pages) = self.page_map(part.region) {
            use vm_memory::bitmap::Bitmap;
            pages.mark_dirty(part.offset as usize, bytes as usize);
        }
        zeroed.map_err(|source| RamError::Discard { gpa, bytes, source })
    }

    /// Waits for what [`discard`](Self::discard) of the range would have to wait for.
    pub(crate) fn prepare_discard(&self, gpa: Gpa, bytes: u64) -> Result<(), RamError> {
        self.settle(self.find(gpa, bytes)?)
    }

    /// Replaces a part by zero pages. Over a file only whole chunks are; what is left of others is overwritten, since giving the
    /// pages back would bring the file's bytes back.
    fn zero(&self, part: RegionPart) -> std::io::Result<()> {
        let mut extents = self.lock_extents();
        let reservation = &self.inner.reservations[part.region];
        for extent in extents[part.region].within(part.offset..part.offset + part.bytes) {
            let (start, end) = (extent.range.start, extent.range.end);
            if matches!(extent.backing, ExtentBacking::Anonymous) {
                reservation.drop_pages(start, end - start)?;
                continue;
            }
            let (mut first, mut last) = (
                start.next_multiple_of(CHUNK_BYTES),
                end & !(CHUNK_BYTES - 1),
            );
            if first >= last || !has_room(&extents) {
                (first, last) = (end, end);
            } else {
                reservation.map_anonymous(first, last - first)?;
                extents[part.region].replace(first..last, ExtentBacking::Anonymous);
            }
            self.overwrite(part.region, start..first)?;
            self.overwrite(part.region, last..end)?;
        }
        Ok(())
    }

    /// Devices and vCPUs do not wait for chunks that are discarded as a whole; what is read for them is dropped. Of
    /// others the rest is needed.
    fn settle(&self, part: RegionPart) -> Result<(), RamError> {
        if self.is_complete() || part.bytes == 0 {
            return Ok(());
        }
        let end = part.offset + part.bytes;
        let first = part.offset.next_multiple_of(CHUNK_BYTES);
        if part.offset < first {
            self.make_present_at(part.region, part.offset)?;
        }
        if !end.is_multiple_of(CHUNK_BYTES) {
            self.make_present_at(part.region, end - 1)?;
        }
        if first < end & !(CHUNK_BYTES - 1) {
            self.give_up_chunks(RegionPart {
                offset: first,
                bytes: (end & !(CHUNK_BYTES - 1)) - first,
                ..part
            });
        }
        Ok(())
    }

    fn give_up_chunks(&self, part: RegionPart) {
        if self.is_complete() {
            return;
        }
        let start = self.layout().regions()[part.region].start.0;
        for offset in (part.offset..part.offset + part.bytes).step_by(CHUNK_BYTES as usize) {
            if let Some(chunk) = self.layout().chunk_at(Gpa(start + offset)) {
                self.inner.presence.give_up(chunk);
            }
        }
    }

    /// The chunks whose contents came from a file or a source since the last call.
    pub(crate) fn take_replaced(&self) -> BTreeSet<ChunkIndex> {
        let replaced = self.inner.replaced.lock();
        std::mem::take(&mut *replaced.unwrap_or_else(PoisonError::into_inner))
    }

    fn note_replaced(&self, chunks: impl IntoIterator<Item = ChunkIndex>) {
        let replaced = self.inner.replaced.lock();
        let mut replaced = replaced.unwrap_or_else(PoisonError::into_inner);
        for chunk in chunks {
            replaced.insert(chunk);
            let place = self.layout().chunk_gpa(chunk);
            let place = place.and_then(|gpa| self.layout().find(gpa));
            if let Some((region, offset)) = place
                && let Some(pages) = self.page_map(region)
            {
                let first = (offset / PAGE_BYTES) as usize;
                (first..first + CHUNK_PAGES).for_each(|page| pages.replace_code(page));
            }
        }
    }

    fn find(&self, gpa: Gpa, bytes: u64) -> Result<RegionPart, RamError> {
        let out_of_range = RamError::OutOfRange { gpa, bytes };
        let Some((region, offset)) = self.layout().find(gpa) else {
            return Err(out_of_range);
        };
        let end = offset.checked_add(bytes);
        if end.is_none_or(|end| end > self.layout().regions()[region].bytes) {
            return Err(out_of_range);
        }
        Ok(RegionPart {
            region,
            offset,
            bytes,
        })
    }

    fn lock_extents(&self) -> MutexGuard<'_, Vec<ExtentMap>> {
        let extents = self.inner.extents.lock();
        extents.unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether an extent more can be cut out of the others: one becomes three at most.
fn has_room(extents: &[ExtentMap]) -> bool {
    extents.iter().map(ExtentMap::len).sum::<usize>() + 2 <= MAX_EXTENTS
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

#[cfg(test)]
mod tests {
    use vm_memory::{Bytes, GuestAddress};

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
        let ram = GuestRam::new(layout, &RamBacking::PrivateFile(Arc::new(file))).unwrap();
        assert_eq!(populated(&ram).map(|pages| pages.len()), [1024, 512]);
    }

    #[test]
    fn a_discard_over_a_file_does_not_bring_the_file_back() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(6 << 20).unwrap();
        std::os::unix::fs::FileExt::write_all_at(&file, &[9; 4096], 0).unwrap();
        let layout = ram().layout().clone();
        let ram = GuestRam::new(layout, &RamBacking::PrivateFile(Arc::new(file))).unwrap();
        assert_eq!(ram.read_obj::<u8>(GuestAddress(0)).unwrap(), 9);
        ram.discard(Gpa(0), 4096).unwrap();
        assert_eq!(ram.read_obj::<u8>(GuestAddress(0)).unwrap(), 0);
    }
}
