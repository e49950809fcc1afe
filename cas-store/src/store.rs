//! The store: a directory with packs, points and what running sessions need.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::capture::{Capture, CaptureOptions};
use crate::error::StoreError;
use crate::marker::{self, Unmarked};
use crate::pack::builder::StagedPack;
use crate::pack::pack_path;
use crate::packset::PackSet;
use crate::session::{self, Leftover, Session};
use crate::verified::Verified;
use crate::{ChunkId, PackId, Pinned};
use durable_files::{FileBackend, LockGuard, LockMode, OsBackend};

const PACKS: &str = "packs";
const POINTS: &str = "points";
const LINEAGE: &str = "lineage";
const PINS: &str = "pins";
const STAGING: &str = "staging";
const LOCK: &str = "lock";
/// The directories of a store that are its own.
pub const STORE_PARTS: [&str; 5] = [PACKS, POINTS, LINEAGE, PINS, STAGING];

/// A store of chunks. Cheap to clone; clones share one state.
///
/// Several processes may use one store at a time. No method fails because another process holds a lock: it waits, for
/// as long as a sweep or repack takes at most.
#[derive(Debug, Clone)]
pub struct Store {
    pub(crate) inner: Arc<Inner>,
    leftovers: Arc<[Leftover]>,
}

#[derive(Debug)]
pub(crate) struct Inner {
    backend: Arc<dyn FileBackend>,
    dir: PathBuf,
    poisoned: AtomicBool,
    packs: PackSet,
}

impl Store {
    /// Opens the store in `dir`, making it (0700) where `dir` does not exist or is empty. No pack is looked at. What sessions
    /// of dead processes left is removed, unless the store is busy; [`Self::leftovers`] says what could not be.
    ///
    /// # Errors
    /// [`StoreError::NotEmpty`] for a directory of something else, [`StoreError::Foreign`] for one of somebody else: nothing is changed
    /// in it. The directory cannot be made, read or written.
    pub fn open(dir: impl Into<PathBuf>) -> Result<Self, StoreError> {
        Self::open_with(Arc::new(OsBackend), dir)
    }

    /// Opens a store on another backend.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn open_with(
        backend: Arc<dyn FileBackend>,
        dir: impl Into<PathBuf>,
    ) -> Result<Self, StoreError> {
        Self::open_or_create(backend, &dir.into(), Unmarked::Anybodys)
    }

    /// Opens the store in a directory of the caller's own, in which nobody else keeps anything: where it has no marker it is
    /// made a store, whatever it holds.
    ///
    /// # Errors
    /// The directory cannot be made, read or written.
    pub fn open_own(dir: impl Into<PathBuf>) -> Result<Self, StoreError> {
        Self::open_or_create(Arc::new(OsBackend), &dir.into(), Unmarked::OfTheCaller)
    }

    fn open_or_create(
        backend: Arc<dyn FileBackend>,
        dir: &Path,
        unmarked: Unmarked,
    ) -> Result<Self, StoreError> {
        let dir = marker::find_or_create(&*backend, dir, &STORE_PARTS, unmarked)?;
        let inner = Inner::new(backend, dir);
        inner.recover()?;
        let leftovers = match inner.lock(LockMode::Exclusive, false)? {
            Some(_lock) => session::remove_dead(&inner)?,
            None => Vec::new(),
        };
        Ok(Self {
            inner: Arc::new(inner),
            leftovers: leftovers.into(),
        })
    }

    /// Opens a store that must exist, for looking at it: nothing is created or removed by this, nor by the methods that
    /// only read.
    ///
    /// # Errors
    /// [`StoreError::NotAStore`]; the directory does not exist or may not be read.
    pub fn open_existing(dir: impl Into<PathBuf>) -> Result<Self, StoreError> {
        Self::open_existing_with(Arc::new(OsBackend), dir)
    }

    /// The same on another backend.
    ///
    /// # Errors
    /// As [`Self::open_existing`].
    pub fn open_existing_with(
        backend: Arc<dyn FileBackend>,
        dir: impl Into<PathBuf>,
    ) -> Result<Self, StoreError> {
        let dir = marker::find(&*backend, &dir.into())?;
        Ok(Self {
            inner: Arc::new(Inner::new(backend, dir)),
            leftovers: Arc::default(),
        })
    }

    /// What dead sessions left and this opening could not remove. It is in nobody's way; later openings try again.
    #[must_use]
    pub fn leftovers(&self) -> &[Leftover] {
        &self.leftovers
    }

    /// The store's directory.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.inner.dir
    }

    /// The directory that holds the packs; with [`PackSet::open`] a reader needs nothing else.
    #[must_use]
    pub fn packs_dir(&self) -> PathBuf {
        self.inner.packs_dir()
    }

    /// All chunks of the store.
    #[must_use]
    pub fn chunks(&self) -> &PackSet {
        &self.inner.packs
    }

    /// Begins a capture: a session that stores chunks and protects the packs it shares.
    ///
    /// # Errors
    /// The store is poisoned, or the session's files cannot be made.
    pub fn begin_capture(&self, options: CaptureOptions) -> Result<Capture, StoreError> {
        Capture::begin(&self.inner, options)
    }

    /// Protects the packs that hold `ids` from sweep and repack until the pin is dropped, for a restore.
    ///
    /// # Errors
    /// A chunk is missing, or the session's files cannot be made.
    pub fn pin<'a>(&self, ids: impl IntoIterator<Item = &'a ChunkId>) -> Result<Pin, StoreError> {
        let _lock = self.inner.lock_shared()?;
        let session = Session::begin(&self.inner)?;
        self.inner.packs.rescan()?;
        let (slots, missing) = self.inner.packs.cover(ids)?;
        if let Some(chunk) = missing.first() {
            return Err(crate::ReadError::NotFound { chunk: *chunk }.into());
        }
        session.pin(slots.iter().map(|slot| slot.id))?;
        let files = slots
            .iter()
            .map(|slot| (slot.id, slot.path.clone()))
            .collect();
        let chunks = PackSet::of_files(Arc::clone(&self.inner.backend), files);
        Ok(Pin { session, chunks })
    }

    /// [`PackSet::pin_into`] from this store, safe against a sweep running meanwhile.
    ///
    /// # Errors
    /// As there.
    pub fn pin_into<'a, I>(&self, target: &Path, ids: I) -> Result<Pinned, StoreError>
    where
        I: IntoIterator<Item = &'a ChunkId> + Clone,
    {
        let pin = self.pin(ids.clone())?;
        pin.chunks.pin_into(target, ids)
    }
}

/// Packs protected for a reader; see [`Store::pin`].
#[derive(Debug)]
pub struct Pin {
    session: Session,
    chunks: PackSet,
}

impl Pin {
    /// The protected chunks.
    #[must_use]
    pub fn chunks(&self) -> &PackSet {
        &self.chunks
    }

    /// Records a directory outside the store (its name contains [`crate::STAGING_MARK`]) that the next opening of the
    /// store removes if this process dies. Rename it away before dropping the pin.
    ///
    /// # Errors
    /// The name lacks the mark, or the record cannot be written.
    pub fn stage_outside(&self, dir: &Path) -> Result<(), StoreError> {
        self.session.stage_outside(dir)
    }
}

impl Inner {
    fn new(backend: Arc<dyn FileBackend>, dir: PathBuf) -> Self {
        let packs = PackSet::with_backend(Arc::clone(&backend), [dir.join(PACKS)]);
        Self {
            backend,
            dir,
            poisoned: AtomicBool::new(false),
            packs,
        }
    }

    pub(crate) fn backend(&self) -> &dyn FileBackend {
        &*self.backend
    }

    pub(crate) fn shared_backend(&self) -> Arc<dyn FileBackend> {
        Arc::clone(&self.backend)
    }

    pub(crate) fn packs(&self) -> &PackSet {
        &self.packs
    }

    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    pub(crate) fn packs_dir(&self) -> PathBuf {
        self.dir.join(PACKS)
    }

    pub(crate) fn points_dir(&self) -> PathBuf {
        self.dir.join(POINTS)
    }

    pub(crate) fn lineage_dir(&self) -> PathBuf {
        self.dir.join(LINEAGE)
    }

    pub(crate) fn pins_dir(&self) -> PathBuf {
        self.dir.join(PINS)
    }

    pub(crate) fn staging_dir(&self) -> PathBuf {
        self.dir.join(STAGING)
    }

    pub(crate) fn pack_path(&self, id: &PackId) -> PathBuf {
        pack_path(&self.packs_dir(), id)
    }

    /// Gives a staged pack its name. False if it is there already, verified: the older file may have links. One that was not
    /// verified is replaced, since only its index is known to be the same. The caller syncs the directory, and then notes the
    /// pack as verified.
    pub(crate) fn publish_pack(
        &self,
        staged: &StagedPack,
        verified: &Verified,
    ) -> Result<bool, StoreError> {
        let path = self.pack_path(&staged.id);
        let present = self
            .backend
            .stat(&path)
            .is_ok_and(|stat| verified.has(&staged.id, &stat));
        if !present {
            let rename = StoreError::io("rename", &staged.path);
            self.backend.rename(&staged.path, &path).map_err(rename)?;
        }
        Ok(!present)
    }

    pub(crate) fn lock(&self, mode: LockMode, wait: bool) -> Result<Option<LockGuard>, StoreError> {
        let path = self.dir.join(LOCK);
        self.backend
            .lock(&path, mode, wait)
            .map_err(StoreError::io("lock", &path))
    }

    /// Waits until no sweep runs.
    pub(crate) fn lock_shared(&self) -> Result<Option<LockGuard>, StoreError> {
        self.check_usable()?;
        self.lock(LockMode::Shared, true)
    }

    /// Waits until nobody else decides about packs.
    pub(crate) fn lock_exclusive(&self) -> Result<Option<LockGuard>, StoreError> {
        self.check_usable()?;
        self.lock(LockMode::Exclusive, true)
    }

    pub(crate) fn check_usable(&self) -> Result<(), StoreError> {
        if self.poisoned.load(Ordering::Acquire) {
            return Err(StoreError::Poisoned {
                path: self.dir.clone(),
            });
        }
        Ok(())
    }

    /// Passes a result on; a failed sync in it poisons the store, since the kernel reports such a loss only once.
    pub(crate) fn watch<T>(&self, result: Result<T, StoreError>) -> Result<T, StoreError> {
        if let Err(StoreError::Io { action: "sync", .. }) = &result {
            self.poisoned.store(true, Ordering::Release);
            self.note_poisoned();
        }
        result
    }

    pub(crate) fn sync_dir(&self, dir: &Path) -> Result<(), StoreError> {
        self.watch(
            self.backend
                .sync_dir(dir)
                .map_err(StoreError::io("sync", dir)),
        )
    }
}
