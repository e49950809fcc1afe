//! Whole machines: started, worked in, saved twice, looked at from outside, restored.
//!
//! # Model
//!
//! A [`Round`] makes a machine, measures, and removes everything again; [`run`] does several. A [`Report`]
//! gives the median of each figure and ratios of figures of the same run. Ratios are what can be compared
//! between hosts; absolute times belong to the host and to what else it did. With
//! [`Options::peer`] each round is followed by one of QEMU with the same guest, so that both have the
//! same host at nearly the same time.
//!
//! # Errors
//!
//! [`BenchError`]; what a round left behind is removed as far as possible.
//!
//! # What is not here
//!
//! Preparing the home (`cargo xtask bench` does that), and any verdict.
//!
//! ```no_run
//! use benches::end_to_end::{Options, Report, run};
//! use smolvm_engine::{Engine, EngineOptions};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let engine = Engine::open(EngineOptions::from_environment()?)?;
//! let options = Options { rounds: 3, ..Options::default() };
//! let measured = run(&engine, &options, &|_| {})?;
//! let report = Report::of(&measured.rounds, &measured.peer_rounds);
//! assert!(!report.figures.is_empty());
//! # Ok(())
//! # }
//! ```

mod comparison;
mod host_cost;
mod peer;
mod report;
mod round;
mod workload;

use std::time::Duration;

use smolvm_engine::agent_protocol::client::ClientError;
use smolvm_engine::{Backend, Engine, EngineError};

pub use comparison::{Comparison, PeerRatio};
pub use peer::{PeerError, PeerOptions, PeerRound, Saved};
pub use report::{Figure, Ratio, Report, Unit, format_value};
pub use round::Round;

use peer::Peer;

/// What to measure.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// Machines made one after the other.
    pub rounds: usize,
    /// Commands run in each for the latency of one.
    pub execs: usize,
    /// Random bytes written to the guest's memory between two checkpoints, in MiB.
    pub dirty_mib: u32,
    /// For how long a machine is left alone, to see what that costs.
    pub idle_time: Duration,
    /// Guest memory in bytes.
    pub memory_bytes: u64,
    /// What runs the vCPUs.
    pub backend: Backend,
    /// How to measure QEMU in the same run, if at all.
    pub peer: Option<PeerOptions>,
}

/// All that was measured.
#[derive(Debug, Clone)]
pub struct Measured {
    /// Smolvm's rounds.
    pub rounds: Vec<Round>,
    /// The peer's, as many or none.
    pub peer_rounds: Vec<PeerRound>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            rounds: 5,
            execs: 10,
            dirty_mib: 4,
            idle_time: Duration::from_secs(30),
            memory_bytes: smolvm_engine::DEFAULT_MEMORY_BYTES,
            backend: Backend::Auto,
            peer: None,
        }
    }
}

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

/// Measures; `told` is called before each round with its number, from 1.
///
/// # Errors
///
/// The first that any round meets.
pub fn run(
    engine: &Engine,
    options: &Options,
    told: &dyn Fn(usize),
) -> Result<Measured, BenchError> {
    let peer = match options.peer {
        Some(peer) => Some(Peer::prepare(engine, options, peer)?),
        None => None,
    };
    let mut measured = Measured {
        rounds: Vec::new(),
        peer_rounds: Vec::new(),
    };
    for number in 1..=options.rounds.max(1) {
        told(number);
        let round = Round::measure(engine, options, number)?;
        if let Some(peer) = &peer {
            measured.peer_rounds.push(peer.measure(&round.backend)?);
        }
        measured.rounds.push(round);
    }
    Ok(measured)
}

/// The median; of an even number, the upper of the middle two.
fn median<E>(times: impl Iterator<Item = Result<Duration, E>>) -> Result<Duration, E> {
    let mut times = times.collect::<Result<Vec<_>, E>>()?;
    times.sort_unstable();
    Ok(times.get(times.len() / 2).copied().unwrap_or_default())
}
