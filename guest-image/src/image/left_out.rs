//! What of a source did not get into an image, to be told.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Most kinds of things told apart.
const MAX_KINDS: usize = 64;
/// Longest name of a kind in characters.
const MAX_KIND_CHARS: usize = 100;
/// Where further kinds are counted.
const OTHERS: &str = "others";

/// What an import left out: kinds, such as the name of an extended attribute
/// that Linux does not keep, and how often each was met.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct LeftOut {
    kinds: BTreeMap<String, u64>,
}

impl LeftOut {
    /// Counts one thing; `kind` may come from anywhere.
    pub(crate) fn add(&mut self, kind: &str) {
        let kind: String = kind.escape_debug().take(MAX_KIND_CHARS).collect();
        let known = self.kinds.len() < MAX_KINDS || self.kinds.contains_key(&kind);
        let kind = if known { kind } else { OTHERS.into() };
        *self.kinds.entry(kind).or_default() += 1;
    }

    /// Whether everything got in.
    pub fn is_empty(&self) -> bool {
        self.kinds.is_empty()
    }

    /// The kinds, harmless for a terminal, and how often each was met.
    pub fn kinds(&self) -> impl Iterator<Item = (&str, u64)> {
        self.kinds
            .iter()
            .map(|(kind, count)| (kind.as_str(), *count))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_bounded_and_harmless() {
        let mut left_out = LeftOut::default();
        for number in 0..1000 {
            left_out.add(&format!("com.apple.\x1b{number}"));
        }
        left_out.add("com.apple.\x1b0");
        let kinds: BTreeMap<&str, u64> = left_out.kinds().collect();
        assert_eq!(kinds.len(), MAX_KINDS + 1);
        assert_eq!(kinds["com.apple.\\u{1b}0"], 2);
        assert_eq!(kinds[OTHERS], 1000 - MAX_KINDS as u64);
    }
}
