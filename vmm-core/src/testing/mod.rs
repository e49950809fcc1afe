//! Drivers and fuzz bodies for the devices (feature `testing`).
//!
//! [`Driver`] is a minimal, correct virtio driver over the register block of a
//! [`crate::virtio::VirtioMmio`]; the `fuzz_` functions drive a device as a hostile guest would, by
//! the bytes given: they return when the device has come to rest and its saved state was taken back.

mod driver;
mod fuzz;
mod kernel;
mod memory_disk;
mod state_fuzz;

pub use driver::{Driver, TestIrq, test_ram};
pub use fuzz::{fuzz_balloon, fuzz_blk, fuzz_rng, fuzz_serial, fuzz_vsock};
pub use kernel::pvh_kernel;
pub use memory_disk::MemoryDisk;
pub use state_fuzz::{fuzz_unit_state, fuzz_vcpu_state};
