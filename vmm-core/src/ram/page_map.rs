//! One flag word per 64 guest pages: which pages the VMM wrote, which hold decoded code.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};

use super::reservation::Reservation;

use vm_memory::bitmap::{Bitmap, RefSlice, WithBitmapSlice};

/// Size in bytes of the pages that [`PageMap`] counts in.
pub const PAGE_BYTES: u64 = 4096;

/// Per-page flags of one memory region.
///
/// The *dirty* set holds pages written by devices (through [`super::GuestRam`]) and by backends that
/// track in software. The *code* set holds pages from which a software CPU decoded instructions: a
/// device write to such a page, or another mapping or source in its place, moves it to the *stale* set, of which
/// [`GuestRam::take_code_is_stale`](super::GuestRam::take_code_is_stale) tells.
#[derive(Debug)]
pub struct PageMap {
    pages: usize,
    dirty: Vec<AtomicU64>,
    code: Vec<AtomicU64>,
    stale: Vec<AtomicU64>,
    any_stale: Arc<AtomicBool>,
    /// The memory that the flags are of: `vm-memory` keeps the page map as long as it may use that.
    memory: Option<Arc<Reservation>>,
}

impl PageMap {
    /// Flags for a region of `bytes`; `any_stale` is shared by all regions of one guest.
    pub(super) fn new(
        bytes: u64,
        any_stale: Arc<AtomicBool>,
        memory: Option<Arc<Reservation>>,
    ) -> Self {
        let pages = bytes.div_ceil(PAGE_BYTES) as usize;
        let words = || (0..pages.div_ceil(64)).map(|_| AtomicU64::new(0)).collect();
        Self {
            pages,
            dirty: words(),
            code: words(),
            stale: words(),
            any_stale,
            memory,
        }
    }

    /// Whether `memory` lives as long as these flags.
    pub(super) fn keeps(&self, memory: &Reservation) -> bool {
        let mine = self.memory.as_ref();
        mine.is_some_and(|mine| std::ptr::eq(&**mine, memory))
    }

    /// Number of pages in the region.
    pub fn pages(&self) -> usize {
        self.pages
    }

    /// Marks one page dirty; a page outside the region is ignored.
    #[inline]
    pub fn set_dirty(&self, page: usize) {
        if let Some(word) = self.dirty.get(page / 64) {
            let bit = 1 << (page % 64);
            // The page was written before: without the fence the bit could be read before that write is seen by whoever
            // takes the set, and stay as it is while the set is taken and the page copied.
            fence(Ordering::SeqCst);
            // Reading first keeps the cache line shared while a page is written again and again.
            if word.load(Ordering::Relaxed) & bit == 0 {
                word.fetch_or(bit, Ordering::Release);
            }
        }
    }

    /// Whether a page is dirty.
    pub fn is_dirty(&self, page: usize) -> bool {
        test(&self.dirty, page)
    }

    /// Moves the dirty set out: adds it to `into` (one bit per page) and clears it.
    pub fn take_dirty(&self, into: &mut [u64]) {
        drain(&self.dirty, into);
    }

    /// Says that instructions were decoded from a page.
    pub fn set_code(&self, page: usize) {
        if let Some(word) = self.code.get(page / 64) {
            word.fetch_or(1 << (page % 64), Ordering::Release);
        }
    }

    /// Whether instructions were decoded from a page and it was not invalidated since.
    #[inline]
    pub fn is_code(&self, page: usize) -> bool {
        test(&self.code, page)
    }

    /// Takes a page out of the code set.
    pub fn clear_code(&self, page: usize) {
        if let Some(word) = self.code.get(page / 64) {
            word.fetch_and(!(1 << (page % 64)), Ordering::AcqRel);
        }
    }

    /// Moves the set of code pages that devices wrote out into `into`.
    pub fn take_stale_code(&self, into: &mut [u64]) {
        drain(&self.stale, into);
    }

    /// Length in words that [`take_dirty`](Self::take_dirty) needs.
    pub fn words(&self) -> usize {
        self.dirty.len()
    }

    fn mark_page(&self, page: usize) {
        self.set_dirty(page);
        self.replace_code(page);
    }

    /// What instructions were decoded from is not in this page any more.
    pub(super) fn replace_code(&self, page: usize) {
        if self.is_code(page) {
            self.clear_code(page);
            self.stale[page / 64].fetch_or(1 << (page % 64), Ordering::Release);
            self.any_stale.store(true, Ordering::Release);
        }
    }
}

fn test(words: &[AtomicU64], page: usize) -> bool {
    words
        .get(page / 64)
        .is_some_and(|word| word.load(Ordering::Acquire) & (1 << (page % 64)) != 0)
}

fn drain(words: &[AtomicU64], into: &mut [u64]) {
    for (word, out) in words.iter().zip(into) {
        if word.load(Ordering::Relaxed) != 0 {
            *out |= word.swap(0, Ordering::AcqRel);
        }
    }
    // Pages are read after their bits were taken; the other half of the fence in `set_dirty`.
    fence(Ordering::SeqCst);
}

impl<'a> WithBitmapSlice<'a> for PageMap {
    type S = RefSlice<'a, Self>;
}

impl Bitmap for PageMap {
    fn mark_dirty(&self, offset: usize, len: usize) {
        if len == 0 {
            return;
        }
        let first = offset / PAGE_BYTES as usize;
        let last = (offset.saturating_add(len - 1) / PAGE_BYTES as usize)
            .min(self.pages.saturating_sub(1));
        for page in first..=last {
            self.mark_page(page);
        }
    }

    fn dirty_at(&self, offset: usize) -> bool {
        self.is_dirty(offset / PAGE_BYTES as usize)
    }

    fn slice_at(&self, offset: usize) -> <Self as WithBitmapSlice<'_>>::S {
        RefSlice::new(self, offset)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(pages: u64) -> PageMap {
        PageMap::new(pages * PAGE_BYTES, Arc::default(), None)
    }

    #[test]
    fn a_write_marks_every_page_it_touches_and_no_other() {
        let map = map(200);
        map.mark_dirty(4095, 2);
        map.mark_dirty(100 * 4096, 1);
        let mut set = vec![0; map.words()];
        map.take_dirty(&mut set);
        let pages: Vec<usize> = (0..200)
            .filter(|p| set[p / 64] >> (p % 64) & 1 == 1)
            .collect();
        assert_eq!(pages, [0, 1, 100]);
        let mut again = vec![0; map.words()];
        map.take_dirty(&mut again);
        assert!(again.iter().all(|word| *word == 0), "taking clears");
    }

    #[test]
    fn a_device_write_to_code_makes_it_stale_once() {
        let any_stale = Arc::new(AtomicBool::new(false));
        let map = PageMap::new(10 * PAGE_BYTES, any_stale.clone(), None);
        map.mark_dirty(3 * 4096, 8);
        assert!(!any_stale.load(Ordering::Relaxed), "no code there yet");
        map.set_code(3);
        map.mark_dirty(3 * 4096, 8);
        assert!(any_stale.load(Ordering::Relaxed));
        assert!(!map.is_code(3));
        let mut stale = vec![0; map.words()];
        map.take_stale_code(&mut stale);
        assert_eq!(stale[0], 1 << 3);
    }

    #[test]
    fn a_write_beyond_the_region_is_harmless() {
        let map = map(1);
        map.mark_dirty(usize::MAX - 1, 100);
        map.set_dirty(1 << 40);
        assert!(!map.is_dirty(0));
    }
}
