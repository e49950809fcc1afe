use std::convert::Infallible;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use super::presence::Asked;
use super::{ChunkIndex, GuestRam};

/// Threads that bring absent chunks before somebody needs them. Dropping it stops them; the chunks that are
/// absent then still come when they are used.
#[derive(Debug)]
pub struct BackgroundFill {
    stop: Arc<AtomicBool>,
    /// Closed once the last thread has ended.
    working: Receiver<Infallible>,
    threads: Vec<JoinHandle<()>>,
}

impl GuestRam {
    /// Brings all absent chunks on `threads` threads: first those of `first`, in this order, then the others from the lowest
    /// address on. Each thread calls `prepare` before, for instance to lower its priority.
    ///
    /// # Errors
    /// A thread cannot be made.
    pub fn fill_in_background(
        &self,
        first: &[ChunkIndex],
        threads: usize,
        prepare: fn(),
    ) -> io::Result<BackgroundFill> {
        let chunks = self.layout().chunks();
        let mut order: Vec<ChunkIndex> = first.to_vec();
        order.extend((0..chunks).map(ChunkIndex));
        let (order, next) = (Arc::new(order), Arc::new(AtomicUsize::new(0)));
        let (alive, working) = channel::<Infallible>();
        let mut fill = BackgroundFill {
            stop: Arc::default(),
            working,
            threads: Vec::new(),
        };
        for _ in 0..threads {
            let (ram, stop) = (self.clone(), fill.stop.clone());
            let (order, next) = (order.clone(), next.clone());
            let alive = alive.clone();
            let body = move || {
                let _alive = alive;
                prepare();
                while !stop.load(Ordering::Acquire)
                    && let Some(chunk) = order.get(next.fetch_add(1, Ordering::AcqRel))
                    // What is lost is told to the memory's listener; there is nothing to go on for.
                    && ram.bring(*chunk, Asked::Ahead).is_ok()
                {}
            };
            let thread = std::thread::Builder::new().name("ram-fill".to_owned());
            fill.threads.push(thread.spawn(body)?);
        }
        Ok(fill)
    }
}

impl BackgroundFill {
    /// Waits for at most `patience` until the threads have been through all chunks, or met one that is lost; whether they have.
    pub fn wait(&self, patience: Duration) -> bool {
        matches!(
            self.working.recv_timeout(patience),
            Err(RecvTimeoutError::Disconnected)
        )
    }

    fn join(&mut self) {
        for thread in self.threads.drain(..) {
            if thread.join().is_err() {
                tracing::error!("a thread that fills memory panicked");
            }
        }
    }
}

impl Drop for BackgroundFill {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        self.join();
    }
}
