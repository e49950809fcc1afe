//! Machines, checkpoints and history for embedders.
//!
//! An [`Engine`] works on a home directory that holds images, kernels, machines and points. A
//! [`MachineName`] names a machine; what it is made of is a [`MachineSpec`].
//!
//! # Model
//!
//! A machine is a directory. While it runs two processes belong to it: the supervisor, which holds its
//! lock, and the VMM, which runs the guest. They are this program, started with a hidden argument: a
//! program that embeds the engine calls [`process::run_if_asked`] first thing in `main`, or runs its
//! machines as threads ([`process::ProcessModel::Threads`]).
//!
//! For tests a machine can repeat itself bit by bit: [`Engine::run_deterministic`].
//!
//! # Errors
//!
//! Every error says what was tried and on what; [`EngineError::hint`] names the next step.
//!
//! # What is not here
//!
//! Printing, argument parsing, terminals: that is the command's.
//!
//! ```no_run
//! use smolvm_engine::{CreateOptions, Engine, EngineOptions, StartOptions, StopOptions};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! if let Some(code) = smolvm_engine::process::run_if_asked(std::env::args_os().skip(1)) {
//!     std::process::exit(if code == std::process::ExitCode::SUCCESS { 0 } else { 1 });
//! }
//! let engine = Engine::open(EngineOptions::from_environment()?)?;
//! let machine = engine.create(CreateOptions::default())?;
//! engine.start(&machine.name, StartOptions::default())?;
//! let mut agent = engine.connect_agent(&machine.name)?;
//! agent.ping()?;
//! engine.stop(&machine.name, StopOptions::default())?;
//! engine.delete(&machine.name, false)?;
//! # Ok(())
//! # }
//! ```

mod api;
pub mod backend;
mod channel;
mod error_chain;
mod home;
mod inside;
mod machine;
mod name;
pub mod phase;
mod point;
mod restore;
mod retention;
mod save;
mod size;
mod supervisor;
mod time;
mod vmm;

pub use agent_protocol;
pub use api::{
    AgentConnection, Archived, BranchChild, BranchOptions, BranchReleased, Branched, Checkpoint,
    CheckpointOptions, CreateFromOptions, CreateOptions, DEFAULT_HISTORY, DeterministicError,
    DeterministicMachine, DiffSummary, DiskBytes, DiskUsage, Engine, EngineError, EngineOptions,
    ErrorCode, ExecOptions, ExecOutput, ExecSession, ExecWriter, ExportOptions, Family, HostFull,
    JudgedPoint, KeptState, LastAutosave, LeftState, LogEntry, LogPart, MAX_BRANCH_CHILDREN,
    MachineDigest, MachineInfo, MachineState, Paused, PointCopy, PointName, PointSource, Problem,
    PruneOptions, Pruned, READY_TIMEOUT, RepairSource, Repaired, Saving, StartOptions, Started,
    StopOptions, Stopped, UndoOptions, Undone, UsageOf, Used, UsedByPoint, Verification,
    VerifiedPoint, VerifyLevel, VerifyOptions, VerifySource, doctor, process,
};
pub use channel::ChannelError;
pub use durable_files::FileError;
pub use error_chain::chain;
pub use guest_image::file_system::FileSystemError;
pub use guest_image::{image, kernel, progress};
pub use home::{Home, HomeError};
pub use inside::{Changed, Difference, FileKind, ProcessDifference};
pub use machine::{
    AutosaveSchedule, Backend, DEFAULT_DISK_BYTES, DEFAULT_MEMORY_BYTES, MachineDirError,
    MachineOrigin, MachineSpec,
};
pub use name::{InvalidName, MAX_NAME_BYTES, MachineName};
pub use point::{ArchiveError, PointError};
pub use retention::{KeepRule, Retention};
pub use time::format_utc;

/// What the host says of a file.
mod file_error {
    pub(crate) use durable_files::FileError;
}

/// The guest agent of this version, a static program: `/init` of a machine's
/// [initramfs](kernel::Kernel::initramfs).
pub const GUEST_AGENT: &[u8] = include_bytes!(env!("SMOLVM_GUEST_AGENT_FILE"));
