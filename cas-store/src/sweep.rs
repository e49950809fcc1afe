//! Giving back the packs that nobody needs.

use std::collections::HashMap;
use std::error::Error;
use std::sync::Arc;

use crate::error::{ReadError, StoreError};
use crate::packset::{PackSet, PackSlot};
use crate::place::remove_leftovers;
use crate::session;
use crate::store::{Inner, Store};
use crate::{ChunkId, PackId};

/// What lists the chunks that a point's record names. The store does not know records; the caller does.
///
/// Implemented for closures. An error keeps everything: a sweep never guesses.
pub trait RecordChunks {
    /// Calls `visit` with every chunk that the record names, zero chunks and repetitions allowed.
    ///
    /// # Errors
    /// The record cannot be read.
    fn chunks(
        &self,
        record: &[u8],
        visit: &mut dyn FnMut(ChunkId),
    ) -> Result<(), Box<dyn Error + Send + Sync>>;
}

impl<F> RecordChunks for F
where
    F: Fn(&[u8], &mut dyn FnMut(ChunkId)) -> Result<(), Box<dyn Error + Send + Sync>>,
{
    fn chunks(
        &self,
        record: &[u8],
        visit: &mut dyn FnMut(ChunkId),
    ) -> Result<(), Box<dyn Error + Send + Sync>> {
        self(record, visit)
    }
}

/// What a sweep found and did (or, dry, would do).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SweepReport {
    /// Packs of the store before the sweep.
    pub packs: usize,
    /// Packs removed.
    pub removed_packs: usize,
    /// Bytes given back.
    pub removed_bytes: u64,
    /// Packs kept only because a running capture or restore pins them.
    pub pinned_packs: usize,
    /// Packs kept only because links outside the store exist (checkpoint directories, machines).
    pub linked_packs: usize,
    /// Damaged packs kept because they may hold chunks that are missing.
    pub damaged_packs: usize,
    /// Chunks that a point names and no pack holds: damage for `check` to explain.
    pub missing_chunks: u64,
}

/// How much of each pack the points need.
#[derive(Debug, Default)]
pub(crate) struct Liveness {
    packs: HashMap<PackId, LivePack>,
    pub(crate) missing_chunks: u64,
}

/// The live chunks of one pack, one bit for each entry of its index.
#[derive(Debug)]
pub(crate) struct LivePack {
    bits: Vec<u64>,
    pub(crate) live_bytes: u64,
}

impl LivePack {
    fn mark(&mut self, position: usize, stored_bytes: u32) {
        let (word, bit) = (position / 64, 1 << (position % 64));
        if self.bits[word] & bit == 0 {
            self.bits[word] |= bit;
            self.live_bytes += u64::from(stored_bytes);
        }
    }

    /// Whether the entry at `position` of the pack's index is needed.
    pub(crate) fn is_live(&self, position: usize) -> bool {
        self.bits[position / 64] & (1 << (position % 64)) != 0
    }
}

impl Liveness {
    /// Marks one chunk in the first pack of `packs` that holds it.
    pub(crate) fn mark(&mut self, packs: &PackSet, id: &ChunkId) -> Result<(), StoreError> {
        if id.is_zero() {
            return Ok(());
        }
        let found = match packs.locate(id) {
            // Perhaps it is in there: `missing_chunks` then keeps what is damaged.
            Err(ReadError::DamagedPack { .. }) => None,
            found => found?,
        };
        let place = found.and_then(|found| Some((found.pack.index.position(id)?, found)));
        let Some((position, found)) = place else {
            self.missing_chunks += 1;
            return Ok(());
        };
        let words = found.pack.index.len().div_ceil(64);
        self.packs
            .entry(found.pack.id)
            .or_insert_with(|| LivePack {
                bits: vec![0; words],
                live_bytes: 0,
            })
            .mark(position, found.entry.stored_len);
        Ok(())
    }

    /// Marks all chunks of a record.
    pub(crate) fn mark_record(
        &mut self,
        packs: &PackSet,
        name: &dyn std::fmt::Display,
        record: &[u8],
        reader: &dyn RecordChunks,
    ) -> Result<(), StoreError> {
        let mut failed = None;
        let listed = reader.chunks(record, &mut |id| {
            if failed.is_none() {
                failed = self.mark(packs, &id).err();
            }
        });
        if let Some(error) = failed {
            return Err(error);
        }
        listed.map_err(|source| StoreError::Record {
            point: name.to_string(),
            source,
        })
    }

    pub(crate) fn get(&self, id: &PackId) -> Option<&LivePack> {
        self.packs.get(id)
    }
}

impl Store {
    /// Removes the packs that no point of the store, no link outside it and no running session needs. With `dry_run`
    /// nothing is changed.
    ///
    /// # Errors
    /// A record or pack cannot be read: nothing is removed then. The system refuses.
    pub fn sweep(
        &self,
        records: &dyn RecordChunks,
        dry_run: bool,
    ) -> Result<SweepReport, StoreError> {
        let inner = &self.inner;
        let _lock = inner.lock_exclusive()?;
        if !dry_run {
            session::remove_dead(inner)?;
        }
        // Pins before records before links: a session gives its pins up only after one of the others is in place.
        let pinned = session::pinned_packs(inner)?;
        if !dry_run {
            remove_leftovers(inner.backend(), &inner.packs_dir(), |id| {
                pinned.contains(id)
            })?;
        }
        let live = inner.mark_points(records)?;
        let mut report = SweepReport {
            missing_chunks: live.missing_chunks,
            ..SweepReport::default()
        };
        for slot in inner.packs().rescan()?.iter() {
            report.packs += 1;
            if live.get(&slot.id).is_some() {
                continue;
            }
            let stat = inner.backend().stat(&slot.path);
            let stat = stat.map_err(StoreError::io("find", &slot.path))?;
            if pinned.contains(&slot.id) {
                report.pinned_packs += 1;
            } else if stat.links > 1 {
                report.linked_packs += 1;
            } else if live.missing_chunks > 0 && inner.packs().open_slot(slot).is_err() {
                report.damaged_packs += 1;
            } else {
                report.removed_packs += 1;
                report.removed_bytes += stat.len_bytes;
                if !dry_run {
                    inner.remove_pack(slot)?;
                }
            }
        }
        if !dry_run && report.removed_packs > 0 {
            inner.sync_dir(&inner.packs_dir())?;
            inner.compact_verified()?;
            inner.packs().rescan()?;
        }
        Ok(report)
    }
}

impl Inner {
    /// Which chunks the points kept in the store need.
    pub(crate) fn mark_points(&self, records: &dyn RecordChunks) -> Result<Liveness, StoreError> {
        self.packs().rescan()?;
        let mut live = Liveness::default();
        for id in self.record_ids()? {
            // Removed meanwhile: then it needs nothing.
            let Some(record) = self.record(&id)? else {
                continue;
            };
            live.mark_record(self.packs(), &id, &record, records)?;
        }
        Ok(live)
    }

    pub(crate) fn remove_pack(&self, slot: &Arc<PackSlot>) -> Result<(), StoreError> {
        self.backend()
            .remove(&slot.path)
            .map_err(StoreError::io("remove", &slot.path))
    }
}
