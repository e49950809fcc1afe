//! The allocation map in memory: four bits per granule, readable without a lock.

use std::array;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::granule::{GranuleRange, State};

/// Granules of one word.
const WORD_GRANULES: u64 = 16;
/// Words of one segment.
const SEGMENT_WORDS: usize = 1024;
/// Granules of one segment: as many as one 4 KiB page of the map in the file.
pub(crate) const SEGMENT_GRANULES: u64 = WORD_GRANULES * SEGMENT_WORDS as u64;

type Segment = [AtomicU64; SEGMENT_WORDS];

/// The states of all granules of an overlay.
///
/// Readers need no lock. Writers of different granules may run at the same time; two writers of
/// one granule must exclude each other (the overlay's range lock does that).
#[derive(Debug)]
pub(crate) struct AllocationMap {
    /// Segments that were never written do not exist: all their granules are absent.
    segments: Box<[OnceLock<Box<Segment>>]>,
    granules: u64,
}

impl AllocationMap {
    /// A map of absent granules.
    pub(crate) fn new(granules: u64) -> Self {
        let count = granules.div_ceil(SEGMENT_GRANULES);
        Self {
            segments: (0..count).map(|_| OnceLock::new()).collect(),
            granules,
        }
    }

    /// The number of granules.
    pub(crate) fn granules(&self) -> u64 {
        self.granules
    }

    /// The state of a granule; beyond the end they are absent.
    pub(crate) fn get(&self, granule: u64) -> State {
        let word = self.load_word(granule / WORD_GRANULES);
        State::from_bits(nibble(word, granule))
    }

    /// Sets the state of a range of granules.
    pub(crate) fn set(&self, range: GranuleRange, state: State) {
        debug_assert!(range.end <= self.granules);
        let mut granule = range.start;
        while granule < range.end {
            let word_end = (granule / WORD_GRANULES + 1) * WORD_GRANULES;
            let end = word_end.min(range.end);
            let mask = mask(granule, end);
            let bits = repeat(state) & mask;
            let word = self.word(granule / WORD_GRANULES);
            // One atomic step: no reader may see a state between the old and the new one.
            let mut old = word.load(Ordering::Relaxed);
            while let Err(now) = word.compare_exchange_weak(
                old,
                (old & !mask) | bits,
                Ordering::AcqRel,
                Ordering::Relaxed,
            ) {
                old = now;
            }
            granule = end;
        }
    }

    /// Sets one granule's state if it is still `from`.
    pub(crate) fn replace(&self, granule: u64, from: State, to: State) {
        let mask = mask(granule, granule + 1);
        let word = self.word(granule / WORD_GRANULES);
        let mut old = word.load(Ordering::Relaxed);
        while State::from_bits(nibble(old, granule)) == from {
            let new = (old & !mask) | (repeat(to) & mask);
            match word.compare_exchange_weak(old, new, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return,
                Err(now) => old = now,
            }
        }
    }

    /// The state of the first granule of a non-empty range, and where the run of granules in
    /// that very state ends (at most the range's end).
    pub(crate) fn run(&self, range: GranuleRange) -> (State, u64) {
        let state = self.get(range.start);
        let pattern = repeat(state);
        let mut granule = range.start;
        while granule < range.end {
            if state == State::Absent && self.segment_is_missing(granule) {
                granule = (granule / SEGMENT_GRANULES + 1) * SEGMENT_GRANULES;
                continue;
            }
            let word_start = granule / WORD_GRANULES * WORD_GRANULES;
            let word = self.load_word(granule / WORD_GRANULES);
            let differs = (word ^ pattern) & mask(granule, word_start + WORD_GRANULES);
            if differs != 0 {
                let end = word_start + u64::from(differs.trailing_zeros()) / 4;
                // A writer may have changed the first granule since: it counts as it was.
                return (state, end.max(range.start + 1).min(range.end));
            }
            granule = word_start + WORD_GRANULES;
        }
        (state, range.end)
    }

    fn segment_is_missing(&self, granule: u64) -> bool {
        usize::try_from(granule / SEGMENT_GRANULES)
            .ok()
            .and_then(|index| self.segments.get(index))
            .is_none_or(|segment| segment.get().is_none())
    }

    fn load_word(&self, word: u64) -> u64 {
        let (segment, index) = split(word);
        self.segments
            .get(segment)
            .and_then(OnceLock::get)
            .map_or(0, |segment| segment[index].load(Ordering::Acquire))
    }

    fn word(&self, word: u64) -> &AtomicU64 {
        let (segment, index) = split(word);
        let words =
            self.segments[segment].get_or_init(|| Box::new(array::from_fn(|_| AtomicU64::new(0))));
        &words[index]
    }
}

/// Segment and place in it of a word. The map is bounded by `MAX_DISK_BYTES`, so both fit.
fn split(word: u64) -> (usize, usize) {
    let segment = usize::try_from(word / SEGMENT_WORDS as u64).unwrap_or(usize::MAX);
    (segment, word as usize % SEGMENT_WORDS)
}

fn nibble(word: u64, granule: u64) -> u8 {
    ((word >> (granule % WORD_GRANULES * 4)) & 0xf) as u8
}

fn repeat(state: State) -> u64 {
    state as u64 * 0x1111_1111_1111_1111
}

/// The bits of granules `start..end`, which lie in one word.
fn mask(start: u64, end: u64) -> u64 {
    let count = end - start;
    let ones = u64::MAX >> (64 - count * 4);
    ones << (start % WORD_GRANULES * 4)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn beyond_the_end_is_absent() {
        let map = AllocationMap::new(20);
        map.set(0..20, State::Firm);
        assert_eq!(map.get(19), State::Firm);
        assert_eq!(map.get(20), State::Absent);
        assert_eq!(map.get(u64::MAX), State::Absent);
        assert_eq!(map.run(20..40_000_000), (State::Absent, 40_000_000));
    }

    #[test]
    fn replace_needs_the_old_state() {
        let map = AllocationMap::new(20);
        map.set(3..4, State::Unverified);
        map.replace(3, State::Firm, State::Zero);
        assert_eq!(map.get(3), State::Unverified);
        map.replace(3, State::Unverified, State::Tentative);
        assert_eq!(map.get(3), State::Tentative);
        assert_eq!(map.get(2), State::Absent);
        assert_eq!(map.get(4), State::Absent);
    }

    proptest! {
        #[test]
        fn equals_a_vector(
            ops in prop::collection::vec((0u64..40_000, 0u64..20_000, 0u8..8), 1..20),
            at in 0u64..40_000,
        ) {
            let map = AllocationMap::new(40_000);
            let mut model = vec![State::Absent; 40_000];
            for (start, len, bits) in ops {
                let end = (start + len).min(40_000);
                map.set(start..end, State::from_bits(bits));
                model[start as usize..end as usize].fill(State::from_bits(bits));
            }
            let state = model[at as usize];
            let end = (at..40_000).find(|&g| model[g as usize] != state).unwrap_or(40_000);
            prop_assert_eq!(map.run(at..40_000), (state, end));
        }
    }
}
