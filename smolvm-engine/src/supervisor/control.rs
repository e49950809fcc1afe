//! What commands and the supervisor tell each other.

use serde::{Deserialize, Serialize};

/// A command's request; one per connection.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Control {
    /// How is the machine?
    Status,
    /// A connection to the agent; the answer brings the stream.
    Agent,
    /// Switch the guest off; after `timeout_ms` without it.
    Stop {
        /// How long the guest may take, in milliseconds.
        timeout_ms: u64,
    },
    /// Give this to the serial console.
    ConsoleInput(Vec<u8>),
}

/// The supervisor's answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum ControlReply {
    /// To [`Control::Status`].
    Status(LiveStatus),
    /// To [`Control::Agent`], with the stream.
    Agent,
    /// To [`Control::Stop`]: the machine has ended.
    Stopped {
        /// The guest did not end by itself.
        forced: bool,
    },
    /// Done.
    Done,
    /// Refused or failed.
    Failed {
        /// What and why.
        message: String,
    },
}

/// What only the supervisor knows.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct LiveStatus {
    /// The agent has answered since the machine was started.
    pub(crate) ready: bool,
    /// The backend in use.
    pub(crate) backend: String,
    /// Number of vCPUs.
    pub(crate) vcpus: u8,
    /// Process id of the VMM; 0 when it is a thread.
    pub(crate) vmm_pid: u32,
    /// Seconds since 1970 when it was started.
    pub(crate) started_unix: u64,
    /// The kernel's last word about a lack of memory.
    pub(crate) out_of_memory: Option<String>,
}
