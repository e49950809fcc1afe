//! Files and directories that appear whole and durable, or not at all.
//!
//! # Model
//!
//! - [`FileBackend`] is the seam to the file system: [`OsBackend`] is the real one. The feature `testing` has one in memory that
//!   knows what a power loss leaves, and one that fails at a chosen operation.
//! - [`replace`] changes a small file: temporary file, sync, rename, sync of the directory. Its error says whether the old file is
//!   still in place or that nobody can tell ([`ReplaceError`]).
//! - [`Staging`] is a hidden directory in which something is built. [`Staging::publish_as`] syncs it and gives it a name that
//!   must be free. What a killed process leaves of it is removed by the next [`Staging::create`].
//!
//! # What is never touched
//!
//! Files are opened without following links, and only if they are regular files. Names are removed only in directories that are
//! no links. [`remove_leftovers`] removes only directories that this user made under a staging name, and that nobody holds.
//!
//! # Locks
//!
//! A lock is waited for as long as a process that works holds it. One of a process that is stopped (SIGSTOP) may be held for ever, so
//! that ends in an error which names the process ([`LockHeld`]).
//!
//! # Example
//!
//! ```
//! use durable_files::{OsBackend, replace};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let dir = tempfile::tempdir()?;
//! let path = dir.path().join("settings.json");
//! replace(&OsBackend, &path, b"{}")?;
//! assert_eq!(std::fs::read(&path)?, b"{}");
//! # Ok(())
//! # }
//! ```

mod backend;
mod directory;
mod error;
mod os;
mod replace;
mod staging;
#[cfg(feature = "testing")]
pub mod testing;
mod waiting;

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};

pub use backend::{BackendFile, FileBackend, FileKind, FileStat, LockGuard, LockMode};
pub use directory::{create_durable_dirs, remove_if_present, sync_tree};
pub use error::{FileError, PublishError, ReplaceError};
pub use os::OsBackend;
pub use replace::{TEMPORARY_PREFIX, read_bounded, replace, write_new};
pub use staging::{Published, STAGING_MARK, Staging, publish, remove_leftovers, remove_whole};
pub use waiting::{
    LockHeld, LockHolder, is_process_stopped, lock_holders, lock_present_within, lock_within,
    wait_for_lock,
};

/// 16 hexadecimal digits that nobody else on this host uses by any reasonable chance.
#[must_use]
pub fn random_name() -> String {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    // `RandomState` is keyed from the system's random numbers, once per process.
    let value =
        RandomState::new().hash_one((count, std::process::id(), std::time::SystemTime::now()));
    format!("{value:016x}")
}
