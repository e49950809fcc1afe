//! Writing, zeroing and discarding.
//!
//! Which of data and map is written first depends on the entry that changes; between the two no
//! sync happens. `docs/format.md`, "Overlay files", has the rules.

use std::io;
use std::sync::atomic::Ordering;

use super::{Below, Overlay};
use crate::error::DiskError;
use crate::granule::{
    GRANULE_BYTES, GRANULE_LEN, GranuleRange, MapEntry, State, inside, is_zero, touching,
};

/// Zeroes for whole granules are written in pieces of at most this size.
static ZEROES: [u8; 16 * GRANULE_LEN] = [0; 16 * GRANULE_LEN];

impl Overlay {
    /// Writes `data`, copying up from `below` where it covers a granule partly.
    pub(crate) fn write(
        &self,
        offset_bytes: u64,
        data: &[u8],
        below: Below<'_>,
    ) -> Result<(), DiskError> {
        self.change(offset_bytes, data.len() as u64, || {
            self.write_locked(offset_bytes, data, below)
        })
    }

    /// Makes the whole granules inside the range zero.
    pub(crate) fn discard(&self, offset_bytes: u64, len_bytes: u64) -> Result<(), DiskError> {
        self.change(offset_bytes, len_bytes, || {
            self.zero_granules(inside(offset_bytes, len_bytes))
        })
    }

    /// Makes exactly the range zero.
    pub(crate) fn write_zeroes(
        &self,
        offset_bytes: u64,
        len_bytes: u64,
        below: Below<'_>,
    ) -> Result<(), DiskError> {
        self.change(offset_bytes, len_bytes, || {
            let end = offset_bytes + len_bytes;
            let whole = inside(offset_bytes, len_bytes);
            if whole.is_empty() {
                // Less than two granules, wherever it lies.
                return self.write_locked(offset_bytes, &ZEROES[..len_bytes as usize], below);
            }
            let head = whole.start * GRANULE_BYTES - offset_bytes;
            let tail_start = whole.end * GRANULE_BYTES;
            self.write_locked(offset_bytes, &ZEROES[..head as usize], below)?;
            self.zero_granules(whole)?;
            self.write_locked(tail_start, &ZEROES[..(end - tail_start) as usize], below)
        })
    }

    /// Runs a change under the lock of its granules and counts it for the next flush.
    fn change(
        &self,
        offset_bytes: u64,
        len_bytes: u64,
        work: impl FnOnce() -> Result<(), DiskError>,
    ) -> Result<(), DiskError> {
        if self.is_sealed() {
            return Err(DiskError::Sealed);
        }
        if len_bytes == 0 {
            return Ok(());
        }
        let guard = self.requests.lock(touching(offset_bytes, len_bytes));
        if self.is_poisoned() {
            return Err(DiskError::Poisoned);
        }
        let result = work();
        // Counted after the work: a flush that counts it finds all of it in the file.
        self.changes.fetch_add(1, Ordering::Release);
        drop(guard);
        if self.stale_is_full() {
            self.flush()?;
        }
        result
    }

    fn write_locked(
        &self,
        offset_bytes: u64,
        data: &[u8],
        below: Below<'_>,
    ) -> Result<(), DiskError> {
        let mut at = offset_bytes;
        let mut rest = data;
        while !rest.is_empty() {
            let within = (at % GRANULE_BYTES) as usize;
            let len = if within != 0 || rest.len() < GRANULE_LEN {
                (GRANULE_LEN - within).min(rest.len())
            } else {
                rest.len() / GRANULE_LEN * GRANULE_LEN
            };
            let (part, after) = rest.split_at(len);
            let granule = at / GRANULE_BYTES;
            if len % GRANULE_LEN == 0 {
                self.write_granules(granule, part)?;
            } else {
                self.write_part(granule, within, part, below)?;
            }
            at += len as u64;
            rest = after;
        }
        Ok(())
    }

    /// Writes a part of one granule.
    fn write_part(
        &self,
        granule: u64,
        within: usize,
        part: &[u8],
        below: Below<'_>,
    ) -> Result<(), DiskError> {
        let start = granule * GRANULE_BYTES;
        let mut whole = [0; GRANULE_LEN];
        let copy_up = match self.verified_state(granule)? {
            State::Firm => false,
            State::Tentative if !is_zero(part) => false,
            State::Tentative => {
                // It could become all zero, which a tentative granule must never be.
                self.read_data(start, &mut whole)?;
                whole[within..within + part.len()].fill(0);
                is_zero(&whole)
            }
            State::Zero | State::ZeroStale | State::ZeroSettling => true,
            State::Absent | State::Pending | State::Unverified => {
                below(start, &mut whole)?;
                true
            }
        };
        if copy_up {
            whole[within..within + part.len()].copy_from_slice(part);
            return self.write_granules(granule, &whole);
        }
        let offset_bytes = start + within as u64;
        self.write_data(offset_bytes, part)
            .map_err(write_error(offset_bytes))
    }

    /// The state of a granule after what an earlier opening left open is decided.
    fn verified_state(&self, granule: u64) -> Result<State, DiskError> {
        let state = self.map.get(granule);
        if state != State::Unverified {
            return Ok(state);
        }
        let mut whole = [0; GRANULE_LEN];
        self.read_data(granule * GRANULE_BYTES, &mut whole)?;
        let state = if is_zero(&whole) {
            State::Pending
        } else {
            State::Tentative
        };
        self.map.set(granule..granule + 1, state);
        Ok(state)
    }

    /// Writes whole granules: those that are all zero as such, runs of others as data.
    fn write_granules(&self, first: u64, data: &[u8]) -> Result<(), DiskError> {
        let mut granule = first;
        let mut rest = data;
        while !rest.is_empty() {
            let zero = is_zero(&rest[..GRANULE_LEN]);
            let count = rest
                .chunks_exact(GRANULE_LEN)
                .take_while(|bytes| is_zero(bytes) == zero)
                .count();
            let (part, after) = rest.split_at(count * GRANULE_LEN);
            let range = granule..granule + count as u64;
            if zero {
                self.zero_granules(range.clone())?;
            } else {
                self.write_nonzero(range.clone(), part)
                    .map_err(write_error(granule * GRANULE_BYTES))?;
            }
            granule = range.end;
            rest = after;
        }
        Ok(())
    }

    /// Writes whole granules of which none is all zero.
    fn write_nonzero(&self, range: GranuleRange, data: &[u8]) -> io::Result<()> {
        // Absent granules: the map comes first. Until their bytes arrive they are all zero, which
        // under "tentative" means absent. Were the bytes first, an entry written much later could
        // make bytes of a request that never ended visible.
        self.for_runs(range.clone(), |run, state| match state {
            State::Absent => self.record(run, MapEntry::Tentative, State::Pending),
            _ => Ok(()),
        })?;
        if let Err(error) = self.write_data(range.start * GRANULE_BYTES, data) {
            self.undo_write(range);
            return Err(error);
        }
        // Zero granules: the bytes come first. Under the new entry whatever is there shows.
        self.for_runs(range.clone(), |run, state| match state {
            State::Pending | State::Unverified => {
                self.map.set(run, State::Tentative);
                Ok(())
            }
            // The entry may be durable: to fall back to what lies below would be wrong.
            State::Zero => self.record(run, MapEntry::Firm, State::Firm),
            // The durable entry may still be the tentative one from before the discard: the
            // granule must go on being "never all zero", which a firm one need not.
            State::ZeroStale | State::ZeroSettling => {
                self.record(run, MapEntry::Tentative, State::Tentative)
            }
            _ => Ok(()),
        })
        .inspect_err(|_| self.undo_write(range))
    }

    /// After a failed write: what was absent or zero is so again.
    fn undo_write(&self, range: GranuleRange) {
        let undone = self.for_runs(range, |run, state| match state {
            State::Pending | State::Zero => self.punch(run),
            _ => Ok(()),
        });
        if undone.is_err() {
            self.poison();
        }
    }

    /// Makes whole granules zero.
    fn zero_granules(&self, range: GranuleRange) -> Result<(), DiskError> {
        let offset_bytes = range.start * GRANULE_BYTES;
        self.for_runs(range, |run, state| match state {
            State::Zero | State::ZeroStale | State::ZeroSettling => Ok(()),
            // Its data region is a hole.
            State::Absent => self.record(run, MapEntry::Zero, State::Zero),
            // Its bytes stay until the entry is durable; a flush punches them.
            State::Tentative | State::Unverified | State::Pending => {
                self.record(run.clone(), MapEntry::Zero, State::ZeroStale)?;
                self.add_stale(run);
                Ok(())
            }
            // Every entry that may be durable, but one that no flush covered, reads the hole as
            // zero.
            State::Firm => self.punch(run),
        })
        .map_err(write_error(offset_bytes))
    }

    /// Calls `work` for each run of granules in one state.
    pub(super) fn for_runs(
        &self,
        range: GranuleRange,
        mut work: impl FnMut(GranuleRange, State) -> io::Result<()>,
    ) -> io::Result<()> {
        let mut at = range.start;
        while at < range.end {
            let (state, end) = self.map.run(at..range.end);
            work(at..end, state)?;
            at = end;
        }
        Ok(())
    }

    fn write_data(&self, offset_bytes: u64, data: &[u8]) -> io::Result<()> {
        self.file.write_at(self.data_offset(offset_bytes), data)
    }
}

fn write_error(offset_bytes: u64) -> impl FnOnce(io::Error) -> DiskError {
    move |source| DiskError::Write {
        offset_bytes,
        source,
    }
}
