//! Which pages of guest memory were written.
//!
//! Two sources are merged: the backend's [`DirtyLog`] (writes by vCPUs) and the page maps of
//! [`GuestRam`] (writes by devices, and by backends that track in software).

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use thiserror::Error;

use crate::Gpa;
use crate::hypervisor::Vm;
use crate::ram::{CHUNK_BYTES, GuestRam, PAGE_BYTES, RamError, SharedRam};

/// Why the dirty set could not be read.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum TrackerError {
    /// The host refused.
    #[error("{operation} failed")]
    Host {
        /// What was asked.
        operation: &'static str,
        /// The host's answer.
        #[source]
        source: std::io::Error,
    },
    /// Pages could not be discarded.
    #[error(transparent)]
    Ram(#[from] RamError),
}

/// A backend's own log of pages written by vCPUs.
pub trait DirtyLog: Send + Sync {
    /// Begins logging: from now on each first write to a page is noted.
    fn start(&self) -> Result<(), TrackerError>;

    /// Ends logging.
    fn stop(&self) -> Result<(), TrackerError>;

    /// Adds the pages of region `region` that were written since the last call to `into` (one bit
    /// per 4 KiB page) and arms them again. May be called while vCPUs run: a page written during the
    /// call is in this result or in the next.
    fn take(&self, region: usize, into: &mut [u64]) -> Result<(), TrackerError>;
}

/// A set of guest pages: one bit per 4 KiB page, a vector of words per memory region.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DirtySet {
    regions: Vec<RegionSet>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct RegionSet {
    start: Gpa,
    pages: usize,
    words: Vec<u64>,
}

impl DirtySet {
    /// No page of `ram`.
    pub fn empty(ram: &GuestRam) -> Self {
        let regions = ram
            .layout()
            .regions()
            .iter()
            .map(|region| {
                let pages = (region.bytes / PAGE_BYTES) as usize;
                RegionSet {
                    start: region.start,
                    pages,
                    words: vec![0; pages.div_ceil(64)],
                }
            })
            .collect();
        Self { regions }
    }

    /// Every page of `ram`.
    pub fn full(ram: &GuestRam) -> Self {
        let mut set = Self::empty(ram);
        for region in &mut set.regions {
            for page in 0..region.pages {
                region.words[page / 64] |= 1 << (page % 64);
            }
        }
        set
    }

    /// Every page of `ram` that has host memory behind it: all others are zero, except those that are written
    /// meanwhile.
    ///
    /// # Errors
    /// As [`GuestRam::add_populated`].
    pub fn populated(ram: &GuestRam) -> std::io::Result<Self> {
        let mut set = Self::empty(ram);
        for (index, region) in set.regions.iter_mut().enumerate() {
            ram.add_populated(index, &mut region.words)?;
        }
        Ok(set)
    }

    /// Adds the page that holds `gpa`; an address outside of RAM is ignored.
    pub fn insert(&mut self, gpa: Gpa) {
        for region in &mut self.regions {
            let Some(offset) = gpa.0.checked_sub(region.start.0) else {
                continue;
            };
            let page = (offset / PAGE_BYTES) as usize;
            if page < region.pages {
                region.words[page / 64] |= 1 << (page % 64);
            }
        }
    }

    /// Whether the page that holds `gpa` is in the set.
    pub fn contains(&self, gpa: Gpa) -> bool {
        self.regions.iter().any(|region| {
            gpa.0.checked_sub(region.start.0).is_some_and(|offset| {
                let page = (offset / PAGE_BYTES) as usize;
                page < region.pages && region.words[page / 64] >> (page % 64) & 1 == 1
            })
        })
    }

    /// Adds all pages of `other`, which belongs to the same memory.
    pub fn merge(&mut self, other: &DirtySet) {
        for (mine, theirs) in self.regions.iter_mut().zip(&other.regions) {
            for (word, more) in mine.words.iter_mut().zip(&theirs.words) {
                *word |= more;
            }
        }
    }

    /// Number of pages.
    pub fn len(&self) -> u64 {
        let words = self.regions.iter().flat_map(|region| &region.words);
        words.map(|word| u64::from(word.count_ones())).sum()
    }

    /// Whether there is no page.
    pub fn is_empty(&self) -> bool {
        self.regions
            .iter()
            .all(|region| region.words.iter().all(|word| *word == 0))
    }

    /// The pages in ascending order.
    pub fn pages(&self) -> impl Iterator<Item = Gpa> + '_ {
        self.regions.iter().flat_map(|region| {
            region
                .words
                .iter()
                .enumerate()
                .flat_map(move |(index, word)| {
                    BitIter(*word).map(move |bit| {
                        Gpa(region.start.0 + (index as u64 * 64 + bit) * PAGE_BYTES)
                    })
                })
        })
    }

    /// The addresses, ascending, of all units of `unit_bytes` (a power of two of at least a page,
    /// at most 2 MiB) that hold a page of the set.
    pub fn units(&self, unit_bytes: u64) -> impl Iterator<Item = Gpa> + '_ {
        debug_assert!(unit_bytes.is_power_of_two() && unit_bytes >= PAGE_BYTES);
        let mut last = None;
        self.pages().filter_map(move |page| {
            let unit = Gpa(page.0 & !(unit_bytes - 1));
            (last.replace(unit) != Some(unit)).then_some(unit)
        })
    }
}

struct BitIter(u64);

impl Iterator for BitIter {
    type Item = u64;

    fn next(&mut self) -> Option<u64> {
        if self.0 == 0 {
            return None;
        }
        let bit = u64::from(self.0.trailing_zeros());
        self.0 &= self.0 - 1;
        Some(bit)
    }
}

/// The dirty pages of one machine; cheap to clone.
#[derive(Clone)]
pub struct DirtyTracker {
    inner: Arc<TrackerInner>,
}

struct TrackerInner {
    ram: GuestRam,
    vm: Arc<dyn Vm>,
    /// Held by whatever must not interleave: taking the set, and discarding pages.
    state: Mutex<State>,
}

/// What was taken from the backend and the page maps and waits for who asked for it.
struct State {
    /// For [`DirtyTracker::take`].
    pending: DirtySet,
    /// For freezes.
    base: Option<Base>,
}

/// What other machines go on from, and what was written since.
struct Base {
    memory: SharedRam,
    written: DirtySet,
}

impl DirtyTracker {
    /// A tracker over a VM's memory; nothing is armed yet.
    pub fn new(ram: GuestRam, vm: Arc<dyn Vm>) -> Self {
        let pending = DirtySet::empty(&ram);
        Self {
            inner: Arc::new(TrackerInner {
                ram,
                vm,
                state: Mutex::new(State {
                    pending,
                    base: None,
                }),
            }),
        }
    }

    /// Size in bytes of the pages that are told apart.
    pub fn granule_bytes(&self) -> u64 {
        PAGE_BYTES
    }

    /// Begins tracking. Pages written before count as not written.
    pub fn start(&self) -> Result<(), TrackerError> {
        if let Some(log) = self.inner.vm.dirty_log() {
            log.start()?;
        }
        self.take().map(drop)
    }

    /// Ends tracking by the backend.
    pub fn stop(&self) -> Result<(), TrackerError> {
        self.inner.vm.dirty_log().map_or(Ok(()), DirtyLog::stop)
    }

    /// The pages written since the last call, armed again. vCPUs and devices may run meanwhile: a
    /// page written during the call is in this set or in the next.
    pub fn take(&self) -> Result<DirtySet, TrackerError> {
        let mut state = self.lock();
        self.drain(&mut state)?;
        let none = DirtySet::empty(&self.inner.ram);
        Ok(std::mem::replace(&mut state.pending, none))
    }

    /// The pages that the next [`take`](Self::take) gives, and that stay for it.
    ///
    /// # Errors
    /// As [`take`](Self::take).
    pub fn written(&self) -> Result<DirtySet, TrackerError> {
        let mut state = self.lock();
        self.drain(&mut state)?;
        Ok(state.pending.clone())
    }

    /// Puts a set back after a capture that failed: the pages are in the next [`take`](Self::take).
    pub fn give_back(&self, set: &DirtySet) {
        self.lock().pending.merge(set);
    }

    /// From now on the pages of `set` count as written, and no others: memory was made to differ from what it is compared with in these.
    /// No vCPU and no device runs.
    ///
    /// # Errors
    /// As [`take`](Self::take); the pages that counted as written before then still do.
    pub fn reset_to(&self, set: &DirtySet) -> Result<(), TrackerError> {
        let mut state = self.lock();
        self.drain(&mut state)?;
        state.pending = set.clone();
        Ok(())
    }

    /// The memory that is tracked.
    pub fn ram(&self) -> &GuestRam {
        &self.inner.ram
    }

    /// Memory was mapped from `memory`: the next [freeze](crate::freeze) copies only what counts as written now or is written
    /// from now on. Called before [`reset_to`](Self::reset_to) gives a machine what its source has written since a save.
    pub fn begin_on(&self, memory: SharedRam) -> Result<(), TrackerError> {
        let mut state = self.lock();
        self.drain(&mut state)?;
        self.inner.ram.take_replaced();
        let written = state.pending.clone();
        state.base = Some(Base { memory, written });
        Ok(())
    }

    /// Without a base every page that may be other than zero was written since.
    pub(crate) fn need_base(&self) -> Result<(), TrackerError> {
        let mut state = self.lock();
        if state.base.is_some() {
            return Ok(());
        }
        // Armed first: a page that is used for the first time is populated, or written later.
        self.drain(&mut state)?;
        let ram = &self.inner.ram;
        let written = DirtySet::populated(ram).map_err(|source| TrackerError::Host {
            operation: "reading which pages are in use",
            source,
        })?;
        let memory = SharedRam::zero(ram.layout().clone());
        state.base = Some(Base { memory, written });
        Ok(())
    }

    /// The memory of the last freeze, or the one that the machine began on.
    pub(crate) fn base(&self) -> SharedRam {
        let memory = self.lock().base.as_ref().map(|base| base.memory.clone());
        memory.unwrap_or_else(|| SharedRam::zero(self.inner.ram.layout().clone()))
    }

    pub(crate) fn replace_base(&self, memory: SharedRam) {
        if let Some(base) = &mut self.lock().base {
            base.memory = memory;
        }
    }

    /// The pages that differ from the base, and were not taken by this since. What [`take`](Self::take) gives
    /// stays as it is.
    pub(crate) fn take_since_base(&self) -> Result<DirtySet, TrackerError> {
        let mut state = self.lock();
        self.drain(&mut state)?;
        let ram = &self.inner.ram;
        let mut written = DirtySet::empty(ram);
        if let Some(base) = &mut state.base {
            std::mem::swap(&mut written, &mut base.written);
        }
        for chunk in ram.take_replaced() {
            let start = ram.layout().chunk_gpa(chunk).into_iter();
            let pages =
                start.flat_map(|gpa| (gpa.0..gpa.0 + CHUNK_BYTES).step_by(PAGE_BYTES as usize));
            pages.for_each(|page| written.insert(Gpa(page)));
        }
        Ok(written)
    }

    /// Takes [`take_since_base`](Self::take_since_base) back.
    pub(crate) fn give_back_since_base(&self, set: &DirtySet) {
        if let Some(base) = &mut self.lock().base {
            base.written.merge(set);
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        let guard = self.inner.state.lock();
        guard.unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes what was written from the backend and the page maps, for all who ask; what was taken before something failed is put back.
    fn drain(&self, state: &mut State) -> Result<(), TrackerError> {
        let mut set = DirtySet::empty(&self.inner.ram);
        for (index, region) in set.regions.iter_mut().enumerate() {
            if let Some(map) = self.inner.ram.page_map(index) {
                map.take_dirty(&mut region.words);
            }
            let log = self.inner.vm.dirty_log();
            if let Some(Err(error)) = log.map(|log| log.take(index, &mut region.words)) {
                self.mark(&set);
                return Err(error);
            }
        }
        state.pending.merge(&set);
        if let Some(base) = &mut state.base {
            base.written.merge(&set);
        }
        Ok(())
    }

    fn mark(&self, set: &DirtySet) {
        for page in set.pages() {
            if let Some((region, offset)) = self.inner.ram.layout().find(page)
                && let Some(map) = self.inner.ram.page_map(region)
            {
                map.set_dirty((offset / PAGE_BYTES) as usize);
            }
        }
    }

    /// Replaces pages by zero ones and notes them as written, in one step with respect to
    /// [`take`](Self::take) (balloon, free-page reporting).
    pub fn discard(&self, gpa: Gpa, bytes: u64) -> Result<(), TrackerError> {
        // May wait for chunks; nobody who wants the set waits for that.
        self.inner.ram.prepare_discard(gpa, bytes)?;
        let _guard = self.lock();
        Ok(self.inner.ram.discard(gpa, bytes)?)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use vm_memory::{Bytes, GuestAddress};

    use super::*;
    use crate::ram::{MemoryRegion, RamBacking, RamLayout};

    /// A VM whose log has one page per region and can be made to fail at the second.
    #[derive(Default)]
    struct Log {
        fails: AtomicBool,
        taken: Mutex<Vec<usize>>,
    }

    impl Vm for Log {
        fn dirty_log(&self) -> Option<&dyn DirtyLog> {
            Some(self)
        }
    }

    impl DirtyLog for Log {
        fn start(&self) -> Result<(), TrackerError> {
            Ok(())
        }

        fn stop(&self) -> Result<(), TrackerError> {
            Ok(())
        }

        fn take(&self, region: usize, into: &mut [u64]) -> Result<(), TrackerError> {
            if region == 1 && self.fails.load(Ordering::SeqCst) {
                return Err(TrackerError::Host {
                    operation: "reading the log",
                    source: std::io::ErrorKind::Other.into(),
                });
            }
            let mut taken = self.taken.lock().unwrap();
            if !taken.contains(&region) {
                taken.push(region);
                into[0] |= 1 << 5;
            }
            Ok(())
        }
    }

    fn bed() -> (GuestRam, Arc<Log>, DirtyTracker) {
        let region = |start| MemoryRegion {
            start: Gpa(start),
            bytes: 2 << 20,
        };
        let layout = RamLayout::new(vec![region(0), region(1 << 32)]).unwrap();
        let ram = GuestRam::new(layout, &RamBacking::Anonymous).unwrap();
        let log = Arc::new(Log::default());
        let tracker = DirtyTracker::new(ram.clone(), log.clone());
        (ram, log, tracker)
    }

    fn take(tracker: &DirtyTracker) -> Vec<u64> {
        tracker.take().unwrap().pages().map(|page| page.0).collect()
    }

    #[test]
    fn a_set_that_cannot_be_taken_whole_loses_nothing() {
        let (ram, log, tracker) = bed();
        for gpa in [0x3000, (1 << 32) + 0x7000] {
            ram.write_obj(1_u8, GuestAddress(gpa)).unwrap();
        }
        log.fails.store(true, Ordering::SeqCst);
        assert!(tracker.take().is_err());
        assert!(tracker.reset_to(&DirtySet::empty(&ram)).is_err());
        log.fails.store(false, Ordering::SeqCst);
        let expected = [0x3000, 0x5000, (1 << 32) + 0x5000, (1 << 32) + 0x7000];
        assert_eq!(take(&tracker), expected);
        assert_eq!(take(&tracker), [] as [u64; 0]);
    }

    #[test]
    fn a_reset_leaves_the_given_pages_and_no_others() {
        let (ram, _log, tracker) = bed();
        ram.write_obj(1_u8, GuestAddress(0x3000)).unwrap();
        let mut set = DirtySet::empty(&ram);
        set.insert(Gpa(0x9000));
        tracker.reset_to(&set).unwrap();
        assert_eq!(take(&tracker), [0x9000]);
    }

    #[test]
    fn who_looks_takes_nothing() {
        let (ram, _log, tracker) = bed();
        ram.write_obj(1_u8, GuestAddress(0x3000)).unwrap();
        let seen = tracker.written().unwrap();
        ram.write_obj(1_u8, GuestAddress(0x9000)).unwrap();
        assert_eq!(tracker.written().unwrap().len(), seen.len() + 1);
        let expected = [0x3000, 0x5000, 0x9000, (1 << 32) + 0x5000];
        assert_eq!(take(&tracker), expected);
    }
}
