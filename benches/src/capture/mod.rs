//! Saving and going back: many saves of one machine, beside QEMU with the same guest.
//!
//! # Model
//!
//! A [`Scenario`] is a machine with so much memory, which changes so much between two saves, and has so many points before the
//! first that is measured. For each save three things are noted: the longest time that a process in the guest which
//! wakes every millisecond was not woken, the same over an equally long window without a save right after it, and what the
//! monitor says of itself. Then the machine goes back, in place and as a new machine. [`run`] measures smolvm and, where that is
//! asked for, QEMU with one save kept, scenario by scenario in turn; a [`Report`] has the 50th, 90th and 99th percentile of each
//! figure.
//!
//! # What is not alike
//!
//! The clocks of QEMU's guest stand while it saves, so its guest sees nothing: for QEMU the gap is the time from its events STOP to
//! RESUME.
//!
//! # Errors
//!
//! [`BenchError`]; machines are removed whatever happens.

mod qemu;
mod report;
mod side;
mod smolvm;

use std::time::Duration;

use smolvm_engine::{Backend, Engine};

pub use report::{Percentiles, Report, Row};

use crate::BenchError;
use crate::peer::{Peer, PeerOptions};
use qemu::Qemu;
use side::{Figures, measure, measure_in_use};
use smolvm::Smolvm;

/// How changed pages lie in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Layout {
    /// Next to each other.
    Contiguous,
    /// One in each 64 KiB.
    Scattered,
}

impl Layout {
    fn word(self) -> &'static str {
        match self {
            Self::Contiguous => "contiguous",
            Self::Scattered => "scattered",
        }
    }
}

/// A machine and what happens between its saves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
pub struct Scenario {
    /// Guest memory in MiB.
    pub memory_mib: u32,
    /// MiB that are filled before the first save.
    pub used_mib: u32,
    /// MiB of pages written between two saves.
    pub dirty_mib: u32,
    /// How they lie.
    pub layout: Layout,
    /// Points that the machine has before the first save that is measured.
    pub history: usize,
    /// Saves that are measured.
    pub saves: usize,
}

/// What to measure.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// Saves of the first scenario.
    pub saves: usize,
    /// Saves of each scenario that differs from it in one thing; none, and they are left out.
    pub axis_saves: usize,
    /// How often each machine goes back in each way.
    pub returns: usize,
    /// GiB of memory in use of the machines whose restore must not depend on it; none, and they are left out.
    pub in_use_gib: u32,
    /// What runs the vCPUs.
    pub backend: Backend,
    /// How to measure QEMU in the same run, if at all.
    pub peer: Option<PeerOptions>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            saves: 200,
            axis_saves: 40,
            returns: 10,
            in_use_gib: 4,
            backend: Backend::Auto,
            peer: None,
        }
    }
}

/// The scenario that others differ from in one thing.
const FIRST: Scenario = Scenario {
    memory_mib: 2048,
    used_mib: 256,
    dirty_mib: 32,
    layout: Layout::Contiguous,
    history: 32,
    saves: 0,
};

/// The first scenario, and those that differ from it in one thing.
fn scenarios(options: &Options) -> Vec<Scenario> {
    let first = Scenario {
        saves: options.saves.max(1),
        ..FIRST
    };
    let mut all = vec![first];
    if options.axis_saves > 0 {
        let base = Scenario {
            saves: options.axis_saves,
            ..FIRST
        };
        all.extend([512, 4096].map(|memory_mib| Scenario { memory_mib, ..base }));
        all.extend([8, 128].map(|dirty_mib| Scenario { dirty_mib, ..base }));
        all.push(Scenario {
            layout: Layout::Scattered,
            used_mib: 512,
            ..base
        });
        all.extend([1, 200].map(|history| Scenario { history, ..base }));
    }
    all
}

/// Measures; `told` hears what is measured next.
///
/// # Errors
///
/// The first that any machine meets.
pub fn run(engine: &Engine, options: &Options, told: &dyn Fn(&str)) -> Result<Report, BenchError> {
    let mut report = Report::default();
    for scenario in scenarios(options) {
        told(&report::title(&scenario));
        let mut smolvm = Smolvm::start(engine, options.backend, scenario.memory_mib)?;
        let own = measure(&mut smolvm, &scenario, options.returns)?;
        report.backend = smolvm.backend().to_owned();
        drop(smolvm);
        let peer = on_peer(
            engine,
            options,
            scenario.memory_mib,
            &report.backend,
            |qemu| {
                let alone = Scenario {
                    history: 0,
                    ..scenario
                };
                measure(qemu, &alone, options.returns)
            },
        )?;
        report.add(&scenario, own, peer);
    }
    for half_gib in [1, 2, 4, 8] {
        if half_gib > options.in_use_gib * 2 {
            continue;
        }
        let used_mib = half_gib * 512;
        told(&format!("going back with {used_mib} MiB in use"));
        // Half of it is the most that a file system in memory takes.
        let memory_mib = used_mib * 2 + 512;
        let mut smolvm = Smolvm::start(engine, options.backend, memory_mib)?;
        let own = measure_in_use(&mut smolvm, used_mib, options.returns)?;
        let backend = smolvm.backend().to_owned();
        drop(smolvm);
        let peer = on_peer(engine, options, memory_mib, &backend, |qemu| {
            measure_in_use(qemu, used_mib, options.returns)
        })?;
        report.add_in_use(used_mib, own, peer);
    }
    Ok(report)
}

/// Measures QEMU, if it is to be measured.
fn on_peer(
    engine: &Engine,
    options: &Options,
    memory_mib: u32,
    backend: &str,
    work: impl FnOnce(&mut Qemu<'_>) -> Result<Figures, BenchError>,
) -> Result<Option<Figures>, BenchError> {
    let Some(peer) = options.peer else {
        return Ok(None);
    };
    let peer = Peer::prepare(engine, u64::from(memory_mib) << 20, peer)?;
    let mut qemu = Qemu::start(&peer, backend)?;
    work(&mut qemu).map(Some)
}

/// How long a window without a save is at least.
const SHORTEST_WINDOW: Duration = Duration::from_millis(100);
