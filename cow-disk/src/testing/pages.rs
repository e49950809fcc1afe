//! A sparse file in memory.

use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::file::OverlayFile;

/// Bytes of one page of the simulated page cache.
pub(super) const PAGE_BYTES: u64 = 4096;

/// One page's content.
pub(super) type Page = [u8; PAGE_BYTES as usize];

/// Sparse content: a page that is missing is a hole.
#[derive(Debug, Default, Clone)]
pub(super) struct Pages {
    pub(super) pages: BTreeMap<u64, Page>,
    pub(super) size_bytes: u64,
}

impl Pages {
    pub(super) fn get(&self, page: u64) -> Page {
        self.pages
            .get(&page)
            .copied()
            .unwrap_or([0; PAGE_BYTES as usize])
    }

    pub(super) fn read(&self, offset_bytes: u64, buf: &mut [u8]) -> io::Result<()> {
        let end = offset_bytes.checked_add(buf.len() as u64);
        if end.is_none_or(|end| end > self.size_bytes) {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        for (page, within, part) in pieces(offset_bytes, buf.len() as u64) {
            let bytes = self.get(page);
            let within = within.start as usize..within.end as usize;
            buf[part.start as usize..part.end as usize].copy_from_slice(&bytes[within]);
        }
        Ok(())
    }

    pub(super) fn write(&mut self, offset_bytes: u64, data: &[u8]) {
        for (page, within, part) in pieces(offset_bytes, data.len() as u64) {
            let mut bytes = self.get(page);
            bytes[within.start as usize..within.end as usize]
                .copy_from_slice(&data[part.start as usize..part.end as usize]);
            self.pages.insert(page, bytes);
        }
        self.size_bytes = self.size_bytes.max(offset_bytes + data.len() as u64);
    }

    pub(super) fn punch(&mut self, offset_bytes: u64, len_bytes: u64) {
        for (page, within, _) in pieces(offset_bytes, len_bytes) {
            if within == (0..PAGE_BYTES) {
                self.pages.remove(&page);
            } else if let Some(bytes) = self.pages.get_mut(&page) {
                bytes[within.start as usize..within.end as usize].fill(0);
            }
        }
    }

    pub(super) fn next_stored(&self, offset_bytes: u64) -> Option<Range<u64>> {
        let (page, _) = self.pages.range(offset_bytes / PAGE_BYTES..).next()?;
        let start = page * PAGE_BYTES;
        Some(start.max(offset_bytes)..start + PAGE_BYTES)
    }

    pub(super) fn stored_bytes(&self) -> u64 {
        self.pages.len() as u64 * PAGE_BYTES
    }
}

/// Cuts a range at page borders: page, range within it, range within the whole.
pub(super) fn pieces(
    offset_bytes: u64,
    len_bytes: u64,
) -> impl Iterator<Item = (u64, Range<u64>, Range<u64>)> {
    let end = offset_bytes + len_bytes;
    let pages = offset_bytes / PAGE_BYTES..end.div_ceil(PAGE_BYTES);
    pages.filter_map(move |page| {
        let start = (page * PAGE_BYTES).max(offset_bytes);
        let stop = ((page + 1) * PAGE_BYTES).min(end);
        let first = page * PAGE_BYTES;
        (start < stop).then(|| {
            let part = start - offset_bytes..stop - offset_bytes;
            (page, start - first..stop - first, part)
        })
    })
}

/// An overlay file in memory, without faults.
#[derive(Debug, Default)]
pub struct MemoryFile(Mutex<Pages>);

impl MemoryFile {
    /// A file with this content, or an empty one.
    pub fn new(content: &[u8]) -> Self {
        let mut pages = Pages::default();
        pages.write(0, content);
        Self(Mutex::new(pages))
    }

    fn pages(&self) -> MutexGuard<'_, Pages> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl OverlayFile for MemoryFile {
    fn read_at(&self, offset_bytes: u64, buf: &mut [u8]) -> io::Result<()> {
        self.pages().read(offset_bytes, buf)
    }

    fn write_at(&self, offset_bytes: u64, data: &[u8]) -> io::Result<()> {
        self.pages().write(offset_bytes, data);
        Ok(())
    }

    fn punch_hole(&self, offset_bytes: u64, len_bytes: u64) -> io::Result<()> {
        self.pages().punch(offset_bytes, len_bytes);
        Ok(())
    }

    fn next_stored(&self, offset_bytes: u64) -> io::Result<Option<Range<u64>>> {
        Ok(self.pages().next_stored(offset_bytes))
    }

    fn sync_data(&self) -> io::Result<()> {
        Ok(())
    }

    fn size_bytes(&self) -> io::Result<u64> {
        Ok(self.pages().size_bytes)
    }

    fn set_size_bytes(&self, size_bytes: u64) -> io::Result<()> {
        self.pages().size_bytes = size_bytes;
        Ok(())
    }

    fn stored_bytes(&self) -> io::Result<u64> {
        Ok(self.pages().stored_bytes())
    }
}
