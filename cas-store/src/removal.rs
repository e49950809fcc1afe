//! Taking a directory outside the store away, so that killed halfway nothing half-removed is seen or stays.

use std::path::Path;

use crate::error::StoreError;
use crate::session::Session;
use crate::store::Store;
use durable_files::{STAGING_MARK, random_name};

/// How far [`Store::remove_outside`] has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum RemovalStep {
    /// The store knows what is to be removed; it is still at its place.
    Noted,
    /// It has lost its name, durably; its data is still there.
    Hidden,
}

impl Store {
    /// Removes a directory outside the store with all that is in it. Its name goes first: killed at any time, it is whole or
    /// gone, and what is left of it under a hidden name beside its place goes with the next opening of the store.
    ///
    /// The caller knows that the directory may go. One that is a link is refused.
    ///
    /// # Errors
    /// The system refuses.
    pub fn remove_outside(
        &self,
        dir: &Path,
        on_step: &mut dyn FnMut(RemovalStep),
    ) -> Result<(), StoreError> {
        let backend = self.inner.backend();
        let dir = std::path::absolute(dir).map_err(StoreError::io("find", dir))?;
        let parent = dir.parent().unwrap_or(Path::new("/"));
        let stat = backend.stat(&dir).map_err(StoreError::io("find", &dir))?;
        if !stat.is_dir() {
            let what = "it is no directory";
            return Err(StoreError::Malformed { path: dir, what });
        }
        let session = {
            let _lock = self.inner.lock_shared()?;
            Session::begin(&self.inner)?
        };
        let hidden = parent.join(format!("{STAGING_MARK}{}", random_name()));
        session.note_outside(&hidden, &stat)?;
        on_step(RemovalStep::Noted);
        backend
            .rename_new(&dir, &hidden)
            .map_err(StoreError::io("rename", &dir))?;
        let sync = || {
            backend
                .sync_dir(parent)
                .map_err(StoreError::io("sync", parent))
        };
        let removed = sync().and_then(|()| {
            on_step(RemovalStep::Hidden);
            backend
                .remove_tree(&hidden)
                .map_err(StoreError::io("remove", &hidden))?;
            sync()
        });
        if removed.is_err() {
            // It has lost its name: what is left of it is known by this note only.
            session.leave();
        }
        removed
    }
}
