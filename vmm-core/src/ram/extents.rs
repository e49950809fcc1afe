//! What lies behind each range of guest memory on the host.

use std::collections::BTreeMap;
use std::fs::File;
use std::ops::Range;
use std::sync::Arc;

/// A part of a file that lies behind guest memory, mapped privately: writes never reach the file.
#[derive(Debug, Clone)]
pub struct FileRange {
    /// The file: a sealed memfd, or one that nobody changes or cuts while it is in use.
    pub file: Arc<File>,
    /// Where the part begins, in bytes from the file's start; a multiple of the host's page size.
    pub offset: u64,
}

/// What lies behind an extent.
#[derive(Debug, Clone)]
pub enum ExtentBacking {
    /// Private anonymous pages, zero until written.
    Anonymous,
    /// A private mapping of a file.
    File(FileRange),
}

impl ExtentBacking {
    /// The backing of what lies `bytes` further on.
    fn advanced(&self, bytes: u64) -> Self {
        match self {
            Self::Anonymous => Self::Anonymous,
            Self::File(FileRange { file, offset }) => Self::File(FileRange {
                file: file.clone(),
                offset: offset + bytes,
            }),
        }
    }

    /// Whether `self` is what lies `bytes` behind the beginning of `first`.
    fn continues(&self, first: &Self, bytes: u64) -> bool {
        match (first, self) {
            (Self::Anonymous, Self::Anonymous) => true,
            (Self::File(first), Self::File(next)) => {
                Arc::ptr_eq(&first.file, &next.file) && first.offset + bytes == next.offset
            }
            _ => false,
        }
    }
}

/// One extent of a region: a range of offsets, and what lies behind it.
#[derive(Debug, Clone)]
pub struct Extent {
    /// Offsets from the region's start.
    pub range: Range<u64>,
    /// What lies behind them.
    pub backing: ExtentBacking,
}

/// The extents of one region: they cover it, in order, and neighbours differ.
#[derive(Debug)]
pub(super) struct ExtentMap {
    bytes: u64,
    /// By first offset; each reaches to the next one.
    starts: BTreeMap<u64, ExtentBacking>,
}

impl ExtentMap {
    /// A region of `bytes` with nothing but anonymous memory.
    pub(super) fn anonymous(bytes: u64) -> Self {
        Self {
            bytes,
            starts: BTreeMap::from([(0, ExtentBacking::Anonymous)]),
        }
    }

    /// Number of extents.
    pub(super) fn len(&self) -> usize {
        self.starts.len()
    }

    /// The extents of `range`, cut to it.
    pub(super) fn within(&self, range: Range<u64>) -> Vec<Extent> {
        let mut extents = Vec::new();
        let mut at = range.start;
        let end = range.end.min(self.bytes);
        while at < end {
            let Some((start, backing)) = self.starts.range(..=at).next_back() else {
                break;
            };
            let next = self
                .starts
                .range(at + 1..)
                .next()
                .map_or(self.bytes, |(s, _)| *s);
            extents.push(Extent {
                range: at..next.min(end),
                backing: backing.advanced(at - start),
            });
            at = next.min(end);
        }
        extents
    }

    /// All extents.
    pub(super) fn all(&self) -> Vec<Extent> {
        self.within(0..self.bytes)
    }

    /// Puts `backing` behind `range`, which is not empty and lies in the region.
    pub(super) fn replace(&mut self, range: Range<u64>, backing: ExtentBacking) {
        debug_assert!(range.start < range.end && range.end <= self.bytes);
        if range.end < self.bytes
            && let Some(rest) = self.within(range.end..range.end + 1).pop()
        {
            self.starts.insert(range.end, rest.backing);
        }
        let inside: Vec<u64> = self.starts.range(range.clone()).map(|(s, _)| *s).collect();
        for start in inside {
            self.starts.remove(&start);
        }
        self.starts.insert(range.start, backing);
        self.merge(range.end);
        self.merge(range.start);
    }

    /// Joins the extent that begins at `start` with the one before it if the two are one.
    fn merge(&mut self, start: u64) {
        let before = self.starts.range(..start).next_back();
        if let (Some((first, backing)), Some(next)) = (before, self.starts.get(&start))
            && next.continues(backing, start - first)
        {
            self.starts.remove(&start);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const UNITS: u64 = 24;

    /// What an extent map says of a unit: none, or which file and where in it.
    type Naive = Vec<Unit>;
    type Unit = Option<(usize, u64)>;

    fn read(map: &ExtentMap, files: &[Arc<File>]) -> Naive {
        let mut units = Vec::new();
        for extent in map.all() {
            for at in extent.range.clone() {
                units.push(match extent.backing.advanced(at - extent.range.start) {
                    ExtentBacking::Anonymous => None,
                    ExtentBacking::File(part) => {
                        let index = files.iter().position(|file| Arc::ptr_eq(file, &part.file));
                        Some((index.unwrap(), part.offset))
                    }
                });
            }
        }
        units
    }

    proptest! {
        #[test]
        fn any_replacements_give_what_a_plain_list_gives(
            steps in prop::collection::vec((0..UNITS, 1..UNITS, 0..3_usize, 0..8_u64), 1..40),
        ) {
            let files: Vec<_> = (0..2).map(|_| Arc::new(tempfile::tempfile().unwrap())).collect();
            let mut map = ExtentMap::anonymous(UNITS);
            let mut naive: Naive = vec![None; UNITS as usize];
            for (start, bytes, which, offset) in steps {
                let end = (start + bytes).min(UNITS);
                let backing = match files.get(which) {
                    Some(file) => ExtentBacking::File(FileRange { file: file.clone(), offset }),
                    None => ExtentBacking::Anonymous,
                };
                map.replace(start..end, backing);
                for at in start..end {
                    naive[at as usize] = (which < files.len()).then_some((which, offset + at - start));
                }
                prop_assert_eq!(&read(&map, &files), &naive);
                let joins = |(a, b): (&Unit, &Unit)| match (a, b) {
                    (Some((f, a)), Some((g, b))) => f == g && a + 1 == *b,
                    (None, None) => true,
                    _ => false,
                };
                let borders = naive.iter().zip(&naive[1..]).filter(|pair| !joins(*pair)).count();
                prop_assert_eq!(map.len(), borders + 1, "neighbours that are one are joined");
            }
        }
    }
}
