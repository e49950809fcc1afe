use std::collections::VecDeque;
use std::sync::Arc;

use vmm_core::Gpa;
use vmm_core::exit::{ExitHandler, PsciCall};
use vmm_core::hypervisor::VcpuKick;

use super::ports;

/// What a vCPU asked of the machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)] // address, size in bytes, value as the guest sees it
pub enum Access {
    PortIn { port: u16, bytes: usize },
    PortOut { port: u16, bytes: usize, value: u32 },
    MmioRead { gpa: u64, bytes: usize },
    MmioWrite { gpa: u64, bytes: usize, value: u64 },
    EndOfInterrupt { vector: u8 },
}

/// An [`ExitHandler`] that notes every access and answers reads from a queue.
pub struct Trace {
    kicker: Arc<dyn VcpuKick>,
    /// Everything but the accesses to [`ports::REPORT`] and [`ports::DONE`], in order.
    pub accesses: Vec<Access>,
    /// What the guest wrote to [`ports::REPORT`].
    pub reports: Vec<u32>,
    /// Whether the guest wrote to [`ports::DONE`].
    pub done: bool,
    /// What the next reads give, the oldest first; an empty queue gives all ones.
    pub answers: VecDeque<u64>,
    /// Called on each access that is noted in `accesses`.
    pub hook: Option<Box<dyn FnMut(Access)>>,
}

impl Trace {
    /// A trace of the vCPU that `kicker` kicks.
    pub fn new(kicker: Arc<dyn VcpuKick>) -> Self {
        Self {
            kicker,
            accesses: Vec::new(),
            reports: Vec::new(),
            done: false,
            answers: VecDeque::new(),
            hook: None,
        }
    }

    fn note(&mut self, access: Access) {
        self.accesses.push(access);
        if let Some(hook) = &mut self.hook {
            hook(access);
        }
    }

    fn answer(&mut self, data: &mut [u8]) {
        let value = self.answers.pop_front().unwrap_or(u64::MAX);
        let bytes = data.len();
        data.copy_from_slice(&value.to_le_bytes()[..bytes]);
    }
}

fn value_of(data: &[u8]) -> u64 {
    let mut bytes = [0; 8];
    bytes[..data.len()].copy_from_slice(data);
    u64::from_le_bytes(bytes)
}

impl ExitHandler for Trace {
    fn pio_read(&mut self, port: u16, data: &mut [u8]) {
        let bytes = data.len();
        self.note(Access::PortIn { port, bytes });
        self.answer(data);
    }

    fn pio_write(&mut self, port: u16, data: &[u8]) {
        let value = value_of(data) as u32;
        match port {
            ports::REPORT => self.reports.push(value),
            ports::DONE => {
                self.done = true;
                self.kicker.kick();
            }
            _ => {
                let bytes = data.len();
                self.note(Access::PortOut { port, bytes, value });
            }
        }
    }

    fn mmio_read(&mut self, gpa: Gpa, data: &mut [u8]) {
        let (gpa, bytes) = (gpa.0, data.len());
        self.note(Access::MmioRead { gpa, bytes });
        self.answer(data);
    }

    fn mmio_write(&mut self, gpa: Gpa, data: &[u8]) {
        let (gpa, bytes, value) = (gpa.0, data.len(), value_of(data));
        self.note(Access::MmioWrite { gpa, bytes, value });
    }

    fn ioapic_eoi(&mut self, vector: u8) {
        self.note(Access::EndOfInterrupt { vector });
    }

    fn psci(&mut self, call: PsciCall) -> u64 {
        panic!("an x86 guest made a PSCI call: {call:?}");
    }

    fn virtual_timer_fired(&mut self) {
        panic!("an x86 guest has no arm64 timer");
    }

    fn undecoded_abort(&mut self, gpa: Gpa, syndrome: u64) -> bool {
        panic!("an x86 guest has no data aborts: {gpa}, {syndrome:#x}");
    }
}
