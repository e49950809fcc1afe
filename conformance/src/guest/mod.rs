//! Small VMs around a few instructions of guest code.

pub mod interrupt_table;
pub mod machine;
pub mod paging;
pub mod ports;
pub mod start;
mod trace;
mod vcpu;
mod vm;
mod watchdog;

pub use trace::{Access, Trace};
pub use vcpu::TestVcpu;
pub use vm::{RAM_BYTES, TestVm, portable_cpu};
pub use watchdog::Watchdog;
