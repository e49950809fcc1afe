//! Mutual exclusion of requests that touch the same granules.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use crate::granule::GranuleRange;

/// Locks ranges of granules.
///
/// The ranges held at one time are as many as there are threads in requests, so a list is fast.
#[derive(Debug, Default)]
pub(crate) struct RangeLock {
    held: Mutex<Vec<GranuleRange>>,
    released: Condvar,
}

impl RangeLock {
    /// Waits until no other request holds a part of the range, then holds it until the guard
    /// is dropped. A thread must not lock a second range while it holds one.
    pub(crate) fn lock(&self, range: GranuleRange) -> RangeGuard<'_> {
        let mut held = self.list();
        while held.iter().any(|other| overlap(other, &range)) {
            held = self
                .released
                .wait(held)
                .unwrap_or_else(PoisonError::into_inner);
        }
        held.push(range.clone());
        RangeGuard { lock: self, range }
    }

    fn list(&self) -> MutexGuard<'_, Vec<GranuleRange>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn overlap(a: &GranuleRange, b: &GranuleRange) -> bool {
    a.start < b.end && b.start < a.end
}

/// Releases its range when dropped.
#[derive(Debug)]
pub(crate) struct RangeGuard<'a> {
    lock: &'a RangeLock,
    range: GranuleRange,
}

impl Drop for RangeGuard<'_> {
    fn drop(&mut self) {
        let mut held = self.lock.list();
        if let Some(at) = held.iter().position(|range| *range == self.range) {
            held.swap_remove(at);
        }
        drop(held);
        self.lock.released.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::thread;

    use super::*;

    #[test]
    fn overlapping_ranges_exclude_each_other() {
        let lock = RangeLock::default();
        let inside = AtomicU32::new(0);
        thread::scope(|scope| {
            for start in 0..4 {
                let (lock, inside) = (&lock, &inside);
                scope.spawn(move || {
                    for _ in 0..200 {
                        let _guard = lock.lock(start..start + 4);
                        assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                        inside.fetch_sub(1, Ordering::SeqCst);
                    }
                });
            }
        });
    }

    #[test]
    fn separate_ranges_are_held_together() {
        let lock = RangeLock::default();
        let _first = lock.lock(0..4);
        let _second = lock.lock(4..8);
    }
}
