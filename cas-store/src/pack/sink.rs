//! Where new chunks go: one staged pack after the other, each chunk once, fed by several threads.

use std::collections::{HashMap, HashSet};
use std::num::NonZeroU64;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use super::builder::{PackBuilder, PackPlan, StagedPack};
use super::layout::{Entry, MAX_ENTRIES};
use crate::codec::{Codec, PreparedChunk};
use crate::error::StoreError;
use crate::{ChunkId, PackId};
use durable_files::FileBackend;

/// When a new pack is begun.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PackLimits {
    pub(crate) len_bytes: u64,
    pub(crate) chunks: usize,
}

impl PackLimits {
    pub(crate) fn new(len_bytes: u64, chunks: usize) -> Self {
        Self {
            len_bytes,
            chunks: chunks.clamp(1, MAX_ENTRIES as usize),
        }
    }

    /// Whether a body of so many bytes begins a new pack.
    fn are_reached(&self, last: Option<&PackPlan>, more: usize) -> bool {
        last.is_none_or(|pack| {
            pack.chunks() >= self.chunks
                || (pack.chunks() > 0 && pack.len_bytes() + more as u64 > self.len_bytes)
        })
    }
}

/// The packs that a sink would write; nothing is written.
#[derive(Debug)]
pub(crate) struct ForeseenPacks {
    limits: PackLimits,
    seen: HashSet<ChunkId>,
    packs: Vec<PackPlan>,
}

impl ForeseenPacks {
    pub(crate) fn new(limits: PackLimits) -> Self {
        Self {
            limits,
            seen: HashSet::new(),
            packs: Vec::new(),
        }
    }

    /// As [`PackSink::append_stored`].
    pub(crate) fn append_stored(&mut self, entry: Entry) {
        if entry.id.is_zero() || !self.seen.insert(entry.id) {
            return;
        }
        let more = entry.stored_len as usize;
        if self.limits.are_reached(self.packs.last(), more) {
            self.packs.push(PackPlan::new());
        }
        if let Some(pack) = self.packs.last_mut() {
            pack.reserve(entry);
        }
    }

    /// Their ids and lengths.
    pub(crate) fn finish(self) -> Vec<(PackId, u64)> {
        let packs = self.packs.into_iter();
        packs
            .map(|mut pack| (pack.index().0, pack.len_bytes()))
            .collect()
    }
}

/// So much of a pack is handed to the disk at a time, while the rest is made.
const WRITEBACK: NonZeroU64 = NonZeroU64::new(4 << 20).expect("it is not zero");
const WRITEBACK_BYTES: u64 = WRITEBACK.get();

/// Packs being written. Dropped unfinished, it removes its files.
#[derive(Debug)]
pub(crate) struct PackSink {
    backend: Arc<dyn FileBackend>,
    /// Staged files are named `<prefix>-<number>.tmp`.
    dir: PathBuf,
    prefix: String,
    limits: PackLimits,
    state: Mutex<SinkState>,
    failed: AtomicBool,
    written_bytes: AtomicU64,
}

#[derive(Debug, Default)]
struct SinkState {
    /// Every chunk appended, with its raw length.
    seen: HashMap<ChunkId, u32>,
    builders: Vec<PackBuilder>,
}

impl PackSink {
    pub(crate) fn new(
        backend: Arc<dyn FileBackend>,
        dir: PathBuf,
        prefix: String,
        limits: PackLimits,
    ) -> Self {
        Self {
            backend,
            dir,
            prefix,
            limits,
            state: Mutex::default(),
            failed: AtomicBool::new(false),
            written_bytes: AtomicU64::new(0),
        }
    }

    fn state(&self) -> std::sync::MutexGuard<'_, SinkState> {
        // A panic of another thread leaves the state consistent: it is changed by whole steps.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The raw length of `id` if it was appended here.
    pub(crate) fn raw_len(&self, id: &ChunkId) -> Option<u32> {
        self.state().seen.get(id).copied()
    }

    /// Packs begun so far.
    pub(crate) fn packs(&self) -> usize {
        self.state().builders.len()
    }

    /// Body bytes written so far.
    pub(crate) fn written_bytes(&self) -> u64 {
        self.written_bytes.load(Ordering::Relaxed)
    }

    /// Appends a chunk unless it is here already (then false) or is the zero chunk.
    pub(crate) fn append(&self, chunk: &PreparedChunk) -> Result<bool, StoreError> {
        self.append_encoded(chunk.id, chunk.raw_len, chunk.codec, &chunk.stored)
    }

    /// The same for a chunk of `raw_len` bytes that is encoded as `stored`.
    pub(crate) fn append_encoded(
        &self,
        id: ChunkId,
        raw_len: usize,
        codec: Codec,
        stored: &[u8],
    ) -> Result<bool, StoreError> {
        let entry = Entry {
            id,
            offset: 0,
            stored_len: stored.len() as u32,
            raw_len: raw_len as u32,
            codec: codec as u8,
        };
        self.append_stored(entry, stored)
    }

    /// The same for bytes that are encoded already; `entry.offset` is chosen here.
    pub(crate) fn append_stored(&self, entry: Entry, stored: &[u8]) -> Result<bool, StoreError> {
        if entry.id.is_zero() {
            return Ok(false);
        }
        if self.failed.load(Ordering::Acquire) {
            return Err(StoreError::CaptureFailed);
        }
        let result = self.try_append(entry, stored);
        if result.is_err() {
            self.failed.store(true, Ordering::Release);
        }
        result
    }

    fn try_append(&self, entry: Entry, stored: &[u8]) -> Result<bool, StoreError> {
        let (file, offset, path) = {
            let mut state = self.state();
            if state.seen.contains_key(&entry.id) {
                return Ok(false);
            }
            let builder = self.current(&mut state, stored.len())?;
            let offset = builder.reserve(entry);
            let place = (builder.file(), offset, builder.path().to_path_buf());
            state.seen.insert(entry.id, entry.raw_len);
            place
        };
        file.write_all_at(stored, offset)
            .map_err(StoreError::io("write", &path))?;
        let (begun, end) = (offset / WRITEBACK_BYTES, offset + stored.len() as u64);
        if end / WRITEBACK_BYTES > begun {
            // Only a matter of time: the sync at the end says what failed.
            if let Err(error) = file.begin_sync(begun * WRITEBACK_BYTES, WRITEBACK) {
                tracing::debug!(%error, path = %path.display(), "all of a pack is written at its end");
            }
        }
        self.written_bytes
            .fetch_add(stored.len() as u64, Ordering::Relaxed);
        Ok(true)
    }

    /// The pack that takes the next body; a new one if the last is full.
    fn current<'a>(
        &self,
        state: &'a mut SinkState,
        more: usize,
    ) -> Result<&'a mut PackBuilder, StoreError> {
        let last = state.builders.last().map(PackBuilder::plan);
        if self.limits.are_reached(last, more) {
            let path = self
                .dir
                .join(format!("{}-{}.tmp", self.prefix, state.builders.len()));
            state
                .builders
                .push(PackBuilder::create(&*self.backend, &path)?);
        }
        // One was pushed just now if there was none.
        state.builders.last_mut().ok_or(StoreError::CaptureFailed)
    }

    /// Seals and syncs every pack. On failure the staged files are removed.
    pub(crate) fn finish(&self) -> Result<Vec<StagedPack>, StoreError> {
        if self.failed.swap(true, Ordering::AcqRel) {
            return Err(StoreError::CaptureFailed);
        }
        let builders = std::mem::take(&mut self.state().builders);
        let paths: Vec<PathBuf> = builders.iter().map(|b| b.path().to_path_buf()).collect();
        let packs: Result<Vec<_>, _> = builders.into_iter().map(PackBuilder::finish).collect();
        if packs.is_err() {
            self.remove_files(&paths);
        }
        packs
    }

    fn remove_files(&self, paths: &[PathBuf]) {
        for path in paths {
            if let Err(error) = self.backend.remove(path) {
                // The next opening of the store removes it: the session's lock is free by then.
                tracing::warn!(path = %path.display(), %error, "staged pack not removed");
            }
        }
    }
}

impl Drop for PackSink {
    fn drop(&mut self) {
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        let paths: Vec<PathBuf> = state
            .builders
            .iter()
            .map(|builder| builder.path().to_path_buf())
            .collect();
        self.remove_files(&paths);
    }
}
