//! Files that keep their content in memory, lose it in crashes, or fail when told to; and the
//! fuzz entry. For this crate's tests and for those of its users.

mod crash;
mod fault;
mod fuzz;
mod pages;

pub use crash::{CrashFile, CrashHost};
pub use fault::{Fault, FaultFile, FaultPlan, Operation};
pub use fuzz::fuzz_overlay;
pub use pages::MemoryFile;
