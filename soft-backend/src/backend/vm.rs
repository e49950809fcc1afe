//! What the vCPUs of a machine share.

use std::sync::Arc;

use vmm_core::hypervisor::{HypervisorError, Vm, VmSpec, X86Clock, X86Spec};
use vmm_core::irq::{MsiMessage, MsiSink};
use vmm_core::schedule::InstructionClock;
use vmm_core::tracker::{DirtyLog, TrackerError};
use vmm_core::x86::lapic::{Destination, Message};
use vmm_core::x86::{ClockState, MsrList};

use super::baton::Baton;
use super::hypervisor::SoftOptions;
use super::in_order::{InOrder, Rota};
use crate::block::CodeCache;
use crate::cpu::Cpu;
use crate::invalidate::CodePages;
use crate::mem::RamMap;
use crate::router::{Order, Router};
use crate::time::Tsc;

/// Everything that only the holder of the baton touches.
pub(super) struct Machine {
    pub(super) cache: CodeCache,
    pub(super) cpus: Vec<Cpu>,
    /// Deterministic mode.
    pub(super) rota: Rota,
    /// TSC that was saved or loaded with the vCPUs, until the clock is: the two are of one moment,
    /// whatever a busy host does between the calls.
    pub(super) moment: Option<u64>,
}

impl Machine {
    /// In deterministic mode all vCPUs have the machine's time, also those whose turn it is not.
    pub(super) fn count_up(&mut self, vm: &SoftVm) {
        if vm.order.is_some() {
            for cpu in &mut self.cpus {
                cpu.retired = self.rota.count;
            }
        }
    }
}

/// A VM of the software CPU.
pub(super) struct SoftVm {
    pub(super) baton: Baton<Machine>,
    pub(super) router: Arc<Router>,
    pub(super) ram: RamMap,
    pub(super) msrs: MsrList,
    /// Deterministic mode.
    pub(super) order: Option<InOrder>,
}

impl SoftVm {
    pub(super) fn new(spec: &VmSpec, x86: &X86Spec, options: &SoftOptions) -> Self {
        let ram = RamMap::new(spec.ram.clone());
        let code = CodePages::new(ram.clone());
        let khz = u64::from(x86.tsc_khz);
        let time = if options.deterministic {
            Tsc::deterministic(khz)
        } else {
            Tsc::host(khz)
        };
        let order = options.deterministic.then(Order::default);
        let router = Router::new(spec.vcpus, order);
        let cpus = (0..spec.vcpus)
            .map(|i| {
                Cpu::new(
                    i,
                    ram.clone(),
                    code.clone(),
                    x86.cpuid.for_vcpu(i),
                    time,
                    router.clone(),
                )
            })
            .collect();
        let machine = Machine {
            cache: CodeCache::new().translating(options.translate_after),
            cpus,
            rota: Rota::default(),
            moment: None,
        };
        SoftVm {
            baton: Baton::new(machine, router.clone()),
            router,
            ram,
            msrs: x86.msrs.clone(),
            order: options.deterministic.then(|| InOrder::new(khz)),
        }
    }
}

impl Vm for SoftVm {
    fn msi(&self) -> Option<&dyn MsiSink> {
        Some(self)
    }

    fn x86_clock(&self) -> Option<&dyn X86Clock> {
        Some(self)
    }

    fn dirty_log(&self) -> Option<&dyn DirtyLog> {
        Some(self)
    }

    fn checks_presence(&self) -> bool {
        true
    }

    fn instruction_clock(&self) -> Option<&dyn InstructionClock> {
        self.order.as_ref().map(|_| self as &dyn InstructionClock)
    }
}

/// A page is marked in the RAM's page map when a store first gets a write tag for it; taking the set
/// takes the tags.
impl DirtyLog for SoftVm {
    fn start(&self) -> Result<(), TrackerError> {
        for region in 0..self.ram.regions().len() {
            self.take(region, &mut [])?;
        }
        Ok(())
    }

    fn stop(&self) -> Result<(), TrackerError> {
        Ok(())
    }

    fn take(&self, region: usize, into: &mut [u64]) -> Result<(), TrackerError> {
        let mut machine = self.baton.take_now();
        for cpu in &mut machine.cpus {
            // What still has a write tag may have been written after the page map was read.
            for page in cpu.tlb.take_write_tags(&self.ram, region) {
                if let Some(word) = into.get_mut(page / 64) {
                    *word |= 1 << (page % 64);
                }
            }
        }
        Ok(())
    }
}

impl MsiSink for SoftVm {
    fn deliver(&self, message: MsiMessage) -> Result<(), HypervisorError> {
        // Intel SDM volume 3, 10.11: destination in address bits 12-19, logical in bit 2.
        let to = Destination::Of {
            id: (message.address >> 12) as u8,
            logical: message.address >> 2 & 1 != 0,
        };
        let mode = (message.data >> 8 & 7) as u8;
        if let Some(m) = Message::new(mode, message.data as u8, message.data >> 15 & 1 != 0) {
            self.router.send(m, to, None);
        }
        Ok(())
    }

    /// The local APICs remember by themselves which vectors came level-triggered.
    fn watch_level_messages(&self, _: &[Option<MsiMessage>]) -> Result<(), HypervisorError> {
        Ok(())
    }
}

impl X86Clock for SoftVm {
    fn save(&self) -> Result<ClockState, HypervisorError> {
        let mut held = self.baton.take_now();
        held.count_up(self);
        let moment = held.moment.take();
        let at = |cpu: &Cpu| cpu.guest_ns_at(moment.unwrap_or_else(|| cpu.tsc()));
        let guest_nanoseconds = held.cpus.first().map_or(0, at);
        Ok(ClockState { guest_nanoseconds })
    }

    fn load(&self, state: &ClockState) -> Result<(), HypervisorError> {
        let mut held = self.baton.take_now();
        held.count_up(self);
        let moment = held.moment.take();
        for cpu in &mut held.cpus {
            let tsc = moment.unwrap_or_else(|| cpu.tsc());
            cpu.set_guest_ns_at(tsc, state.guest_nanoseconds);
        }
        Ok(())
    }
}
