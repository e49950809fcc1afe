//! What one copy may cost the side that receives it.

use super::super::{MAX_KEPT_BYTES, MAX_LINK_STEPS};

/// What an item costs besides its own bytes: its allocation and its place in a list or table.
const ITEM_BYTES: usize = 96;

/// Counts what is kept and what is done for the other side. Whatever it sends, memory and work stay
/// below a limit: each thing that is kept is charged here first.
#[derive(Debug)]
pub(super) struct Budget {
    bytes: usize,
    steps: usize,
}

impl Budget {
    pub(super) fn new() -> Self {
        Self {
            bytes: MAX_KEPT_BYTES,
            steps: MAX_LINK_STEPS,
        }
    }

    #[cfg(test)]
    pub(super) fn of(bytes: usize, steps: usize) -> Self {
        Self { bytes, steps }
    }

    /// Whether an item with so many bytes of its own may be kept.
    pub(super) fn keep(&mut self, bytes: usize) -> bool {
        Self::take(&mut self.bytes, bytes.saturating_add(ITEM_BYTES))
    }

    /// Whether so many steps may be done.
    pub(super) fn work(&mut self, steps: usize) -> bool {
        Self::take(&mut self.steps, steps)
    }

    fn take(left: &mut usize, cost: usize) -> bool {
        match left.checked_sub(cost) {
            Some(rest) => {
                *left = rest;
                true
            }
            None => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_cost_more_than_their_bytes() {
        let mut budget = Budget::of(10 * ITEM_BYTES, 3);
        assert_eq!((0..100).filter(|_| budget.keep(0)).count(), 10);
        assert!(budget.work(2) && !budget.work(2) && budget.work(1));
        assert!(!Budget::of(usize::MAX - 1, 0).keep(usize::MAX));
    }
}
