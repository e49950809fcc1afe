//! What supervisor and VMM tell each other about a machine's run; about captures see [`super::capture`].

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::capture::BeginCapture;
use crate::machine::Backend;

/// From the supervisor.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum ToVmm {
    /// Build the machine and let it run; the first message. Descriptors: see [`StartDescriptors`].
    Start(Box<StartMachine>),
    /// Give this to the serial console.
    ConsoleInput(Vec<u8>),
    /// Capture the machine. Descriptors: see [`CaptureDescriptors`](super::capture::CaptureDescriptors).
    Capture(BeginCapture),
    /// Go back to a point in place. Descriptors: see [`GoBackDescriptors`](super::undo::GoBackDescriptors).
    GoBack,
    /// End: stop the vCPUs and leave.
    Quit,
}

/// From the VMM.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum FromVmm {
    /// The vCPUs run.
    Started,
    /// The machine could not be built or started; the VMM ends.
    StartFailed {
        /// Why.
        reason: String,
        /// Chunks that it needs are lost.
        damaged: bool,
    },
    /// The guest reset itself and boots again.
    Rebooted,
    /// The console showed this.
    Console(ConsoleNote),
    /// So many of the guest's writes have failed until now, since the host's file system was full.
    HostFull {
        /// How many.
        failed: u64,
    },
    /// The guest has ended; its disk is flushed, then the VMM ends.
    Ended(EndReason),
}

/// Something on the serial console that explains an end.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum ConsoleNote {
    /// The kernel panicked.
    Panic(String),
    /// The kernel killed a process for lack of memory.
    OutOfMemory(String),
}

/// Why a machine ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum EndReason {
    /// The guest switched itself off.
    PowerOff,
    /// The guest panicked.
    Panic(String),
    /// The guest crashed without a word, or the hypervisor gave up.
    Crashed(String),
    /// The supervisor said [`ToVmm::Quit`].
    Asked,
    /// A chunk that the guest needed is lost.
    Damaged(String),
}

/// How to build a machine.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct StartMachine {
    /// The backend, not `Auto`.
    pub(crate) backend: Backend,
    /// vCPUs.
    pub(crate) vcpus: u8,
    /// Guest memory in bytes.
    pub(crate) memory_bytes: u64,
    /// CPU profile by name; of no meaning for a restore.
    pub(crate) cpu: String,
    /// The kernel's command line.
    pub(crate) command_line: String,
    /// The guest's context id.
    pub(crate) vsock_cid: u64,
    /// Size of the root disk in bytes.
    pub(crate) disk_bytes: u64,
    /// Where else a chunk may be that is damaged in the machine's packs.
    pub(crate) other_pack_directories: Vec<PathBuf>,
    /// Track written pages.
    pub(crate) branchable: bool,
    /// Go on at the point whose record is the last descriptor, instead of booting.
    pub(crate) restore: bool,
    /// Go on from another machine's instant: so many of the last descriptors are what came with
    /// [`CaptureEvent::Shared`](super::capture::CaptureEvent::Shared).
    pub(crate) inherited: Option<usize>,
    /// Run on the software CPU as a deterministic machine that follows from this seed.
    pub(crate) deterministic: Option<u64>,
    /// The software CPU only interprets.
    pub(crate) interpret: bool,
}

/// Descriptors that go with [`ToVmm::Start`], in this order, after them the disk's layers from bottom
/// to top, and the point's record for a restore, or what a branch begins with.
pub(crate) struct StartDescriptors;

impl StartDescriptors {
    /// The kernel.
    pub(crate) const KERNEL: usize = 0;
    /// The initramfs.
    pub(crate) const INITRAMFS: usize = 1;
    /// The console's log, opened for reading and appending.
    pub(crate) const CONSOLE: usize = 2;
    /// Over this socket come connections for the guest.
    pub(crate) const DIAL: usize = 3;
    /// The map of chunks under the disk's layers.
    pub(crate) const BASE_MAP: usize = 4;
    /// The machine's run lock: held as long as the VMM lives, so that no other one writes the disk.
    pub(crate) const LOCK: usize = 5;
    /// The machine's directory, whose packs hold the disk's base and a point's memory. It may be renamed: a path would not stay true.
    pub(crate) const DIRECTORY: usize = 6;
    /// The first layer.
    pub(crate) const LAYERS: usize = 7;
}
