//! What supervisor and VMM tell each other about one capture, over a socket of its own.
//!
//! The socket comes with [`ToVmm::Capture`](super::messages::ToVmm::Capture). When the supervisor closes its sending
//! side before [`CaptureRequest::Published`], it gives the capture up: what was taken counts as written again. The VMM
//! closes the socket when the capture is over.

use serde::{Deserialize, Serialize};

/// Descriptors that go with [`ToVmm::Capture`](super::messages::ToVmm::Capture), in this order. After them come the window, memory
/// that both processes share, where [`BeginCapture::point`] is set, and an empty layer that the sealed ones are merged into where
/// [`BeginCapture::merge`] is set.
pub(crate) struct CaptureDescriptors;

impl CaptureDescriptors {
    /// The capture's socket.
    pub(crate) const SOCKET: usize = 0;
    /// The disk's new top layer.
    pub(crate) const TOP: usize = 1;
    /// The first of the others.
    pub(crate) const OTHERS: usize = 2;
}

/// What the supervisor says about a capture.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum CaptureRequest {
    /// These slots of the window were read and may be filled again.
    FreeSlots(Vec<u32>),
    /// The point is published. Descriptor: the map of the disk's new base, which holds all that the sealed layers
    /// hold.
    Published,
}

/// How to capture.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct BeginCapture {
    /// First merge the disk's sealed layers.
    pub(crate) merge: bool,
    /// Send memory and states, of which a point is made.
    pub(crate) point: bool,
    /// Hand memory over, from which other machines go on.
    pub(crate) share: bool,
    /// Keep nothing of that memory: no other machine will go on from there.
    pub(crate) once: bool,
    /// Send all of memory, not only what changed since the last capture that succeeded.
    pub(crate) full: bool,
    /// Leave the machine standing after the instant, until it goes back or the capture is over.
    pub(crate) stay: bool,
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

/// What the VMM says about a capture.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum CaptureEvent {
    /// Memory of the point that the machine began at is still coming; said again and again.
    Waiting,
    /// The disk's sealed layers are one now, whose file is durable.
    Merged,
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
    /// What machines begin with that go on from the instant. Descriptors: what [`Inheritance`](super::branch::Inheritance) is
    /// written to, then the layers of memory.
    Shared {
        /// What was written in it is not known relative to any point.
        booted: bool,
    },
    /// All chunks were sent.
    MemoryDone,
    /// It failed, and nothing more comes; what it took counts as written again.
    Failed {
        /// What failed.
        message: String,
        /// The disk writes to its new top already: that layer must stay.
        switched: bool,
        /// The guest has ended.
        ended: bool,
    },
    /// To [`CaptureRequest::Published`], the last: former layers of the disk are not used any more.
    Rebased,
}
