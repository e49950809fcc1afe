use smolvm_engine::EngineError;
use smolvm_engine::agent_protocol::client::ClientError;

use crate::peer::PeerError;

/// Why nothing was measured.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BenchError {
    /// A machine could not be used.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// The connection to a command broke.
    #[error("the connection to a command broke")]
    Command(#[from] ClientError),
    /// A command in the guest failed.
    #[error("`{command}` in the guest ended with {code}: {output}")]
    Failed {
        /// The command.
        command: String,
        /// How it ended.
        code: u8,
        /// What it printed.
        output: String,
    },
    /// Something is not what it should be.
    #[error("{what} was expected, not {output:?}")]
    Output {
        /// What should be.
        what: &'static str,
        /// What is.
        output: String,
    },
    /// No booted point was made of a machine that has booted.
    #[error("no booted point was made; the log of the machine may tell why")]
    NoBootedPoint,
    /// A restored machine lacks what the saved one had in memory.
    #[error("the restored machine does not hold what was saved: {found:?} instead of {expected:?}")]
    Lost {
        /// What it should hold.
        expected: String,
        /// What it holds.
        found: String,
    },
    /// The machine's processes could not be looked into.
    #[error("the cost of the machine's processes cannot be read")]
    HostCost(#[source] std::io::Error),
    /// No place for checkpoints.
    #[error("no folder for checkpoints")]
    Folder(#[source] std::io::Error),
    /// The peer could not be measured.
    #[error(transparent)]
    Peer(#[from] PeerError),
}
