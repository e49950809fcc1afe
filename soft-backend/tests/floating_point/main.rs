//! The software CPU's floating-point and vector instructions: coverage, results that are the same on
//! every host, and comparison with the host CPU on x86-64.
//!
//! `SMOLVM_FP_ROUNDS` sets the number of operands tried per encoding in the comparison.

mod cases;
mod context;
mod core;
mod coverage;
mod encodings;
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod host;
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod native;
mod random;
