//! What supervisor and VMM tell each other while a machine goes back in place, over a socket of its own.
//!
//! The socket comes with [`ToVmm::GoBack`](super::messages::ToVmm::GoBack). Until the supervisor has said that it is decided,
//! closing the socket leaves the machine where it is.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// Descriptors that go with [`ToVmm::GoBack`](super::messages::ToVmm::GoBack), in this order, after them the record of the
/// point that memory was equal to where there is one.
pub(crate) struct GoBackDescriptors;

impl GoBackDescriptors {
    /// The socket of the operation.
    pub(crate) const SOCKET: usize = 0;
    /// The record of the point to go to.
    pub(crate) const TARGET: usize = 1;
    /// The map of its disk.
    pub(crate) const MAP: usize = 2;
    /// An empty layer over that.
    pub(crate) const LAYER: usize = 3;
    /// The record of the point that memory was equal to, but for the pages that count as written.
    pub(crate) const BASE: usize = 4;
}

/// From the supervisor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum GoBackRequest {
    /// The machine's file says that it is at the target: load it.
    Decided,
}

/// From the VMM.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum GoBackEvent {
    /// Memory of the point that the machine began at is still coming; said again and again.
    Waiting,
    /// The machine stands, what differs is known and mostly read. Nothing was changed.
    Ready,
    /// The machine runs at the target.
    Back {
        /// How long it stood, in microseconds.
        pause_micros: u64,
        /// Chunks of memory that were put back.
        chunks: u64,
    },
    /// It cannot go back in place.
    Failed {
        /// Why.
        message: String,
        /// It is between two states and does not run again; otherwise it is where it was.
        between: bool,
        /// Something of the point cannot be read: nobody else could go there either.
        unreadable: Option<Unreadable>,
    },
}

/// What of a point cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Unreadable {
    /// The pack that is damaged, where it is known to be one.
    pub(crate) pack: Option<PathBuf>,
}
