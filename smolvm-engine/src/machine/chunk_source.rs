//! Where a machine's chunks are read from: its own packs, and where one of those is damaged, others.

use std::error::Error;
use std::path::PathBuf;
use std::sync::Arc;

use cas_store::{ChunkId, PackSet, ReadError, StoreError};

use super::held::HeldDirectory;
use crate::error_chain::sources;

/// A machine's packs, and where copies of them may be.
pub(crate) struct ChunkSource {
    packs: Arc<PackSet>,
    /// Keeps the path of `packs` true.
    _held: Option<HeldDirectory>,
    /// Only looked into when a chunk is damaged.
    others: Vec<PathBuf>,
}

impl ChunkSource {
    /// Chunks of these directories, and of the others where one is damaged.
    pub(crate) fn new(directories: &[PathBuf], others: Vec<PathBuf>) -> Self {
        Self {
            packs: Arc::new(PackSet::open(directories)),
            _held: None,
            others,
        }
    }

    /// Chunks of the machine with this directory, which may get another name, and of the others where one is damaged.
    pub(crate) fn held(directory: HeldDirectory, others: Vec<PathBuf>) -> Self {
        Self {
            packs: Arc::new(PackSet::open([directory.path().join("packs")])),
            _held: Some(directory),
            others,
        }
    }

    /// Chunks of these packs only.
    pub(crate) fn of(packs: Arc<PackSet>) -> Self {
        Self {
            packs,
            _held: None,
            others: Vec::new(),
        }
    }

    /// Reads a chunk, verified; returns its length.
    ///
    /// # Errors
    ///
    /// That of the machine's own packs, when no other copy is sound.
    pub(crate) fn get(&self, id: &ChunkId, bytes: &mut [u8]) -> Result<usize, ReadError> {
        self.packs.get(id, bytes).or_else(|error| {
            if !is_damage(&error) {
                return Err(error);
            }
            let length = PackSet::open(&self.others).get(id, bytes);
            let length = length.map_err(|_| error)?;
            tracing::warn!(chunk = %id, "a damaged chunk was read from another copy");
            Ok(length)
        })
    }
}

/// Whether the reason of an error is that a chunk is lost.
pub(crate) fn is_damage(error: &(dyn Error + 'static)) -> bool {
    let lost = |error: &(dyn Error + 'static)| {
        // Those of maps are boxed, and the box is an error of its own.
        let boxed = error.downcast_ref::<Box<ReadError>>();
        // A store's error passes for the one that it holds.
        if let Some(error) = error.downcast_ref::<StoreError>() {
            return error.is_damage();
        }
        matches!(
            error.downcast_ref().or(boxed.map(|error| &**error)),
            Some(
                ReadError::NotFound { .. }
                    | ReadError::DamagedPack { .. }
                    | ReadError::DamagedChunk { .. }
            )
        )
    };
    sources(error).any(lost)
}

#[cfg(test)]
mod tests {
    use snapshot_format::ChunkRef;
    use snapshot_format::map::MapError;

    use super::*;

    #[test]
    fn a_lost_chunk_is_damage_wherever_it_lies() {
        let chunk = ChunkId([1; 32]);
        let lost = ReadError::NotFound { chunk };
        assert!(is_damage(&lost));
        // A node of a map.
        let node = MapError::Source {
            node: ChunkRef([1; 32]),
            source: Box::new(lost),
        };
        assert!(is_damage(&node));
        assert!(is_damage(&StoreError::Read(ReadError::NotFound { chunk })));
        let refused = ReadError::Io {
            path: PathBuf::from("packs"),
            source: std::io::ErrorKind::PermissionDenied.into(),
        };
        assert!(!is_damage(&refused));
    }
}
