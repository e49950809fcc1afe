//! What verification finds, in words.

use std::fmt;

use super::ROOT_DISK;
use crate::chunk::ChunkRef;
use crate::map::NodeError;
use crate::point::DecodeError;
use crate::record::Part;

/// How bad a finding is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Level {
    /// Worth knowing; nothing is wrong.
    Note,
    /// Something is odd; a restore gives the machine that was saved.
    Warning,
    /// The point, or a part of it, cannot be restored.
    Error,
}

/// One thing that verification found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// How bad it is.
    pub level: Level,
    /// What it is.
    pub problem: Problem,
}

/// What verification finds.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Problem {
    /// The bytes are no record: damaged, of an unknown version, beyond a limit.
    Unreadable(DecodeError),
    /// The record has fields that this version does not know, or was written in another order.
    OtherEncoding,
    /// A chunk's bytes are not there, or those of a node of the map.
    MissingChunk {
        /// Which part needs it.
        part: Part,
        /// Its place in the part's map; of a node, that of the first chunk below it.
        index: u64,
        /// The chunk.
        chunk: ChunkRef,
    },
    /// Further chunks of the part that are not there.
    MoreMissingChunks {
        /// Which part needs them.
        part: Part,
        /// How many.
        count: u64,
    },
    /// A node of a part's map is malformed.
    MalformedNode {
        /// Which part's map.
        part: Part,
        /// The first chunk that it covers.
        index: u64,
        /// The node.
        node: ChunkRef,
        /// What is wrong with it.
        error: NodeError,
    },
    /// A map names chunks beyond the end of its part.
    BeyondEnd {
        /// Which part.
        part: Part,
        /// The last place that the map names.
        index: u64,
        /// Chunks that the part has.
        chunks: u64,
    },
    /// The machine has no vCPU.
    NoVcpus,
    /// There is no state of a vCPU.
    MissingVcpu {
        /// The unit that is missing.
        unit: String,
    },
    /// State of a vCPU that the machine does not have.
    ExtraVcpu {
        /// The unit.
        unit: String,
    },
    /// Two state records of one unit.
    DuplicateUnit {
        /// The unit.
        unit: String,
    },
    /// A state record without a unit's name.
    NamelessUnit,
    /// No state record has this kind for a reader.
    UnknownKind {
        /// The unit.
        unit: String,
        /// Its kind.
        kind: String,
    },
    /// A state record is of a later version than the reader's.
    UnknownStateVersion {
        /// The unit.
        unit: String,
        /// Its kind.
        kind: String,
        /// The record's version.
        found: u32,
        /// The newest version that is read.
        newest: u32,
    },
    /// Memory regions do not add up to the machine's memory.
    MemorySize {
        /// Bytes of all regions.
        found: u64,
        /// Bytes of the machine's memory.
        expected: u64,
    },
    /// Memory regions overlap, or are not in rising order.
    RegionOrder {
        /// The later of the two.
        index: usize,
    },
    /// There is no disk called `root`.
    NoRootDisk,
    /// The root disk is not as large as the machine's disk.
    RootDiskSize {
        /// Bytes of the root disk.
        found: u64,
        /// Bytes of the machine's disk.
        expected: u64,
    },
    /// Two disks have one name.
    DuplicateDisk {
        /// The name.
        name: String,
    },
    /// There is no kernel: the machine cannot be cold-started.
    NoKernel,
    /// A request is in flight at a unit without state.
    InFlightUnit {
        /// The unit.
        unit: String,
    },
    /// More data than the chunks can hold.
    DataBytes {
        /// Bytes that the record claims.
        found: u64,
        /// Bytes that its chunks have.
        most: u64,
    },
    /// A name that must be there is empty.
    Nameless {
        /// What has no name.
        what: &'static str,
    },
}

impl Problem {
    /// How bad it is.
    #[must_use]
    pub fn level(&self) -> Level {
        match self {
            Self::OtherEncoding => Level::Note,
            Self::NoKernel
            | Self::InFlightUnit { .. }
            | Self::DataBytes { .. }
            | Self::RootDiskSize { .. } => Level::Warning,
            _ => Level::Error,
        }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.problem)
    }
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Note => "note",
            Self::Warning => "warning",
            Self::Error => "error",
        })
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreadable(error) => fmt_chain(error, f),
            Self::OtherEncoding => {
                f.write_str("the record was written by another version; unknown fields are skipped")
            }
            Self::MissingChunk { part, index, chunk } => {
                write!(f, "chunk {index} of {part} is missing: {chunk}")
            }
            Self::MoreMissingChunks { part, count } => {
                write!(f, "{count} more chunks of {part} are missing")
            }
            Self::MalformedNode {
                part,
                index,
                node,
                error,
            } => write!(
                f,
                "the chunk map of {part} is damaged from chunk {index} on, node {node}: {error}"
            ),
            Self::BeyondEnd {
                part,
                index,
                chunks,
            } => write!(f, "the chunk map of {part} names chunk {index} of {chunks}"),
            Self::NoVcpus => f.write_str("the machine has no vCPU"),
            Self::MissingVcpu { unit } => write!(f, "the state of {unit} is missing"),
            Self::ExtraVcpu { unit } => {
                write!(
                    f,
                    "there is state of {unit:?}, which is no vCPU of the machine"
                )
            }
            Self::DuplicateUnit { unit } => write!(f, "unit {unit:?} has two states"),
            Self::NamelessUnit => f.write_str("a state names no unit"),
            Self::UnknownKind { unit, kind } => {
                write!(f, "unit {unit:?} is of the unknown kind {kind:?}")
            }
            Self::UnknownStateVersion {
                unit,
                kind,
                found,
                newest,
            } => write!(
                f,
                "unit {unit:?} ({kind:?}) has state version {found}, this program reads up to {newest}"
            ),
            Self::MemorySize { found, expected } => {
                write!(
                    f,
                    "memory regions have {found} bytes, the machine has {expected}"
                )
            }
            Self::RegionOrder { index } => {
                write!(
                    f,
                    "memory region {index} begins before the end of the one before it"
                )
            }
            Self::NoRootDisk => write!(f, "there is no disk {ROOT_DISK:?}"),
            Self::RootDiskSize { found, expected } => {
                write!(
                    f,
                    "the root disk has {found} bytes, the machine's disk {expected}"
                )
            }
            Self::DuplicateDisk { name } => write!(f, "two disks are called {name:?}"),
            Self::NoKernel => f.write_str("there is no kernel: the machine cannot be cold-started"),
            Self::InFlightUnit { unit } => {
                write!(f, "a request was in flight at {unit:?}, which has no state")
            }
            Self::DataBytes { found, most } => {
                write!(
                    f,
                    "the record claims {found} bytes of data, its chunks have {most}"
                )
            }
            Self::Nameless { what } => write!(f, "the {what} is not named"),
        }
    }
}

/// An error and its causes in one line.
fn fmt_chain(error: &dyn std::error::Error, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    write!(f, "{error}")?;
    let mut next = error.source();
    while let Some(cause) = next {
        write!(f, ": {cause}")?;
        next = cause.source();
    }
    Ok(())
}
