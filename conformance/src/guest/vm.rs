use std::sync::{Arc, Mutex, PoisonError};

use vm_memory::{Bytes, GuestAddress};
use vmm_core::hypervisor::{ArchSpec, Hypervisor, VcpuBinder, Vm, VmSpec, X86Spec};
use vmm_core::irq::MsiMessage;
use vmm_core::ram::{GuestRam, RamBacking};
use vmm_core::x86::{self, CpuProfile};

use super::{TestVcpu, interrupt_table, paging};

/// Memory of the suite's guests in bytes.
pub const RAM_BYTES: u64 = 4 << 20;

/// A VM with 4 MiB of memory that holds page tables and descriptor tables.
pub struct TestVm {
    /// Its memory.
    pub ram: GuestRam,
    /// The backend's VM.
    pub vm: Arc<dyn Vm>,
    /// What it was made of.
    pub x86: X86Spec,
    count: u8,
    vcpus: Mutex<Vec<Option<Box<dyn VcpuBinder>>>>,
}

/// SMEP, in EBX of CPUID leaf 7.
const SMEP: u32 = 1 << 7;

/// The CPU of the suite's guests: the most portable profile, at the backend's own TSC rate. It has no
/// SMEP where KVM runs guests in its instruction emulator, which lacks that.
pub fn portable_cpu(hypervisor: &dyn Hypervisor) -> X86Spec {
    let host = hypervisor
        .capabilities()
        .x86
        .as_ref()
        .expect("an x86 backend");
    let has_smep = host
        .cpuid
        .get(7, 0)
        .is_some_and(|leaf| leaf.ebx & SMEP != 0);
    let mut with_smep = host.cpuid.clone();
    for entry in with_smep
        .entries_mut()
        .iter_mut()
        .filter(|entry| entry.leaf == 7)
    {
        entry.ebx |= SMEP;
    }
    let (mut cpuid, msrs) = x86::build_profile(CpuProfile::V1, &with_smep).expect("profile v1");
    if !has_smep {
        for entry in cpuid
            .entries_mut()
            .iter_mut()
            .filter(|entry| entry.leaf == 7)
        {
            entry.ebx &= !SMEP;
        }
    }
    X86Spec {
        cpuid,
        msrs,
        tsc_khz: host.tsc_khz,
    }
}

impl TestVm {
    /// A VM of `vcpus` vCPUs with [`portable_cpu`].
    pub fn new(hypervisor: &dyn Hypervisor, vcpus: u8) -> Self {
        Self::with_cpu(hypervisor, vcpus, portable_cpu(hypervisor))
    }

    /// A VM with the given CPU.
    pub fn with_cpu(hypervisor: &dyn Hypervisor, vcpus: u8, x86: X86Spec) -> Self {
        let layout = x86::ram_layout(RAM_BYTES).expect("a layout");
        let ram = GuestRam::new(layout, &RamBacking::Anonymous).expect("memory");
        let spec = VmSpec {
            ram: ram.clone(),
            vcpus,
            arch: ArchSpec::X86(x86.clone()),
        };
        let made = hypervisor.create_vm(&spec).expect("a VM");
        assert_eq!(made.vcpus.len(), usize::from(vcpus));
        let vm = Self {
            ram,
            vm: made.vm,
            x86,
            count: vcpus,
            vcpus: Mutex::new(made.vcpus.into_iter().map(Some).collect()),
        };
        paging::place(&vm);
        interrupt_table::place(&vm);
        vm
    }

    /// A VM of the same kind whose memory holds the same, on this or another backend.
    pub fn copy(&self, hypervisor: &dyn Hypervisor) -> Self {
        let copy = Self::with_cpu(hypervisor, self.count, self.x86.clone());
        copy.place(0, &self.memory());
        copy
    }

    /// All of the memory.
    pub fn memory(&self) -> Vec<u8> {
        let mut bytes = vec![0; RAM_BYTES as usize];
        self.read_into(0, &mut bytes);
        bytes
    }

    /// Writes to memory as a device does.
    pub fn place(&self, gpa: u64, bytes: &[u8]) {
        self.ram
            .write_slice(bytes, GuestAddress(gpa))
            .expect("the bytes fit into memory");
    }

    /// Reads memory as a device does.
    pub fn read_into(&self, gpa: u64, bytes: &mut [u8]) {
        self.ram
            .read_slice(bytes, GuestAddress(gpa))
            .expect("the bytes lie in memory");
    }

    /// Reads eight bytes of memory.
    pub fn read_u64(&self, gpa: u64) -> u64 {
        let mut bytes = [0; 8];
        self.read_into(gpa, &mut bytes);
        u64::from_le_bytes(bytes)
    }

    /// Takes a vCPU's binder, to bind it on another thread.
    pub fn binder(&self, index: u8) -> Box<dyn VcpuBinder> {
        let mut vcpus = self.vcpus.lock().unwrap_or_else(PoisonError::into_inner);
        vcpus[usize::from(index)]
            .take()
            .expect("a vCPU is bound once")
    }

    /// Binds a vCPU to the calling thread.
    pub fn bind(&self, index: u8) -> TestVcpu {
        TestVcpu::bind(self.binder(index))
    }

    /// Sends an edge-triggered interrupt to the vCPU with this APIC id.
    pub fn interrupt(&self, apic_id: u8, vector: u8) {
        let message = MsiMessage {
            address: 0xfee0_0000 | u64::from(apic_id) << 12,
            data: vector.into(),
        };
        let msi = self.vm.msi().expect("x86 has MSIs");
        msi.deliver(message).expect("the message is delivered");
    }
}
