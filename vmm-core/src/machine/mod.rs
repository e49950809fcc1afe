//! A whole machine: vCPU threads, interrupt controller, devices; built, run, paused, saved, restored.
//!
//! ```text
//! MachineBuilder --build--> BuiltMachine --boot / restore--> RunningMachine <--pause--> PausedMachine
//! ```
//!
//! Order is fixed here: vCPUs stop before devices, devices run before vCPUs. When
//! [`RunningMachine::pause`] returns, every vCPU has finished its pending access and every device is
//! at a descriptor boundary: memory, registers and device state belong to one instant.

mod builder;
mod exits;
mod running;
mod vcpu_thread;
mod x86_record;

pub use builder::{BuiltMachine, MachineBuilder, MachineError, VsockConfig};
pub use running::{EventListener, MachineEvent, PausedMachine, RunningMachine};
pub use x86_record::X86MachineRecord;
