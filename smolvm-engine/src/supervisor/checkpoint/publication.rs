//! A point becomes durable: in the machine's own directory, in the store and where the user wants it.

use std::collections::HashSet;
use std::{fs, io};

use cas_store::{ChunkId, PackId, PackSet, PointId, SealedCapture, Store, pack_file_name};
use snapshot_format::{CheckpointId, LineageEntry, Point};

use super::Run;
use super::error::CheckpointError;
use crate::channel::control::CheckpointRequest;
use crate::machine::MachineFile;
use crate::phase::Phase;
use crate::point::{
    History, PointError, Publication, publish, read_point, record_file_name, sync_directory,
    write_synced,
};

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
    /// The machine keeps the point by itself: whatever happens to the store, it goes on.
    pub(super) fn pin_into_machine(&self, new: &NewPoint<'_>) -> Result<(), CheckpointError> {
        let dir = &self.shared.dir;
        new.sealed.pin_into(&dir.packs(), new.chunks)?;
        let path = dir.records().join(record_file_name(&new.point.id()));
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
    pub(super) fn unpin(&self, id: &CheckpointId, pinned_before: &HashSet<PackId>) {
        let dir = &self.shared.dir;
        let mut unneeded = vec![dir.records().join(record_file_name(id))];
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
                    tracing::warn!(path = %path.display(), %error, "a leftover of a failed capture is kept");
                }
                _ => {}
            }
        }
    }

    pub(super) fn publish(
        &self,
        store: &Store,
        request: &CheckpointRequest,
        machine: &MachineFile,
        new: &NewPoint<'_>,
    ) -> Result<(), CheckpointError> {
        let dir = &self.shared.dir;
        let id = PointId(new.point.id().0);
        let line = LineageEntry::from(new.point).to_line();
        let Some(output) = &request.output else {
            return Ok(store.put_point(&id, new.record, &line)?);
        };
        let earlier = self.earlier(machine, request.history)?;
        let earlier_packs = PackSet::open([dir.packs()]);
        let published = publish(&Publication {
            target: output,
            record: new.record,
            chunks: new.chunks,
            earlier: earlier.as_ref(),
            earlier_packs: &earlier_packs,
            sealed: new.sealed,
        })?;
        Phase::Published.reached();
        if let Err(error) = store.register_directory(&id, output, &line) {
            published.withdraw();
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
        if limit == 0 {
            return Ok(None);
        }
        let file = records.join(record_file_name(&head));
        let head = read_point(&file, Some(head))?;
        Ok(Some(
            History::follow(head, &file, &records)?.limit(limit - 1),
        ))
    }
}
