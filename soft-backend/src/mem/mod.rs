//! Guest RAM as the CPU sees it: `vmm-core`'s memory, by page and host pointer.

pub(crate) mod raw;

use raw::HostPtr;
use std::sync::Arc;
use vmm_core::Gpa;
use vmm_core::ram::{GuestRam, PageMap};

/// Size of a guest page, the unit of translation, dirty tracking and code invalidation.
pub(crate) const PAGE: u64 = 4096;

/// One region of RAM.
#[derive(Clone, Copy)]
pub(crate) struct Region {
    pub(crate) start: u64,
    pub(crate) bytes: u64,
    pub(crate) index: usize,
    base: HostPtr,
}

impl Region {
    /// Host address of its first byte.
    pub(crate) fn host(&self) -> usize {
        self.base.addr()
    }
}

/// Memory that cannot be had: whoever needs it must not go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Lost;

/// Guest RAM, shared by the vCPUs of a machine.
#[derive(Clone)]
pub(crate) struct RamMap {
    pub(crate) ram: GuestRam,
    regions: Arc<[Region]>,
}

impl RamMap {
    pub(crate) fn new(ram: GuestRam) -> Self {
        let layout = ram.layout().regions().iter().enumerate();
        let regions = layout
            .filter_map(|(index, r)| {
                let base = raw::region_base(&ram, index)?;
                Some(Region {
                    start: r.start.0,
                    bytes: r.bytes,
                    index,
                    base,
                })
            })
            .collect();
        RamMap { ram, regions }
    }

    pub(crate) fn regions(&self) -> &[Region] {
        &self.regions
    }

    #[inline]
    fn find(&self, gpa: u64) -> Option<(&Region, u64)> {
        self.regions.iter().find_map(|r| {
            let offset = gpa.wrapping_sub(r.start);
            (offset < r.bytes).then_some((r, offset & !(PAGE - 1)))
        })
    }

    /// The host pointer of the start of the page that holds `gpa`, if it is RAM. Waits for memory that is still
    /// being filled: every pointer into RAM comes from here.
    pub(crate) fn page(&self, gpa: u64) -> Result<Option<HostPtr>, Lost> {
        let Some((region, offset)) = self.find(gpa) else {
            return Ok(None);
        };
        // What is lost is told to the memory's owner by itself.
        self.ram.make_present(Gpa(gpa)).map_err(|_| Lost)?;
        Ok(Some(region.base.add(offset as usize)))
    }

    /// The guest physical address of a host pointer into RAM.
    pub(crate) fn gpa(&self, host: HostPtr) -> Option<u64> {
        self.regions.iter().find_map(|r| {
            let offset = (host.addr() as u64).wrapping_sub(r.host() as u64);
            (offset < r.bytes).then_some(r.start + offset)
        })
    }

    /// The page flags for `gpa` and the page's number in them.
    pub(crate) fn flags(&self, gpa: u64) -> Option<(&PageMap, usize)> {
        let (r, offset) = self.find(gpa)?;
        Some((self.ram.page_map(r.index)?, (offset / PAGE) as usize))
    }

    /// Notes a write to the page that holds `gpa`.
    pub(crate) fn mark_dirty(&self, gpa: u64) {
        if let Some((map, page)) = self.flags(gpa) {
            map.set_dirty(page);
        }
    }
}
