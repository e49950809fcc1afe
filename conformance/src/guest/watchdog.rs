use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use vmm_core::hypervisor::VcpuKick;

/// How long a guest of the suite may take. All of them take well under a second of an idle machine;
/// this only turns a hang into a failure.
const HANG: Duration = Duration::from_secs(60);
/// Between further kicks of a vCPU whose guest hangs.
const AGAIN: Duration = Duration::from_millis(100);

/// Kicks a vCPU whose guest hangs, so that the test fails instead of hanging as well.
pub struct Watchdog {
    stop: Option<Sender<()>>,
    bitten: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Watchdog {
    /// Watches until dropped.
    pub fn new(kicker: Arc<dyn VcpuKick>) -> Self {
        let (stop, stopped) = channel::<()>();
        let bitten = Arc::new(AtomicBool::new(false));
        let flag = bitten.clone();
        let thread = std::thread::spawn(move || {
            let mut wait = HANG;
            while let Err(std::sync::mpsc::RecvTimeoutError::Timeout) = stopped.recv_timeout(wait) {
                flag.store(true, Ordering::SeqCst);
                kicker.kick();
                wait = AGAIN;
            }
        });
        Self {
            stop: Some(stop),
            bitten,
            thread: Some(thread),
        }
    }

    /// Whether the guest took too long.
    pub fn has_bitten(&self) -> bool {
        self.bitten.load(Ordering::SeqCst)
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        self.stop = None;
        if let Some(thread) = self.thread.take() {
            // It cannot panic, and a drop has nobody to tell.
            let _ended = thread.join();
        }
    }
}
