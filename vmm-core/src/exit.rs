//! What a vCPU asks of the machine while it runs.

use crate::Gpa;

/// Handles the accesses that leave guest mode. One handler per vCPU, called on its thread.
///
/// No method fails: an access that nothing answers reads as all ones and ignores writes, as on
/// hardware. Events that end the machine are reported elsewhere, by kicking the vCPUs.
pub trait ExitHandler {
    /// x86 `in`: fills `data` (1, 2 or 4 bytes).
    fn pio_read(&mut self, port: u16, data: &mut [u8]);

    /// x86 `out` of 1, 2 or 4 bytes.
    fn pio_write(&mut self, port: u16, data: &[u8]);

    /// A read of 1 to 8 bytes outside of RAM.
    fn mmio_read(&mut self, gpa: Gpa, data: &mut [u8]);

    /// A write of 1 to 8 bytes outside of RAM.
    fn mmio_write(&mut self, gpa: Gpa, data: &[u8]);

    /// x86: a local APIC ended a level-triggered interrupt of this vector.
    fn ioapic_eoi(&mut self, vector: u8);

    /// arm64: a PSCI call that the backend does not handle; returns the value for `x0`.
    fn psci(&mut self, call: PsciCall) -> u64;

    /// arm64: the virtual timer fired and is masked until the interrupt is handled.
    fn virtual_timer_fired(&mut self);

    /// arm64: a data abort outside of RAM whose syndrome does not describe the access. Returns
    /// whether the handler emulated it.
    fn undecoded_abort(&mut self, gpa: Gpa, syndrome: u64) -> bool;
}

/// A PSCI call with its arguments (Arm DEN0022).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PsciCall {
    /// The function identifier in `w0`.
    pub function: u32,
    /// `x1` to `x3`.
    pub arguments: [u64; 3],
}
