#![allow(unsafe_code)] // maps and replaces the pages behind guest memory

use std::io;

use vm_memory::mmap::MmapRegionBuilder;
use vm_memory::{FileOffset, GuestRegionMmap, MmapRegion};

use super::{PageMap, RamBacking, RamError};

/// Maps one region of `bytes`; a file backing is used from `file_offset` on.
pub(super) fn map(
    bytes: u64,
    backing: &RamBacking,
    file_offset: u64,
    pages: PageMap,
) -> Result<MmapRegion<PageMap>, RamError> {
    let failed = |source| RamError::Map { bytes, source };
    let size = usize::try_from(bytes).map_err(|_| failed(io::ErrorKind::OutOfMemory.into()))?;
    let builder = MmapRegionBuilder::new_with_bitmap(size, pages)
        .with_mmap_prot(libc::PROT_READ | libc::PROT_WRITE);
    let builder = match backing {
        RamBacking::Anonymous => {
            builder.with_mmap_flags(libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE)
        }
        RamBacking::PrivateFile(file) => builder
            .with_mmap_flags(libc::MAP_PRIVATE | libc::MAP_NORESERVE)
            .with_file_offset(FileOffset::new(
                file.try_clone().map_err(failed)?,
                file_offset,
            )),
    };
    builder
        .build()
        .map_err(|error| failed(io::Error::other(error)))
}

/// Replaces pages by zero ones. Over a file mapping `MADV_DONTNEED` would bring the file's bytes
/// back, so there the range is mapped anew.
pub(super) fn discard(
    region: &GuestRegionMmap<PageMap>,
    offset: usize,
    length: usize,
    file_backed: bool,
) -> io::Result<()> {
    // SAFETY: the caller checked that offset + length lies within the region's mapping, which lives
    // as long as `region`; all access to it is by raw pointers that tolerate changing contents.
    let address = unsafe { region.as_ptr().add(offset) }.cast();
    if file_backed {
        // SAFETY: as above; MAP_FIXED replaces only pages of this mapping.
        let mapped = unsafe {
            libc::mmap(
                address,
                length,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED,
                -1,
                0,
            )
        };
        if mapped == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        return Ok(());
    }
    // SAFETY: as above.
    if unsafe { libc::madvise(address, length, libc::MADV_DONTNEED) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}
