//! vCPUs run by Linux KVM.
//!
//! Implements [`vmm_core::hypervisor`]'s traits: [`probe`] says cheaply whether KVM can run a kernel
//! here and why not, [`open`] gives the [`Hypervisor`].
//!
//! # Model
//!
//! x86-64 guests of machine model 1: KVM's local APICs with the IOAPIC in user space (split irqchip),
//! kvm-clock, dirty log with manual protection. Interrupts come in as messages
//! ([`vmm_core::irq::MsiSink`]).
//!
//! # Order of loading a vCPU
//!
//! System registers, XCR0, extended state, MSRs (the TSC first), local APIC (its timer counts from
//! the TSC), general and debug registers, run state, events. Reading goes: run state, general and
//! system registers, extended state, MSRs, local APIC, debug registers, events. A pending port or
//! memory access is finished before ([`vmm_core::hypervisor::Vcpu::finish_pending_exit`]).
//!
//! # What it takes of its process
//!
//! One signal: the first real-time signal (`SIGRTMIN` and up) that has its default action when the first vCPU is bound gets a handler
//! that does nothing, for good, and is unblocked on the threads of vCPUs. Signals that the program handles or ignores are left alone; where it uses
//! all of them, binding a vCPU fails and says so. A program that gives that signal a handler of its own later is called by kicks, too.
//!
//! # What is not here
//!
//! arm64. Nested state, SMM and machine checks are not part of machine model 1.
//!
//! ```
//! match kvm_backend::probe() {
//!     Ok(()) => assert_eq!(kvm_backend::open().unwrap().name(), "kvm"),
//!     Err(reason) => assert!(!reason.to_string().is_empty()),
//! }
//! ```

use vmm_core::hypervisor::{Hypervisor, HypervisorError};

#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
mod x86;

/// Name of the backend.
pub const NAME: &str = "kvm";

/// Checks that KVM is there, may be used, has what machine model 1 needs, and runs guest code in
/// hardware: a KVM that emulates each instruction runs no kernel. Takes milliseconds, or a tenth of
/// a second where the answer is no.
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
pub fn probe() -> Result<(), HypervisorError> {
    x86::probe()
}

/// Opens KVM. Does not ask whether it is fast; [`probe`] does.
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
pub fn open() -> Result<Box<dyn Hypervisor>, HypervisorError> {
    Ok(Box::new(x86::Kvm::open()?))
}

/// KVM is not on this platform, or not supported there yet.
#[cfg(not(all(target_os = "linux", target_arch = "x86_64")))]
pub fn probe() -> Result<(), HypervisorError> {
    Err(HypervisorError::Unavailable {
        backend: NAME,
        reason: "this version runs KVM guests on Linux x86_64 only".to_owned(),
    })
}

/// KVM is not on this platform, or not supported there yet.
#[cfg(not(all(target_os = "linux", target_arch = "x86_64")))]
pub fn open() -> Result<Box<dyn Hypervisor>, HypervisorError> {
    Err(HypervisorError::Unavailable {
        backend: NAME,
        reason: "this version runs KVM guests on Linux x86_64 only".to_owned(),
    })
}
