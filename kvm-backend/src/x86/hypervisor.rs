use std::sync::Arc;

use kvm_bindings::{
    CpuId, KVM_CPUID_FLAG_SIGNIFCANT_INDEX, KVM_MAX_CPUID_ENTRIES, kvm_cpuid_entry2,
};
use kvm_ioctls::{Cap, VcpuFd, VmFd};
use vmm_core::VcpuIndex;
use vmm_core::hypervisor::{
    Capabilities, CreatedVm, Hypervisor, HypervisorError, VcpuBinder, VmSpec, X86Capabilities,
    X86Spec,
};
use vmm_core::x86::{CpuidEntry, CpuidTable};

use super::extended_state::XsaveLayout;
use super::host_error;
use super::vcpu::KvmVcpuBinder;
use super::vm::KvmVm;
use crate::NAME;

/// Where KVM is.
const DEVICE: &str = "/dev/kvm";
/// The newest and only version of KVM's API.
const KVM_API_VERSION: i32 = 12;
/// A guest's TSC may differ from the recorded rate by this many parts per million without scaling
/// (the kernel's own tolerance).
const TSC_TOLERANCE_PPM: u64 = 250;

const NEEDED: &[(Cap, &str)] = &[
    (Cap::UserMemory, "user memory"),
    (Cap::SplitIrqchip, "split irqchip"),
    (Cap::SignalMsi, "MSI injection"),
    (Cap::AdjustClock, "clock adjustment"),
    (Cap::ImmediateExit, "immediate exit"),
    (Cap::GetTscKhz, "TSC rate"),
    (Cap::Xsave, "XSAVE state"),
    (Cap::VcpuEvents, "vCPU events"),
    (Cap::Debugregs, "debug registers"),
    (Cap::MpState, "vCPU run state"),
];

/// KVM, opened.
pub(crate) struct Kvm {
    kvm: kvm_ioctls::Kvm,
    capabilities: Capabilities,
    xsave: XsaveLayout,
}

impl Kvm {
    pub(crate) fn open() -> Result<Self, HypervisorError> {
        let kvm = kvm_ioctls::Kvm::new().map_err(open_error)?;
        if kvm.get_api_version() != KVM_API_VERSION {
            return Err(unavailable("its API version is not 12"));
        }
        if let Some((_, name)) = NEEDED.iter().find(|(cap, _)| !kvm.check_extension(*cap)) {
            return Err(unavailable(&format!("it lacks: {name}")));
        }
        let cpuid = supported_cpuid(&kvm)?;
        let mut capabilities = Capabilities::new(kvm.get_max_vcpus(), true, 4096);
        capabilities.x86 = Some(X86Capabilities {
            tsc_khz: host_tsc_khz(&kvm)?,
            tsc_scaling: kvm.check_extension(Cap::TscControl),
            cpuid: cpuid.clone(),
        });
        let xsave_bytes = kvm.check_extension_int(Cap::Xsave2);
        let xsave = XsaveLayout::new(&cpuid, usize::try_from(xsave_bytes).unwrap_or(0));
        Ok(Self {
            kvm,
            capabilities,
            xsave,
        })
    }

    fn create_vcpu(&self, vm: &VmFd, index: u8, spec: &X86Spec) -> Result<VcpuFd, HypervisorError> {
        let vcpu = vm
            .create_vcpu(index.into())
            .map_err(host_error("KVM_CREATE_VCPU"))?;
        let cpuid = to_kvm_cpuid(&spec.cpuid.for_vcpu(index))?;
        vcpu.set_cpuid2(&cpuid)
            .map_err(host_error("KVM_SET_CPUID2"))?;
        set_tsc_rate(&vcpu, spec.tsc_khz, self.scales_tsc())?;
        Ok(vcpu)
    }

    fn scales_tsc(&self) -> bool {
        self.kvm.check_extension(Cap::TscControl)
    }
}

/// Makes a vCPU's TSC count at this rate. A rate that hardly differs stays: KVM takes it for the same.
pub(super) fn set_tsc_rate(vcpu: &VcpuFd, khz: u32, scales: bool) -> Result<(), HypervisorError> {
    let host_khz = vcpu.get_tsc_khz().map_err(host_error("KVM_GET_TSC_KHZ"))?;
    let tolerance = u64::from(host_khz) * TSC_TOLERANCE_PPM / 1_000_000;
    if u64::from(host_khz.abs_diff(khz)) <= tolerance {
        return Ok(());
    }
    if !scales {
        return Err(HypervisorError::TscRate {
            requested_khz: khz,
            host_khz,
        });
    }
    vcpu.set_tsc_khz(khz).map_err(host_error("KVM_SET_TSC_KHZ"))
}

impl Hypervisor for Kvm {
    fn name(&self) -> &'static str {
        NAME
    }

    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn create_vm(&self, spec: &VmSpec) -> Result<CreatedVm, HypervisorError> {
        let x86 = spec.x86(NAME, self.capabilities.max_vcpus)?;
        let fd = self.kvm.create_vm().map_err(host_error("KVM_CREATE_VM"))?;
        let vm = Arc::new(KvmVm::new(fd, spec.ram.clone())?);
        let mut vcpus: Vec<Box<dyn VcpuBinder>> = Vec::new();
        for index in 0..spec.vcpus {
            let fd = self.create_vcpu(vm.fd(), index, x86)?;
            let index = VcpuIndex(index);
            let scales = self.scales_tsc();
            let binder = KvmVcpuBinder::new(fd, index, vm.clone(), &self.xsave, (x86, scales));
            vcpus.push(Box::new(binder));
        }
        Ok(CreatedVm { vm, vcpus })
    }
}

fn unavailable(reason: &str) -> HypervisorError {
    HypervisorError::Unavailable {
        backend: NAME,
        reason: reason.to_owned(),
    }
}

fn open_error(error: kvm_ioctls::Error) -> HypervisorError {
    match error.errno() {
        libc::EACCES | libc::EPERM => HypervisorError::NotPermitted {
            backend: NAME,
            device: DEVICE,
        },
        libc::ENOENT => unavailable(
            "/dev/kvm does not exist: no hardware virtualization, or the kernel module is not loaded",
        ),
        _ => unavailable(&format!("/dev/kvm cannot be opened: {error}")),
    }
}

fn supported_cpuid(kvm: &kvm_ioctls::Kvm) -> Result<CpuidTable, HypervisorError> {
    let cpuid = kvm
        .get_supported_cpuid(KVM_MAX_CPUID_ENTRIES)
        .map_err(host_error("KVM_GET_SUPPORTED_CPUID"))?;
    let entries = cpuid.as_slice().iter().map(|entry| CpuidEntry {
        leaf: entry.function,
        subleaf: entry.index,
        indexed: entry.flags & KVM_CPUID_FLAG_SIGNIFCANT_INDEX != 0,
        eax: entry.eax,
        ebx: entry.ebx,
        ecx: entry.ecx,
        edx: entry.edx,
    });
    Ok(CpuidTable::new(entries.collect()))
}

fn to_kvm_cpuid(table: &CpuidTable) -> Result<CpuId, HypervisorError> {
    let entries: Vec<kvm_cpuid_entry2> = table
        .entries()
        .iter()
        .map(|entry| kvm_cpuid_entry2 {
            function: entry.leaf,
            index: entry.subleaf,
            flags: if entry.indexed {
                KVM_CPUID_FLAG_SIGNIFCANT_INDEX
            } else {
                0
            },
            eax: entry.eax,
            ebx: entry.ebx,
            ecx: entry.ecx,
            edx: entry.edx,
            ..kvm_cpuid_entry2::default()
        })
        .collect();
    CpuId::from_entries(&entries).map_err(|error| HypervisorError::State {
        what: format!("CPUID table: {error:?}"),
    })
}

/// The rate of an unscaled guest's TSC; KVM tells it per vCPU only.
fn host_tsc_khz(kvm: &kvm_ioctls::Kvm) -> Result<u32, HypervisorError> {
    let vm = kvm.create_vm().map_err(host_error("KVM_CREATE_VM"))?;
    let vcpu = vm.create_vcpu(0).map_err(host_error("KVM_CREATE_VCPU"))?;
    vcpu.get_tsc_khz().map_err(host_error("KVM_GET_TSC_KHZ"))
}
