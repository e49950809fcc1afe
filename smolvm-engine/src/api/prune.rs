//! Giving room back: points that a rule does not keep, and data that nothing needs.

use std::collections::{HashMap, HashSet};
use std::path::PathBuf;

use cas_store::{PointId, PruneReport, StoreError};
use snapshot_format::{CheckpointId, LineageEntry};

use super::checkpoint::{LogEntry, log_entry};
use super::error::EngineError;
use crate::api::Engine;
use crate::point::{StoreLog, Thoroughness, prune};
use crate::progress::{Phase, Progress};
use crate::retention::{KeepRule, Retention};

/// What to give up.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PruneOptions {
    /// The store; the home's when absent.
    pub store: Option<PathBuf>,
    /// Which of the points that the store keeps stay, of each machine; all where it is empty.
    pub keep: Retention,
    /// Nothing is changed.
    pub dry_run: bool,
}

/// A point that the store keeps, and what becomes of it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct JudgedPoint {
    /// The point.
    pub entry: LogEntry,
    /// What keeps it.
    pub kept_by: Vec<KeepRule>,
    /// Nothing keeps it, but it is being read, by a restore for instance: it stays for now.
    pub in_use: bool,
    /// It is given up.
    pub given_up: bool,
}

/// What was given back, or would be.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Pruned {
    /// The points, oldest first, where a rule was given.
    pub points: Vec<JudgedPoint>,
    /// Bytes of the store that are free now.
    pub freed_bytes: u64,
    /// Bytes that were written for that.
    pub written_bytes: u64,
    /// Packs removed because nothing needed them.
    pub removed_packs: usize,
    /// Packs of which only what is needed was written anew.
    pub replaced_packs: usize,
    /// Packs that no point of the store needs, and checkpoint directories or machines have.
    pub linked_packs: usize,
    /// Packs that stay only because saves or restores that run use them.
    pub pinned_packs: usize,
    /// Packs in which much is of no use and which machines, moved checkpoints or running commands have as well.
    pub left_alone: usize,
    /// Checkpoint directories that the store knows and that are not at their places.
    pub missing_directories: usize,
}

impl Engine {
    /// Gives up what `keep` does not keep of the points that a store holds, and the data that nothing needs any more. A checkpoint
    /// directory is never removed; one that its user removed is not needed any more, and its line stays in the log. Saves, restores and
    /// undos go on beside it.
    ///
    /// # Errors
    ///
    /// No store is there; [`EngineError::NotPruned`] where a point cannot be read, whose data would be unknown: then no data is removed.
    pub fn prune(
        &self,
        options: &PruneOptions,
        progress: &dyn Progress,
    ) -> Result<Pruned, EngineError> {
        let found = match options.dry_run {
            true => self.existing_store(options.store.as_deref())?,
            false => self.writable_store(options.store.as_deref())?,
        };
        let log = StoreLog::read(&found)?;
        let mut points = judge(log.kept(), &options.keep);
        // A store without any line is not one of points.
        let report = if log.is_empty() {
            PruneReport::default()
        } else {
            let _phase = Phase::begin(progress, "pruning", None);
            let give_up = points.iter().filter(|(_, rules)| rules.is_empty());
            let give_up = give_up.map(|(line, _)| PointId(line.id.0)).collect();
            let pruned = prune(&found, give_up, Thoroughness::Thorough, options.dry_run);
            pruned.map_err(|error| match error {
                StoreError::Record { point, source } => EngineError::NotPruned {
                    store: found.dir().to_owned(),
                    point,
                    source,
                },
                error => error.into(),
            })?
        };
        let of = |ids: &[PointId]| -> HashSet<CheckpointId> {
            ids.iter().map(|id| CheckpointId(id.0)).collect()
        };
        let (given_up, in_use) = (of(&report.given_up), of(&report.in_use));
        let points = points.drain(..).map(|(line, kept_by)| JudgedPoint {
            kept_by,
            in_use: in_use.contains(&line.id),
            given_up: given_up.contains(&line.id),
            entry: log_entry(&line, None, given_up.contains(&line.id)),
        });
        Ok(Pruned {
            points: points.collect(),
            freed_bytes: report.freed_bytes(),
            written_bytes: report.repack.written_bytes,
            removed_packs: report.sweep.removed_packs,
            replaced_packs: report.repack.replaced_packs,
            linked_packs: report.sweep.linked_packs,
            pinned_packs: report.sweep.pinned_packs,
            left_alone: report.repack.left_alone,
            missing_directories: report.repack.lost_directories,
        })
    }
}

/// What keeps each point: the rule counts those of each machine by themselves. Nothing is judged without a rule.
fn judge(lines: Vec<LineageEntry>, keep: &Retention) -> Vec<(LineageEntry, Vec<KeepRule>)> {
    if keep.is_empty() {
        return Vec::new();
    }
    let mut machines: HashMap<&str, Vec<usize>> = HashMap::new();
    for (position, line) in lines.iter().enumerate() {
        machines.entry(&line.machine).or_default().push(position);
    }
    let mut judged = vec![Vec::new(); lines.len()];
    for positions in machines.values() {
        let taken: Vec<u64> = positions
            .iter()
            .map(|at| lines[*at].taken.seconds)
            .collect();
        for (position, rules) in positions.iter().zip(keep.judge(&taken)) {
            judged[*position] = rules;
        }
    }
    lines.into_iter().zip(judged).collect()
}

#[cfg(test)]
mod tests {
    use snapshot_format::WallTime;

    use super::*;

    #[test]
    fn each_machine_has_its_own_row() {
        let line = |number: u8, machine: &str| LineageEntry {
            id: CheckpointId([number; 32]),
            parent: None,
            taken: WallTime::new(number.into(), 0).unwrap(),
            machine: machine.to_owned(),
            message: String::new(),
            data_bytes: 0,
            autosave: false,
        };
        let lines = vec![line(1, "a"), line(2, "b"), line(3, "a"), line(4, "a")];
        let keep = Retention {
            last: std::num::NonZeroU32::new(2),
            ..Retention::default()
        };
        let judged = judge(lines.clone(), &keep);
        let given_up: Vec<_> = judged
            .iter()
            .filter(|(_, rules)| rules.is_empty())
            .map(|(line, _)| line.id.0[0])
            .collect();
        assert_eq!((judged.len(), given_up), (4, vec![1]));
        assert!(judge(lines, &Retention::default()).is_empty());
    }
}
