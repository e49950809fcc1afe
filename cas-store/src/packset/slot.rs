//! One pack file of a set: closed, open, or known to be damaged.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::PackId;
use crate::error::{PackError, ReadError};
use crate::pack::reader::Pack;
use durable_files::FileBackend;

/// A pack file that may be opened.
#[derive(Debug)]
pub(crate) struct PackSlot {
    pub(crate) id: PackId,
    pub(crate) path: PathBuf,
    state: Mutex<SlotState>,
    /// Logical time of the last use; the cache closes the oldest.
    pub(super) used: AtomicU64,
}

#[derive(Debug)]
enum SlotState {
    Closed,
    Open(Arc<Pack>),
    Damaged(Arc<PackError>),
}

impl PackSlot {
    pub(crate) fn new(id: PackId, path: PathBuf) -> Self {
        Self {
            id,
            path,
            state: Mutex::new(SlotState::Closed),
            used: AtomicU64::new(0),
        }
    }

    fn state(&self) -> MutexGuard<'_, SlotState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The open pack, if it is.
    pub(super) fn opened(&self) -> Option<Arc<Pack>> {
        match &*self.state() {
            SlotState::Open(pack) => Some(Arc::clone(pack)),
            _ => None,
        }
    }

    /// Opens the pack; the flag says whether it was closed before. Damage is remembered, trouble of the system is not.
    pub(super) fn open(
        &self,
        backend: &Arc<dyn FileBackend>,
    ) -> Result<(Arc<Pack>, bool), ReadError> {
        let mut state = self.state();
        match &*state {
            SlotState::Open(pack) => return Ok((Arc::clone(pack), false)),
            SlotState::Damaged(source) => return Err(self.damaged(Arc::clone(source))),
            SlotState::Closed => {}
        }
        match Pack::open_at(backend, &self.path, &self.id) {
            Ok(pack) => {
                let pack = Arc::new(pack);
                *state = SlotState::Open(Arc::clone(&pack));
                Ok((pack, true))
            }
            Err(PackError::Io(source)) => Err(ReadError::io(&self.path)(source)),
            Err(error) => {
                let error = Arc::new(error);
                *state = SlotState::Damaged(Arc::clone(&error));
                Err(self.damaged(error))
            }
        }
    }

    /// Closes the pack; readers that hold it go on.
    pub(super) fn close(&self) {
        let mut state = self.state();
        if matches!(*state, SlotState::Open(_)) {
            *state = SlotState::Closed;
        }
    }

    pub(super) fn touch(&self, now: u64) {
        self.used.store(now, Ordering::Relaxed);
    }

    fn damaged(&self, source: Arc<PackError>) -> ReadError {
        ReadError::DamagedPack {
            path: self.path.clone(),
            source,
        }
    }
}
