//! Warnings that a guest can cause as often as it likes, at most one per second.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use super::mmio::lock;

/// Shortest time between two warnings.
const INTERVAL: Duration = Duration::from_secs(1);

/// Keeps a guest from filling the host's log. It goes by the host's time in every machine: what is logged has no
/// effect on the guest.
#[derive(Debug, Default)]
pub(super) struct WarnLimit(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    last: Option<Instant>,
    left_out: u64,
}

impl WarnLimit {
    /// Whether to warn now: with the number of warnings left out since the last one, which goes into the text.
    pub(super) fn admit(&self) -> Option<u64> {
        self.admit_at(Instant::now())
    }

    fn admit_at(&self, now: Instant) -> Option<u64> {
        let mut state = lock(&self.0);
        let too_soon = |last| now.saturating_duration_since(last) < INTERVAL;
        if state.last.is_some_and(too_soon) {
            state.left_out += 1;
            return None;
        }
        state.last = Some(now);
        Some(std::mem::take(&mut state.left_out))
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
