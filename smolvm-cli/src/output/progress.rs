//! Long work, drawn on a terminal.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use smolvm_engine::progress::Progress;

use super::harmless;

/// Time between two pictures of a spinner.
const TICK: Duration = Duration::from_millis(120);
const BAR: &str = "{msg} {wide_bar} {bytes}/{total_bytes} {bytes_per_sec} {eta} left";
const COUNT: &str = "{spinner} {msg} {bytes} {bytes_per_sec}";
const WAIT: &str = "{spinner} {msg} {elapsed}";

/// A bar per phase, gone when the phase is over.
#[derive(Default)]
pub(super) struct Bars {
    current: Mutex<Option<ProgressBar>>,
}

impl Bars {
    fn set(&self, bar: Option<ProgressBar>) {
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(old) = std::mem::replace(&mut *current, bar) {
            old.finish_and_clear();
        }
    }
}

impl Progress for Bars {
    fn begin(&self, what: &str, total_bytes: Option<u64>) {
        let (bar, template) = match total_bytes {
            Some(total) => (ProgressBar::new(total), BAR),
            None => (ProgressBar::new_spinner(), COUNT),
        };
        self.set(Some(dressed(bar, template, what)));
    }

    fn advance(&self, bytes: u64) {
        let current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(bar) = &*current {
            bar.inc(bytes);
        }
    }

    fn end(&self) {
        self.set(None);
    }
}

/// Says that something takes a while, until dropped.
pub(crate) struct Spinner {
    bar: Option<ProgressBar>,
}

impl Spinner {
    pub(super) fn start(what: &str, visible: bool) -> Self {
        let bar = visible.then(|| dressed(ProgressBar::new_spinner(), WAIT, what));
        Self { bar }
    }
}

impl Drop for Spinner {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

fn dressed(bar: ProgressBar, template: &str, what: &str) -> ProgressBar {
    // The templates are constants that the tests try.
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
    bar.set_message(harmless(what).into_owned());
    bar.enable_steady_tick(TICK);
    bar
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn templates_are_understood() {
        for template in [BAR, COUNT, WAIT] {
            assert!(ProgressStyle::with_template(template).is_ok(), "{template}");
        }
    }
}
