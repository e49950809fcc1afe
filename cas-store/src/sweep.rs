//! Giving back the packs that nobody needs.

use std::collections::{HashMap, HashSet};
use std::error::Error;
use std::sync::Arc;

use crate::error::{ReadError, StoreError};
use crate::packset::{PackSet, PackSlot};
use crate::place::remove_leftovers;
use crate::session;
use crate::store::{Inner, Store};
use crate::{ChunkId, PackId, PointId};

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

/// Packs in which chunks are marked, each chunk once: in the first pack that holds it.
pub(crate) struct Marking<'a> {
    packs: &'a PackSet,
    marked: HashSet<ChunkId>,
}

impl<'a> Marking<'a> {
    pub(crate) fn new(packs: &'a PackSet) -> Self {
        Self {
            packs,
            marked: HashSet::new(),
        }
    }
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
    /// Marks one chunk.
    fn mark(&mut self, marking: &mut Marking<'_>, id: &ChunkId) -> Result<(), StoreError> {
        if id.is_zero() || !marking.marked.insert(*id) {
            return Ok(());
        }
        let found = match marking.packs.locate_first(id) {
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
        marking: &mut Marking<'_>,
        name: &dyn std::fmt::Display,
        record: &[u8],
        reader: &dyn RecordChunks,
    ) -> Result<(), StoreError> {
        let mut failed = None;
        let listed = reader.chunks(record, &mut |id| {
            if failed.is_none() {
                failed = self.mark(marking, &id).err();
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
        let pinned = inner.pinned(dry_run)?;
        let live = inner.mark_points(records, &HashSet::new())?;
        Ok(inner.sweep_packs(&live, &pinned, dry_run)?.0)
    }
}

impl Inner {
    /// The packs that living sessions pin; unless it is a dry run, what the dead left is removed. Before records are read and
    /// links counted: a session gives its pins up only after one of the others is in place. The caller holds the store's lock,
    /// exclusive.
    pub(crate) fn pinned(&self, dry_run: bool) -> Result<HashSet<PackId>, StoreError> {
        if dry_run {
            return session::pinned_by_living(self);
        }
        session::remove_dead(self)?;
        let pinned = session::pinned_packs(self)?;
        remove_leftovers(self.backend(), &self.packs_dir(), |id| pinned.contains(id))?;
        Ok(pinned)
    }

    /// Removes the packs that nobody needs, and says which.
    pub(crate) fn sweep_packs(
        &self,
        live: &Liveness,
        pinned: &HashSet<PackId>,
        dry_run: bool,
    ) -> Result<(SweepReport, HashSet<PackId>), StoreError> {
        let mut removed = HashSet::new();
        let mut report = SweepReport {
            missing_chunks: live.missing_chunks,
            ..SweepReport::default()
        };
        for slot in self.packs().rescan()?.iter() {
            report.packs += 1;
            if live.get(&slot.id).is_some() {
                continue;
            }
            let stat = self.backend().stat(&slot.path);
            let stat = stat.map_err(StoreError::io("find", &slot.path))?;
            if pinned.contains(&slot.id) {
                report.pinned_packs += 1;
            } else if stat.links > 1 {
                report.linked_packs += 1;
            } else if live.missing_chunks > 0 && self.packs().open_slot(slot).is_err() {
                report.damaged_packs += 1;
            } else {
                report.removed_packs += 1;
                report.removed_bytes += stat.len_bytes;
                removed.insert(slot.id);
                if !dry_run {
                    self.remove_pack(slot)?;
                }
            }
        }
        if !dry_run && report.removed_packs > 0 {
            self.sync_dir(&self.packs_dir())?;
            self.compact_verified()?;
            self.packs().rescan()?;
        }
        Ok((report, removed))
    }

    /// Which chunks the points kept in the store need, but for those in `without`.
    pub(crate) fn mark_points(
        &self,
        records: &dyn RecordChunks,
        without: &HashSet<PointId>,
    ) -> Result<Liveness, StoreError> {
        self.order_for_marking()?;
        let mut marking = Marking::new(self.packs());
        let mut live = Liveness::default();
        for id in self.record_ids()? {
            if without.contains(&id) {
                continue;
            }
            // Removed meanwhile: then it needs nothing.
            let Some(record) = self.record(&id)? else {
                continue;
            };
            live.mark_record(&mut marking, &id, &record, records)?;
        }
        Ok(live)
    }

    /// Puts those packs first that were verified: of several that hold a chunk, the others may be damaged. Among them first those that
    /// stay in any case since they have links elsewhere, then the largest; what the others hold too, as after a repack that was cut
    /// off, can go.
    fn order_for_marking(&self) -> Result<(), StoreError> {
        let (verified, mut order) = (self.verified()?, Vec::new());
        for slot in self.packs().rescan()?.iter() {
            let stat = self.backend().stat(&slot.path);
            let stat = stat.map_err(StoreError::io("find", &slot.path))?;
            let is_verified = verified.has(&slot.id, &stat);
            order.push((is_verified, stat.links > 1, stat.len_bytes, slot.id));
        }
        order.sort_unstable_by(|one, other| other.cmp(one));
        let order: Vec<PackId> = order.into_iter().map(|(.., id)| id).collect();
        self.packs().prioritize(&order);
        Ok(())
    }

    pub(crate) fn remove_pack(&self, slot: &Arc<PackSlot>) -> Result<(), StoreError> {
        self.backend()
            .remove(&slot.path)
            .map_err(StoreError::io("remove", &slot.path))
    }
}
