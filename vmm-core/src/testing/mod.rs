//!
//! [`Driver`] is a minimal, correct virtio driver over the register block of a
//! the bytes given.

mod driver;
mod memory_disk;

pub use driver::{Driver, TestIrq, test_ram};
pub use memory_disk::MemoryDisk;
