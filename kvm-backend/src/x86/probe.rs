use std::time::{Duration, Instant};

use vm_memory::{Bytes, GuestAddress};
use vmm_core::Gpa;
use vmm_core::cpu_state::VcpuState;
use vmm_core::exit::{ExitHandler, PsciCall};
use vmm_core::hypervisor::{ArchSpec, Hypervisor, HypervisorError, VmSpec, X86Spec};
use vmm_core::ram::{GuestRam, RamBacking};
use vmm_core::x86::{self, CpuProfile, GeneralRegisters, Segment, X86VcpuState};

use super::Kvm;
use crate::NAME;

/// Iterations of the probe's loop, two instructions each.
const ITERATIONS: u32 = 100_000;
/// Instructions per second below which KVM emulates them one by one. Emulation reaches about 1.5
/// million, the slowest hardware (and nested emulated hosts) more than 20.
const SLOWEST_HARDWARE: f64 = 8e6;
const CODE: u64 = 0x1000;
const PAGE_TABLES: u64 = 0x2000;
const DONE_PORT: u16 = 0x80;

/// A guest like a kernel: 64-bit code under paging that loops and then writes to a port.
///
/// ```text
/// mov ecx, 100000
/// again: dec ecx
/// jnz again
/// out 0x80, al
/// hlt
/// ```
fn guest_code() -> Vec<u8> {
    let mut code = vec![0xb9];
    code.extend_from_slice(&ITERATIONS.to_le_bytes());
    code.extend_from_slice(&[0xff, 0xc9, 0x75, 0xfc, 0xe6, DONE_PORT as u8, 0xf4]);
    code
}

pub(crate) fn probe() -> Result<(), HypervisorError> {
    let kvm = Kvm::open()?;
    let elapsed = run_guest(&kvm).map_err(|error| HypervisorError::Unavailable {
        backend: NAME,
        reason: format!("/dev/kvm opens, but a small guest does not run: {error}"),
    })?;
    let rate = 2.0 * f64::from(ITERATIONS) / elapsed.as_secs_f64().max(1e-9);
    if rate < SLOWEST_HARDWARE {
        let reason = format!(
            "/dev/kvm opens, but runs guest code in its instruction emulator ({:.1} million \
             instructions per second): this host has no hardware virtualization",
            rate / 1e6
        );
        return Err(HypervisorError::Unavailable {
            backend: NAME,
            reason,
        });
    }
    Ok(())
}

/// Runs the guest twice and returns the faster time.
fn run_guest(kvm: &Kvm) -> Result<Duration, HypervisorError> {
    let layout = x86::ram_layout(2 << 20).map_err(|error| state_error(&error))?;
    let ram = GuestRam::new(layout, &RamBacking::Anonymous).map_err(|error| state_error(&error))?;
    let place = |bytes: &[u8], at: u64| {
        ram.write_slice(bytes, GuestAddress(at))
            .map_err(|error| state_error(&error))
    };
    place(&guest_code(), CODE)?;
    // One entry per level maps the first 2 MiB to themselves.
    place(&(PAGE_TABLES + 0x1003).to_le_bytes(), PAGE_TABLES)?;
    place(&(PAGE_TABLES + 0x2003).to_le_bytes(), PAGE_TABLES + 0x1000)?;
    place(&0x83_u64.to_le_bytes(), PAGE_TABLES + 0x2000)?;

    let x86 = kvm
        .capabilities()
        .x86
        .as_ref()
        .ok_or_else(|| HypervisorError::State {
            what: "KVM has no x86 capabilities".to_owned(),
        })?;
    let (cpuid, msrs) =
        x86::build_profile(CpuProfile::Host, &x86.cpuid).map_err(|error| state_error(&error))?;
    let spec = X86Spec {
        cpuid,
        msrs,
        tsc_khz: x86.tsc_khz,
    };
    let spec = VmSpec {
        ram,
        vcpus: 1,
        arch: ArchSpec::X86(spec),
    };
    let mut vm = kvm.create_vm(&spec)?;
    let Some(binder) = vm.vcpus.pop() else {
        return Err(HypervisorError::State {
            what: "KVM made no vCPU".to_owned(),
        });
    };
    let mut handler = StopOnPort {
        kicker: binder.kicker(),
    };
    let mut vcpu = binder.bind()?;
    let mut fastest = Duration::MAX;
    for _ in 0..2 {
        vcpu.load(&VcpuState::X86(Box::new(long_mode_state())))?;
        let begin = Instant::now();
        vcpu.run(&mut handler)?;
        fastest = fastest.min(begin.elapsed());
        vcpu.finish_pending_exit(&mut handler)?;
    }
    Ok(fastest)
}

fn state_error(error: &dyn std::error::Error) -> HypervisorError {
    HypervisorError::State {
        what: error.to_string(),
    }
}

fn long_mode_state() -> X86VcpuState {
    let mut state = X86VcpuState::reset(0);
    let flat = |selector, attributes| Segment {
        selector,
        limit: 0xffff_ffff,
        attributes,
        ..Segment::default()
    };
    let system = &mut state.system;
    system.cs = flat(0x8, 0xa09b);
    for segment in [&mut system.ds, &mut system.es, &mut system.ss] {
        *segment = flat(0x10, 0xc093);
    }
    system.cr3 = PAGE_TABLES;
    system.cr4 = 0x20;
    system.cr0 = 0x8000_0011;
    system.efer = 0x500;
    state.general = GeneralRegisters {
        rip: CODE,
        rflags: 2,
        ..GeneralRegisters::default()
    };
    state
}

/// Ends the run at the guest's write to [`DONE_PORT`].
struct StopOnPort {
    kicker: std::sync::Arc<dyn vmm_core::hypervisor::VcpuKick>,
}

impl ExitHandler for StopOnPort {
    fn pio_read(&mut self, _: u16, data: &mut [u8]) {
        data.fill(0xff);
    }

    fn pio_write(&mut self, port: u16, _: &[u8]) {
        if port == DONE_PORT {
            self.kicker.kick();
        }
    }

    fn mmio_read(&mut self, _: Gpa, data: &mut [u8]) {
        data.fill(0xff);
    }

    fn mmio_write(&mut self, _: Gpa, _: &[u8]) {}

    fn ioapic_eoi(&mut self, _: u8) {}

    fn psci(&mut self, _: PsciCall) -> u64 {
        u64::MAX
    }

    fn virtual_timer_fired(&mut self) {}

    fn undecoded_abort(&mut self, _: Gpa, _: u64) -> bool {
        false
    }
}
