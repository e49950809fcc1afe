//! A whole machine: vCPU threads, interrupt controller, devices; built, run, paused, saved, restored.
//!
//! ```text
//! MachineBuilder --build--> BuiltMachine --boot / restore--> RunningMachine <--pause--> PausedMachine
//!                                                                               save, load <--'
//! ```
//!
//! Order is fixed here: vCPUs stop before devices, devices run before vCPUs. When
//! [`RunningMachine::pause`] returns, every vCPU has finished its pending access and every device is
//! at a descriptor boundary: memory, registers and device state belong to one instant.
//!
//! # Deterministic machines
//!
//! Over a backend with an [`crate::schedule::InstructionClock`] a machine is deterministic: started, it
//! stands still until [`RunningMachine::run_until`] lets it run to an instruction count, where it
//! stands still again. What the host has to say to the guest (bytes for a connection, console input)
//! it says while the machine stands; the guest sees it before its next instruction. The same calls
//! with the same input then give the same machine at each count, however fast or busy the host is.

mod builder;
mod exits;
mod load;
mod running;
mod stop_at;
mod vcpu_thread;
mod x86_record;

pub use builder::{BuiltMachine, MachineBuilder, MachineError, VsockConfig};
pub use running::{EventListener, MachineEvent, PausedMachine, RunningMachine};
pub use x86_record::X86MachineRecord;
