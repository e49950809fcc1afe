//! Durable, deduplicated chunks in sealed packs.
//!
//! # Model
//!
//! A **chunk** is up to 64 KiB of bytes, named by BLAKE3 ([`ChunkId`]); the chunk of zeros has the name
//! [`ChunkId::ZERO`] and no bytes. Chunks lie in **packs**: files that are written once, sealed (mode 0400), and carry their
//! own index. A **store** is a directory of packs, of **points** (records that name chunks; the store does not read them)
//! and of what running sessions need.
//!
//! - [`Store::begin_capture`] stores chunks, each once. [`Capture::seal`] makes them durable; the packs stay protected
//!   until the [`SealedCapture`] is dropped, so a record or links can be put in place without a race.
//! - [`PackSet`] reads chunks from any directories of packs, with no store needed. What it gives was verified.
//! - [`PackSet::pin_into`] and [`Capture::adopt`] bring packs from one directory to another by hard link, or by a verified
//!   copy. A pack without links outside, without a point that needs it and without a running session is removed by
//!   [`Store::sweep`].
//! - [`FileBackend`] is the seam to the file system, from the crate `durable-files`. The feature `testing` has one in memory, one that fails and one
//!   that crashes, for the property tests of users.
//!
//! # Errors
//!
//! [`StoreError`] for what changes a store, [`ReadError`] for chunks, [`PackError`] and [`ChunkError`] for damage. After a
//! failed sync a store is poisoned: every later change fails, since nothing may be called saved. Packs and chunks are
//! untrusted: sizes are bounded by named limits and no input makes a reader panic.
//!
//! # What is not here
//!
//! The format of records, machines, history, and any background thread.
//!
//! # Example
//!
//! ```
//! use cas_store::{CaptureOptions, PointId, Store};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let dir = tempfile::tempdir()?;
//! let store = Store::open(dir.path().join("store"))?;
//! let capture = store.begin_capture(CaptureOptions::default())?;
//! let hello = capture.put(b"hello")?;
//! assert_eq!(capture.put(b"hello")?, hello);
//! assert!(capture.put(&[0; 4096])?.is_zero());
//! let sealed = capture.seal()?;
//! store.put_point(&PointId([1; 32]), hello.as_bytes(), "first")?;
//! drop(sealed);
//!
//! let mut buf = [0; cas_store::MAX_CHUNK_BYTES];
//! let len = store.chunks().get(&hello, &mut buf)?;
//! assert_eq!(&buf[..len], b"hello");
//! # Ok(())
//! # }
//! ```

mod capture;
mod check;
mod codec;
mod compact;
mod error;
mod id;
mod marker;
mod on_threads;
mod pack;
mod packset;
mod place;
mod points;
mod prune;
mod removal;
mod repack;
mod session;
mod store;
mod sweep;
#[cfg(feature = "testing")]
pub mod testing;
mod usage;
mod verified;

pub use capture::{Adopted, Capture, CaptureOptions, CaptureStats, RECENT_PACKS, SealedCapture};
pub use check::{
    CheckLevel, CheckProgress, CheckReport, Finding, FindingKind, MAX_FINDINGS, RepairReport,
    Severity, repair_packs,
};
pub use codec::{Codec, Compression, PreparedChunk};
pub use compact::{Compacted, Kept};
pub use durable_files::{BackendFile, FileBackend, FileStat, OsBackend, STAGING_MARK};
pub use error::{ChunkError, PackError, ReadError, StoreError};
pub use id::{ChunkId, InvalidId, PackId, PointId, is_zero};
pub use marker::is_store;
pub use on_threads::{Failures, chunk_threads, for_all};
pub use pack::{PACK_SUFFIX, pack_file_name};
pub use packset::{ChunkInfo, MAX_PACKS_PER_SET, PackSet};
pub use place::Pinned;
pub use points::{
    Directory, DirectoryState, MAX_META_BYTES, MAX_RECORD_BYTES, PointEntry, PointUse,
};
pub use prune::{PruneOptions, PruneReport, PruneStep};
pub use removal::RemovalStep;
pub use repack::{RepackOptions, RepackReport};
pub use session::Leftover;
pub use store::{Pin, STORE_PARTS, Store};
pub use sweep::{RecordChunks, SweepReport};
pub use usage::{OwnAndShared, PointUsage};

/// Largest chunk, and the size of all but the last chunk of whatever is cut up.
pub const MAX_CHUNK_BYTES: usize = 64 << 10;
/// Most packs that one point's chunks may lie in.
pub const MAX_PACKS_PER_POINT: usize = 128;
/// A capture begins a new pack beyond this length.
pub const DEFAULT_PACK_BYTES: u64 = 2 << 30;
/// A capture begins a new pack after so many chunks (8 GiB of data).
pub const DEFAULT_PACK_CHUNKS: usize = 131_072;
