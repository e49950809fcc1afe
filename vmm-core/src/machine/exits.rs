use std::sync::Arc;

use crate::Gpa;
use crate::bus::Bus;
use crate::exit::{ExitHandler, PsciCall};
use crate::x86::Ioapic;

/// PSCI's answer to a call that does not exist (Arm DEN0022, 5.2.2).
const PSCI_NOT_SUPPORTED: u64 = -1_i64 as u64;

/// Routes a vCPU's accesses to the machine's devices.
#[derive(Clone)]
pub(super) struct MachineExits {
    pub(super) ports: Bus,
    pub(super) mmio: Bus,
    pub(super) ioapic: Arc<Ioapic>,
}

impl ExitHandler for MachineExits {
    fn pio_read(&mut self, port: u16, data: &mut [u8]) {
        self.ports.read(port.into(), data);
    }

    fn pio_write(&mut self, port: u16, data: &[u8]) {
        self.ports.write(port.into(), data);
    }

    fn mmio_read(&mut self, gpa: Gpa, data: &mut [u8]) {
        self.mmio.read(gpa.0, data);
    }

    fn mmio_write(&mut self, gpa: Gpa, data: &[u8]) {
        self.mmio.write(gpa.0, data);
    }

    fn ioapic_eoi(&mut self, vector: u8) {
        self.ioapic.end_of_interrupt(vector);
    }

    fn psci(&mut self, _: PsciCall) -> u64 {
        PSCI_NOT_SUPPORTED
    }

    fn virtual_timer_fired(&mut self) {}

    fn undecoded_abort(&mut self, _: Gpa, _: u64) -> bool {
        false
    }
}
