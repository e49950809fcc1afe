//! A point becomes durable: in the machine's own directory, in the store and where the user wants it.

use std::collections::HashSet;
use std::{fs, io};

use cas_store::{ChunkId, PackId, PackSet, PointId, SealedCapture, Store, pack_file_name};
use snapshot_format::{LineageEntry, Point};

use super::Run;
use super::error::CheckpointError;
use crate::channel::control::CheckpointRequest;
use crate::error_chain::chain;
use crate::machine::MachineFile;
use crate::phase::Phase;
use crate::point::{
    History, Output, PointError, Publication, publish, read_point, record_file_name,
    sync_directory, write_synced,
};
use crate::supervisor::tidy;

/// A point that is sealed and to become durable.
pub(super) struct NewPoint<'a> {
    pub(super) point: &'a Point,
    /// Its record's bytes.
    pub(super) record: &'a [u8],
    /// All chunks that it needs.
    pub(super) chunks: &'a [ChunkId],
    /// The capture that holds them.
    pub(super) sealed: &'a SealedCapture,
}

impl Run<'_> {
    /// The machine keeps the point by itself: whatever happens to the store, it goes on. Its record gets this name. `sound` are the
    /// machine's packs, if they hold what they should.
    pub(super) fn pin_into_machine(
        &self,
        new: &NewPoint<'_>,
        record_name: &str,
        sound: Option<&PackSet>,
    ) -> Result<(), CheckpointError> {
        let dir = &self.shared.dir;
        match sound {
            // What it has already may lie in other packs of the store, which it gave up before.
            Some(packs) => {
                let lacking = packs.missing(new.chunks).map_err(PointError::from)?;
                new.sealed.pin_into(&dir.packs(), &lacking)?;
            }
            None => drop(new.sealed.pin_into(&dir.packs(), new.chunks)?),
        }
        let path = dir.records().join(record_name);
        if !path.exists() {
            write_synced(&path, new.record)?;
            sync_directory(&dir.records())?;
        }
        Phase::Pinned.reached();
        Ok(())
    }

    /// The packs that the machine has.
    pub(super) fn pinned_packs(&self) -> Result<HashSet<PackId>, CheckpointError> {
        let packs = PackSet::open([self.shared.dir.packs()]).packs();
        Ok(packs.map_err(PointError::from)?.into_iter().collect())
    }

    /// Undoes [`Run::pin_into_machine`] for a point that was not published.
    pub(super) fn unpin(&self, record_name: &str, pinned_before: &HashSet<PackId>) {
        let dir = &self.shared.dir;
        let mut unneeded = vec![dir.records().join(record_name)];
        match self.pinned_packs() {
            Ok(packs) => unneeded.extend(
                packs
                    .difference(pinned_before)
                    .map(|pack| dir.packs().join(pack_file_name(pack))),
            ),
            Err(error) => tracing::warn!(%error, "packs of a point that failed are kept"),
        }
        for path in unneeded {
            match fs::remove_file(&path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    tracing::warn!(path = %crate::error_chain::place(&path), %error, "a leftover of a failed capture is kept");
                }
                _ => {}
            }
        }
    }

    pub(super) fn publish(
        &self,
        store: &Store,
        request: &CheckpointRequest,
        output: Option<Output>,
        machine: &MachineFile,
        new: &NewPoint<'_>,
    ) -> Result<(), CheckpointError> {
        let dir = &self.shared.dir;
        let id = PointId(new.point.id().0);
        let line = LineageEntry::from(new.point).to_line();
        let (Some(output), Some(path)) = (output, &request.output) else {
            return Ok(store.put_point(&id, new.record, &line)?);
        };
        let earlier = self.earlier(machine, request.history)?;
        let earlier_packs = PackSet::open([dir.packs()]);
        let publication = Publication {
            record: new.record,
            chunks: new.chunks,
            earlier: earlier.as_ref(),
            earlier_packs: &earlier_packs,
            sealed: new.sealed,
        };
        let published = publish(output, &publication)?;
        Phase::Published.reached();
        if let Err(error) = store.register_directory(&id, path, &line) {
            if let Err(error) = published.withdraw() {
                let error = chain(&error);
                tracing::error!(%error, "a checkpoint that failed is left behind");
            }
            return Err(error.into());
        }
        Ok(())
    }

    /// The machine's head and its parents, at most `limit`.
    fn earlier(
        &self,
        machine: &MachineFile,
        limit: usize,
    ) -> Result<Option<History>, CheckpointError> {
        let Some(head) = machine.head.as_ref().and_then(|head| head.parse().ok()) else {
            return Ok(None);
        };
        let records = self.shared.dir.records();
        let Some(before_head) = limit.checked_sub(1) else {
            return Ok(None);
        };
        let file = records.join(record_file_name(&head));
        match read_point(&file, Some(head)) {
            Ok(head) => Ok(Some(History::follow(head, &file, &records, before_head))),
            // The new point is sound without it.
            Err(error) => {
                tracing::warn!(error = %chain(&error), "the earlier points are left out");
                Ok(None)
            }
        }
    }

    /// Gives up what the machine need not keep any more. Where that fails it costs room. Says whether what is left is worth
    /// writing anew.
    pub(super) fn keep_history(&self, begun_at: Option<&Point>) -> bool {
        let dir = &self.shared.dir;
        let kept = match dir.read() {
            Ok(Some(machine)) => tidy::keep_history(dir, &machine, begun_at),
            Ok(None) => return false,
            Err(error) => {
                tracing::warn!(%error, "earlier points are kept");
                return false;
            }
        };
        match kept {
            Ok(kept) => kept.is_sparse(),
            Err(error) => {
                tracing::warn!(error = %chain(&error), "earlier points are kept");
                false
            }
        }
    }
}
