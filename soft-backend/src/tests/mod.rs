//! Tests of the whole CPU: instruction by instruction against the host's, and small guests.

mod alignment;
mod breakpoints;
mod code_cache;
mod fences;
mod flushes;
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod host;
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod host_diff;
mod paging;
mod random;
mod rig;
mod small_guests;
mod stack_fault;
mod stepping;
mod tiers;
mod x87_pointers;
