//! Writing one pack: bodies as they come, then the index, then the footer.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::layout::{ENTRY_BYTES, Entry, FOOTER_BYTES, Footer, HEADER_BYTES, header};
use crate::PackId;
use crate::error::StoreError;
use durable_files::{BackendFile, FileBackend};

/// What lies where in a pack, and so its length and its id; no byte is written.
#[derive(Debug)]
pub(crate) struct PackPlan {
    cursor: u64,
    entries: Vec<Entry>,
}

impl PackPlan {
    pub(crate) fn new() -> Self {
        Self {
            cursor: HEADER_BYTES as u64,
            entries: Vec::new(),
        }
    }

    /// Takes room for one body, at the returned offset.
    pub(crate) fn reserve(&mut self, mut entry: Entry) -> u64 {
        entry.offset = self.cursor;
        self.cursor += u64::from(entry.stored_len);
        self.entries.push(entry);
        entry.offset
    }

    pub(crate) fn chunks(&self) -> usize {
        self.entries.len()
    }

    /// Length if it were sealed now.
    pub(crate) fn len_bytes(&self) -> u64 {
        self.cursor + (self.entries.len() * ENTRY_BYTES + FOOTER_BYTES) as u64
    }

    /// Its id, and its index as it is written.
    pub(crate) fn index(&mut self) -> (PackId, Vec<u8>) {
        self.entries.sort_unstable_by_key(|entry| entry.id);
        let mut index = Vec::with_capacity(self.entries.len() * ENTRY_BYTES + FOOTER_BYTES);
        for entry in &self.entries {
            index.extend_from_slice(&entry.encode());
        }
        (PackId(*blake3::hash(&index).as_bytes()), index)
    }
}

/// A pack that is being written. Room is reserved under the owner's lock; bodies are written outside it.
#[derive(Debug)]
pub(crate) struct PackBuilder {
    path: PathBuf,
    file: Arc<dyn BackendFile>,
    plan: PackPlan,
}

/// A sealed and synced pack that still has its staging name.
#[derive(Debug, Clone)]
pub(crate) struct StagedPack {
    pub(crate) id: PackId,
    pub(crate) path: PathBuf,
    pub(crate) len_bytes: u64,
}

impl PackBuilder {
    pub(crate) fn create(backend: &dyn FileBackend, path: &Path) -> Result<Self, StoreError> {
        let file = backend
            .create_new(path)
            .map_err(StoreError::io("create", path))?;
        if let Err(error) = file.write_all_at(&header(), 0) {
            // Best effort: the write's own error is the one to report.
            let _ = backend.remove(path);
            return Err(StoreError::io("write", path)(error));
        }
        Ok(Self {
            path: path.to_path_buf(),
            file,
            plan: PackPlan::new(),
        })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn file(&self) -> Arc<dyn BackendFile> {
        Arc::clone(&self.file)
    }

    pub(crate) fn plan(&self) -> &PackPlan {
        &self.plan
    }

    /// Takes room for one body; the caller writes it at the returned offset before [`Self::finish`].
    pub(crate) fn reserve(&mut self, entry: Entry) -> u64 {
        self.plan.reserve(entry)
    }

    /// Writes index and footer, takes the write permission away and syncs.
    pub(crate) fn finish(mut self) -> Result<StagedPack, StoreError> {
        let (id, mut tail) = self.plan.index();
        let len_bytes = self.plan.len_bytes();
        let footer = Footer {
            index_offset: self.plan.cursor,
            // The sink starts a new pack long before this limit of `u32`.
            entries: self.plan.entries.len() as u32,
            entry_bytes: ENTRY_BYTES as u32,
            id,
            flags: 0,
        };
        tail.extend_from_slice(&footer.encode(&header()));
        let write = StoreError::io("write", &self.path);
        self.file
            .write_all_at(&tail, self.plan.cursor)
            .map_err(write)?;
        self.file
            .seal()
            .map_err(StoreError::io("seal", &self.path))?;
        self.file
            .sync()
            .map_err(StoreError::io("sync", &self.path))?;
        Ok(StagedPack {
            id,
            path: self.path,
            len_bytes,
        })
    }
}
