//! What each point of a store takes.

use std::collections::{HashMap, HashSet};

use crate::error::ReadError;
use crate::store::Store;
use crate::sweep::RecordChunks;
use crate::{ChunkId, PackId, PointId, StoreError};

/// What the data of a point takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PointUsage {
    /// The point.
    pub id: PointId,
    /// Bytes, as stored, that no other point needs, in packs that only the store has: what deleting it gives back. The rest,
    /// `shared_bytes`, stays. `None` if its record, or a map of it, cannot be read.
    pub bytes: Option<OwnAndShared>,
}

/// Bytes of one, and bytes of several.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct OwnAndShared {
    /// Only it needs them.
    pub own_bytes: u64,
    /// Others need them as well.
    pub shared_bytes: u64,
}

/// Who needs a chunk.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Owner {
    One(usize),
    Several,
}

impl Store {
    /// What each of the points takes that are kept here, in the order of their ids. Changes nothing.
    ///
    /// # Errors
    /// The directories or packs cannot be read.
    pub fn point_usage(&self, records: &dyn RecordChunks) -> Result<Vec<PointUsage>, StoreError> {
        let inner = &self.inner;
        inner.packs().rescan()?;
        let mut ids = inner.record_ids()?;
        ids.sort_unstable();
        let mut owners: HashMap<ChunkId, (Owner, u32)> = HashMap::new();
        let mut linked: HashMap<PackId, bool> = HashMap::new();
        let mut usage = Vec::with_capacity(ids.len());
        for (number, id) in ids.into_iter().enumerate() {
            // Deleted since it was listed.
            let Some(record) = inner.record(&id)? else {
                continue;
            };
            let mut chunks = HashSet::new();
            let listed = records.chunks(&record, &mut |chunk| {
                if !chunk.is_zero() {
                    chunks.insert(chunk);
                }
            });
            let mut total_bytes = 0;
            for chunk in chunks {
                let info = match inner.packs().info(&chunk) {
                    // It takes nothing, and is told elsewhere.
                    Ok(None) | Err(ReadError::DamagedPack { .. }) => continue,
                    Ok(Some(info)) => info,
                    Err(error) => return Err(error.into()),
                };
                total_bytes += u64::from(info.stored_bytes);
                let is_linked = *linked.entry(info.pack).or_insert_with(|| {
                    let stat = inner.backend().stat(&inner.pack_path(&info.pack));
                    stat.is_ok_and(|stat| stat.links > 1)
                });
                let first = match is_linked {
                    true => Owner::Several,
                    false => Owner::One(number),
                };
                let owner = owners.entry(chunk).or_insert((first, info.stored_bytes));
                if owner.0 != first {
                    owner.0 = Owner::Several;
                }
            }
            usage.push((number, id, listed.is_ok().then_some(total_bytes)));
        }
        let mut own: HashMap<usize, u64> = HashMap::new();
        for (owner, bytes) in owners.values() {
            if let Owner::One(number) = owner {
                *own.entry(*number).or_default() += u64::from(*bytes);
            }
        }
        let of = |(number, id, total): (usize, PointId, Option<u64>)| {
            let own_bytes = own.get(&number).copied().unwrap_or(0);
            let bytes = total.map(|total| OwnAndShared {
                own_bytes,
                shared_bytes: total.saturating_sub(own_bytes),
            });
            PointUsage { id, bytes }
        };
        Ok(usage.into_iter().map(of).collect())
    }
}
