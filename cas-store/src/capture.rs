//! Storing chunks: one capture is one session.

use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::codec::{Compression, PreparedChunk, check_length, encode};
use crate::error::{ReadError, StoreError};
use crate::pack::sink::{PackLimits, PackSink};
use crate::packset::PackSet;
use crate::place::{Admitted, admit};
use crate::session::Session;
use crate::store::Inner;
use crate::{
    ChunkId, DEFAULT_PACK_BYTES, DEFAULT_PACK_CHUNKS, MAX_PACKS_PER_POINT, PackId, Pinned,
};

/// How many of the store's newest packs a capture looks for duplicates in, beside the parents it is given.
pub const RECENT_PACKS: usize = 32;
/// How many bytes of those packs' indexes a capture reads at most.
const RECENT_INDEX_BYTES: u64 = 32 << 20;

/// How a capture stores chunks.
#[derive(Debug, Clone)]
pub struct CaptureOptions {
    /// The codec to try.
    pub compression: Compression,
    /// Packs of this store to look for duplicates in, whatever their age: those of the head. Unknown ones are ignored.
    pub parents: Vec<PackId>,
    /// A new pack is begun when one would exceed this length.
    pub max_pack_bytes: u64,
    /// A new pack is begun after so many chunks (at most 262,144).
    pub max_pack_chunks: usize,
}

impl Default for CaptureOptions {
    fn default() -> Self {
        Self {
            compression: Compression::default(),
            parents: Vec::new(),
            max_pack_bytes: DEFAULT_PACK_BYTES,
            max_pack_chunks: DEFAULT_PACK_CHUNKS,
        }
    }
}

/// What a capture did so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CaptureStats {
    /// Non-zero bytes given to the capture, before compression.
    pub data_bytes: u64,
    /// Those of them that were stored already.
    pub shared_bytes: u64,
    /// Bytes written to disk: bodies, and after sealing also indexes.
    pub written_bytes: u64,
}

/// What [`Capture::adopt`] brought into the store.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Adopted {
    /// Bytes of packs that were linked.
    pub linked_bytes: u64,
    /// Bytes of packs that were copied, verified.
    pub copied_bytes: u64,
    /// Chunks that neither the capture nor the source holds, or that are damaged there: to be put.
    pub missing: Vec<ChunkId>,
}

/// A running capture. Chunks may be put from several threads; hashing and compression happen outside all locks.
/// Dropped unsealed, it leaves nothing.
#[derive(Debug)]
pub struct Capture {
    store: Arc<Inner>,
    compression: Compression,
    /// Pinned packs that duplicates are found in.
    known: PackSet,
    sink: PackSink,
    data_bytes: AtomicU64,
    shared_bytes: AtomicU64,
    // Last: its drop removes the files that the sink made.
    session: Session,
}

impl Capture {
    pub(crate) fn begin(store: &Arc<Inner>, options: CaptureOptions) -> Result<Self, StoreError> {
        let _lock = store.lock_shared()?;
        let session = Session::begin(store)?;
        let known = recent_packs(store, &options.parents)?;
        session.pin(known.iter().copied())?;
        let files = known.iter().map(|id| (*id, store.pack_path(id))).collect();
        let sink = PackSink::new(
            store.shared_backend(),
            store.staging_dir(),
            session.name().to_owned(),
            PackLimits::new(options.max_pack_bytes, options.max_pack_chunks),
        );
        Ok(Self {
            store: Arc::clone(store),
            compression: options.compression,
            known: PackSet::of_files(store.shared_backend(), files),
            sink,
            data_bytes: AtomicU64::new(0),
            shared_bytes: AtomicU64::new(0),
            session,
        })
    }

    /// Stores a chunk of 1 to 65,536 bytes, unless it is zero or stored already.
    ///
    /// # Errors
    /// [`StoreError::InvalidChunkLength`]; a failed write, after which this capture can only be dropped.
    pub fn put(&self, data: &[u8]) -> Result<ChunkId, StoreError> {
        check_length(data)?;
        let id = ChunkId::of(data);
        if id.is_zero() {
            return Ok(id);
        }
        let stored = self.raw_len(&id)?.is_some()
            || !encode(data, self.compression, |codec, stored| {
                self.sink.append_encoded(id, data.len(), codec, stored)
            })??;
        self.count(data.len() as u64, stored);
        Ok(id)
    }

    /// Stores several chunks.
    ///
    /// # Errors
    /// As [`Self::put`]; the chunks before the failing one may be stored.
    pub fn put_batch<'a>(
        &self,
        chunks: impl IntoIterator<Item = &'a [u8]>,
    ) -> Result<Vec<ChunkId>, StoreError> {
        chunks.into_iter().map(|data| self.put(data)).collect()
    }

    /// Stores a chunk that was hashed and compressed elsewhere. Says whether it is new.
    ///
    /// # Errors
    /// As [`Self::put`].
    pub fn append(&self, chunk: &PreparedChunk) -> Result<bool, StoreError> {
        if chunk.id.is_zero() {
            return Ok(false);
        }
        let stored = self.raw_len(&chunk.id)?.is_some() || !self.sink.append(chunk)?;
        self.count(chunk.raw_len as u64, stored);
        Ok(!stored)
    }

    /// Counts a chunk that is part of the point without giving its bytes: one that did not change since the head.
    /// Says whether the capture holds it; if not, it must be adopted or put.
    ///
    /// # Errors
    /// A pack cannot be read.
    pub fn reference(&self, id: &ChunkId) -> Result<bool, StoreError> {
        if id.is_zero() {
            return Ok(true);
        }
        let len = self.raw_len(id)?;
        self.count(len.unwrap_or(0).into(), true);
        Ok(len.is_some())
    }

    /// Whether the point could name this chunk as things are.
    ///
    /// # Errors
    /// A pack cannot be read.
    pub fn contains(&self, id: &ChunkId) -> Result<bool, StoreError> {
        Ok(id.is_zero() || self.raw_len(id)?.is_some())
    }

    fn raw_len(&self, id: &ChunkId) -> Result<Option<u32>, StoreError> {
        if let Some(len) = self.sink.raw_len(id) {
            return Ok(Some(len));
        }
        match self.known.info(id) {
            Ok(info) => Ok(info.map(|info| info.raw_bytes)),
            // A damaged pack is no reason to fail: the chunk is stored again.
            Err(ReadError::DamagedPack { .. }) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    fn count(&self, bytes: u64, shared: bool) {
        self.data_bytes.fetch_add(bytes, Ordering::Relaxed);
        if shared {
            self.shared_bytes.fetch_add(bytes, Ordering::Relaxed);
        }
    }

    /// Brings the packs of `from` that hold `ids` into this store: this user's sealed ones by hard link, others, and where links
    /// are refused, by copy. Every body is verified before anything can be shared with it; of a damaged pack the sound
    /// chunks are taken, the others are reported missing. Chunks that the capture knows already cost nothing.
    ///
    /// # Errors
    /// Trouble of the system.
    pub fn adopt<'a>(
        &self,
        from: &PackSet,
        ids: impl IntoIterator<Item = &'a ChunkId>,
    ) -> Result<Adopted, StoreError> {
        let mut wanted = Vec::new();
        for id in ids {
            if !self.contains(id)? {
                wanted.push(*id);
            }
        }
        from.while_packs_vanish(|from| self.try_adopt(from, &wanted))
    }

    fn try_adopt(&self, from: &PackSet, wanted: &[ChunkId]) -> Result<Adopted, StoreError> {
        let mut adopted = Adopted::default();
        let (slots, missing) = from.cover(wanted)?;
        adopted.missing = missing;
        {
            let _lock = self.store.lock_shared()?;
            self.session.pin(slots.iter().map(|slot| slot.id))?;
        }
        let verified = self.store.verified()?;
        let (mut new, mut damaged) = (Vec::new(), false);
        for slot in &slots {
            let staged = self.session.staged_link();
            let placed = admit(&self.store, &slot.path, &slot.id, &staged, &verified);
            match self.store.watch(placed)? {
                Admitted::Known => {}
                Admitted::Verified => new.push(slot.id),
                Admitted::Linked(bytes) => {
                    adopted.linked_bytes += bytes;
                    new.push(slot.id);
                }
                Admitted::Copied(bytes) => {
                    adopted.copied_bytes += bytes;
                    new.push(slot.id);
                }
                Admitted::Damaged => {
                    damaged = true;
                    continue;
                }
            }
            self.known.add_file(slot.id, self.store.pack_path(&slot.id));
        }
        if !new.is_empty() {
            self.store.sync_dir(&self.store.packs_dir())?;
            self.store.note_verified(&new);
        }
        if damaged {
            self.salvage(from, wanted, &mut adopted)?;
        }
        Ok(adopted)
    }

    /// Stores what is sound in packs that are not, chunk by chunk.
    fn salvage(
        &self,
        from: &PackSet,
        wanted: &[ChunkId],
        adopted: &mut Adopted,
    ) -> Result<(), StoreError> {
        let missing: HashSet<ChunkId> = adopted.missing.iter().copied().collect();
        let mut stored = Vec::new();
        for id in wanted {
            if missing.contains(id) || self.contains(id)? {
                continue;
            }
            match from.get_stored(id, &mut stored) {
                Ok(entry) => {
                    self.sink.append_stored(entry, &stored)?;
                    adopted.copied_bytes += u64::from(entry.stored_len);
                }
                Err(error) if error.is_damage() => {
                    tracing::warn!(chunk = %id, %error, "a damaged chunk is not taken into the store");
                    adopted.missing.push(*id);
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Keeps a point whose chunks are `ids` within `max_packs` packs (see [`MAX_PACKS_PER_POINT`]): if they lie in more,
    /// the chunks in the packs that hold the fewest of them are stored again. Returns the bytes so written. To be called
    /// last before [`Self::seal`].
    ///
    /// # Errors
    /// A chunk is missing or damaged, or a write fails.
    pub fn limit_packs(&self, ids: &[ChunkId], max_packs: usize) -> Result<u64, StoreError> {
        let mut per_pack: HashMap<PackId, Vec<ChunkId>> = HashMap::new();
        for id in ids
            .iter()
            .filter(|id| !id.is_zero() && self.sink.raw_len(id).is_none())
        {
            let info = self
                .known
                .info(id)?
                .ok_or(ReadError::NotFound { chunk: *id })?;
            per_pack.entry(info.pack).or_default().push(*id);
        }
        let written_before = self.sink.written_bytes();
        let new_packs = self.sink.packs();
        let max_packs = max_packs.clamp(1, MAX_PACKS_PER_POINT);
        if per_pack.len() + new_packs <= max_packs {
            return Ok(0);
        }
        let mut packs: Vec<_> = per_pack.into_iter().collect();
        packs.sort_unstable_by_key(|(_, chunks)| std::cmp::Reverse(chunks.len()));
        let dropped = packs.split_off(max_packs.saturating_sub(new_packs.max(1)).min(packs.len()));
        // Who publishes the point must find each chunk in the packs that stay.
        self.known
            .prioritize(&packs.iter().map(|(id, _)| *id).collect::<Vec<_>>());
        let mut stored = Vec::new();
        for id in dropped.iter().flat_map(|(_, chunks)| chunks) {
            let entry = self.known.get_stored(id, &mut stored)?;
            self.sink.append_stored(entry, &stored)?;
        }
        Ok(self.sink.written_bytes() - written_before)
    }

    /// What was done so far.
    #[must_use]
    pub fn stats(&self) -> CaptureStats {
        CaptureStats {
            data_bytes: self.data_bytes.load(Ordering::Relaxed),
            shared_bytes: self.shared_bytes.load(Ordering::Relaxed),
            written_bytes: self.sink.written_bytes(),
        }
    }

    /// See [`crate::Pin::stage_outside`].
    ///
    /// # Errors
    /// As there.
    pub fn stage_outside(&self, dir: &Path) -> Result<(), StoreError> {
        self.session.stage_outside(dir)
    }

    /// Seals the new packs and makes them durable: file synced, renamed into the store, directory synced.
    ///
    /// # Errors
    /// A write or sync fails: nothing of this capture is to be used. A failed sync poisons the store.
    pub fn seal(self) -> Result<SealedCapture, StoreError> {
        self.store.check_usable()?;
        let mut stats = self.stats();
        let staged = self.store.watch(self.sink.finish())?;
        {
            let _lock = self.store.lock_shared()?;
            self.session.pin(staged.iter().map(|pack| pack.id))?;
        }
        stats.written_bytes = 0;
        let verified = self.store.verified()?;
        for pack in &staged {
            self.store.publish_pack(pack, &verified)?;
            stats.written_bytes += pack.len_bytes;
            self.known.add_file(pack.id, self.store.pack_path(&pack.id));
        }
        self.store.sync_dir(&self.store.packs_dir())?;
        let packs: Vec<_> = staged.iter().map(|pack| pack.id).collect();
        self.store.note_verified(&packs);
        self.known.prioritize(&packs);
        Ok(SealedCapture {
            known: self.known,
            packs,
            stats,
            session: self.session,
        })
    }
}

/// A capture whose packs are durable. They stay protected until this is dropped: publish first.
#[derive(Debug)]
pub struct SealedCapture {
    known: PackSet,
    packs: Vec<PackId>,
    stats: CaptureStats,
    session: Session,
}

impl SealedCapture {
    /// The packs that the capture wrote.
    #[must_use]
    pub fn packs(&self) -> &[PackId] {
        &self.packs
    }

    /// All chunks that the point may name.
    #[must_use]
    pub fn chunks(&self) -> &PackSet {
        &self.known
    }

    /// What was done.
    #[must_use]
    pub fn stats(&self) -> CaptureStats {
        self.stats
    }

    /// [`PackSet::pin_into`] from this capture.
    ///
    /// # Errors
    /// As there.
    pub fn pin_into<'a, I>(&self, target: &Path, ids: I) -> Result<Pinned, StoreError>
    where
        I: IntoIterator<Item = &'a ChunkId> + Clone,
    {
        self.known.pin_into(target, ids)
    }

    /// See [`crate::Pin::stage_outside`].
    ///
    /// # Errors
    /// As there.
    pub fn stage_outside(&self, dir: &Path) -> Result<(), StoreError> {
        self.session.stage_outside(dir)
    }
}

/// The packs to look for duplicates in, all verified: `parents` that exist, then those that came last, within the limits.
fn recent_packs(store: &Inner, parents: &[PackId]) -> Result<Vec<PackId>, StoreError> {
    let verified = store.verified()?;
    let len_if_present = |id: &PackId| {
        let path = store.pack_path(id);
        match store.backend().stat(&path) {
            Ok(stat) => Ok(verified.has(id, &stat).then_some(stat.len_bytes)),
            // Swept.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(StoreError::io("find", &path)(error)),
        }
    };
    let parents: HashSet<&PackId> = parents.iter().collect();
    let mut chosen: Vec<PackId> = Vec::new();
    let (mut recent, mut index_bytes) = (0, 0);
    for id in verified.newest_first() {
        let is_parent = parents.contains(id);
        if !is_parent && recent == RECENT_PACKS {
            continue;
        }
        let Some(len_bytes) = len_if_present(id)? else {
            continue;
        };
        // An entry has 48 bytes; a compressed chunk mostly has more than 12 KiB.
        let guess = len_bytes / 256;
        if is_parent {
            chosen.push(*id);
        } else if index_bytes + guess <= RECENT_INDEX_BYTES {
            recent += 1;
            index_bytes += guess;
            chosen.push(*id);
        }
    }
    Ok(chosen)
}
