#![allow(unsafe_code)] // maps and replaces the pages behind guest memory

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::ptr;

use vm_memory::MmapRegion;
use vm_memory::mmap::MmapRegionBuilder;

use super::PageMap;

const READ_WRITE: libc::c_int = libc::PROT_READ | libc::PROT_WRITE;
const ANONYMOUS: libc::c_int = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;

/// A range of host addresses, mapped as long as this lives: anonymous at first, its parts replaced in place.
///
/// Addresses never change, so pointers into it stay valid while what lies behind them is replaced.
#[derive(Debug)]
pub(super) struct Reservation {
    base: *mut u8,
    bytes: usize,
}

// SAFETY: the address is fixed and the mapping lives as long as the value; all methods are system calls on
// parts of it, which the kernel serializes.
unsafe impl Send for Reservation {}
// SAFETY: as above.
unsafe impl Sync for Reservation {}

impl Reservation {
    /// Reserves `bytes`, a multiple of the host's page size.
    pub(super) fn new(bytes: usize) -> io::Result<Self> {
        // SAFETY: a new mapping at an address of the kernel's choice.
        let base = unsafe { libc::mmap(ptr::null_mut(), bytes, READ_WRITE, ANONYMOUS, -1, 0) };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let base = base.cast();
        Ok(Self { base, bytes })
    }

    pub(super) fn base(&self) -> *mut u8 {
        self.base
    }

    /// The whole range as `vm-memory` wants it. `pages` keeps the reservation alive.
    pub(super) fn region(&self, pages: PageMap) -> io::Result<MmapRegion<PageMap>> {
        debug_assert!(pages.keeps(self));
        let builder = MmapRegionBuilder::new_with_bitmap(self.bytes, pages)
            .with_mmap_prot(READ_WRITE)
            .with_mmap_flags(ANONYMOUS);
        // SAFETY: the range is mapped while the reservation lives, and the region's own page map holds that.
        let region = unsafe { builder.with_raw_mmap_pointer(self.base) }.build();
        region.map_err(io::Error::other)
    }

    /// Replaces a part by anonymous zero pages.
    pub(super) fn map_anonymous(&self, offset: u64, bytes: u64) -> io::Result<()> {
        self.map(offset, bytes, ANONYMOUS, -1, 0)
    }

    /// Replaces a part by a private mapping of a file.
    pub(super) fn map_file(
        &self,
        (offset, bytes): (u64, u64),
        file: &File,
        file_offset: u64,
    ) -> io::Result<()> {
        let flags = libc::MAP_PRIVATE | libc::MAP_NORESERVE;
        let file_offset = file_offset
            .try_into()
            .map_err(|_| io::ErrorKind::InvalidInput)?;
        self.map(offset, bytes, flags, file.as_raw_fd(), file_offset)
    }

    /// Gives the pages of an anonymous part back: they read as zero.
    pub(super) fn drop_pages(&self, offset: u64, bytes: u64) -> io::Result<()> {
        let (address, bytes) = self.part(offset, bytes)?;
        // SAFETY: the part lies in the mapping; whoever reads or writes it meanwhile does so by raw pointers
        // that tolerate changing contents.
        if unsafe { libc::madvise(address.cast(), bytes, libc::MADV_DONTNEED) } != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(())
    }

    /// Copies bytes into a part that nobody else uses; one that is not inside is left alone.
    pub(super) fn copy_in(&self, offset: u64, bytes: &[u8]) {
        if let Ok((address, length)) = self.part(offset, bytes.len() as u64) {
            // SAFETY: the part lies in the mapping and cannot overlap `bytes`, which is no guest memory.
            unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), address, length) };
        }
    }

    fn map(
        &self,
        offset: u64,
        bytes: u64,
        flags: libc::c_int,
        fd: libc::c_int,
        file_offset: libc::off_t,
    ) -> io::Result<()> {
        let (address, bytes) = self.part(offset, bytes)?;
        let flags = flags | libc::MAP_FIXED;
        // SAFETY: MAP_FIXED replaces only pages of this mapping, checked by `part`; as for `drop_pages`.
        let mapped =
            unsafe { libc::mmap(address.cast(), bytes, READ_WRITE, flags, fd, file_offset) };
        if mapped == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(())
    }

    /// Address and length of a part; one that is not inside is refused.
    fn part(&self, offset: u64, bytes: u64) -> io::Result<(*mut u8, usize)> {
        let outside = || io::Error::from(io::ErrorKind::InvalidInput);
        let offset = usize::try_from(offset).map_err(|_| outside())?;
        let bytes = usize::try_from(bytes).map_err(|_| outside())?;
        let end = offset.checked_add(bytes).ok_or_else(outside)?;
        if bytes == 0 || end > self.bytes {
            return Err(outside());
        }
        // SAFETY: the offset lies inside the mapping.
        Ok((unsafe { self.base.add(offset) }, bytes))
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's own, and whoever uses it holds this value.
        unsafe { libc::munmap(self.base.cast(), self.bytes) };
    }
}
