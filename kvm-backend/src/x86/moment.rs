//! TSC and kvm-clock as one pair.
//!
//! Both count time, and a guest's kernel compares them: where one of them went on for as much as half
//! a millisecond longer than the other it gives up its TSC. KVM reads and sets them by separate calls,
//! between which a busy host may do other things for any time, so the instants are noted, and the clock
//! is corrected by what lies between them.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// A call that took no longer than this is not repeated.
const CLOSE: Duration = Duration::from_micros(20);
/// Most times that a call is made in the hope that nothing comes between.
const TRIES: usize = 8;

/// When the vCPUs' TSCs were saved or loaded, until the clock is.
#[derive(Default)]
pub(super) struct Moment(Mutex<Option<Instant>>);

impl Moment {
    /// The TSC of one more vCPU was saved: the last one's counts, since all are given the newest.
    pub(super) fn saved(&self, at: Instant) {
        *self.inner() = Some(at);
    }

    /// One more vCPU's TSC had its saved value: the first one's counts, since KVM takes what follows
    /// for its synchronization.
    pub(super) fn loaded(&self, at: Instant) {
        self.inner().get_or_insert(at);
    }

    /// The guest runs: what was noted and not used is of the past.
    pub(super) fn forget(&self) {
        *self.inner() = None;
    }

    /// The moment, once.
    pub(super) fn take(&self) -> Option<Instant> {
        self.inner().take()
    }

    fn inner(&self) -> std::sync::MutexGuard<'_, Option<Instant>> {
        // A plain value that no panic can leave half-changed.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Reads something that counts time; with the instant, as exactly as it can be had.
pub(super) fn closely<T, E>(mut read: impl FnMut() -> Result<T, E>) -> Result<(T, Instant), E> {
    let mut best: Option<(Duration, T, Instant)> = None;
    for _ in 0..TRIES {
        let begin = Instant::now();
        let value = read()?;
        let took = begin.elapsed();
        if best.as_ref().is_none_or(|(least, ..)| took < *least) {
            best = Some((took, value, begin + took / 2));
        }
        if took <= CLOSE {
            break;
        }
    }
    match best {
        Some((_, value, at)) => Ok((value, at)),
        None => Ok((read()?, Instant::now())),
    }
}

/// Sets something that counts time, again until nothing came between; `set` is told the instant for
/// which its value is to be right.
pub(super) fn set_closely<E>(mut set: impl FnMut(Instant) -> Result<(), E>) -> Result<(), E> {
    let mut expected = Duration::ZERO;
    for _ in 0..TRIES {
        let begin = Instant::now();
        set(begin + expected / 2)?;
        let took = begin.elapsed();
        if took <= expected + CLOSE {
            break;
        }
        expected = took;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::thread::sleep;

    use super::*;

    #[test]
    fn a_reading_that_was_disturbed_is_not_the_one_that_counts() {
        let mut slow = vec![30, 0, 30];
        let begin = Instant::now();
        let read = || {
            sleep(Duration::from_millis(slow.pop().unwrap_or(30)));
            Ok::<_, Infallible>(begin.elapsed())
        };
        let Ok((value, at)) = closely(read);
        let middle = at - begin;
        assert!(value >= middle && value - middle < Duration::from_millis(15));
    }

    #[test]
    fn the_last_saved_and_the_first_loaded_count_once() {
        let (first, moment) = (Instant::now(), Moment::default());
        let second = first + Duration::from_millis(1);
        moment.saved(first);
        moment.saved(second);
        assert_eq!(moment.take(), Some(second));
        moment.loaded(first);
        moment.loaded(second);
        assert_eq!(moment.take(), Some(first));
        assert_eq!(moment.take(), None);
    }
}
