//! A directory of packs that only the caller changes, such as a machine's pins: giving up what nothing needs any more.

use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;

use crate::error::{ReadError, StoreError};
use crate::pack::pack_path;
use crate::pack::sink::{PackLimits, PackSink};
use crate::packset::{PackSet, PackSlot};
use crate::place::remove_leftovers;
use crate::{
    ChunkId, DEFAULT_PACK_BYTES, DEFAULT_PACK_CHUNKS, MAX_CHUNK_BYTES, MAX_PACKS_PER_POINT, PackId,
};
use durable_files::{FileBackend, random_name};

/// Packs of whose bodies at least this part, in percent, is dead are written again.
const SPARSE_PERCENT: u64 = 50;
/// It is not worth while for less.
const WORTHWHILE_BYTES: u64 = 8 << 20;
/// Nor for less than this part of what is alive.
const WORTHWHILE_PART: u64 = 16;
/// Most bytes that are written at a time.
const MAX_WRITTEN_BYTES: u64 = 1 << 30;

/// What [`PackSet::keep_only`] found and did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Kept {
    /// Bytes of the names that were removed. What is linked elsewhere takes its room still.
    pub removed_bytes: u64,
    /// Packs that are left.
    pub packs: usize,
    /// Bytes of the chunks that are needed.
    pub live_bytes: u64,
    /// Bytes of others, in packs that hold mostly those.
    pub dead_bytes: u64,
}

impl Kept {
    /// Whether [`PackSet::compact`] would give enough room back, or bring many packs down to few.
    #[must_use]
    pub fn is_sparse(&self) -> bool {
        self.packs > MAX_PACKS_PER_POINT
            || self.dead_bytes > WORTHWHILE_BYTES + self.live_bytes / WORTHWHILE_PART
    }
}

/// What [`PackSet::compact`] did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Compacted {
    /// Packs that were replaced.
    pub replaced_packs: usize,
    /// Their bytes.
    pub removed_bytes: u64,
    /// Packs written instead.
    pub new_packs: usize,
    /// Their bytes.
    pub written_bytes: u64,
}

/// What is needed of one pack.
struct Use {
    slot: Arc<PackSlot>,
    len_bytes: u64,
    /// Positions in its index.
    live: Vec<usize>,
    live_bytes: u64,
    body_bytes: u64,
}

impl Use {
    fn dead_bytes(&self) -> u64 {
        self.body_bytes.saturating_sub(self.live_bytes)
    }

    fn is_sparse(&self) -> bool {
        let dead = self.dead_bytes();
        dead > 0 && dead * 100 >= self.body_bytes * SPARSE_PERCENT
    }
}

impl PackSet {
    /// Removes the packs of this set that `ids` do not need, and makes that durable. For a directory that only the caller
    /// changes, such as a machine's pins after its head moved on; a store is swept instead.
    ///
    /// # Errors
    /// [`ReadError::NotFound`] if a chunk is missing: nothing is removed then. Trouble of the system.
    pub fn keep_only<'a>(
        &self,
        ids: impl IntoIterator<Item = &'a ChunkId>,
    ) -> Result<Kept, StoreError> {
        let backend = &**self.backend();
        let (needed, unneeded): (Vec<_>, Vec<_>) = self
            .uses(ids)?
            .into_iter()
            .partition(|pack| !pack.live.is_empty());
        let mut kept = Kept {
            packs: needed.len(),
            ..Kept::default()
        };
        for pack in &needed {
            kept.live_bytes += pack.live_bytes;
            if pack.is_sparse() {
                kept.dead_bytes += pack.dead_bytes();
            }
        }
        for pack in &unneeded {
            remove(backend, &pack.slot.path)?;
            kept.removed_bytes += pack.len_bytes;
        }
        for dir in self.dirs() {
            remove_leftovers(backend, dir, |_| false)?;
            backend.sync_dir(dir).map_err(StoreError::io("sync", dir))?;
        }
        self.rescan()?;
        Ok(kept)
    }

    /// Writes those of `ids` that lie in mostly dead packs, or in the smallest of too many, into new packs in the set's
    /// directory, and removes the old ones once that is durable. Readers that meet a vanished pack look again. `go_on` is asked
    /// now and then: where it says no, nothing is changed.
    ///
    /// # Errors
    /// As [`Self::keep_only`]. Whatever fails or is killed when, every chunk is in some pack.
    pub fn compact<'a>(
        &self,
        ids: impl IntoIterator<Item = &'a ChunkId>,
        go_on: &dyn Fn() -> bool,
    ) -> Result<Compacted, StoreError> {
        let backend = &**self.backend();
        let mut done = Compacted::default();
        let [dir] = self.dirs() else {
            return Ok(done);
        };
        let mut sparse = to_rewrite(self.uses(ids)?);
        let prefix = format!(".compact-{}", random_name());
        let limits = PackLimits::new(DEFAULT_PACK_BYTES, DEFAULT_PACK_CHUNKS);
        let sink = PackSink::new(Arc::clone(self.backend()), dir.clone(), prefix, limits);
        if !self.copy_live(&mut sparse, &sink, go_on)? || sparse.is_empty() {
            return Ok(done);
        }
        let mut new: HashSet<PackId> = HashSet::new();
        for pack in sink.finish()? {
            done.new_packs += 1;
            done.written_bytes += pack.len_bytes;
            let to = pack_path(dir, &pack.id);
            backend
                .rename(&pack.path, &to)
                .map_err(StoreError::io("rename", &pack.path))?;
            new.insert(pack.id);
        }
        let sync = || backend.sync_dir(dir).map_err(StoreError::io("sync", dir));
        sync()?;
        // One that was written just as it was replaced itself.
        for pack in sparse.iter().filter(|pack| !new.contains(&pack.slot.id)) {
            remove(backend, &pack.slot.path)?;
            done.replaced_packs += 1;
            done.removed_bytes += pack.len_bytes;
        }
        sync()?;
        self.rescan()?;
        Ok(done)
    }

    /// What `ids` need of each pack, each chunk from one pack only: the largest packs are used first.
    fn uses<'a>(&self, ids: impl IntoIterator<Item = &'a ChunkId>) -> Result<Vec<Use>, StoreError> {
        let mut needed: HashSet<&ChunkId> = ids.into_iter().filter(|id| !id.is_zero()).collect();
        let slots = self.rescan()?;
        let mut packs = Vec::new();
        for slot in slots.iter() {
            let stat = self.backend().stat(&slot.path);
            let stat = stat.map_err(StoreError::io("find", &slot.path))?;
            packs.push((stat.len_bytes, slot));
        }
        packs.sort_by_key(|(len_bytes, _)| std::cmp::Reverse(*len_bytes));
        let mut uses = Vec::with_capacity(packs.len());
        for (len_bytes, slot) in packs {
            let mut used = Use {
                slot: Arc::clone(slot),
                len_bytes,
                live: Vec::new(),
                live_bytes: 0,
                body_bytes: 0,
            };
            if !needed.is_empty() {
                take_from(self, &mut used, &mut needed)?;
            }
            uses.push(used);
        }
        match needed.into_iter().next() {
            None => Ok(uses),
            Some(chunk) => Err(ReadError::NotFound { chunk: *chunk }.into()),
        }
    }

    /// Copies what is needed of packs, verified. One with damage stays as it is. False if it was told not to go on.
    fn copy_live(
        &self,
        packs: &mut Vec<Use>,
        sink: &PackSink,
        go_on: &dyn Fn() -> bool,
    ) -> Result<bool, StoreError> {
        let (mut stored, mut raw) = (Vec::new(), vec![0; MAX_CHUNK_BYTES]);
        let mut intact = Vec::new();
        'packs: for used in packs.drain(..) {
            let pack = self.open_slot(&used.slot)?;
            for position in &used.live {
                if !go_on() {
                    return Ok(false);
                }
                let entry = pack.index.get(*position);
                if pack.read(&entry, &mut stored, &mut raw).is_err() {
                    tracing::warn!(pack = %used.slot.id, chunk = %entry.id, "damaged, left as it is");
                    continue 'packs;
                }
                sink.append_stored(entry, &stored)?;
            }
            intact.push(used);
        }
        *packs = intact;
        Ok(true)
    }
}

/// Takes what one pack has of what is needed.
fn take_from(
    set: &PackSet,
    used: &mut Use,
    needed: &mut HashSet<&ChunkId>,
) -> Result<(), StoreError> {
    let pack = match set.open_slot(&used.slot) {
        Ok(pack) => pack,
        // What it holds is needed from elsewhere, or missing.
        Err(ReadError::DamagedPack { .. }) => return Ok(()),
        Err(error) => return Err(error.into()),
    };
    used.body_bytes = pack.index.body_bytes();
    for (position, entry) in pack.index.entries().enumerate() {
        // An unsorted index would not give it when it is looked up.
        if needed.contains(&entry.id) && pack.index.position(&entry.id) == Some(position) {
            needed.remove(&entry.id);
            used.live.push(position);
            used.live_bytes += u64::from(entry.stored_len);
        }
    }
    Ok(())
}

/// The packs worth writing again, within what is written at a time.
fn to_rewrite(uses: Vec<Use>) -> Vec<Use> {
    let needed = uses.into_iter().filter(|pack| !pack.live.is_empty());
    let (mut chosen, mut rest): (Vec<Use>, Vec<Use>) = needed.partition(Use::is_sparse);
    if chosen.len() + rest.len() > MAX_PACKS_PER_POINT {
        rest.sort_by_key(|pack| std::cmp::Reverse(pack.live_bytes));
        chosen.extend(rest.split_off(rest.len().min(MAX_PACKS_PER_POINT / 2)));
    }
    chosen.sort_by_key(|pack| pack.live_bytes);
    let mut written_bytes = 0;
    chosen.retain(|pack| {
        written_bytes += pack.live_bytes;
        written_bytes <= MAX_WRITTEN_BYTES
    });
    chosen
}

fn remove(backend: &dyn FileBackend, path: &Path) -> Result<(), StoreError> {
    backend.remove(path).map_err(StoreError::io("remove", path))
}
