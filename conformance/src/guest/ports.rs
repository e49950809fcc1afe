//! Ports by which guest code talks to its test.

/// A 32-bit value for the test: the guest's results.
pub const REPORT: u16 = 0xe0;
/// The guest is through; the vCPU is kicked.
pub const DONE: u16 = 0xf4;
