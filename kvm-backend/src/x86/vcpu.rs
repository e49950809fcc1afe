use std::sync::Arc;
use std::time::{Duration, Instant};

use kvm_bindings::{
    KVM_SYSTEM_EVENT_CRASH, KVM_SYSTEM_EVENT_RESET, KVM_SYSTEM_EVENT_SHUTDOWN, Msrs, kvm_msr_entry,
};
use kvm_ioctls::{VcpuExit, VcpuFd};
use vmm_core::cpu_state::VcpuState;
use vmm_core::exit::ExitHandler;
use vmm_core::hypervisor::{HypervisorError, Vcpu, VcpuBinder, VcpuKick, VcpuStop, X86Spec};
use vmm_core::x86::{CpuidTable, LAPIC_PAGE_BYTES, Msr, MsrList, X86VcpuState, msr};
use vmm_core::{Gpa, VcpuIndex};

use super::extended_state::XsaveLayout;
use super::hypervisor::set_tsc_rate;
use super::kick::Kicker;
use super::moment::closely;
use super::vm::KvmVm;
use super::{events, host_error, raw, registers};

/// Most times a pending exit is continued before the vCPU counts as broken: an access is split into
/// at most two pages and 8 byte pieces.
const MAX_PENDING_PIECES: usize = 64;

/// More TSC ticks than any processor counts in a second.
const FAR_TICKS: u64 = 1 << 50;

/// A vCPU that waits for its thread.
pub(super) struct KvmVcpuBinder {
    vcpu: KvmVcpu,
}

impl KvmVcpuBinder {
    pub(super) fn new(
        fd: VcpuFd,
        index: VcpuIndex,
        vm: Arc<KvmVm>,
        xsave: &XsaveLayout,
        (spec, scales_tsc): (&X86Spec, bool),
    ) -> Self {
        let vcpu = KvmVcpu {
            fd,
            index,
            kicker: Arc::default(),
            xsave: xsave.for_guest(&spec.cpuid),
            cpuid: spec.cpuid.clone(),
            msrs: spec.msrs.clone(),
            tsc_khz: spec.tsc_khz,
            scales_tsc,
            vm,
        };
        Self { vcpu }
    }
}

impl VcpuBinder for KvmVcpuBinder {
    fn index(&self) -> VcpuIndex {
        self.vcpu.index
    }

    fn kicker(&self) -> Arc<dyn VcpuKick> {
        self.vcpu.kicker.clone()
    }

    fn bind(self: Box<Self>) -> Result<Box<dyn Vcpu>, HypervisorError> {
        let mut vcpu = self.vcpu;
        let bound = vcpu.kicker.bind(&mut vcpu.fd);
        bound.map_err(|source| HypervisorError::Host {
            operation: "taking a signal to interrupt the vCPU",
            source,
        })?;
        Ok(Box::new(vcpu))
    }
}

struct KvmVcpu {
    fd: VcpuFd,
    index: VcpuIndex,
    kicker: Arc<Kicker>,
    xsave: XsaveLayout,
    cpuid: CpuidTable,
    msrs: MsrList,
    tsc_khz: u32,
    /// Whether the TSC can count at another rate than the host's.
    scales_tsc: bool,
    /// The VM outlives its vCPUs.
    vm: Arc<KvmVm>,
}

impl Drop for KvmVcpu {
    fn drop(&mut self) {
        self.kicker.unbind();
    }
}

/// What one `KVM_RUN` led to.
enum RunResult {
    Handled,
    Interrupted,
    Stop(VcpuStop),
}

impl KvmVcpu {
    fn run_once(&mut self, handler: &mut dyn ExitHandler) -> Result<RunResult, HypervisorError> {
        let exit = match self.fd.run() {
            Ok(exit) => exit,
            Err(error) if [libc::EINTR, libc::EAGAIN].contains(&error.errno()) => {
                return Ok(RunResult::Interrupted);
            }
            Err(error) => return Err(host_error("KVM_RUN")(error)),
        };
        let stop = match exit {
            VcpuExit::IoIn(..) | VcpuExit::IoOut(..) => {
                self.port_access(handler);
                return Ok(RunResult::Handled);
            }
            VcpuExit::MmioRead(address, data) => {
                handler.mmio_read(Gpa(address), data);
                return Ok(RunResult::Handled);
            }
            VcpuExit::MmioWrite(address, data) => {
                handler.mmio_write(Gpa(address), data);
                return Ok(RunResult::Handled);
            }
            VcpuExit::IoapicEoi(vector) => {
                handler.ioapic_eoi(vector);
                return Ok(RunResult::Handled);
            }
            VcpuExit::Intr => return Ok(RunResult::Interrupted),
            VcpuExit::Shutdown => VcpuStop::TripleFault,
            VcpuExit::SystemEvent(KVM_SYSTEM_EVENT_SHUTDOWN, _) => VcpuStop::PowerOff,
            VcpuExit::SystemEvent(KVM_SYSTEM_EVENT_RESET, _) => VcpuStop::Reset,
            VcpuExit::SystemEvent(KVM_SYSTEM_EVENT_CRASH, _) => {
                VcpuStop::Failed("the guest reported a crash to KVM".to_owned())
            }
            VcpuExit::FailEntry(reason, cpu) => VcpuStop::Failed(format!(
                "KVM cannot enter the guest: {reason:#x} on CPU {cpu}"
            )),
            VcpuExit::InternalError => VcpuStop::Failed(self.internal_error()),
            other => VcpuStop::Failed(format!("unexpected KVM exit {other:?}")),
        };
        Ok(RunResult::Stop(stop))
    }

    /// Handles the port access that the vCPU just left for: one element at a time, since a repeated
    /// string instruction brings several.
    fn port_access(&mut self, handler: &mut dyn ExitHandler) {
        let bytes = raw::port_access_bytes(&mut self.fd);
        let (port, data, is_write) = raw::port_access_data(&mut self.fd);
        for element in data.chunks_mut(bytes) {
            if is_write {
                handler.pio_write(port, element);
            } else {
                handler.pio_read(port, element);
            }
        }
    }

    fn internal_error(&self) -> String {
        let rip = self.fd.get_regs().map_or(0, |regs| regs.rip);
        format!("KVM internal error (an instruction it cannot emulate?) at rip {rip:#x}")
    }

    fn read_msrs(&self) -> Result<Vec<Msr>, HypervisorError> {
        let numbers = self.msrs.numbers();
        let entries: Vec<kvm_msr_entry> = numbers
            .iter()
            .map(|index| kvm_msr_entry {
                index: *index,
                ..kvm_msr_entry::default()
            })
            .collect();
        let mut msrs = msr_list(&entries)?;
        let count = self
            .fd
            .get_msrs(&mut msrs)
            .map_err(host_error("KVM_GET_MSRS"))?;
        if let Some(missing) = numbers.get(count) {
            return Err(HypervisorError::State {
                what: format!("MSR {missing:#x} cannot be read"),
            });
        }
        let read = msrs.as_slice().iter();
        Ok(read
            .map(|entry| Msr {
                index: entry.index,
                value: entry.data,
            })
            .collect())
    }

    fn write_msrs(&self, msrs: &[Msr]) -> Result<(), HypervisorError> {
        if let Some(foreign) = msrs
            .iter()
            .find(|msr| !self.msrs.numbers().contains(&msr.index))
        {
            return Err(HypervisorError::State {
                what: format!("MSR {:#x} is not part of the CPU profile", foreign.index),
            });
        }
        let entries: Vec<kvm_msr_entry> = msrs
            .iter()
            .map(|msr| kvm_msr_entry {
                index: msr.index,
                data: msr.value,
                ..kvm_msr_entry::default()
            })
            .collect();
        let list = msr_list(&entries)?;
        let count = self
            .fd
            .set_msrs(&list)
            .map_err(host_error("KVM_SET_MSRS"))?;
        match msrs.get(count) {
            Some(refused) => Err(HypervisorError::State {
                what: format!(
                    "MSR {:#x} does not take {:#x}",
                    refused.index, refused.value
                ),
            }),
            None => Ok(()),
        }
    }

    /// Reads every MSR, the TSC at a known moment.
    fn save_msrs(&self) -> Result<Vec<Msr>, HypervisorError> {
        let mut msrs = self.read_msrs()?;
        if let Some(tsc) = msrs.iter_mut().find(|msr| msr.index == msr::TSC) {
            let (ticks, at) = closely(|| self.tsc())?;
            tsc.value = ticks;
            self.vm.moment().saved(at);
        }
        Ok(msrs)
    }

    /// Writes MSRs, and notes when the TSC had the value that is among them.
    fn load_msrs(&self, msrs: &[Msr]) -> Result<(), HypervisorError> {
        let loaded = msrs.iter().find(|msr| msr.index == msr::TSC);
        if let Some(tsc) = loaded
            && self.index == VcpuIndex(0)
        {
            // KVM takes a value within a second of what the TSC is anyway for the synchronization of
            // vCPUs and keeps the TSC; that is right for all vCPUs but the first.
            self.write_msrs(&[Msr {
                index: msr::TSC,
                value: tsc.value.wrapping_add(FAR_TICKS),
            }])?;
        }
        let begin = Instant::now();
        self.write_msrs(msrs)?;
        let Some(loaded) = loaded else {
            return Ok(());
        };
        let (ticks, at) = closely(|| self.tsc())?;
        let since = u128::from(ticks.saturating_sub(loaded.value)) * 1_000_000;
        let since = since / u128::from(self.tsc_khz.max(1));
        let since = Duration::from_nanos(u64::try_from(since).unwrap_or(0));
        // Not before it was written: a KVM that emulates may not take the value.
        let moment = at.checked_sub(since).unwrap_or(begin).max(begin);
        self.vm.moment().loaded(moment);
        Ok(())
    }

    /// The TSC alone.
    fn tsc(&self) -> Result<u64, HypervisorError> {
        let mut list = msr_list(&[kvm_msr_entry {
            index: msr::TSC,
            ..kvm_msr_entry::default()
        }])?;
        self.fd
            .get_msrs(&mut list)
            .map_err(host_error("KVM_GET_MSRS"))?;
        Ok(list.as_slice().first().map_or(0, |entry| entry.data))
    }

    fn save_x86(&mut self) -> Result<X86VcpuState, HypervisorError> {
        let mp_state = self
            .fd
            .get_mp_state()
            .map_err(host_error("KVM_GET_MP_STATE"))?;
        let regs = self.fd.get_regs().map_err(host_error("KVM_GET_REGS"))?;
        let sregs = self.fd.get_sregs().map_err(host_error("KVM_GET_SREGS"))?;
        let xcr0 = if self.has_xsave() {
            let xcrs = self.fd.get_xcrs().map_err(host_error("KVM_GET_XCRS"))?;
            registers::xcr0_of(&xcrs)
        } else {
            0
        };
        let xsave = self.xsave.read(&self.fd)?;
        let msrs = self.save_msrs()?;
        let lapic = self.fd.get_lapic().map_err(host_error("KVM_GET_LAPIC"))?;
        let debug = self
            .fd
            .get_debug_regs()
            .map_err(host_error("KVM_GET_DEBUGREGS"))?;
        let events = self
            .fd
            .get_vcpu_events()
            .map_err(host_error("KVM_GET_VCPU_EVENTS"))?;
        Ok(X86VcpuState {
            general: registers::general_from_kvm(&regs),
            system: registers::system_from_kvm(&sregs),
            xcr0,
            xsave,
            msrs,
            lapic: Box::new(lapic.regs.map(|byte| byte as u8)),
            debug: registers::debug_from_kvm(&debug),
            events: events::from_kvm(&events),
            mp_state: events::mp_state_from_kvm(&mp_state)?,
        })
    }

    fn load_x86(&mut self, state: &X86VcpuState) -> Result<(), HypervisorError> {
        let sregs = registers::system_to_kvm(&state.system);
        self.fd
            .set_sregs(&sregs)
            .map_err(host_error("KVM_SET_SREGS"))?;
        if self.has_xsave() {
            let xcrs = registers::xcr0_to_kvm(state.xcr0.max(1));
            self.fd
                .set_xcrs(&xcrs)
                .map_err(host_error("KVM_SET_XCRS"))?;
        }
        self.xsave.write(&self.fd, &state.xsave)?;
        self.load_msrs(&state.msrs)?;
        let mut lapic = kvm_bindings::kvm_lapic_state {
            regs: [0; LAPIC_PAGE_BYTES],
        };
        for (register, byte) in lapic.regs.iter_mut().zip(state.lapic.iter()) {
            *register = *byte as std::ffi::c_char;
        }
        self.fd
            .set_lapic(&lapic)
            .map_err(host_error("KVM_SET_LAPIC"))?;
        let regs = registers::general_to_kvm(&state.general);
        self.fd
            .set_regs(&regs)
            .map_err(host_error("KVM_SET_REGS"))?;
        let debug = registers::debug_to_kvm(&state.debug);
        self.fd
            .set_debug_regs(&debug)
            .map_err(host_error("KVM_SET_DEBUGREGS"))?;
        let mp_state = events::mp_state_to_kvm(state.mp_state)?;
        self.fd
            .set_mp_state(mp_state)
            .map_err(host_error("KVM_SET_MP_STATE"))?;
        let events = events::to_kvm(&state.events);
        self.fd
            .set_vcpu_events(&events)
            .map_err(host_error("KVM_SET_VCPU_EVENTS"))
    }

    /// Whether the guest has XSAVE; without it there is no XCR0.
    fn has_xsave(&self) -> bool {
        self.cpuid
            .get(1, 0)
            .is_some_and(|leaf| leaf.ecx >> 26 & 1 == 1)
    }
}

impl Vcpu for KvmVcpu {
    fn run(&mut self, handler: &mut dyn ExitHandler) -> Result<VcpuStop, HypervisorError> {
        self.vm.moment().forget();
        loop {
            match self.run_once(handler)? {
                RunResult::Handled => {}
                RunResult::Interrupted if self.kicker.consume() => return Ok(VcpuStop::Kicked),
                RunResult::Interrupted => {}
                RunResult::Stop(stop) => return Ok(stop),
            }
        }
    }

    fn finish_pending_exit(
        &mut self,
        handler: &mut dyn ExitHandler,
    ) -> Result<(), HypervisorError> {
        for _ in 0..MAX_PENDING_PIECES {
            self.kicker.set_immediate_exit(true);
            let result = self.run_once(handler);
            self.kicker.set_immediate_exit(false);
            match result? {
                RunResult::Interrupted => return Ok(()),
                RunResult::Handled => {}
                RunResult::Stop(stop) => {
                    return Err(HypervisorError::State {
                        what: format!("the vCPU ended while it was brought to rest: {stop:?}"),
                    });
                }
            }
        }
        Err(HypervisorError::State {
            what: "a pending access does not end".to_owned(),
        })
    }

    fn save(&mut self) -> Result<VcpuState, HypervisorError> {
        Ok(VcpuState::X86(Box::new(self.save_x86()?)))
    }

    fn set_tsc_rate(&mut self, khz: u32) -> Result<(), HypervisorError> {
        set_tsc_rate(&self.fd, khz, self.scales_tsc)?;
        self.tsc_khz = khz;
        Ok(())
    }

    fn load(&mut self, state: &VcpuState) -> Result<(), HypervisorError> {
        match state {
            VcpuState::X86(state) => self.load_x86(state),
            _ => Err(HypervisorError::State {
                what: "it is not an x86 vCPU's".to_owned(),
            }),
        }
    }

    fn notify_stopped(&mut self) -> Result<(), HypervisorError> {
        match self.fd.kvmclock_ctrl() {
            // The guest does not use kvm-clock: nothing to tell.
            Err(error) if error.errno() == libc::EINVAL => Ok(()),
            result => result.map_err(host_error("KVM_KVMCLOCK_CTRL")),
        }
    }
}

fn msr_list(entries: &[kvm_msr_entry]) -> Result<Msrs, HypervisorError> {
    Msrs::from_entries(entries).map_err(|error| HypervisorError::State {
        what: format!("MSR list: {error:?}"),
    })
}
