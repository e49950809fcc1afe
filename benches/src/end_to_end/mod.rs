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
mod peer_round;
mod report;
mod round;
mod workload;

use std::time::Duration;

use smolvm_engine::{Backend, Engine};

pub use comparison::{Comparison, PeerRatio};
pub use peer_round::PeerRound;
pub use report::{Figure, Ratio, Report, Unit, format_value};
pub use round::Round;

use crate::BenchError;
use crate::peer::{Peer, PeerOptions};

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
        Some(peer) => Some(Peer::prepare(engine, options.memory_bytes, peer)?),
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
            measured
                .peer_rounds
                .push(PeerRound::measure(peer, options, &round.backend)?);
        }
        measured.rounds.push(round);
    }
    Ok(measured)
}
