//! What is known about a machine.

use super::autosave::LastAutosave;
use crate::channel::control::{KeptStatus, LiveStatus};
use crate::machine::{
    AutosaveSchedule, BranchWord, MachineFile, MachineOrigin, MachineSpec, RecordedState,
};
use crate::name::MachineName;

/// The state of a machine.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum MachineState {
    /// Never started.
    Created,
    /// Its processes run.
    Running,
    /// Ended in order.
    Stopped,
    /// Saved into its own directory and ended: it goes on there when it is started.
    Paused,
    /// Ended by itself.
    Failed {
        /// Why.
        reason: String,
    },
    /// Chunks that it needs are lost.
    Damaged {
        /// Which, in which pack, of which point.
        reason: String,
    },
}

impl MachineState {
    /// One word.
    pub fn word(&self) -> &'static str {
        match self {
            Self::Created => "created",
            Self::Running => "running",
            Self::Stopped => "stopped",
            Self::Paused => "paused",
            Self::Failed { .. } => "failed",
            Self::Damaged { .. } => "damaged",
        }
    }

    /// Why it is in this state, where there is a reason.
    pub fn reason(&self) -> Option<&str> {
        match self {
            Self::Failed { reason } | Self::Damaged { reason } => Some(reason),
            _ => None,
        }
    }
}

/// What is known about a machine.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct MachineInfo {
    /// Its name.
    pub name: MachineName,
    /// Its state.
    pub state: MachineState,
    /// What it is.
    pub spec: MachineSpec,
    /// What it was made from.
    pub origin: MachineOrigin,
    /// The machine that it is a branch of.
    pub branched_from: Option<MachineName>,
    /// It is a branch in which processes wait for [`Engine::branch_release`](crate::Engine::branch_release), if any do.
    pub held: bool,
    /// Seconds since 1970 when it was created.
    pub created_unix: u64,
    /// The point it was last saved to or restored from.
    pub head: Option<String>,
    /// The backend, while it runs.
    pub backend: Option<String>,
    /// With the software CPU, while it runs: whether code that runs often is translated; otherwise all is interpreted.
    pub translates: Option<bool>,
    /// vCPUs, while it runs.
    pub vcpus: Option<u8>,
    /// Seconds since 1970 when it was started, while it runs.
    pub started_unix: Option<u64>,
    /// Seconds since 1970 when it was paused, while it is.
    pub paused_unix: Option<u64>,
    /// Whether its agent answers, while it runs.
    pub ready: bool,
    /// The guest's kernel killed a process for lack of memory.
    pub out_of_memory: Option<String>,
    /// Writes of the guest that failed since it was started, because the host's file system was full.
    pub host_full: Option<HostFull>,
    /// The state that the last undo left, since the machine was started.
    pub left: Option<LeftState>,
    /// When it is saved without being asked.
    pub autosave: Option<AutosaveSchedule>,
    /// The last such save since the machine was started.
    pub last_autosave: Option<LastAutosave>,
}

/// A guest's writes that did not fit onto the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct HostFull {
    /// How many failed.
    pub failed_writes: u64,
    /// When the last of them failed, in seconds since 1970.
    pub last_unix: u64,
}

/// A state that an undo left: is it saved?
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct LeftState {
    /// Its full id.
    pub id: String,
    /// How far it is.
    pub saving: Saving,
}

/// How far something that is saved in the background is.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Saving {
    /// It is not durable yet.
    Saving,
    /// It is durable.
    Saved,
    /// It is lost.
    Failed {
        /// Why.
        reason: String,
    },
}

impl Saving {
    /// One word.
    pub fn word(&self) -> &'static str {
        match self {
            Self::Saving => "saving",
            Self::Saved => "saved",
            Self::Failed { .. } => "failed",
        }
    }
}

fn left_state((id, status): (String, KeptStatus)) -> LeftState {
    let saving = match status {
        KeptStatus::Saving => Saving::Saving,
        KeptStatus::Saved => Saving::Saved,
        KeptStatus::Failed(reason) => Saving::Failed { reason },
    };
    LeftState { id, saving }
}

/// Puts together what the file of a machine and its supervisor say.
pub(super) fn describe(file: MachineFile, running: bool, live: Option<LiveStatus>) -> MachineInfo {
    let paused_unix = match file.state {
        RecordedState::Paused { since_unix } if !running => Some(since_unix),
        _ => None,
    };
    let state = match file.state {
        _ if running => MachineState::Running,
        RecordedState::Created => MachineState::Created,
        RecordedState::Stopped => MachineState::Stopped,
        RecordedState::Paused { .. } => MachineState::Paused,
        RecordedState::Failed { reason } => MachineState::Failed { reason },
        RecordedState::Damaged { reason } => MachineState::Damaged { reason },
        RecordedState::Running { .. } => MachineState::Failed {
            reason: "its processes were killed".to_owned(),
        },
    };
    MachineInfo {
        name: file.name,
        state,
        spec: file.spec,
        origin: file.origin,
        branched_from: file.branched_from,
        held: file
            .branch
            .is_some_and(|branch| branch.word == BranchWord::Held),
        created_unix: file.created_unix,
        head: file.head,
        backend: live.as_ref().map(|live| live.backend.clone()),
        translates: live.as_ref().and_then(|live| live.translates),
        vcpus: live.as_ref().map(|live| live.vcpus),
        paused_unix,
        started_unix: live.as_ref().map(|live| live.started_unix),
        ready: live.as_ref().is_some_and(|live| live.answers),
        out_of_memory: live.as_ref().and_then(|live| live.out_of_memory.clone()),
        host_full: live
            .as_ref()
            .and_then(|live| live.full)
            .map(|(failed_writes, last_unix)| HostFull {
                failed_writes,
                last_unix,
            }),
        autosave: file.autosave,
        last_autosave: live
            .as_ref()
            .and_then(|live| live.autosave.clone())
            .map(LastAutosave::from),
        left: live.and_then(|live| live.kept).map(left_state),
    }
}
