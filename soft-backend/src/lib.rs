//! vCPUs run by a software CPU: an x86-64 processor in Rust behind `vmm-core`'s vCPU traits.
//!
//! It runs where no hypervisor does: in containers, CI jobs and cloud machines. Guest, devices,
//! clock and saved state are those of the other backends.
//!
//! # Model
//!
//! An interpreter of pre-decoded blocks, and a translator for those that run often (on x86-64 Linux hosts that let
//! it, see [`translates`]). A block is a run of instructions of one physical page,
//! each a function pointer and its operands; blocks are cached by physical address and dropped when
//! their page is written, by the guest or (through the RAM's page flags) by a device. Memory is
//! reached through a software TLB whose write tags double as dirty tracking. Translated code is the guest's own
//! instructions with other registers and a probe of that TLB before each access; what goes another way is answered by
//! the interpreter's function for the instruction, so a guest does the same in both tiers. The processor is one
//! of x86-64-v2 with local APIC (xAPIC) and kvm-clock; CPUID shows what the machine's profile says.
//!
//! vCPUs have a thread each, but one runs at a time: a baton goes round at HLT, PAUSE and after a
//! number of instructions.
//!
//! # Deterministic mode
//!
//! With [`SoftOptions::with_deterministic`] the count of retired instructions, of all vCPUs together, is
//! the only time: TSC (1 GHz, one tick per instruction), local APIC timers, kvm-clock and the wall
//! clock, which begins with the year 2025, follow from it. vCPUs take turns in the order of
//! their numbers, 50,000 instructions each; PAUSE and HLT end a turn. When all wait, the count
//! jumps to the next timer or to the next work of the machine's [`Agenda`](vmm_core::schedule::Agenda), by
//! which devices do theirs. The host's clock is never read, and threads of the host are heard only
//! between pieces of guest code whose ends do not depend on them. A run therefore repeats itself bit by
//! bit, as long as its input comes at the same counts: [`vmm_core::machine`] makes it so.
//! A VM in which state was loaded goes on as any other VM in which the same was loaded does; it may part
//! in timing from the one that was saved, since pieces of code begin elsewhere.
//!
//! # Errors
//!
//! Guest code cannot make the backend fail: what a processor answers with a fault is a fault.
//! [`vmm_core::hypervisor::HypervisorError`] is for specifications and saved state that this CPU
//! cannot take.
//!
//! # Not here
//!
//! No virtual-8086 mode and no task switches, no AVX, no SMM, no performance counters, no last
//! branch records.
//!
//! # Example
//!
//! ```
//! use vmm_core::hypervisor::{ArchSpec, Hypervisor, VmSpec, X86Spec};
//! use vmm_core::ram::{GuestRam, RamBacking};
//! use vmm_core::x86::{self, CpuProfile};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let soft = soft_backend::open(soft_backend::SoftOptions::default())?;
//! let host = soft.capabilities().x86.clone().ok_or("no x86 guests")?;
//! let (cpuid, msrs) = x86::build_profile(CpuProfile::V1, &host.cpuid)?;
//! let ram = GuestRam::new(x86::ram_layout(32 << 20)?, &RamBacking::Anonymous)?;
//! let arch = ArchSpec::X86(X86Spec { cpuid, msrs, tsc_khz: host.tsc_khz });
//! let created = soft.create_vm(&VmSpec { ram, vcpus: 2, arch })?;
//! assert_eq!(created.vcpus.len(), 2);
//! # Ok(())
//! # }
//! ```

mod backend;
mod block;
mod clock;
mod cpu;
mod debug;
mod decode;
mod exceptions;
pub mod fpu;
mod host_tsc;
mod int;
mod invalidate;
mod jit;
mod local;
mod mem;
mod mmu;
mod msr;
mod mtrr;
mod ops;
mod router;
mod run;
mod segments;
pub mod simd;
#[cfg(test)]
mod tests;
mod time;

pub use backend::{SoftHypervisor, SoftOptions, open, probe, translates};
