//! A supervisor's reports about long work, for whoever draws them.

use crate::progress::Progress;

/// Turns the supervisor's reports into phases of a [`Progress`].
pub(super) struct Phases<'a> {
    progress: &'a dyn Progress,
    current: Option<(String, u64)>,
}

impl<'a> Phases<'a> {
    pub(super) fn new(progress: &'a dyn Progress) -> Self {
        Self {
            progress,
            current: None,
        }
    }

    /// What is done now, and how far it is.
    pub(super) fn report(&mut self, phase: &str, done: u64, total: Option<u64>) {
        if self
            .current
            .as_ref()
            .is_none_or(|(current, _)| current != phase)
        {
            self.end();
            self.progress.begin(phase, total);
            self.current = Some((phase.to_owned(), 0));
        }
        if let Some((_, before)) = &mut self.current {
            self.progress.advance(done.saturating_sub(*before));
            *before = done.max(*before);
        }
    }

    fn end(&mut self) {
        if self.current.take().is_some() {
            self.progress.end();
        }
    }
}

impl Drop for Phases<'_> {
    fn drop(&mut self) {
        self.end();
    }
}
