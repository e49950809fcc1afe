use std::path::PathBuf;

use cas_store::{ReadError, StoreError};
use snapshot_format::map::MapError;
use snapshot_format::{CheckpointId, DecodeError, LimitError, LineageError, ResolveError};
use thiserror::Error;

use super::archive::ArchiveError;
use crate::file_error::FileError;

/// Why a point could not be read or published.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum PointError {
    /// The host failed.
    #[error(transparent)]
    Io(#[from] FileError),
    /// A record is damaged.
    #[error("the record {} is damaged", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        #[source]
        source: DecodeError,
    },
    /// A record is another one than its name or its child says.
    #[error("the record {} holds point {found}, not {expected}", path.display())]
    OtherPoint {
        /// The file.
        path: PathBuf,
        /// The point that it holds.
        found: CheckpointId,
        /// The point that it should hold.
        expected: CheckpointId,
    },
    /// A generation that exists and cannot be used.
    #[error("{asked} is point {}, which cannot be used: {reason}", id.short())]
    Broken {
        /// What was asked for.
        asked: String,
        /// The point.
        id: CheckpointId,
        /// What is wrong with it.
        reason: String,
    },
    /// Not a checkpoint directory.
    #[error("{} is not a checkpoint: it has no point.record", path.display())]
    NotACheckpoint {
        /// The path.
        path: PathBuf,
    },
    /// The id of a point in a machine's file is none.
    #[error("the id of a point is damaged")]
    Id(#[source] snapshot_format::InvalidId),
    /// The generation asked for does not exist, or is ambiguous.
    #[error(transparent)]
    Resolve(#[from] ResolveError),
    /// The records form no lineage.
    #[error(transparent)]
    Lineage(#[from] LineageError),
    /// Its checkpoint directory is there, with another point.
    #[error("{path} held point {id}, and holds another one now")]
    Moved {
        /// The point's short id.
        id: String,
        /// The checkpoint directory.
        path: PathBuf,
    },
    /// A point of the default store that does not exist, or an ambiguous prefix of one.
    #[error("{asked} names {} points of the default store", .candidates.len())]
    NotInStore {
        /// What was asked for.
        asked: String,
        /// Short ids of the points that it may mean.
        candidates: Vec<String>,
    },
    /// A record whose parts do not fit one another, or whose chunks are not there.
    #[error("point {id} cannot be restored: {}", .findings.join("; "))]
    Unsound {
        /// The point's short id.
        id: String,
        /// What is wrong with it.
        findings: Vec<String>,
    },
    /// The path for a new checkpoint is taken.
    #[error("{} exists already; nothing is overwritten", path.display())]
    Taken {
        /// The path.
        path: PathBuf,
    },
    /// Chunks could not be stored or linked.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// Chunks could not be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// A chunk map of a point cannot be read.
    #[error(transparent)]
    Map(#[from] MapError<ReadError>),
    /// An archive could not be written or read.
    #[error(transparent)]
    Archive(#[from] ArchiveError),
    /// The record would be too large.
    #[error("the point is too large to be recorded")]
    Limit(#[from] LimitError),
}
