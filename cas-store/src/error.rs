//! What can go wrong: one enum per family of operations.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use durable_files::FileError;

use crate::{ChunkId, Codec, PackId, PointId};

/// A pack file that is not one: damaged, cut short, of a later version or hostile.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PackError {
    /// The file could not be read.
    #[error("cannot read the pack")]
    Io(#[source] io::Error),
    /// Shorter than a header and a footer, so it was never sealed or was cut.
    #[error("{len_bytes} bytes are too few for a pack")]
    TooShort {
        /// The file's length.
        len_bytes: u64,
    },
    /// The first or last bytes are not those of a pack.
    #[error("the pack's {place} is not one of a pack")]
    BadMagic {
        /// `header` or `footer`.
        place: &'static str,
    },
    /// Written by a later version of the format.
    #[error("pack version {found} is not known")]
    UnknownVersion {
        /// The version in the header.
        found: u32,
    },
    /// A flag that a reader must understand and this one does not.
    #[error("pack flags {found:#x} are not known")]
    UnknownFlags {
        /// The flags in the footer.
        found: u32,
    },
    /// Header and footer do not match their checksum.
    #[error("the pack's header or footer does not match its checksum")]
    FooterChecksum,
    /// The index is larger than the named limits, or does not lie where the footer says.
    #[error(
        "the pack's index ({entries} entries of {entry_bytes} bytes at {offset}) does not fit the file or the limits"
    )]
    IndexBounds {
        /// Number of entries the footer claims.
        entries: u32,
        /// Bytes per entry the footer claims.
        entry_bytes: u32,
        /// Where the footer says the index begins.
        offset: u64,
    },
    /// The index does not hash to what the footer says.
    #[error("the pack's index does not match its digest")]
    IndexDigest,
    /// The pack is intact but is another one than its name says.
    #[error("the file holds pack {found} instead of {expected}")]
    WrongPack {
        /// The id in the file's name.
        expected: PackId,
        /// The id of the contents.
        found: PackId,
    },
    /// An entry points outside the bodies or exceeds the chunk size, or the ids are not in order.
    #[error("the index entry of chunk {chunk} is invalid")]
    BadEntry {
        /// The entry's id.
        chunk: ChunkId,
    },
}

/// One chunk's bytes that do not give the chunk.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ChunkError {
    /// The codec number is not known.
    #[error("codec {0} is not known")]
    UnknownCodec(u8),
    /// The codec is known but was left out of this build.
    #[error("this build cannot decode {0:?}")]
    CodecNotBuilt(Codec),
    /// The compressed bytes are malformed or give another length.
    #[error("the {codec:?} bytes do not decode to {raw_bytes} bytes")]
    Decode {
        /// The codec used.
        codec: Codec,
        /// The length they should give.
        raw_bytes: usize,
    },
    /// The bytes decode, but to another chunk.
    #[error("the bytes hash to {found}")]
    Digest {
        /// The digest found.
        found: ChunkId,
    },
}

/// Why a chunk could not be given to the caller.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReadError {
    /// No pack holds the chunk.
    #[error("chunk {chunk} is in none of the packs")]
    NotFound {
        /// The chunk asked for.
        chunk: ChunkId,
    },
    /// The only packs that might hold the chunk are damaged.
    #[error("the pack {} is damaged", path.display())]
    DamagedPack {
        /// The pack's file.
        path: PathBuf,
        /// What is wrong with it.
        #[source]
        source: Arc<PackError>,
    },
    /// The chunk is there, its bytes are not.
    #[error("chunk {chunk} is damaged in {}", path.display())]
    DamagedChunk {
        /// The chunk asked for.
        chunk: ChunkId,
        /// The pack's file.
        path: PathBuf,
        /// What is wrong with it.
        #[source]
        source: ChunkError,
    },
    /// The buffer is shorter than the chunk.
    #[error("chunk {chunk} has {needed_bytes} bytes, the buffer less")]
    BufferTooSmall {
        /// The chunk asked for.
        chunk: ChunkId,
        /// Length of the chunk.
        needed_bytes: usize,
    },
    /// The system refused.
    #[error("cannot read {}", path.display())]
    Io {
        /// File or directory.
        path: PathBuf,
        /// The system's error.
        #[source]
        source: io::Error,
    },
}

/// Why the store could not do what was asked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// The system refused.
    #[error("cannot {action} {}", path.display())]
    Io {
        /// What was tried, as a verb.
        action: &'static str,
        /// On which file or directory.
        path: PathBuf,
        /// The system's error.
        #[source]
        source: io::Error,
    },
    /// An earlier sync failed: what was written since the last good one may be lost, so nothing may be called saved.
    #[error("an earlier sync of the store {} failed; mend the file system: the next command syncs everything again", path.display())]
    Poisoned {
        /// The store's directory.
        path: PathBuf,
    },
    /// The directory does not hold a store.
    #[error("{} is not a store", path.display())]
    NotAStore {
        /// The directory.
        path: PathBuf,
    },
    /// The directory is somebody else's, who could not read what is written there.
    #[error(
        "{} belongs to the user with id {owner}, who could not read what another saves there",
        path.display()
    )]
    Foreign {
        /// The directory.
        path: PathBuf,
        /// Whose it is, as a user id.
        owner: u32,
    },
    /// The directory holds something else.
    #[error(
        "{} is not a store and holds other files; give an empty directory, or one that does not exist",
        path.display()
    )]
    NotEmpty {
        /// The directory.
        path: PathBuf,
    },
    /// A write of this capture failed before; it can only be dropped.
    #[error("an earlier write of this capture failed")]
    CaptureFailed,
    /// A chunk must have 1 to 65,536 bytes.
    #[error("a chunk of {len_bytes} bytes cannot be stored")]
    InvalidChunkLength {
        /// Length given.
        len_bytes: usize,
    },
    /// The build lacks the codec asked for.
    #[error("this build cannot write {0:?}")]
    CodecNotBuilt(Codec),
    /// The compressor failed.
    #[error("cannot compress a chunk")]
    Compress(#[source] io::Error),
    /// A chunk could not be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// A pack is damaged.
    #[error("the pack {} is damaged", path.display())]
    Pack {
        /// The pack's file.
        path: PathBuf,
        /// What is wrong with it.
        #[source]
        source: Arc<PackError>,
    },
    /// The point is being read, by a restore for instance, and was to be removed.
    #[error("point {point} is in use")]
    InUse {
        /// The point.
        point: PointId,
    },
    /// The caller's function that lists a record's chunks failed.
    #[error("cannot list the chunks of point {point}")]
    Record {
        /// The point.
        point: String,
        /// The caller's error.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A file of the store's own is malformed.
    #[error("{} is malformed: {what}", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        what: &'static str,
    },
    /// A record or its line exceeds a named limit.
    #[error("{what} of {len_bytes} bytes exceeds the limit of {limit_bytes}")]
    TooLarge {
        /// What is too large.
        what: &'static str,
        /// Its length.
        len_bytes: u64,
        /// The limit.
        limit_bytes: u64,
    },
}

impl From<FileError> for StoreError {
    fn from(error: FileError) -> Self {
        Self::Io {
            action: error.operation,
            path: error.path,
            source: error.source,
        }
    }
}

impl StoreError {
    /// Whether the reason is that a pack or a chunk is damaged, or not there.
    #[must_use]
    pub fn is_damage(&self) -> bool {
        match self {
            Self::Read(error) => error.is_damage() || matches!(error, ReadError::NotFound { .. }),
            Self::Pack { source, .. } => !matches!(**source, PackError::Io(_)),
            _ => false,
        }
    }

    pub(crate) fn io(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self + use<> {
        let path = path.to_path_buf();
        move |source| Self::Io {
            action,
            path,
            source,
        }
    }
}

impl ReadError {
    /// Whether the chunk or its pack was not there, which another listing of the packs may mend.
    pub(crate) fn is_absence(&self) -> bool {
        match self {
            Self::NotFound { .. } => true,
            Self::Io { source, .. } => source.kind() == io::ErrorKind::NotFound,
            _ => false,
        }
    }

    pub(crate) fn io(path: &Path) -> impl FnOnce(io::Error) -> Self + use<> {
        let path = path.to_path_buf();
        move |source| Self::Io { path, source }
    }

    pub(crate) fn pack(path: &Path) -> impl FnOnce(PackError) -> Self + use<> {
        let path = path.to_path_buf();
        move |source| match source {
            PackError::Io(source) => Self::Io { path, source },
            source => Self::DamagedPack {
                path,
                source: Arc::new(source),
            },
        }
    }

    /// Whether it is the data that is to blame, not the system.
    pub(crate) fn is_damage(&self) -> bool {
        matches!(self, Self::DamagedPack { .. } | Self::DamagedChunk { .. })
    }
}
