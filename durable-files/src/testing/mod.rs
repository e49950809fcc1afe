//! File systems for tests: in memory, failing on purpose, and stopping as a power loss does (feature `testing`).
//!
//! ```
//! use std::path::Path;
//! use durable_files::testing::{MemoryBackend, Survivors};
//! use durable_files::{FileBackend, replace};
//!
//! let memory = MemoryBackend::new();
//! replace(&memory, Path::new("/settings"), b"kept").unwrap();
//! memory.create_new(Path::new("/lost")).unwrap();
//!
//! // The power goes; what was synced is still there.
//! let after = memory.after_crash(Survivors::OnlySynced);
//! assert!(after.stat(Path::new("/settings")).is_ok());
//! assert!(after.stat(Path::new("/lost")).is_err());
//! ```

mod fault;
mod memory;

pub use fault::{FaultBackend, Operation, Plan};
pub use memory::{MemoryBackend, Survivors};
