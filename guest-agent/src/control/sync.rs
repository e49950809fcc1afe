//! Writing the page cache within a bounded time.

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

/// Runs `sync(2)` on a thread, at most one at a time: a device that hangs holds up one thread,
/// however often it is asked.
#[derive(Debug, Default)]
pub(crate) struct Syncer {
    shared: Arc<(Mutex<State>, Condvar)>,
}

#[derive(Debug, Default)]
struct State {
    /// Number of the newest request.
    asked: u64,
    /// Newest request whose sync began after it and has ended.
    done: u64,
    running: bool,
}

impl Syncer {
    /// Writes everything that is dirty now; `false` if that takes longer than `limit`.
    pub(crate) fn sync(&self, limit: Duration) -> bool {
        let (state, changed) = &*self.shared;
        let mut guard = state.lock().unwrap_or_else(PoisonError::into_inner);
        guard.asked += 1;
        let mine = guard.asked;
        if !guard.running {
            let shared = Arc::clone(&self.shared);
            let thread = thread::Builder::new()
                .name("sync".into())
                .stack_size(128 << 10);
            if thread.spawn(move || run(&shared)).is_err() {
                return false;
            }
            guard.running = true;
        }
        let waited = changed.wait_timeout_while(guard, limit, |state| state.done < mine);
        let (guard, _) = waited.unwrap_or_else(PoisonError::into_inner);
        guard.done >= mine
    }
}

fn run(shared: &(Mutex<State>, Condvar)) {
    let (state, changed) = shared;
    let mut guard = state.lock().unwrap_or_else(PoisonError::into_inner);
    while guard.done < guard.asked {
        let target = guard.asked;
        drop(guard);
        rustix::fs::sync();
        guard = state.lock().unwrap_or_else(PoisonError::into_inner);
        guard.done = target;
        changed.notify_all();
    }
    guard.running = false;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_at_once_all_end() {
        let syncer = Syncer::default();
        thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| assert!(syncer.sync(Duration::from_secs(60))));
            }
        });
    }
}
