//! The supervisor: the process (or thread) that owns one running machine.
//!
//! It holds the machine's run lock, starts the VMM and gives it everything as descriptors, talks to the
//! guest's agent, answers commands on the control socket, and records how the machine ended.

mod agent;
mod autosave;
mod booted;
mod checkpoint;
mod end_record;
mod guest_log;
mod identity;
mod layers;
mod owner;
mod run;
mod serve;
mod set_up;
mod shared;
mod signals;
mod tidy;
mod undo;
mod vmm_process;

pub(crate) use agent::{AgentDialer, AgentError};
pub(crate) use identity::SEED_BYTES;
pub(crate) use run::{GUEST_CID, run, unix_now};
pub(crate) use tidy::tidy;
pub(crate) use vmm_process::{SpawnError, VmmHost, descriptors};
