//! Writing the page cache within a bounded time.

use std::io;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

/// Runs `sync(2)` on a thread of its own, at most one at a time: a device that hangs holds up that
/// thread, however often it is asked. The thread is there from the start, so that no lack of them keeps
/// a machine from being saved.
#[derive(Debug)]
pub(crate) struct Syncer {
    shared: Arc<(Mutex<State>, Condvar)>,
}

#[derive(Debug, Default)]
struct State {
    /// Number of the newest request.
    asked: u64,
    /// Newest request whose sync began after it and has ended.
    done: u64,
}

impl Syncer {
    /// Starts the thread. It ends with the process.
    pub(crate) fn start() -> io::Result<Self> {
        let shared = Arc::<(Mutex<State>, Condvar)>::default();
        let theirs = Arc::clone(&shared);
        thread::Builder::new()
            .name("sync".into())
            .stack_size(128 << 10)
            .spawn(move || run(&theirs))?;
        Ok(Self { shared })
    }

    /// Begins to write everything that is dirty now; returns the number to wait for.
    pub(crate) fn begin(&self) -> u64 {
        let (state, changed) = &*self.shared;
        let mut state = state.lock().unwrap_or_else(PoisonError::into_inner);
        state.asked += 1;
        changed.notify_all();
        state.asked
    }

    /// Waits for what [`Syncer::begin`] began; `false` if that takes longer than `limit`.
    pub(crate) fn wait(&self, number: u64, limit: Duration) -> bool {
        let (state, changed) = &*self.shared;
        let state = state.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = changed.wait_timeout_while(state, limit, |state| state.done < number);
        let (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        state.done >= number
    }
}

fn run(shared: &(Mutex<State>, Condvar)) {
    let (state, changed) = shared;
    let mut guard = state.lock().unwrap_or_else(PoisonError::into_inner);
    loop {
        let target = guard.asked;
        if guard.done == target {
            guard = changed.wait(guard).unwrap_or_else(PoisonError::into_inner);
            continue;
        }
        drop(guard);
        rustix::fs::sync();
        guard = state.lock().unwrap_or_else(PoisonError::into_inner);
        guard.done = target;
        changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_at_once_all_end() {
        let syncer = Syncer::start().expect("thread");
        thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    let number = syncer.begin();
                    assert!(syncer.wait(number, Duration::from_secs(60)));
                });
            }
        });
    }
}
