//! Work on the guest's file systems that may never come back.
//!
//! A frozen file system, or a disk that does not answer, blocks whoever writes to it for as long as
//! that lasts. One thread takes that risk for all control calls.

use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Instant;

/// What is done on the thread.
type Work = Box<dyn FnOnce() + Send>;

/// The thread that touches file systems, and whether it has come back.
#[derive(Debug)]
pub(crate) struct DiskThread {
    work: Mutex<Sender<Work>>,
    /// Work that was given up and has not come back.
    stuck: Arc<AtomicUsize>,
}

impl DiskThread {
    /// Starts the thread. It ends with the process.
    pub(crate) fn start() -> io::Result<Self> {
        let (work, waiting): (_, Receiver<Work>) = mpsc::channel();
        thread::Builder::new()
            .name("disk".into())
            .stack_size(256 << 10)
            .spawn(move || waiting.into_iter().for_each(|work| work()))?;
        Ok(Self {
            work: Mutex::new(work),
            stuck: Arc::default(),
        })
    }

    /// Does `work` and waits for it until `deadline`.
    ///
    /// # Errors
    /// [`io::ErrorKind::TimedOut`] when it takes longer, and at once while earlier work has not come
    /// back. It may still be done later.
    pub(crate) fn run<T: Send + 'static>(
        &self,
        deadline: Instant,
        work: impl FnOnce() -> io::Result<T> + Send + 'static,
    ) -> io::Result<T> {
        if self.stuck.load(Ordering::Acquire) > 0 {
            return Err(late());
        }
        let slot = Arc::<Slot<T>>::default();
        let (theirs, stuck) = (Arc::clone(&slot), Arc::clone(&self.stuck));
        let work = Box::new(move || {
            let result = work();
            let mut state = theirs.lock();
            if state.given_up {
                stuck.fetch_sub(1, Ordering::AcqRel);
            } else {
                state.result = Some(result);
                theirs.done.notify_one();
            }
        });
        let queue = self.work.lock().unwrap_or_else(PoisonError::into_inner);
        let sent = queue.send(work);
        drop(queue);
        sent.map_err(|_| io::Error::other("the thread for disk work has ended"))?;
        let mut state = slot.lock();
        loop {
            if let Some(result) = state.result.take() {
                return result;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                state.given_up = true;
                self.stuck.fetch_add(1, Ordering::AcqRel);
                return Err(late());
            }
            let waited = slot.done.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

/// Where the result of some work is put, unless nobody waits for it any more.
#[derive(Debug)]
struct Slot<T> {
    state: Mutex<SlotState<T>>,
    done: Condvar,
}

#[derive(Debug)]
struct SlotState<T> {
    result: Option<io::Result<T>>,
    given_up: bool,
}

impl<T> Default for Slot<T> {
    fn default() -> Self {
        let state = SlotState {
            result: None,
            given_up: false,
        };
        Self {
            state: Mutex::new(state),
            done: Condvar::new(),
        }
    }
}

impl<T> Slot<T> {
    fn lock(&self) -> MutexGuard<'_, SlotState<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn late() -> io::Error {
    io::Error::new(
        io::ErrorKind::TimedOut,
        "the file system does not answer; it may be frozen",
    )
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_file_system_that_hangs_holds_up_one_thread_only_and_is_used_again_afterwards() {
        let disk = DiskThread::start().expect("thread");
        let soon = || Instant::now() + Duration::from_millis(50);
        let later = || Instant::now() + Duration::from_secs(60);
        assert_eq!(disk.run(later(), || Ok(7)).expect("done"), 7);
        let (thaw, frozen) = mpsc::channel::<()>();
        let hangs = disk.run(soon(), move || {
            let _ = frozen.recv();
            Ok(())
        });
        assert_eq!(hangs.expect_err("frozen").kind(), io::ErrorKind::TimedOut);
        // Refused at once, not queued behind it.
        let refused = disk.run(later(), || Ok(()));
        assert_eq!(refused.expect_err("frozen").kind(), io::ErrorKind::TimedOut);
        drop(thaw);
        while disk.run(later(), || Ok(())).is_err() {
            thread::yield_now();
        }
    }
}
