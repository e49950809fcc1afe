//! Benchmarks.
//!
//! `benches/` holds those of single layers (`cargo bench -p benches`); the others measure whole machines and are run by
//! `cargo xtask bench`, beside QEMU: [`end_to_end`] what each operation costs, [`capture`] many saves and ways back,
//! [`cpu`] how quick the software CPU is.

pub mod capture;
pub mod cpu;
pub mod end_to_end;
mod error;
mod host_cost;
mod machine;
mod median;
pub mod peer;

pub use error::BenchError;
