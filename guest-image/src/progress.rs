//! Progress of long work, told to whoever draws it.
//!
//! Nothing here prints. Long work reports to a [`Progress`] that the caller
//! gives; the command line draws a bar on a terminal, a test passes
//! [`Silent`].

use std::ops::ControlFlow;

/// Receives the progress of one long operation.
///
/// Calls come in the order `begin`, any number of `advance`, `end`, possibly
/// several times in a row for the phases of one operation. They may come from
/// another thread than the caller's.
pub trait Progress: Send + Sync {
    /// A phase begins. `what` is a short phrase such as `unpacking kernel`;
    /// `total_bytes` is the expected sum of all `advance` calls where it is
    /// known.
    fn begin(&self, what: &str, total_bytes: Option<u64>);

    /// `bytes` more bytes of the current phase are done.
    fn advance(&self, bytes: u64);

    /// The current phase is over, whether it succeeded or not.
    fn end(&self);

    /// Whether the work is to be given up. Only work that says so asks.
    fn is_stopped(&self) -> bool {
        false
    }
}

/// A [`Progress`] that ignores everything.
#[derive(Debug, Clone, Copy, Default)]
pub struct Silent;

impl Progress for Silent {
    fn begin(&self, _what: &str, _total_bytes: Option<u64>) {}
    fn advance(&self, _bytes: u64) {}
    fn end(&self) {}
}

/// One phase of a [`Progress`]: begins when made, ends when dropped, so that
/// an early return ends it too.
pub struct Phase<'a> {
    progress: &'a dyn Progress,
}

impl<'a> Phase<'a> {
    /// Begins a phase.
    pub fn begin(progress: &'a dyn Progress, what: &str, total_bytes: Option<u64>) -> Self {
        progress.begin(what, total_bytes);
        Self { progress }
    }

    /// `bytes` more bytes are done.
    pub fn advance(&self, bytes: u64) {
        self.progress.advance(bytes);
    }

    /// As [`Self::advance`]; breaks when the work is to be given up.
    pub fn go_on(&self, bytes: u64) -> ControlFlow<()> {
        self.advance(bytes);
        match self.progress.is_stopped() {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        }
    }
}

impl Drop for Phase<'_> {
    fn drop(&mut self) {
        self.progress.end();
    }
}
