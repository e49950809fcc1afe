//! Slots of machine model 1: which device sits where.
//!
//! Slot `n` has its register block at [`mmio_base`]`(n)` and its interrupt at [`gsi`]`(n)`. A slot
//! without a device has no register block and no node in the ACPI tables.

use crate::Gpa;
use crate::irq::Gsi;

/// The root disk.
pub const ROOT_DISK: u8 = 0;
/// The vsock device.
pub const VSOCK: u8 = 1;
/// The entropy source.
pub const RNG: u8 = 2;
/// The balloon.
pub const BALLOON: u8 = 3;
/// The network interface.
pub const NET: u8 = 4;
/// The first further disk or file system; there are four such slots.
pub const DISK_FIRST: u8 = 5;
/// The last further disk or file system.
pub const DISK_LAST: u8 = 8;
/// The console.
pub const CONSOLE: u8 = 9;
/// Number of slots.
pub const SLOTS: u8 = 10;

/// Address of slot 0's register block; it lies in the hole below 4 GiB.
pub const MMIO_START: Gpa = Gpa(0xd000_0000);
/// Size in bytes of a slot's register block.
pub const MMIO_BYTES: u64 = 0x1000;
/// Interrupt of slot 0: behind the UART's (4); slot 9 has GSI 14. All are edge-triggered.
pub const GSI_FIRST: Gsi = Gsi(5);

/// Address of a slot's register block.
pub const fn mmio_base(slot: u8) -> Gpa {
    Gpa(MMIO_START.0 + slot as u64 * MMIO_BYTES)
}

/// A slot's interrupt.
pub const fn gsi(slot: u8) -> Gsi {
    Gsi(GSI_FIRST.0 + slot as u32)
}
