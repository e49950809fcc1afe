//! Warnings that a guest can cause as often as it likes, at most one per second.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Shortest time between two warnings.
const INTERVAL: Duration = Duration::from_secs(1);

/// Keeps a guest from filling the host's log. It goes by the host's time in every machine: what is logged has no
/// effect on the guest.
#[derive(Debug, Default)]
pub(crate) struct WarnLimit(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    last: Option<Instant>,
    left_out: u64,
}

impl WarnLimit {
    /// Whether to warn now: with the number of warnings left out since the last one, which goes into the text.
    pub(crate) fn admit(&self) -> Option<u64> {
        self.admit_at(Instant::now())
    }

    fn admit_at(&self, now: Instant) -> Option<u64> {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let too_soon = |last| now.saturating_duration_since(last) < INTERVAL;
        if state.last.is_some_and(too_soon) {
            state.left_out += 1;
            return None;
        }
        state.last = Some(now);
        Some(std::mem::take(&mut state.left_out))
    }
}

/// What tests of limited warnings share.
#[cfg(test)]
pub(crate) mod testing {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Instant;

    use tracing::span;

    /// Counts warnings and errors.
    #[derive(Default)]
    struct Warnings(Arc<AtomicUsize>);

    impl tracing::Subscriber for Warnings {
        fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
            *metadata.level() <= tracing::Level::WARN
        }

        fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
            span::Id::from_u64(1)
        }

        fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

        fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

        fn event(&self, _: &tracing::Event<'_>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }

        fn enter(&self, _: &span::Id) {}

        fn exit(&self, _: &span::Id) {}
    }

    /// Repeats what warns, on this thread, and checks that it is told, but not each time.
    pub(crate) fn assert_limited(mut warns: impl FnMut()) {
        const TIMES: usize = 1000;
        let warnings = Warnings::default();
        let count = warnings.0.clone();
        let begin = Instant::now();
        tracing::subscriber::with_default(warnings, || {
            for _ in 0..TIMES {
                warns();
            }
        });
        // One at once, and one for each second that a slow host took.
        let most = 1 + begin.elapsed().as_secs() as usize;
        let count = count.load(Ordering::SeqCst);
        assert!((1..=most).contains(&count), "{count} warnings");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_warning_per_second_counts_those_left_out() {
        let limit = WarnLimit::default();
        let begin = Instant::now();
        let at = |millis| limit.admit_at(begin + Duration::from_millis(millis));
        assert_eq!(at(0), Some(0));
        assert_eq!(at(1), None);
        assert_eq!(at(999), None);
        assert_eq!(at(1000), Some(2));
        assert_eq!(at(1500), None);
        assert_eq!(at(2600), Some(1));
        assert_eq!(at(3600), Some(0));
    }
}
