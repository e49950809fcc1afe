//! The traits between the machine and whatever runs its vCPUs.
//!
//! Staging: a backend crate's `probe()` says whether it can run here, its `open()` gives a
//! [`Hypervisor`], which creates a [`Vm`] and one [`VcpuBinder`] per vCPU. Each binder is moved to
//! its own thread and bound there; the [`Vcpu`] then runs on that thread only. Powers that not every
//! backend has are methods that return an `Option`.

use std::sync::Arc;

use thiserror::Error;

use crate::VcpuIndex;
use crate::cpu_state::VcpuState;
use crate::exit::ExitHandler;
use crate::irq::MsiSink;
use crate::ram::GuestRam;
use crate::schedule::InstructionClock;
use crate::tracker::DirtyLog;
use crate::x86::{ClockState, CpuidTable, MsrList};

/// Why a backend could not do what it was asked.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum HypervisorError {
    /// The backend cannot be used on this host.
    #[error("{backend} is not usable here: {reason}")]
    Unavailable {
        /// Name of the backend.
        backend: &'static str,
        /// Why, for a person.
        reason: String,
    },
    /// The backend's device is there, but this user may not open it.
    #[error("{backend} is not usable here: no permission to open {device}")]
    NotPermitted {
        /// Name of the backend.
        backend: &'static str,
        /// The device, a path.
        device: &'static str,
    },
    /// More vCPUs than the backend runs.
    #[error("{requested} vCPUs requested, {backend} runs at most {limit}")]
    TooManyVcpus {
        /// Name of the backend.
        backend: &'static str,
        /// vCPUs asked for.
        requested: usize,
        /// The backend's limit.
        limit: usize,
    },
    /// A specification of another guest architecture.
    #[error("{backend} does not run {architecture} guests here")]
    Architecture {
        /// Name of the backend.
        backend: &'static str,
        /// The guest's architecture.
        architecture: &'static str,
    },
    /// The TSC rate cannot be had on this host.
    #[error("a TSC of {requested_khz} kHz cannot be had here: the host's runs at {host_khz} kHz")]
    TscRate {
        /// Rate asked for in kHz.
        requested_khz: u32,
        /// The host's rate in kHz.
        host_khz: u32,
    },
    /// A call to the host's kernel failed.
    #[error("{operation} failed")]
    Host {
        /// What was asked, for instance the name of an ioctl.
        operation: &'static str,
        /// The host's answer.
        #[source]
        source: std::io::Error,
    },
    /// State that the backend cannot load, or could not read.
    #[error("vCPU state: {what}")]
    State {
        /// Which part, and what is wrong with it.
        what: String,
    },
}

/// What a backend can do on this host; asked before a VM is made.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Capabilities {
    /// Most vCPUs per VM.
    pub max_vcpus: usize,
    /// Several VMs may live in one process.
    pub many_vms_per_process: bool,
    /// Size in bytes of the pages in which guest memory is mapped.
    pub page_bytes: u64,
    /// x86: what CPUID may show to a guest; profiles are cut from it.
    pub x86: Option<X86Capabilities>,
}

impl Capabilities {
    /// Capabilities of a backend without x86 guests; set `x86` where there are some.
    pub fn new(max_vcpus: usize, many_vms_per_process: bool, page_bytes: u64) -> Self {
        Self {
            max_vcpus,
            many_vms_per_process,
            page_bytes,
            x86: None,
        }
    }
}

/// What a backend offers to x86 guests.
#[derive(Debug, Clone)]
pub struct X86Capabilities {
    /// CPUID as the backend supports it.
    pub cpuid: CpuidTable,
    /// Rate of the guest's TSC when nothing else is asked for, in kHz.
    pub tsc_khz: u32,
    /// Whether a guest may have another TSC rate than the host.
    pub tsc_scaling: bool,
}

/// A backend, opened: a way of running vCPUs.
pub trait Hypervisor: Send + Sync {
    /// Short name: `kvm`, `soft`, `hvf`.
    fn name(&self) -> &'static str;

    /// What it can do here.
    fn capabilities(&self) -> &Capabilities;

    /// Makes a VM over `spec.ram`, with its interrupt controller in place, and its vCPUs unbound.
    fn create_vm(&self, spec: &VmSpec) -> Result<CreatedVm, HypervisorError>;
}

/// What a VM is made of.
#[derive(Debug, Clone)]
pub struct VmSpec {
    /// The guest's memory.
    pub ram: GuestRam,
    /// Number of vCPUs.
    pub vcpus: u8,
    /// What depends on the guest's architecture.
    pub arch: ArchSpec,
}

impl VmSpec {
    /// The x86 part, for the backend `backend` that runs nothing else and at most `limit` vCPUs.
    ///
    /// # Errors
    /// [`HypervisorError::Architecture`]; [`HypervisorError::TooManyVcpus`], also if there is none.
    pub fn x86(&self, backend: &'static str, limit: usize) -> Result<&X86Spec, HypervisorError> {
        let ArchSpec::X86(x86) = &self.arch else {
            return Err(HypervisorError::Architecture {
                backend,
                architecture: "arm64",
            });
        };
        let requested = usize::from(self.vcpus);
        if requested == 0 || requested > limit {
            return Err(HypervisorError::TooManyVcpus {
                backend,
                requested,
                limit,
            });
        }
        Ok(x86)
    }
}

/// The architecture's part of a [`VmSpec`].
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum ArchSpec {
    /// An x86-64 guest of machine model 1.
    X86(X86Spec),
    /// An arm64 guest; no backend of this version runs one.
    Arm64,
}

/// The x86 part of a [`VmSpec`].
#[derive(Debug, Clone)]
pub struct X86Spec {
    /// CPUID of vCPU 0; leaves that hold the APIC id are adjusted for the others by
    /// [`CpuidTable::for_vcpu`].
    pub cpuid: CpuidTable,
    /// MSRs that belong to the CPU profile: saved, restored, and nothing else.
    pub msrs: MsrList,
    /// Rate of the TSC in kHz.
    pub tsc_khz: u32,
}

/// What [`Hypervisor::create_vm`] returns.
pub struct CreatedVm {
    /// The VM.
    pub vm: Arc<dyn Vm>,
    /// One binder per vCPU, in order.
    pub vcpus: Vec<Box<dyn VcpuBinder>>,
}

/// A VM: what all its vCPUs share.
pub trait Vm: Send + Sync {
    /// Message-signalled interrupts into the vCPUs' local interrupt controllers (x86).
    fn msi(&self) -> Option<&dyn MsiSink> {
        None
    }

    /// The log of pages that vCPUs wrote, where the backend keeps one of its own. A backend that
    /// marks pages in [`GuestRam::page_map`] itself returns `None`.
    fn dirty_log(&self) -> Option<&dyn DirtyLog> {
        None
    }

    /// The paravirtual clock (x86 kvm-clock).
    fn x86_clock(&self) -> Option<&dyn X86Clock> {
        None
    }

    /// Whether vCPUs wait for chunks of memory that are absent
    /// ([`GuestRam::make_present`]) before they use them. Otherwise memory is filled before they run.
    fn checks_presence(&self) -> bool {
        false
    }

    /// The count of retired instructions, where that is the VM's time: the machine is then
    /// deterministic.
    fn instruction_clock(&self) -> Option<&dyn InstructionClock> {
        None
    }
}

/// The VM-wide half of kvm-clock: the nanoseconds that the guest has seen pass.
pub trait X86Clock {
    /// The clock at the moment of the saved TSCs: a guest compares the two. All vCPUs are stopped and
    /// were saved just before.
    fn save(&self) -> Result<ClockState, HypervisorError>;

    /// Sets the clock so that it goes on from the saved nanoseconds: time between save and load is
    /// not seen by the guest's monotonic clock. All vCPUs are stopped and were loaded just before; the
    /// clock has counted as long since as their TSCs.
    fn load(&self, state: &ClockState) -> Result<(), HypervisorError>;
}

/// A vCPU that is not bound to a thread yet.
pub trait VcpuBinder: Send {
    /// Which one it is.
    fn index(&self) -> VcpuIndex;

    /// A handle that makes the vCPU leave [`Vcpu::run`], from any thread, also before it is bound.
    fn kicker(&self) -> Arc<dyn VcpuKick>;

    /// Binds the vCPU to the calling thread, for good.
    fn bind(self: Box<Self>) -> Result<Box<dyn Vcpu>, HypervisorError>;
}

/// Makes a vCPU leave guest mode.
pub trait VcpuKick: Send + Sync {
    /// The vCPU's current or next [`Vcpu::run`] returns [`VcpuStop::Kicked`] soon.
    /// Kicks do not add up: one `run` consumes all of them.
    fn kick(&self);
}

/// Why [`Vcpu::run`] returned.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum VcpuStop {
    /// Somebody called [`VcpuKick::kick`].
    Kicked,
    /// The guest shut down by a triple fault.
    TripleFault,
    /// The vCPU needs memory that cannot be had; [`GuestRam::lost`] says what.
    MemoryLost,
    /// The guest asked for power-off by a call to the hypervisor (arm64 PSCI).
    PowerOff,
    /// The guest asked for a reset by a call to the hypervisor (arm64 PSCI).
    Reset,
    /// The hypervisor cannot go on with this vCPU.
    Failed(String),
}

/// A vCPU on its thread.
pub trait Vcpu {
    /// Runs guest code until there is a reason to stop; accesses that the backend does not handle
    /// go to `handler`.
    fn run(&mut self, handler: &mut dyn ExitHandler) -> Result<VcpuStop, HypervisorError>;

    /// Completes a port or memory-mapped access whose result the guest has not consumed yet, without
    /// running further guest code. Required before [`save`](Self::save), and done by it nowhere.
    fn finish_pending_exit(&mut self, handler: &mut dyn ExitHandler)
    -> Result<(), HypervisorError>;

    /// Reads the complete state. The vCPU is stopped and has no pending exit.
    fn save(&mut self) -> Result<VcpuState, HypervisorError>;

    /// Makes the TSC of an x86 vCPU count at another rate, that of the state that is loaded next.
    ///
    /// # Errors
    /// [`HypervisorError::TscRate`] where the host cannot.
    fn set_tsc_rate(&mut self, khz: u32) -> Result<(), HypervisorError>;

    /// Loads a complete state in the documented order. What the state asks for and the host lacks
    /// is an error, never ignored.
    fn load(&mut self, state: &VcpuState) -> Result<(), HypervisorError>;

    /// Tells the guest that it was stopped for a while (x86: `PVCLOCK_GUEST_STOPPED`), so that its
    /// watchdogs do not complain. Called before the vCPU runs again.
    fn notify_stopped(&mut self) -> Result<(), HypervisorError>;
}
