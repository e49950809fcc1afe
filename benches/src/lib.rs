//! Benchmarks.
//!
//! `benches/` holds those of single layers (`cargo bench -p benches`); [`end_to_end`] measures whole
//! machines and is run by `cargo xtask bench`.

pub mod end_to_end;
