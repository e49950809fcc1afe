//! What `cargo xtask` does, as a library: its tests use parts of it.
//!
//! - [`vmtest`]: tests, scripts or a shell in an emulated host that has real KVM.
//! - [`mod@bench`]: whole machines measured on this host.
//! - [`boots`]: one guest on the software CPU and on QEMU, compared.
//! - [`ci`]: all that `scripts/test` runs, counted.
//!
//! Nothing here is part of smolvm; no other crate depends on it.

pub mod bench;
pub mod boots;
pub mod cache;
pub mod cargo;
pub mod ci;
pub mod error;
pub mod output;
pub mod process;
pub mod totals;
pub mod vmtest;
