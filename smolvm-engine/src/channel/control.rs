//! What commands and the supervisor tell each other.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::branch::{BranchDone, BranchRequest};

/// A command's request; one per connection.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Control {
    /// How is the machine?
    Status {
        /// See whether its agent answers.
        ping: bool,
    },
    /// A connection to the agent; the answer brings the stream.
    Agent,
    /// Switch the guest off; after `timeout_ms` without it.
    Stop {
        /// How long the guest may take, in milliseconds.
        timeout_ms: u64,
    },
    /// Give this to the serial console.
    ConsoleInput(Vec<u8>),
    /// Try again what was left undone when the guest was set up; the status says what became of it.
    SetUp,
    /// Save the machine; answered by any number of [`ControlReply::Progress`] and then by
    /// [`ControlReply::Saved`].
    Checkpoint(CheckpointRequest),
    /// Save the machine into its own directory and end it; answered by any number of [`ControlReply::Progress`] and then by
    /// [`ControlReply::Paused`].
    Pause,
    /// Leave the machine for a point; answered by any number of [`ControlReply::Progress`] and then by
    /// [`ControlReply::Undone`].
    Undo(UndoRequest),
    /// Let other machines go on from here; answered by any number of [`ControlReply::Progress`] and then by
    /// [`ControlReply::Branched`].
    Branch(BranchRequest),
    /// Wait until nothing is being saved.
    Settle,
    /// The machine's file says anew when it is saved without being asked.
    AutosaveSet,
}

/// How to save.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct CheckpointRequest {
    /// The store, absolute.
    pub(crate) store: PathBuf,
    /// The checkpoint directory to make, absolute; without it the point stays in the store.
    pub(crate) output: Option<PathBuf>,
    /// Most earlier points in the directory.
    pub(crate) history: usize,
    /// The user's message.
    pub(crate) message: String,
    /// Nobody asked for it: it is on the machine's schedule.
    pub(crate) autosave: bool,
}

/// What became of the last save that was on the machine's schedule.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct AutosaveNote {
    /// Seconds since 1970.
    pub(crate) unix: u64,
    /// How it went.
    pub(crate) outcome: AutosaveOutcome,
}

/// How a save went that was on the machine's schedule.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum AutosaveOutcome {
    /// It is the point of this full id.
    Saved(String),
    /// The machine is what it was at its head.
    Unchanged,
    /// Why not.
    Failed(String),
}

/// How to leave a machine for a point.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct UndoRequest {
    /// Full id of the point to go to.
    pub(crate) target: String,
    /// How to keep the present state; without it that is given up.
    pub(crate) keep: Option<CheckpointRequest>,
}

/// What became of a machine that was left.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct UndoAnswer {
    /// The state that was kept; it may not be published yet.
    pub(crate) kept: Option<KeptPoint>,
    /// Why nothing was kept although it was to be.
    pub(crate) lost: Option<String>,
    /// The machine went back in place, so far; otherwise nothing runs any more.
    pub(crate) in_place: Option<StartReport>,
}

/// A state that was left.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct KeptPoint {
    /// Its full id.
    pub(crate) id: String,
    /// Its short id.
    pub(crate) short_id: String,
}

/// How far the state that the last undo left is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum KeptStatus {
    /// Not durable yet.
    Saving,
    /// In its store.
    Saved,
    /// It could not be kept.
    Failed(String),
}

/// A saved point.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct CheckpointDone {
    /// Its full id.
    pub(crate) id: String,
    /// Its short id.
    pub(crate) short_id: String,
    /// The checkpoint directory.
    pub(crate) output: Option<PathBuf>,
    /// How long the guest stood still, in microseconds.
    pub(crate) pause_micros: u64,
    /// How long everything took, in microseconds.
    pub(crate) saved_micros: u64,
    /// Bytes that went to disk.
    pub(crate) written_bytes: u64,
    /// Bytes of memory and disk that are not zero.
    pub(crate) data_bytes: u64,
    /// Those of them that were stored already.
    pub(crate) shared_bytes: u64,
    /// Written pages were tracked; otherwise the guest stood still all the time.
    pub(crate) tracked: bool,
    /// What is amiss but keeps nobody from anything.
    pub(crate) warnings: Vec<String>,
}

/// A machine that was paused.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PauseDone {
    /// How long everything took, in microseconds.
    pub(crate) saved_micros: u64,
    /// Bytes that went to disk.
    pub(crate) written_bytes: u64,
    /// Bytes of memory and disk that are not zero.
    pub(crate) data_bytes: u64,
}

/// The supervisor's answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum ControlReply {
    /// To [`Control::Status`].
    Status(LiveStatus),
    /// To [`Control::Agent`], with the stream.
    Agent,
    /// To [`Control::Agent`]: nobody may work in the guest before it has what makes it a machine of its own.
    NotYet,
    /// To [`Control::Stop`]: the machine has ended.
    Stopped {
        /// The guest did not end by itself.
        forced: bool,
    },
    /// Long work goes on.
    Progress {
        /// What is done.
        phase: String,
        /// Bytes done in this phase.
        done_bytes: u64,
        /// Bytes in total, if known.
        total_bytes: Option<u64>,
    },
    /// To [`Control::Checkpoint`].
    Saved(CheckpointDone),
    /// To [`Control::Pause`]; its guest does not run any more.
    Paused(PauseDone),
    /// To [`Control::Undo`].
    Undone(UndoAnswer),
    /// To [`Control::Branch`], with descriptors.
    Branched(Box<BranchDone>),
    /// Done.
    Done,
    /// The machine stays as it is: what it needs to go to the point cannot be had.
    NotReached {
        /// Why.
        message: String,
    },
    /// Refused or failed.
    Failed {
        /// What and why.
        message: String,
        /// The next step, where there is one.
        hint: Option<String>,
    },
}

/// What only the supervisor knows.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct LiveStatus {
    /// The guest has been set up since its last boot.
    pub(crate) ready: bool,
    /// Its agent has answered just now; false if that was not asked for.
    pub(crate) answers: bool,
    /// The machine has ended: how, is in its file. What is left is to publish a save.
    pub(crate) ended: bool,
    /// Why it is not ready although its set-up is over.
    pub(crate) trouble: Option<Trouble>,
    /// What was left undone or does not last, though the machine is ready; the next start tries it again.
    pub(crate) pending: Vec<String>,
    /// The backend in use.
    pub(crate) backend: String,
    /// With the software CPU: whether code that runs often is translated.
    pub(crate) translates: Option<bool>,
    /// Number of vCPUs.
    pub(crate) vcpus: u8,
    /// Process id of the VMM; 0 when it is a thread.
    pub(crate) vmm_pid: u32,
    /// Seconds since 1970 when it was started.
    pub(crate) started_unix: u64,
    /// The kernel's last word about a lack of memory.
    pub(crate) out_of_memory: Option<String>,
    /// Writes of the guest that failed since the host's file system was full, and when the last was heard of, in seconds since 1970.
    pub(crate) full: Option<(u64, u64)>,
    /// The state that the last undo left, by full id.
    pub(crate) kept: Option<(String, KeptStatus)>,
    /// The last save that was on the machine's schedule, in this run.
    pub(crate) autosave: Option<AutosaveNote>,
}

/// Why a guest that runs is not ready.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Trouble {
    /// Its agent does not answer.
    Silent(String),
    /// Its agent answers, but a step without which it must not be used failed.
    Incomplete(String),
}

/// What a supervisor tells whoever started it; the last thing before it only serves commands.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum StartReport {
    /// The machine runs and its agent answers.
    Ready {
        /// The backend in use.
        backend: String,
        /// See [`LiveStatus::pending`].
        pending: Vec<String>,
    },
    /// The machine runs, but is not ready.
    NotReady(Trouble),
    /// The machine does not run.
    Failed {
        /// Why.
        message: String,
        /// The next step, where there is one.
        hint: Option<String>,
    },
}
