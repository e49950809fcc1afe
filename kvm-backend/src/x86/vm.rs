use kvm_bindings::{KVM_CAP_MANUAL_DIRTY_LOG_PROTECT2, KVM_CAP_SPLIT_IRQCHIP, kvm_enable_cap};
use kvm_ioctls::VmFd;
use vmm_core::hypervisor::{HypervisorError, Vm, X86Clock};
use vmm_core::irq::MsiSink;
use vmm_core::ram::GuestRam;
use vmm_core::tracker::DirtyLog;
use vmm_core::x86::IOAPIC_PINS;

use super::moment::Moment;
use super::{host_error, raw};

/// Three pages that Intel CPUs without unrestricted guest mode need for themselves, and the page
/// tables of real mode, both in the gap below the end of the first 4 GiB.
const TSS_ADDRESS: usize = 0xfffb_d000;
const IDENTITY_MAP_ADDRESS: u64 = 0xfffb_c000;

/// `KVM_DIRTY_LOG_MANUAL_PROTECT_ENABLE`: reading the log does not re-arm pages (linux/kvm.h).
const MANUAL_PROTECT_ENABLE: u64 = 1;

/// A KVM virtual machine.
pub(super) struct KvmVm {
    fd: VmFd,
    ram: GuestRam,
    manual_protection: bool,
    moment: Moment,
}

impl KvmVm {
    /// Sets up irqchip and memory of a fresh VM.
    pub(super) fn new(fd: VmFd, ram: GuestRam) -> Result<Self, HypervisorError> {
        fd.set_identity_map_address(IDENTITY_MAP_ADDRESS)
            .map_err(host_error("KVM_SET_IDENTITY_MAP_ADDR"))?;
        fd.set_tss_address(TSS_ADDRESS)
            .map_err(host_error("KVM_SET_TSS_ADDR"))?;
        let mut split = kvm_enable_cap {
            cap: KVM_CAP_SPLIT_IRQCHIP,
            ..Default::default()
        };
        split.args[0] = IOAPIC_PINS as u64;
        fd.enable_cap(&split)
            .map_err(host_error("KVM_CAP_SPLIT_IRQCHIP"))?;
        let mut manual = kvm_enable_cap {
            cap: KVM_CAP_MANUAL_DIRTY_LOG_PROTECT2,
            ..Default::default()
        };
        manual.args[0] = MANUAL_PROTECT_ENABLE;
        // An older kernel re-arms when the log is read, which is as correct, only slower.
        let manual_protection = fd.enable_cap(&manual).is_ok();
        raw::map_ram(&fd, &ram, false).map_err(host_error("KVM_SET_USER_MEMORY_REGION"))?;
        Ok(Self {
            fd,
            ram,
            manual_protection,
            moment: Moment::default(),
        })
    }

    pub(super) fn fd(&self) -> &VmFd {
        &self.fd
    }

    pub(super) fn ram(&self) -> &GuestRam {
        &self.ram
    }

    /// When the TSCs were saved or loaded.
    pub(super) fn moment(&self) -> &Moment {
        &self.moment
    }

    pub(super) fn manual_protection(&self) -> bool {
        self.manual_protection
    }
}

impl Vm for KvmVm {
    fn msi(&self) -> Option<&dyn MsiSink> {
        Some(self)
    }

    fn dirty_log(&self) -> Option<&dyn DirtyLog> {
        Some(self)
    }

    fn x86_clock(&self) -> Option<&dyn X86Clock> {
        Some(self)
    }
}
