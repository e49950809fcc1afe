//! What supervisor and VMM tell each other.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::machine::Backend;

/// From the supervisor.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum ToVmm {
    /// Build the machine and let it run; the first message. Descriptors: see [`StartDescriptors`].
    Start(Box<StartMachine>),
    /// Give this to the serial console.
    ConsoleInput(Vec<u8>),
    /// About this capture.
    Capture(CaptureNumber, CaptureRequest),
    /// End: stop the vCPUs and leave.
    Quit,
}

/// Which capture of a machine's run a message is about. Messages of a capture that was given up may come late:
/// the number keeps them away from the next one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct CaptureNumber(u64);

impl CaptureNumber {
    /// The number of the capture after this one.
    pub(crate) fn next(self) -> Self {
        Self(self.0.wrapping_add(1))
    }
}

/// What the supervisor says about a capture.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum CaptureRequest {
    /// Begin it. Descriptors: the window, the disk's new top layer.
    Begin(BeginCapture),
    /// These slots of the window were read and may be filled again.
    FreeSlots(Vec<u32>),
    /// It is over. With a descriptor: the map of the disk's new base, which holds all that the sealed layers
    /// hold. Without one it failed: what it took counts as written again.
    End,
}

/// How to capture.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct BeginCapture {
    /// Send all of memory, not only what changed since the last capture that succeeded.
    pub(crate) full: bool,
    /// Number of 64 KiB slots of the window.
    pub(crate) slots: u32,
}

/// A chunk of memory in the window.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct CapturedChunk {
    /// Which 64 KiB of guest memory, counted over all regions in order.
    pub(crate) chunk: u64,
    /// Where in the window; `None`: all zeros.
    pub(crate) slot: Option<u32>,
}

/// A unit's state on its way to the record.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct UnitState {
    /// The unit.
    pub(crate) unit: String,
    /// Its kind.
    pub(crate) kind: String,
    /// Its layout's version.
    pub(crate) version: u32,
    /// Its bytes.
    pub(crate) bytes: Vec<u8>,
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
    /// About this capture.
    Capture(CaptureNumber, CaptureEvent),
    /// The machine is over; the VMM ends.
    Ended(EndReason),
}

/// What the VMM says about a capture.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum CaptureEvent {
    /// About so many bytes of memory are to come.
    ToCome {
        /// Whole chunks.
        bytes: u64,
    },
    /// Chunks of memory; a later one replaces an earlier one of the same number.
    Chunks(Vec<CapturedChunk>),
    /// The instant of the capture: the machine was paused and runs again.
    Frozen {
        /// The state of every unit.
        states: Vec<UnitState>,
        /// How long the machine was paused, in microseconds.
        pause_micros: u64,
        /// The wall time of the instant: seconds since 1970 and nanoseconds.
        taken: (u64, u32),
    },
    /// All chunks were sent.
    MemoryDone,
    /// It failed; what it took counts as written again.
    Failed {
        /// What failed.
        message: String,
        /// The disk writes to its new top already: that layer must stay.
        switched: bool,
    },
    /// To [`CaptureRequest::End`]: it is over, former layers of the disk are not used any more.
    Ended,
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
    /// Directories of packs that hold the disk's base and a point's memory.
    pub(crate) pack_directories: Vec<PathBuf>,
    /// Where else a chunk may be that is damaged there.
    pub(crate) other_pack_directories: Vec<PathBuf>,
    /// Track written pages.
    pub(crate) branchable: bool,
    /// Go on at the point whose record is the last descriptor, instead of booting.
    pub(crate) restore: bool,
    /// Run on the software CPU as a deterministic machine that follows from this seed.
    pub(crate) deterministic: Option<u64>,
}

/// Descriptors that go with [`ToVmm::Start`], in this order, after them the disk's layers from bottom
/// to top, and the point's record for a restore.
pub(crate) struct StartDescriptors;

impl StartDescriptors {
    /// The kernel.
    pub(crate) const KERNEL: usize = 0;
    /// The initramfs.
    pub(crate) const INITRAMFS: usize = 1;
    /// The console's log, opened for appending.
    pub(crate) const CONSOLE: usize = 2;
    /// Over this socket come connections for the guest.
    pub(crate) const DIAL: usize = 3;
    /// The map of chunks under the disk's layers.
    pub(crate) const BASE_MAP: usize = 4;
    /// The machine's run lock: held as long as the VMM lives, so that no other one writes the disk.
    pub(crate) const LOCK: usize = 5;
    /// The first layer.
    pub(crate) const LAYERS: usize = 6;
}
