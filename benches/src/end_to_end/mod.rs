//! Whole machines: started, worked in, saved twice, looked at from outside, restored.
//!
//! # Model
//!
//! A [`Round`] makes a machine, measures, and removes everything again; [`run`] does several. A [`Report`]
//! gives the median of each figure and ratios of figures of the same run. Ratios are what can be compared
//! between hosts; absolute times belong to the host and to what else it did.
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
//! let report = Report::of(&run(&engine, &options, &|_| {})?);
//! assert!(!report.figures.is_empty());
//! # Ok(())
//! # }
//! ```

mod host_cost;
mod report;
mod round;

use std::time::Duration;

use smolvm_engine::agent_protocol::client::ClientError;
use smolvm_engine::{Backend, Engine, EngineError};

pub use report::{Figure, Ratio, Report, Unit, format_value};
pub use round::Round;

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
) -> Result<Vec<Round>, BenchError> {
    (1..=options.rounds.max(1))
        .map(|number| {
            told(number);
            Round::measure(engine, options, number)
        })
        .collect()
}
