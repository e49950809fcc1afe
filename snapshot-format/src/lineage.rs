//! The generations of a checkpoint: its own point, then its parents, and how people name one of them.

use std::collections::{HashMap, HashSet};
use std::fmt;

use thiserror::Error;

use crate::id::{CheckpointId, IdPrefix, MIN_PREFIX_DIGITS};
use crate::lineage_entry::LineageEntry;

/// Points that an error names at most; more are counted.
const MAX_NAMED: usize = 8;

/// A point and its ancestors as far as they exist: `~0` is the point itself, `~1` its parent.
///
/// Entries need not be direct parents of one another: where a point between was removed, `~N` counts those that exist.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lineage {
    entries: Vec<LineageEntry>,
}

/// Why points are no lineage.
#[derive(Debug, Error, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum LineageError {
    /// No point at all.
    #[error("a lineage without points")]
    Empty,
    /// A point twice.
    #[error("point {id} is twice in the lineage")]
    Duplicate {
        /// The point.
        id: CheckpointId,
    },
    /// The point to begin with is not among those given.
    #[error("point {id} is not among the records of this lineage")]
    NotThere {
        /// The point.
        id: CheckpointId,
    },
}

/// Why a text names no generation of a lineage.
#[derive(Debug, Error, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum ResolveError {
    /// Neither `~N` nor an id.
    #[error(
        "{asked:?} names no generation: give `~N`, an id, at least the first {MIN_PREFIX_DIGITS} digits of one, or its message"
    )]
    Spelling {
        /// The text.
        asked: String,
    },
    /// `~N` beyond the last generation.
    #[error("there is no generation {asked}: there {}", Range(*count))]
    NoGeneration {
        /// The text.
        asked: String,
        /// Generations there are: `~0` to `~(count - 1)`.
        count: usize,
    },
    /// An id that no generation has.
    #[error("no generation has an id that begins with {asked}: there {} {}", are(existing.len()), Names(existing))]
    NoSuchId {
        /// The digits.
        asked: IdPrefix,
        /// The ids there are, `~0` first.
        existing: Vec<CheckpointId>,
    },
    /// A message that several generations have.
    #[error("{} generations have the message {asked:?}: {}; name one by its id", candidates.len(), Names(candidates))]
    SameMessage {
        /// The message.
        asked: String,
        /// Their ids, `~0` first.
        candidates: Vec<CheckpointId>,
    },
    /// A prefix that several generations share.
    #[error("{asked} names {} generations: {}; give more digits", candidates.len(), Names(candidates))]
    Ambiguous {
        /// The digits.
        asked: IdPrefix,
        /// The ids that begin so.
        candidates: Vec<CheckpointId>,
    },
}

impl Lineage {
    /// A lineage of `entries`: own point first, then its parents, nearest first.
    ///
    /// # Errors
    /// There is none, or one is there twice.
    pub fn new(entries: impl IntoIterator<Item = LineageEntry>) -> Result<Self, LineageError> {
        let entries: Vec<_> = entries.into_iter().collect();
        if entries.is_empty() {
            return Err(LineageError::Empty);
        }
        let mut seen = HashSet::new();
        match entries.iter().find(|entry| !seen.insert(entry.id)) {
            Some(entry) => Err(LineageError::Duplicate { id: entry.id }),
            None => Ok(Self { entries }),
        }
    }

    /// The lineage of `own` among `entries` in any order: it ends where a parent is not among them. Entries that are no
    /// ancestors are left out.
    ///
    /// # Errors
    /// `own` is not among the entries.
    pub fn follow(
        own: CheckpointId,
        entries: impl IntoIterator<Item = LineageEntry>,
    ) -> Result<Self, LineageError> {
        let mut by_id: HashMap<_, _> = entries.into_iter().map(|entry| (entry.id, entry)).collect();
        let mut found = Vec::new();
        let mut next = Some(own);
        // Each step removes an entry, so forged records that are each other's parents end the walk.
        while let Some(entry) = next.and_then(|id| by_id.remove(&id)) {
            next = entry.parent;
            found.push(entry);
        }
        match found.is_empty() {
            true => Err(LineageError::NotThere { id: own }),
            false => Ok(Self { entries: found }),
        }
    }

    /// The generations, `~0` first.
    #[must_use]
    pub fn entries(&self) -> &[LineageEntry] {
        &self.entries
    }

    /// Which generation `id` is.
    #[must_use]
    pub fn generation_of(&self, id: &CheckpointId) -> Option<usize> {
        self.entries.iter().position(|entry| entry.id == *id)
    }

    /// The generation that `asked` names: `~N`, a full id, the first 8 or more digits of one, or, if it is nothing of these, the
    /// whole message that it was saved with.
    ///
    /// # Errors
    /// It names none, or several; the error says which there are.
    pub fn resolve(&self, asked: &str) -> Result<&LineageEntry, ResolveError> {
        match asked.strip_prefix('~') {
            Some(number) => self.resolve_number(asked, number),
            None => self.resolve_id(asked),
        }
    }

    fn resolve_number(&self, asked: &str, number: &str) -> Result<&LineageEntry, ResolveError> {
        let asked = asked.to_owned();
        if number.is_empty() || !number.bytes().all(|digit| digit.is_ascii_digit()) {
            return Err(ResolveError::Spelling { asked });
        }
        // Digits that fit no integer name a generation that does not exist.
        let entry = number.parse().ok().and_then(|n: usize| self.entries.get(n));
        let count = self.entries.len();
        entry.ok_or(ResolveError::NoGeneration { asked, count })
    }

    fn resolve_id(&self, asked: &str) -> Result<&LineageEntry, ResolveError> {
        let prefix = match IdPrefix::parse(asked) {
            Ok(prefix) => prefix,
            Err(_) => return self.resolve_message(asked),
        };
        let ids = |entries: &[&LineageEntry]| entries.iter().map(|entry| entry.id).collect();
        let named = |entry: &&LineageEntry| prefix.matches(&entry.id);
        let candidates: Vec<_> = self.entries.iter().filter(named).collect();
        match candidates.as_slice() {
            [entry] => Ok(entry),
            [] => Err(ResolveError::NoSuchId {
                asked: prefix,
                existing: ids(&self.entries.iter().collect::<Vec<_>>()),
            }),
            several => Err(ResolveError::Ambiguous {
                candidates: ids(several),
                asked: prefix,
            }),
        }
    }

    fn resolve_message(&self, asked: &str) -> Result<&LineageEntry, ResolveError> {
        let asked = asked.to_owned();
        let said = |entry: &&LineageEntry| !asked.is_empty() && entry.message == asked;
        let candidates: Vec<_> = self.entries.iter().filter(said).collect();
        match candidates.as_slice() {
            [entry] => Ok(entry),
            [] => Err(ResolveError::Spelling { asked }),
            several => Err(ResolveError::SameMessage {
                candidates: several.iter().map(|entry| entry.id).collect(),
                asked,
            }),
        }
    }
}

fn are(count: usize) -> &'static str {
    if count == 1 { "is only" } else { "are" }
}

/// `is only ~0`, `are ~0 to ~2`.
struct Range(usize);

impl fmt::Display for Range {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            0 => f.write_str("are none"),
            1 => f.write_str("is only ~0"),
            count => write!(f, "are ~0 to ~{}", count - 1),
        }
    }
}

/// Short ids, separated by commas. Ids that are told apart only by later digits are given that long.
struct Names<'a>(&'a [CheckpointId]);

impl fmt::Display for Names<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digits = self.distinct_digits();
        for (position, id) in self.0.iter().take(MAX_NAMED).enumerate() {
            let separator = if position == 0 { "" } else { ", " };
            write!(f, "{separator}{id:.digits$}")?;
        }
        match self.0.len().saturating_sub(MAX_NAMED) {
            0 => Ok(()),
            more => write!(f, " and {more} more"),
        }
    }
}

impl Names<'_> {
    /// Fewest digits, from the usual number on, that tell the ids apart.
    fn distinct_digits(&self) -> usize {
        let texts: Vec<String> = self.0.iter().map(CheckpointId::to_string).collect();
        let distinct = |digits: &usize| {
            let mut seen = HashSet::new();
            texts.iter().all(|text| seen.insert(&text[..*digits]))
        };
        (crate::SHORT_ID_DIGITS..=64).find(distinct).unwrap_or(64)
    }
}
