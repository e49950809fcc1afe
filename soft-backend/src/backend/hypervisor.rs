//! Opening the backend and making VMs.

use std::sync::Arc;

use vmm_core::hypervisor::{
    Capabilities, CreatedVm, Hypervisor, HypervisorError, VmSpec, X86Capabilities,
};
use vmm_core::x86::{CpuProfile, CpuidEntry, CpuidTable, MAX_VCPUS};

use super::vcpu::SoftBinder;
use super::vm::SoftVm;

/// Name of the backend.
pub(super) const NAME: &str = "soft";
/// TSC rate of new guests in kHz where the host has no TSC, and in deterministic mode: an instruction
/// takes a nanosecond there.
const DEFAULT_TSC_KHZ: u32 = 1_000_000;

/// How an opened backend behaves.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct SoftOptions {
    /// After how many runs guest code is translated to the host's; `None`: all of it is interpreted, as it is
    /// wherever [`translates`] is false. Guests do the same either way.
    pub translate_after: Option<u16>,
    /// Time counts retired instructions instead of following the host's clock, vCPUs take turns in a
    /// fixed order, and a kick is seen at the end of a piece of guest code that does not depend on it.
    pub deterministic: bool,
}

impl Default for SoftOptions {
    fn default() -> Self {
        SoftOptions {
            translate_after: Some(crate::jit::THRESHOLD),
            deterministic: false,
        }
    }
}

impl SoftOptions {
    /// The same, but translating after so many runs: see [`translate_after`](Self::translate_after).
    #[must_use]
    pub fn with_translate_after(mut self, runs: Option<u16>) -> Self {
        self.translate_after = runs;
        self
    }

    /// The same, but deterministic: see [`deterministic`](Self::deterministic).
    #[must_use]
    pub fn with_deterministic(mut self, on: bool) -> Self {
        self.deterministic = on;
        self
    }
}

/// The software CPU as a hypervisor.
pub struct SoftHypervisor {
    capabilities: Capabilities,
    options: SoftOptions,
}

/// Whether the backend works here: it does everywhere on 64-bit little-endian hosts.
///
/// # Errors
/// [`HypervisorError::Unavailable`] on other hosts.
pub fn probe() -> Result<(), HypervisorError> {
    if cfg!(all(target_endian = "little", target_pointer_width = "64")) {
        return Ok(());
    }
    Err(HypervisorError::Unavailable {
        backend: NAME,
        reason: "it needs a 64-bit little-endian host".to_owned(),
    })
}

/// Whether this host lets the backend run code that it makes: an x86-64 processor with the instructions of
/// x86-64-v2, Linux, and memory that may be executed, which hardened hosts refuse. Elsewhere guests are interpreted.
#[must_use]
pub fn translates() -> bool {
    crate::jit::Jit::is_possible()
}

/// Opens the backend.
///
/// # Errors
/// As [`probe`].
pub fn open(options: SoftOptions) -> Result<SoftHypervisor, HypervisorError> {
    probe()?;
    let tsc_khz = match options.deterministic {
        true => DEFAULT_TSC_KHZ,
        false => crate::host_tsc::khz().unwrap_or(DEFAULT_TSC_KHZ),
    };
    let mut capabilities = Capabilities::new(usize::from(MAX_VCPUS), true, crate::mem::PAGE);
    capabilities.x86 = Some(X86Capabilities {
        cpuid: supported_cpuid(),
        tsc_khz,
        tsc_scaling: true,
    });
    Ok(SoftHypervisor {
        capabilities,
        options,
    })
}

/// CPUID as the backend supports it: x86-64-v2.
fn supported_cpuid() -> CpuidTable {
    let vendor = |leaf, eax| CpuidEntry {
        leaf,
        eax,
        ebx: u32::from_le_bytes(*b"Auth"),
        edx: u32::from_le_bytes(*b"enti"),
        ecx: u32::from_le_bytes(*b"cAMD"),
        ..CpuidEntry::default()
    };
    let all = |leaf| CpuidEntry {
        leaf,
        eax: u32::MAX,
        ebx: u32::MAX,
        ecx: u32::MAX,
        edx: u32::MAX,
        ..CpuidEntry::default()
    };
    // A host that has everything; the profile cuts its own features from it, and that table is what
    // the backend supports: what it implements is fixed, not found.
    let mut entries = vec![
        vendor(0, 7),
        all(1),
        all(7),
        vendor(0x8000_0000, 0x8000_0008),
    ];
    entries.extend([all(0x8000_0001), all(0x8000_0008)]);
    let everything = CpuidTable::new(entries);
    match vmm_core::x86::build_profile(CpuProfile::V2, &everything) {
        Ok((table, _)) => table,
        Err(error) => {
            // No profile will fit then, and machines are refused.
            tracing::error!(%error, "the software CPU's own CPUID does not fit its profile");
            CpuidTable::default()
        }
    }
}

impl Hypervisor for SoftHypervisor {
    fn name(&self) -> &'static str {
        NAME
    }

    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn create_vm(&self, spec: &VmSpec) -> Result<CreatedVm, HypervisorError> {
        let x86 = spec.x86(NAME, self.capabilities.max_vcpus)?;
        let vm = Arc::new(SoftVm::new(spec, x86, &self.options));
        let vcpus = (0..spec.vcpus)
            .map(|i| SoftBinder::boxed(vm.clone(), i))
            .collect();
        Ok(CreatedVm { vm, vcpus })
    }
}
