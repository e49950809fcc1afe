//! Durability: flush, the punching of stale data, and what an opening repairs.

use std::io;
use std::sync::PoisonError;
use std::sync::atomic::Ordering;

use super::{Overlay, io_error};
use crate::error::{DiskError, OverlayError};
use crate::granule::{GRANULE_BYTES, GranuleRange, MapEntry, State, touching};

/// With more stale ranges than this, a change flushes, so that their list stays small.
const MAX_STALE_RANGES: usize = 1 << 16;

impl Overlay {
    /// Makes every change that was answered before durable. One sync of the file suffices,
    /// as its parts need no order; a second one follows where discarded data was punched.
    pub(crate) fn flush(&self) -> Result<(), DiskError> {
        let mut synced = self.synced.lock().unwrap_or_else(PoisonError::into_inner);
        if self.is_poisoned() {
            return Err(DiskError::Poisoned);
        }
        let changes = self.changes.load(Ordering::Acquire);
        if *synced >= changes {
            return Ok(());
        }
        if self.is_sealed() {
            // What was discarded stays where it is: nobody will write over its entries.
            self.sync_or_poison()?;
            *synced = changes;
            return Ok(());
        }
        let stale = self.take_stale();
        stale.iter().for_each(|range| self.settle(range));
        self.sync_or_poison()?;
        // Only now that the map durably says "zero" may the bytes go: a hole under an entry
        // "tentative" would bring back what lies below. And they must be durably gone before this
        // flush is answered: a later write changes the entry, perhaps durably before its own bytes
        // are, and the old ones must not show then.
        if !stale.is_empty() {
            if let Err(source) = stale.iter().try_for_each(|range| self.punch_settled(range)) {
                let offset_bytes = stale[0].start * GRANULE_BYTES;
                stale.into_iter().for_each(|range| self.unsettle(range));
                return Err(DiskError::Write {
                    offset_bytes,
                    source,
                });
            }
            self.sync_or_poison()?;
        }
        *synced = changes;
        Ok(())
    }

    fn sync_or_poison(&self) -> Result<(), DiskError> {
        // After a failure the system may have dropped the changes: trying again proves nothing.
        self.file.sync_data().map_err(|source| {
            self.poison();
            DiskError::Sync { source }
        })
    }

    /// Remembers that granules of the range turned `ZeroStale`.
    pub(super) fn add_stale(&self, range: GranuleRange) {
        let mut stale = self.stale.lock().unwrap_or_else(PoisonError::into_inner);
        match stale.last_mut() {
            Some(last) if last.end == range.start => last.end = range.end,
            _ => stale.push(range),
        }
    }

    /// Whether so many ranges are stale that a flush is due.
    pub(super) fn stale_is_full(&self) -> bool {
        let stale = self.stale.lock().unwrap_or_else(PoisonError::into_inner);
        stale.len() > MAX_STALE_RANGES
    }

    fn take_stale(&self) -> Vec<GranuleRange> {
        std::mem::take(&mut self.stale.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Marks the granules that are stale now: the sync that follows covers their entries. One that
    /// is written and discarded again during the sync is not among them.
    fn settle(&self, range: &GranuleRange) {
        self.change_state(range.clone(), State::ZeroStale, State::ZeroSettling);
    }

    /// After a punch that failed: the rest is as stale as before.
    fn unsettle(&self, range: GranuleRange) {
        self.change_state(range.clone(), State::ZeroSettling, State::ZeroStale);
        self.add_stale(range);
    }

    /// Gives the granules of a range that are in one state another one.
    fn change_state(&self, range: GranuleRange, from: State, to: State) {
        let _guard = self.requests.lock(range.clone());
        let mut at = range.start;
        while at < range.end {
            let (state, end) = self.map.run(at..range.end);
            if state == from {
                self.map.set(at..end, to);
            }
            at = end;
        }
    }

    /// Punches what a sync has settled and nobody wrote since.
    fn punch_settled(&self, range: &GranuleRange) -> io::Result<()> {
        let _guard = self.requests.lock(range.clone());
        self.for_runs(range.clone(), |run, state| {
            if state == State::ZeroSettling {
                self.punch(run.clone())?;
                self.map.set(run, State::Zero);
            }
            Ok(())
        })
    }

    pub(super) fn punch(&self, range: GranuleRange) -> io::Result<()> {
        let len_bytes = (range.end - range.start) * GRANULE_BYTES;
        self.file
            .punch_hole(self.data_offset(range.start * GRANULE_BYTES), len_bytes)
    }

    /// Punches what a crash left in the data region under entries that say "absent" or "zero".
    ///
    /// A later entry may become durable before the bytes it speaks of; what it uncovers then must
    /// not be bytes of a request that was lost, or discarded, long ago.
    pub(super) fn punch_after_open(&self) -> Result<(), OverlayError> {
        let leftovers = self.leftovers().map_err(io_error("look for data in"))?;
        if !leftovers.is_empty() {
            // The entries may not be durable yet (the process died, not the host).
            self.file.sync_data().map_err(io_error("sync"))?;
            for range in leftovers {
                self.punch(range).map_err(io_error("punch"))?;
            }
            self.file.sync_data().map_err(io_error("sync"))?;
        }
        self.change_state(0..self.map.granules(), State::ZeroStale, State::Zero);
        Ok(())
    }

    /// Granules recorded absent or zero under which the file stores something.
    fn leftovers(&self) -> io::Result<Vec<GranuleRange>> {
        let mut leftovers = Vec::new();
        let mut from = self.data_offset(0);
        while let Some(stored) = self.file.next_stored(from)? {
            let end = stored.end.min(self.geometry.file_bytes());
            if stored.start.max(from) >= end {
                break;
            }
            let start = stored.start.max(from) - self.data_offset(0);
            let granules = touching(start, end - self.data_offset(0) - start);
            self.for_runs(granules, |run, state| {
                match state.recorded() {
                    MapEntry::Absent | MapEntry::Zero => leftovers.push(run),
                    MapEntry::Tentative | MapEntry::Firm => {}
                }
                Ok(())
            })?;
            from = end;
        }
        Ok(leftovers)
    }
}
