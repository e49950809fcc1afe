//! A read-only view over directories of packs.

mod cache;
mod slot;

use std::collections::{HashMap, HashSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use crate::error::{PackError, ReadError, StoreError};
use crate::pack::layout::Entry;
use crate::pack::reader::{EntryError, Pack};
use crate::pack::{pack_path, parse_file_name};
use crate::{ChunkId, MAX_CHUNK_BYTES, PackId};
use durable_files::{FileBackend, OsBackend};

use cache::OpenPacks;
pub(crate) use slot::PackSlot;

/// Most packs looked at in one set; more are an error, not an endless scan.
pub const MAX_PACKS_PER_SET: usize = 16_384;

/// Chunks found in one or more directories of `*.pack` files: a checkpoint's, a machine's, a store's.
///
/// Nothing is read when a set is made. Directories are listed at the first lookup, a pack is opened when a lookup
/// reaches it, and a bounded number of packs stays open. All methods take `&self` and may be called from several
/// threads. A pack that was replaced meanwhile (repack links the new one first) is found by listing again once.
///
/// Every chunk is verified against its id as it is read; if one pack's copy is damaged, the others are tried.
#[derive(Debug)]
pub struct PackSet {
    backend: Arc<dyn FileBackend>,
    dirs: Vec<PathBuf>,
    slots: RwLock<Option<Arc<Vec<Arc<PackSlot>>>>>,
    open: OpenPacks,
    /// Where the last lookup hit; neighbours mostly lie in the same pack.
    hint: AtomicUsize,
}

/// What is known about a chunk without reading it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChunkInfo {
    /// The pack it was found in.
    pub pack: PackId,
    /// Its length.
    pub raw_bytes: u32,
    /// The bytes it takes in the pack.
    pub stored_bytes: u32,
}

/// One pack that holds a chunk.
pub(crate) struct Located {
    pub(crate) slot: Arc<PackSlot>,
    pub(crate) pack: Arc<Pack>,
    pub(crate) entry: Entry,
}

type Slots = Arc<Vec<Arc<PackSlot>>>;

impl PackSet {
    /// The packs in `dirs` of this host's file system.
    pub fn open<P: Into<PathBuf>>(dirs: impl IntoIterator<Item = P>) -> Self {
        Self::with_backend(Arc::new(OsBackend), dirs)
    }

    /// The packs in `dirs` of another backend.
    pub fn with_backend<P: Into<PathBuf>>(
        backend: Arc<dyn FileBackend>,
        dirs: impl IntoIterator<Item = P>,
    ) -> Self {
        Self {
            backend,
            dirs: dirs.into_iter().map(Into::into).collect(),
            slots: RwLock::new(None),
            open: OpenPacks::default(),
            hint: AtomicUsize::new(0),
        }
    }

    /// Exactly these pack files; they are not listed again. For packs that are pinned.
    pub(crate) fn of_files(backend: Arc<dyn FileBackend>, files: Vec<(PackId, PathBuf)>) -> Self {
        let slots = files
            .into_iter()
            .map(|(id, path)| Arc::new(PackSlot::new(id, path)))
            .collect();
        let set = Self::with_backend(backend, Vec::<PathBuf>::new());
        set.replace_slots(slots);
        set
    }

    pub(crate) fn backend(&self) -> &Arc<dyn FileBackend> {
        &self.backend
    }

    pub(crate) fn dirs(&self) -> &[PathBuf] {
        &self.dirs
    }

    /// Adds one more file to look into.
    pub(crate) fn add_file(&self, id: PackId, path: PathBuf) {
        let mut guard = self.slots.write().unwrap_or_else(PoisonError::into_inner);
        let mut slots: Vec<_> = guard.as_deref().cloned().unwrap_or_default();
        if !slots.iter().any(|slot| slot.path == path) {
            slots.push(Arc::new(PackSlot::new(id, path)));
            *guard = Some(Arc::new(slots));
        }
    }

    /// Puts these packs first, in this order: [`Self::cover`] takes the first pack that has a chunk.
    pub(crate) fn prioritize(&self, ids: &[PackId]) {
        let mut guard = self.slots.write().unwrap_or_else(PoisonError::into_inner);
        let mut slots: Vec<_> = guard.as_deref().cloned().unwrap_or_default();
        let places: HashMap<&PackId, usize> = ids.iter().zip(0..).collect();
        slots.sort_by_key(|slot| places.get(&slot.id).copied().unwrap_or(ids.len()));
        *guard = Some(Arc::new(slots));
    }

    fn replace_slots(&self, slots: Vec<Arc<PackSlot>>) -> Slots {
        let slots = Arc::new(slots);
        let mut guard = self.slots.write().unwrap_or_else(PoisonError::into_inner);
        *guard = Some(Arc::clone(&slots));
        slots
    }

    /// The packs, listed if they never were.
    pub(crate) fn slots(&self) -> Result<Slots, ReadError> {
        let known = self
            .slots
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        known.map_or_else(|| self.rescan(), Ok)
    }

    /// Lists the directories again; packs that are still there stay open.
    pub(crate) fn rescan(&self) -> Result<Slots, ReadError> {
        let known = self
            .slots
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        if self.dirs.is_empty() {
            return Ok(known.unwrap_or_default());
        }
        let mut slots = Vec::new();
        for dir in &self.dirs {
            for (id, path) in list_packs(&*self.backend, dir)? {
                let same = known
                    .iter()
                    .flat_map(|slots| slots.iter())
                    .find(|s| s.path == path);
                slots.push(
                    same.cloned()
                        .unwrap_or_else(|| Arc::new(PackSlot::new(id, path))),
                );
            }
        }
        Ok(self.replace_slots(slots))
    }

    /// The ids of all packs, as their file names say.
    ///
    /// # Errors
    /// A directory cannot be listed.
    pub fn packs(&self) -> Result<Vec<PackId>, ReadError> {
        Ok(self.slots()?.iter().map(|slot| slot.id).collect())
    }

    /// Whether a pack holds `id` (always true for the zero chunk). Nothing is decoded.
    ///
    /// # Errors
    /// A pack or directory cannot be read; damaged packs count only if the chunk is found nowhere else.
    pub fn contains(&self, id: &ChunkId) -> Result<bool, ReadError> {
        Ok(id.is_zero() || self.locate(id)?.is_some())
    }

    /// Length and place of a chunk; `None` if no pack holds it, and for the zero chunk.
    ///
    /// # Errors
    /// As [`Self::contains`].
    pub fn info(&self, id: &ChunkId) -> Result<Option<ChunkInfo>, ReadError> {
        Ok(self.locate(id)?.map(|found| ChunkInfo {
            pack: found.pack.id,
            raw_bytes: found.entry.raw_len,
            stored_bytes: found.entry.stored_len,
        }))
    }

    /// Those of `ids` that no pack holds.
    ///
    /// # Errors
    /// A directory cannot be listed.
    pub fn missing<'a>(
        &self,
        ids: impl IntoIterator<Item = &'a ChunkId>,
    ) -> Result<Vec<ChunkId>, ReadError> {
        let mut missing = Vec::new();
        for id in ids {
            match self.contains(id) {
                Ok(true) => {}
                Ok(false) | Err(ReadError::DamagedPack { .. }) => missing.push(*id),
                Err(error) => return Err(error),
            }
        }
        Ok(missing)
    }

    /// Reads and verifies a chunk into the front of `buf` and returns its length. The zero chunk fills the whole
    /// buffer, up to [`MAX_CHUNK_BYTES`], since it has no length of its own.
    ///
    /// # Errors
    /// [`ReadError`]; of several damaged copies, the first is named.
    pub fn get(&self, id: &ChunkId, buf: &mut [u8]) -> Result<usize, ReadError> {
        if id.is_zero() {
            let len = buf.len().min(MAX_CHUNK_BYTES);
            buf[..len].fill(0);
            return Ok(len);
        }
        match self.try_get(id, buf) {
            Err(error) if error.is_absence() => {
                self.rescan()?;
                self.try_get(id, buf)
            }
            result => result,
        }
    }

    fn try_get(&self, id: &ChunkId, buf: &mut [u8]) -> Result<usize, ReadError> {
        let mut first_error = None;
        let found = self.search(id, |found| {
            let result = found.pack.read_decoded(&found.entry, buf);
            match result.map_err(|error| entry_error(id, &found.slot.path, error)) {
                Ok(len) => Some(Ok(len)),
                Err(error @ ReadError::BufferTooSmall { .. }) => Some(Err(error)),
                Err(error) => {
                    tracing::warn!(chunk = %id, pack = %found.pack.id, "chunk unreadable in this pack");
                    first_error.get_or_insert(error);
                    None
                }
            }
        });
        match (found, first_error) {
            (Ok(Some(result)), _) => result,
            (_, Some(error)) | (Err(error), None) => Err(error),
            (Ok(None), None) => Err(ReadError::NotFound { chunk: *id }),
        }
    }

    /// A chunk's stored form, verified; how repack and repair move chunks without compressing them again.
    pub(crate) fn get_stored(
        &self,
        id: &ChunkId,
        stored: &mut Vec<u8>,
    ) -> Result<Entry, ReadError> {
        let mut raw = vec![0; MAX_CHUNK_BYTES];
        let mut first_error = None;
        let found = self.search(id, |found| {
            match found.pack.read(&found.entry, stored, &mut raw) {
                Ok(_) => Some(found.entry),
                Err(error) => {
                    first_error.get_or_insert_with(|| entry_error(id, &found.slot.path, error));
                    None
                }
            }
        });
        match (found, first_error) {
            (Ok(Some(entry)), _) => Ok(entry),
            (_, Some(error)) | (Err(error), None) => Err(error),
            (Ok(None), None) => Err(ReadError::NotFound { chunk: *id }),
        }
    }

    /// One pack that holds `id`.
    pub(crate) fn locate(&self, id: &ChunkId) -> Result<Option<Located>, ReadError> {
        self.search(id, Some)
    }

    /// The first pack that holds `id`.
    pub(crate) fn locate_first(&self, id: &ChunkId) -> Result<Option<Located>, ReadError> {
        self.search_from(id, 0, Some)
    }

    /// Offers each pack that holds `id` until `accept` takes one. A pack that vanished makes the set list again,
    /// once; a damaged one is an error only if nothing was accepted.
    fn search<T>(
        &self,
        id: &ChunkId,
        accept: impl FnMut(Located) -> Option<T>,
    ) -> Result<Option<T>, ReadError> {
        self.search_from(id, self.hint.load(Ordering::Relaxed), accept)
    }

    fn search_from<T>(
        &self,
        id: &ChunkId,
        start: usize,
        mut accept: impl FnMut(Located) -> Option<T>,
    ) -> Result<Option<T>, ReadError> {
        let mut slots = self.slots()?;
        for last_round in [false, true] {
            let (mut vanished, mut damaged) = (false, None);
            let start = start.min(slots.len());
            for position in (start..slots.len()).chain(0..start) {
                let slot = &slots[position];
                let pack = match self.open.get(&self.backend, slot) {
                    Ok(pack) => pack,
                    Err(ReadError::Io { source, .. })
                        if source.kind() == io::ErrorKind::NotFound =>
                    {
                        vanished = true;
                        continue;
                    }
                    Err(error) => {
                        damaged.get_or_insert(error);
                        continue;
                    }
                };
                let Some(entry) = pack.index.find(id) else {
                    continue;
                };
                let found = Located {
                    slot: Arc::clone(slot),
                    pack,
                    entry,
                };
                if let Some(value) = accept(found) {
                    self.hint.store(position, Ordering::Relaxed);
                    return Ok(Some(value));
                }
            }
            if !vanished || last_round {
                return damaged.map_or(Ok(None), Err);
            }
            slots = self.rescan()?;
        }
        Ok(None)
    }

    /// Opens one pack of the set.
    pub(crate) fn open_slot(&self, slot: &Arc<PackSlot>) -> Result<Arc<Pack>, ReadError> {
        self.open.get(&self.backend, slot)
    }

    /// Calls `visit` for every chunk of every readable pack (a chunk in two packs comes twice).
    ///
    /// # Errors
    /// A directory or pack cannot be read.
    pub fn for_each_chunk(
        &self,
        mut visit: impl FnMut(ChunkId, ChunkInfo),
    ) -> Result<(), ReadError> {
        for slot in self.slots()?.iter() {
            let pack = self.open_slot(slot)?;
            for entry in pack.index.entries() {
                let info = ChunkInfo {
                    pack: pack.id,
                    raw_bytes: entry.raw_len,
                    stored_bytes: entry.stored_len,
                };
                visit(entry.id, info);
            }
        }
        Ok(())
    }

    /// A small set of packs that holds all of `ids`, with the ids that no readable pack holds.
    pub(crate) fn cover<'a>(
        &self,
        ids: impl IntoIterator<Item = &'a ChunkId>,
    ) -> Result<(Vec<Arc<PackSlot>>, Vec<ChunkId>), ReadError> {
        let mut chosen: Vec<Located> = Vec::new();
        let mut names = HashSet::new();
        let mut missing = Vec::new();
        let mut last = 0;
        for id in ids.into_iter().filter(|id| !id.is_zero()) {
            let holds = |at: &usize| chosen[*at].pack.index.position(id).is_some();
            let again = (last..chosen.len())
                .chain(0..last.min(chosen.len()))
                .find(holds);
            if let Some(at) = again {
                last = at;
                continue;
            }
            match self.locate_first(id) {
                Ok(Some(found)) => {
                    if names.insert(found.slot.path.clone()) {
                        last = chosen.len();
                        chosen.push(found);
                    }
                }
                Ok(None) | Err(ReadError::DamagedPack { .. }) => missing.push(*id),
                Err(error) => return Err(error),
            }
        }
        Ok((
            chosen.into_iter().map(|found| found.slot).collect(),
            missing,
        ))
    }
}

pub(crate) fn entry_error(id: &ChunkId, path: &Path, error: EntryError) -> ReadError {
    let path = path.to_path_buf();
    match error {
        EntryError::Pack(PackError::Io(source)) => ReadError::Io { path, source },
        EntryError::Pack(source) => ReadError::DamagedPack {
            path,
            source: Arc::new(source),
        },
        EntryError::Chunk(source) => ReadError::DamagedChunk {
            chunk: *id,
            path,
            source,
        },
        EntryError::BufferTooSmall { needed_bytes } => ReadError::BufferTooSmall {
            chunk: *id,
            needed_bytes,
        },
    }
}

/// The packs in a directory, by name; a directory that does not exist holds none.
pub(crate) fn list_packs(
    backend: &dyn FileBackend,
    dir: &Path,
) -> Result<Vec<(PackId, PathBuf)>, ReadError> {
    let names = match backend.list(dir) {
        Ok(names) => names,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(ReadError::io(dir)(error)),
    };
    let mut packs: Vec<_> = names
        .iter()
        .filter_map(|name| parse_file_name(name))
        .map(|id| (id, pack_path(dir, &id)))
        .collect();
    if packs.len() > MAX_PACKS_PER_SET {
        return Err(ReadError::io(dir)(io::Error::other(
            "too many packs in one directory",
        )));
    }
    packs.sort_unstable();
    Ok(packs)
}

impl From<ReadError> for io::Error {
    fn from(error: ReadError) -> Self {
        let kind = match &error {
            ReadError::NotFound { .. } => io::ErrorKind::NotFound,
            ReadError::Io { source, .. } => source.kind(),
            ReadError::BufferTooSmall { .. } => io::ErrorKind::InvalidInput,
            _ => io::ErrorKind::InvalidData,
        };
        Self::new(kind, error)
    }
}

impl From<StoreError> for io::Error {
    fn from(error: StoreError) -> Self {
        let kind = match &error {
            StoreError::Io { source, .. } => source.kind(),
            _ => io::ErrorKind::Other,
        };
        Self::new(kind, error)
    }
}
