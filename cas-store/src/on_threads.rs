//! Work on many chunks, shared between threads.

use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::thread::available_parallelism;

use crate::MAX_CHUNK_BYTES;

/// Most threads for the work of one caller: each has a buffer, and packs are written by one at a time.
const MAX_THREADS: usize = 16;
/// How many items a thread takes at a time: some take much longer than others.
const AT_A_TIME: usize = 4;

/// How many threads share the work on chunks: one for each processor that this process may use, 16 at most.
#[must_use]
pub fn chunk_threads() -> usize {
    static COUNT: OnceLock<usize> = OnceLock::new();
    // Where the host does not say, one thread is always right.
    *COUNT.get_or_init(|| {
        available_parallelism()
            .map_or(1, NonZeroUsize::get)
            .min(MAX_THREADS)
    })
}

/// Why threads failed: each thread's error, in the order in which they came.
#[derive(Debug, PartialEq, Eq)]
pub struct Failures<E> {
    first: E,
    others: Vec<E>,
}

impl<E> Failures<E> {
    /// The first error that is not only a consequence of another thread's.
    pub fn cause(self, is_consequence: impl Fn(&E) -> bool) -> E {
        if !is_consequence(&self.first) {
            return self.first;
        }
        let mut others = self.others.into_iter();
        others
            .find(|error| !is_consequence(error))
            .unwrap_or(self.first)
    }
}

/// Does `work` for each item, with a thread's own buffer of a chunk, and returns the results in the items' order.
///
/// # Errors
///
/// Those of the threads that failed; the others stopped soon after the first.
pub fn for_all<T, R, E>(
    items: &[T],
    work: impl Fn(&T, &mut [u8]) -> Result<R, E> + Sync,
) -> Result<Vec<R>, Failures<E>>
where
    T: Sync,
    R: Send,
    E: Send,
{
    let next = AtomicUsize::new(0);
    let (done, failed) = (Mutex::new(Vec::new()), Mutex::new(Vec::new()));
    let one_thread = || {
        let mut buffer = vec![0; MAX_CHUNK_BYTES];
        let mut results = Vec::new();
        while let Some((first, some)) = take(items, &next) {
            for (index, item) in (first..).zip(some) {
                match work(item, &mut buffer) {
                    Ok(result) => results.push((index, result)),
                    Err(error) => {
                        next.store(items.len(), Ordering::Relaxed);
                        failed
                            .lock()
                            .unwrap_or_else(PoisonError::into_inner)
                            .push(error);
                        return;
                    }
                }
            }
        }
        let mut done = done.lock().unwrap_or_else(PoisonError::into_inner);
        done.append(&mut results);
    };
    std::thread::scope(|scope| {
        for _ in 1..chunk_threads().min(items.len()) {
            scope.spawn(one_thread);
        }
        one_thread();
    });
    let failed = failed.into_inner().unwrap_or_else(PoisonError::into_inner);
    let mut failed = failed.into_iter();
    if let Some(first) = failed.next() {
        let others = failed.collect();
        return Err(Failures { first, others });
    }
    let mut done = done.into_inner().unwrap_or_else(PoisonError::into_inner);
    done.sort_unstable_by_key(|(index, _)| *index);
    Ok(done.into_iter().map(|(_, result)| result).collect())
}

/// The next items that nobody has taken, and the first one's index.
fn take<'a, T>(items: &'a [T], next: &AtomicUsize) -> Option<(usize, &'a [T])> {
    let first = next.fetch_add(AT_A_TIME, Ordering::Relaxed);
    let rest = items.get(first..).filter(|rest| !rest.is_empty())?;
    Some((first, &rest[..rest.len().min(AT_A_TIME)]))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn results_come_in_the_order_of_the_items() {
        for count in [0, 1, AT_A_TIME, 1001] {
            let items: Vec<usize> = (0..count).collect();
            let doubled = for_all(&items, |item, _| Ok::<_, ()>(item * 2));
            assert_eq!(doubled, Ok((0..count).map(|item| item * 2).collect()));
        }
    }

    #[test]
    fn a_failure_ends_all() {
        let items: Vec<usize> = (0..1_000_000).collect();
        let seen = AtomicUsize::new(0);
        // So slow that one thread could not do all while the other one is on its way to fail.
        let pause = Duration::from_millis(1);
        let result = for_all(&items, |item, buffer| {
            assert_eq!(buffer.len(), MAX_CHUNK_BYTES);
            seen.fetch_add(1, Ordering::Relaxed);
            if *item == 5 {
                return Err("five");
            }
            std::thread::sleep(pause);
            Ok(())
        });
        let failure = result.expect_err("five");
        assert_eq!(failure.cause(|_| false), "five");
        assert!(seen.into_inner() < items.len());
    }

    #[test]
    fn the_cause_is_told_from_its_consequences() {
        let failures = |first, others: &[&'static str]| Failures {
            first,
            others: others.to_vec(),
        };
        let is_consequence = |error: &&str| *error == "too";
        assert_eq!(failures("why", &["too"]).cause(is_consequence), "why");
        assert_eq!(failures("too", &["why"]).cause(is_consequence), "why");
        assert_eq!(failures("too", &["too"]).cause(is_consequence), "too");
    }
}
