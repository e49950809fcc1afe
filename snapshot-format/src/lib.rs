//! The bytes of a saved point: records, ids, lineage.
//!
//! # Model
//!
//! * A [`PointRecord`] is everything about a saved moment except the bytes of its chunks. It names a map of [`ChunkRef`]s,
//!   one for each 64 KiB, for each memory region and disk by a [`MapRoot`]; maps consist of chunks themselves, see [`map`].
//!   Where chunks lie is none of its business.
//! * [`PointRecord::encode`] is deterministic: equal records have equal bytes. A [`CheckpointId`] is the BLAKE3 digest of
//!   those bytes and nothing else, so `b3sum point.record` prints it.
//! * A stored record may have fields that this version does not know. They are skipped, and its id stays that of the
//!   stored bytes: a [`Point`] is a record with the id it was stored under.
//! * A [`Lineage`] is a point and its ancestors, and finds the one that `~2` or the beginning of an id names.
//! * [`verify()`] and [`verify_chunks`] list everything that is wrong with a record and with its maps.
//! * [`StateRecord`] is one unit's saved state (a device, a vCPU, a clock); its bytes are numbered [`fields`], the codec
//!   of all saved state.
//!
//! # Errors
//!
//! Records are untrusted. Decoding refuses what is truncated, damaged, malformed or beyond the constants of [`limits`]
//! ([`DecodeError`]), never panics, and takes memory in proportion to its input. Encoding refuses what could not be read
//! again ([`LimitError`]).
//!
//! # What is not here
//!
//! Chunks and files: this crate needs [`std::io::Read`], [`std::io::Write`] and slices only. What a state record means:
//! units validate their own.
//!
//! # Example
//!
//! ```
//! use snapshot_format::{ChunkRef, MapNodes, MemoryRegion, Point, PointRecord, StateRecord, WallTime};
//! use snapshot_format::fields::{FieldReader, FieldWriter};
//!
//! // A unit's state: numbered fields, absent ones read as zero.
//! let mut writer = FieldWriter::new();
//! writer.u64(1, 42).bytes(2, b"hello");
//! let serial = StateRecord::new("serial0", "uart16550", 1, writer.finish());
//!
//! // 1 GiB of memory, of which two chunks hold data. The nodes of its map are chunks, to be stored beside these.
//! let chunk = ChunkRef::of_bytes(b"what the chunk holds");
//! let mut nodes = MapNodes::new();
//! let map = nodes.build([(0, chunk), (4_711, chunk)])?;
//! let record = PointRecord {
//!     machine: "worker".into(),
//!     taken: WallTime::now(),
//!     memory: vec![MemoryRegion { start_gpa: 0, size_bytes: 1 << 30, map }],
//!     states: vec![serial],
//!     ..PointRecord::default()
//! };
//! let (point, bytes) = Point::seal(record)?;
//!
//! let again = Point::decode(&bytes)?;
//! assert_eq!(again.id(), point.id());
//! assert_eq!(nodes.chunks(&again.record().memory[0].map)?, [(0, chunk), (4_711, chunk)]);
//! let state = again.record().state("serial0").unwrap();
//! assert_eq!(FieldReader::parse(&state.bytes)?.u64(1)?, 42);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod chunk;
mod codec;
pub mod fields;
mod host;
mod id;
pub mod limits;
mod lineage;
mod lineage_entry;
pub mod map;
mod point;
mod process;
mod record;
mod state_record;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
mod time;
pub mod verify;

pub use chunk::{CHUNK_BYTES, ChunkRef, chunks_in};
pub use fields::FieldError;
pub use host::{
    AgentVersion, Arch, BackendKind, CpuProfile, GuestOs, MachineModel, UnknownName, UnknownNumber,
};
pub use id::{CheckpointId, IdPrefix, InvalidId, MIN_PREFIX_DIGITS, SHORT_ID_DIGITS};
pub use limits::LimitError;
pub use lineage::{Lineage, LineageError, ResolveError};
pub use lineage_entry::{LineError, LineageEntry, MAX_LINE_BYTES};
pub use map::{MapNodes, MapReader, MapRoot, NodeSource};
pub use point::{DecodeError, FORMAT_VERSION, MAGIC, Point, ReadError, WriteError};
pub use process::{GuestProcess, ProcessList};
pub use record::{
    Blob, BootBlobs, DiskMap, HostContract, InFlightNote, MachineSpec, MemoryRegion, Part, PartMap,
    PointRecord,
};
pub use state_record::StateRecord;
pub use time::WallTime;
pub use verify::{
    ChunkLookup, Finding, Level, Problem, verify, verify_bytes, verify_chunks, verify_states,
};
