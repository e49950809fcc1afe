//! What a store's log says of its points.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, HashSet};

use cas_store::{DirectoryState, PointEntry, Store};
use snapshot_format::{CheckpointId, IdPrefix, LineageEntry};

use super::error::PointError;

/// The log of a store, by id.
pub(crate) struct StoreLog {
    entries: HashMap<CheckpointId, PointEntry>,
}

impl StoreLog {
    pub(crate) fn read(store: &Store) -> Result<Self, PointError> {
        let entries = store.points()?.into_iter();
        let entries = entries.map(|entry| (CheckpointId(entry.id.0), entry));
        Ok(Self {
            entries: entries.collect(),
        })
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The only point with this id, or whose id begins so. One that is there comes before those that are gone.
    pub(crate) fn resolve(&self, asked: &str) -> Result<(CheckpointId, &PointEntry), PointError> {
        let not_there = |candidates: Vec<String>| PointError::NotInStore {
            asked: asked.to_owned(),
            candidates,
        };
        let prefix = IdPrefix::parse(asked).map_err(|_| not_there(Vec::new()))?;
        let named = self.entries.iter().filter(|(id, _)| prefix.matches(id));
        let (there, gone): (Vec<_>, Vec<_>) = named.partition(|(_, entry)| is_there(entry));
        let candidates = if there.is_empty() { gone } else { there };
        match candidates.as_slice() {
            &[(id, entry)] => Ok((*id, entry)),
            several => {
                let mut ids: Vec<_> = several.iter().map(|(id, _)| id.short()).collect();
                ids.sort_unstable();
                Err(not_there(ids))
            }
        }
    }

    /// What the log says of a point.
    pub(crate) fn line(&self, id: &CheckpointId) -> Option<LineageEntry> {
        let entry = self.entries.get(id)?;
        LineageEntry::from_line(*id, &entry.meta).ok()
    }

    /// The points that have an ancestor in common with this one, or are it, as far as the log knows their parents.
    pub(crate) fn family(&self, of: &CheckpointId) -> HashSet<CheckpointId> {
        let mut relatives: HashMap<CheckpointId, Vec<CheckpointId>> = HashMap::new();
        for id in self.entries.keys() {
            if let Some(parent) = self.line(id).and_then(|line| line.parent) {
                relatives.entry(parent).or_default().push(*id);
                relatives.entry(*id).or_default().push(parent);
            }
        }
        let mut family = HashSet::from([*of]);
        let mut next = vec![*of];
        while let Some(id) = next.pop() {
            let near = relatives.remove(&id).unwrap_or_default();
            next.extend(near.into_iter().filter(|id| family.insert(*id)));
        }
        family
    }

    /// What is known of the points that the store keeps, in the order of the log. Those of which it has no line are left out.
    pub(crate) fn kept(&self) -> Vec<LineageEntry> {
        let lines = self.entries.iter().filter_map(|(id, entry)| {
            let line = LineageEntry::from_line(*id, &entry.meta).ok()?;
            Some((line, entry.has_record))
        });
        let lines = by_lineage(lines.collect()).into_iter();
        lines
            .filter_map(|(line, is_kept)| is_kept.then_some(line))
            .collect()
    }
}

/// Whether a point can be read somewhere.
fn is_there(entry: &PointEntry) -> bool {
    let directory = entry.directory.as_ref();
    entry.has_record || directory.is_some_and(|found| found.state == DirectoryState::Present)
}

/// Oldest first, but no point before its parent: a clock may have been set back between them.
pub(crate) fn by_lineage(lines: Vec<(LineageEntry, bool)>) -> Vec<(LineageEntry, bool)> {
    let ids: HashSet<CheckpointId> = lines.iter().map(|(line, _)| line.id).collect();
    let mut ready = BinaryHeap::new();
    let mut children: HashMap<CheckpointId, Vec<usize>> = HashMap::new();
    // Several points may be taken within one second: the whole time counts.
    let rank = |at: usize| Reverse((lines[at].0.taken, lines[at].0.id, at));
    for (at, (line, _)) in lines.iter().enumerate() {
        match line.parent.filter(|parent| ids.contains(parent)) {
            Some(parent) => children.entry(parent).or_default().push(at),
            None => ready.push(rank(at)),
        }
    }
    let mut order = Vec::with_capacity(lines.len());
    while let Some(Reverse((_, id, at))) = ready.pop() {
        order.push(at);
        ready.extend(
            children
                .remove(&id)
                .unwrap_or_default()
                .into_iter()
                .map(rank),
        );
    }
    // An id is a hash over the parent's, so no point is its own ancestor; a line that says so is damaged, not lost.
    let mut rest: Vec<usize> = children.into_values().flatten().collect();
    rest.sort_unstable();
    order.extend(rest);
    let mut lines: Vec<_> = lines.into_iter().map(Some).collect();
    order
        .into_iter()
        .filter_map(|at| lines[at].take())
        .collect()
}

#[cfg(test)]
mod tests {
    use snapshot_format::WallTime;

    use super::*;

    fn line(number: u8, parent: Option<u8>, seconds: u64) -> (LineageEntry, bool) {
        let id = |number| CheckpointId([number; 32]);
        let entry = LineageEntry {
            id: id(number),
            parent: parent.map(id),
            taken: WallTime {
                seconds,
                ..WallTime::default()
            },
            machine: String::new(),
            message: String::new(),
            data_bytes: 0,
            autosave: false,
        };
        (entry, false)
    }

    fn order(lines: Vec<(LineageEntry, bool)>) -> Vec<u8> {
        let lines = by_lineage(lines);
        lines.iter().map(|(line, _)| line.id.0[0]).collect()
    }

    #[test]
    fn the_log_is_by_lineage_then_by_time() {
        // Of two families the times decide, in each the parents.
        let lines = vec![
            line(3, Some(2), 10),
            line(2, Some(1), 50),
            line(1, Some(9), 100),
            line(5, None, 70),
            line(4, Some(2), 5),
        ];
        assert_eq!(order(lines), [5, 1, 2, 4, 3]);
        // No line is lost, not even in a circle.
        let circle = vec![line(1, Some(2), 1), line(2, Some(1), 2), line(3, None, 9)];
        assert_eq!(order(circle), [3, 1, 2]);
    }
}
