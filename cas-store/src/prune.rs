//! Giving points up, and the data that nobody needs after that, in one go.

use std::collections::HashSet;

use crate::PointId;
use crate::error::StoreError;
use crate::repack::{RepackOptions, RepackReport};
use crate::store::Store;
use crate::sweep::{RecordChunks, SweepReport};

/// What [`Store::prune`] is to do.
#[derive(Debug, Clone, Default)]
pub struct PruneOptions {
    /// Points to give up. Those that are not kept here are passed over.
    pub give_up: Vec<PointId>,
    /// Which packs are written again.
    pub repack: RepackOptions,
    /// Nothing is changed; the report says what would be.
    pub dry_run: bool,
}

/// How far [`Store::prune`] has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum PruneStep {
    /// The points are given up, durably; their data is still there.
    PointsGone,
    /// Packs that nobody needed are removed.
    PacksSwept,
    /// New packs hold what is needed of mostly dead ones; the old ones are in use.
    PacksWritten,
    /// Checkpoint directories have links to the new ones; the old ones are in the store.
    DirectoriesChanged,
    /// The old ones are gone.
    PacksReplaced,
}

/// What a prune did, or would do.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PruneReport {
    /// Points given up.
    pub given_up: Vec<PointId>,
    /// Points that stay because they are being read, by a restore for instance.
    pub in_use: Vec<PointId>,
    /// Bytes of records, given back.
    pub record_bytes: u64,
    /// Packs that nobody needed.
    pub sweep: SweepReport,
    /// Packs that were mostly dead.
    pub repack: RepackReport,
}

impl PruneReport {
    /// Bytes given back that are not written elsewhere.
    #[must_use]
    pub fn freed_bytes(&self) -> u64 {
        let freed = self.record_bytes + self.sweep.removed_bytes + self.repack.freed_bytes;
        freed.saturating_sub(self.repack.written_bytes)
    }
}

impl Store {
    /// Gives points up, then does what [`Store::sweep`] and [`Store::repack`] do. Captures and restores go on beside it:
    /// who begins one waits, what they use stays. `on_step` is told how far it is.
    ///
    /// Killed at any time, it has lost nothing: points go first, then the packs that only they needed, old packs after new
    /// ones. What is left half-done goes with the next prune.
    ///
    /// # Errors
    /// As of those. Before a record that cannot be read nothing is removed but the points.
    pub fn prune(
        &self,
        records: &dyn RecordChunks,
        options: &PruneOptions,
        on_step: &mut dyn FnMut(PruneStep),
    ) -> Result<PruneReport, StoreError> {
        let dry_run = options.dry_run;
        let _lock = self.inner.lock_exclusive()?;
        let pinned = self.inner.pinned(dry_run)?;
        let mut report = PruneReport::default();
        self.give_up(options, &mut report)?;
        on_step(PruneStep::PointsGone);
        let without: HashSet<PointId> = report.given_up.iter().copied().collect();
        let mut live = self.inner.mark_points(records, &without)?;
        let (sweep, swept) = self.inner.sweep_packs(&live, &pinned, dry_run)?;
        report.sweep = sweep;
        on_step(PruneStep::PacksSwept);
        let mut plan = self.plan_repack(records, &options.repack, &mut live, &pinned, &swept)?;
        report.repack = match dry_run {
            true => self.foresee(&mut plan, &live)?,
            false => self.carry_out(plan, &live, records, on_step)?,
        };
        Ok(report)
    }

    fn give_up(&self, options: &PruneOptions, report: &mut PruneReport) -> Result<(), StoreError> {
        let inner = &self.inner;
        let asked: HashSet<PointId> = options.give_up.iter().copied().collect();
        for id in inner
            .record_ids()?
            .into_iter()
            .filter(|id| asked.contains(id))
        {
            let path = self.record_path(&id);
            let stat = inner.backend().stat(&path);
            let bytes = stat.map_or(0, |stat| if stat.links == 1 { stat.len_bytes } else { 0 });
            let gone = match options.dry_run {
                true => inner.is_record_free(&id)?,
                false => match inner.remove_record(&id) {
                    Err(StoreError::InUse { .. }) => false,
                    removed => removed.map(|_| true)?,
                },
            };
            match gone {
                true => {
                    report.given_up.push(id);
                    report.record_bytes += bytes;
                }
                false => report.in_use.push(id),
            }
        }
        if !options.dry_run && !report.given_up.is_empty() {
            inner.sync_dir(&inner.points_dir())?;
        }
        Ok(())
    }
}
