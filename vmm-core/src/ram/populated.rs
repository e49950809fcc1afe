//! Which pages of guest memory have host memory behind them.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use super::PAGE_BYTES;

/// An entry's bits for a page that is in memory and for one that was swapped out or is being moved (Linux,
/// Documentation/admin-guide/mm/pagemap.rst).
const PRESENT_OR_SWAPPED: u64 = 1 << 63 | 1 << 62;
/// Size of an entry in bytes.
const ENTRY_BYTES: usize = 8;
/// Entries read at once.
const ENTRIES: usize = 8192;

/// Sets the bit of each 4 KiB page of the mapping from `address` on that has memory behind it; the others of
/// an anonymous mapping are zero and were never touched since they were mapped or given back.
pub(super) fn add(address: usize, bytes: u64, into: &mut [u64]) -> io::Result<()> {
    let pagemap = File::open("/proc/self/pagemap")?;
    let host_page = rustix::param::page_size();
    let guest_pages = host_page / PAGE_BYTES as usize;
    let first = address / host_page;
    let total = bytes as usize / host_page;
    let mut buffer = vec![0; ENTRIES * ENTRY_BYTES];
    for begin in (0..total).step_by(ENTRIES) {
        let count = ENTRIES.min(total - begin);
        let buffer = &mut buffer[..count * ENTRY_BYTES];
        pagemap.read_exact_at(buffer, ((first + begin) * ENTRY_BYTES) as u64)?;
        let populated = buffer
            .chunks_exact(ENTRY_BYTES)
            .map(|entry| entry.try_into().map_or(0, u64::from_ne_bytes))
            .enumerate()
            .filter(|(_, entry)| entry & PRESENT_OR_SWAPPED != 0);
        for (index, _) in populated {
            let page = (begin + index) * guest_pages;
            for page in page..page + guest_pages {
                into[page / 64] |= 1 << (page % 64);
            }
        }
    }
    Ok(())
}
