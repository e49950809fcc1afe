//! Backends for tests: in memory, failing on purpose, and stopping as a crash does (feature `testing`).
//!
//! ```
//! use std::sync::Arc;
//! use cas_store::testing::{MemoryBackend, Survivors};
//! use cas_store::{CaptureOptions, Store};
//!
//! let memory = MemoryBackend::new();
//! let store = Store::open_with(Arc::new(memory.clone()), "/store").unwrap();
//! let capture = store.begin_capture(CaptureOptions::default()).unwrap();
//! let id = capture.put(b"kept").unwrap();
//! capture.seal().unwrap();
//!
//! // The power goes; what was synced is still there.
//! let after = memory.after_crash(Survivors::OnlySynced);
//! let store = Store::open_with(Arc::new(after), "/store").unwrap();
//! assert!(store.chunks().contains(&id).unwrap());
//! ```

pub mod fuzz;

pub use durable_files::testing::{FaultBackend, MemoryBackend, Operation, Plan, Survivors};
