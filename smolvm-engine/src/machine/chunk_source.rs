//! Where a machine's chunks are read from: its own packs, and where one of those is damaged, others.

use std::error::Error;
use std::path::PathBuf;

use cas_store::{ChunkId, PackSet, ReadError};

use crate::error_chain::sources;

/// A machine's packs, and where copies of them may be.
pub(crate) struct ChunkSource {
    packs: PackSet,
    /// Only looked into when a chunk is damaged.
    others: Vec<PathBuf>,
}

impl ChunkSource {
    /// Chunks of these directories, and of the others where one is damaged.
    pub(crate) fn new(directories: &[PathBuf], others: Vec<PathBuf>) -> Self {
        Self {
            packs: PackSet::open(directories),
            others,
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
        matches!(
            error.downcast_ref::<ReadError>(),
            Some(
                ReadError::NotFound { .. }
                    | ReadError::DamagedPack { .. }
                    | ReadError::DamagedChunk { .. }
            )
        )
    };
    sources(error).any(lost)
}
