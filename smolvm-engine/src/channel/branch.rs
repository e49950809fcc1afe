//! What is said of branches: by a command to the source's supervisor, and to those of the children, and what a child's VMM begins with.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::capture::UnitState;
use super::control::{CheckpointDone, CheckpointRequest};
use crate::machine::MachineFile;

/// Freeze the machine, and put what its children need into these directories.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct BranchRequest {
    /// A directory for each child, empty, on its way to become a machine's.
    pub(crate) children: Vec<PathBuf>,
    /// Save that instant, too.
    pub(crate) checkpoint: Option<CheckpointRequest>,
}

/// The children's directories are filled. Descriptors: see [`CaptureEvent::Shared`](super::capture::CaptureEvent::Shared).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct BranchDone {
    /// The source, with the disk that is in the children's directories.
    pub(crate) machine: MachineFile,
    /// The source's vCPUs.
    pub(crate) vcpus: u8,
    /// The source's CPU profile.
    pub(crate) cpu: String,
    /// What the children's supervisors are told.
    pub(crate) child: StartAsChild,
    /// How long the source stood still, in microseconds.
    pub(crate) pause_micros: u64,
    /// The point of that instant.
    pub(crate) saved: Option<CheckpointDone>,
}

/// The first that a new supervisor hears of whoever started it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Begin {
    /// The machine boots, or goes on at its point.
    Alone(Alone),
    /// It goes on from another's instant. Descriptors: the machine's run lock, which is held, then as with [`BranchDone`].
    AsChild(StartAsChild),
}

/// How a machine starts that is no branch.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Alone {
    /// Its first start may go on at a booted point, and make one where there is none.
    pub(crate) booted_points: bool,
    /// It boots.
    pub(crate) cold: bool,
    /// The software CPU only interprets.
    pub(crate) interpret: bool,
}

/// What the supervisor of a branch is told.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct StartAsChild {
    /// Full id of the point that memory was equal to, but for the pages that count as written.
    pub(crate) base: Option<String>,
    /// The source's software CPU only interprets, and so does the branch's.
    pub(crate) interpret: bool,
}

/// What a machine begins with, but for the bytes of its memory. Written by one VMM and read by others, or by the supervisor that makes
/// a booted point of it.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Inheritance {
    /// The state of every unit.
    pub(crate) states: Vec<UnitState>,
    /// Where memory lies in the layers; what is not named is zero.
    pub(crate) parts: Vec<InheritedPart>,
    /// Pages that were written since the point that memory is compared with, as runs: address of the first, and how many.
    pub(crate) written: Vec<(u64, u64)>,
    /// There is no such point: all of memory is new since a boot.
    pub(crate) booted: bool,
}

/// A part of memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct InheritedPart {
    /// First address.
    pub(crate) gpa: u64,
    /// Length in bytes.
    pub(crate) bytes: u64,
    /// Which of the layers holds it.
    pub(crate) file: usize,
    /// Where in the layer.
    pub(crate) offset: u64,
}
