//! The software CPU beside QEMU's translator: the same kernel, initramfs, image and features of the processor.
//!
//! # Model
//!
//! Both machines run at once, but take turns: while one works the other waits for a command. Each [`Workload`] is
//! repeated as often as QEMU needs to be busy for [`Options::least`], and then run in both, as many rounds as wanted.
//! Processor time is that of the machine's processes and does not depend on what else the host does as much as the
//! time on the clock, which is shown, too. Booting and commands that do nothing are workloads of their own.
//!
//! # Errors
//!
//! Those of [`BenchError`]. A workload whose program the image lacks is left out, and said to be.
//!
//! # What is not here
//!
//! Any verdict, and preparing the home (`cargo xtask bench cpu` does that).

mod report;
mod sides;
mod workload;

use std::time::Duration;

use smolvm_engine::Engine;

use crate::BenchError;
use crate::peer::{Peer, PeerOptions};
use sides::{Ours, Theirs, time};

pub use report::{Comparison, Row};
pub use workload::{Group, Workload};

/// What runs smolvm's vCPU; QEMU has the counterpart.
const BACKEND: &str = "soft";
/// Most repetitions that anything is given.
const MOST_REPETITIONS: u32 = 10_000;

/// What to measure.
#[derive(Debug, Clone)]
pub struct Options {
    /// How often each workload is run in each machine.
    pub rounds: usize,
    /// For how long QEMU shall be busy with a workload.
    pub least: Duration,
    /// Workloads whose names contain one of these; all if there are none.
    pub only: Vec<String>,
    /// Guest memory in bytes.
    pub memory_bytes: u64,
    /// How to run QEMU.
    pub peer: PeerOptions,
}

/// What a run of a workload took.
#[derive(Debug, Clone, Copy, Default)]
pub struct Took {
    /// Processor time of the machine's processes.
    pub processor: Duration,
    /// Time on the clock.
    pub clock: Duration,
}

/// Measures; `told` hears what is being done.
///
/// # Errors
///
/// The first that any machine meets.
pub fn run(
    engine: &Engine,
    options: &Options,
    told: &dyn Fn(&str),
) -> Result<Comparison, BenchError> {
    let peer = Peer::prepare(engine, options.memory_bytes, options.peer)?;
    let mut comparison = Comparison::new(Peer::version()?, peer.command(BACKEND)?);
    if options.wants("boot") {
        told("boot");
        comparison.add(boots(engine, &peer, options)?);
    }
    let mut theirs = Theirs::boot(&peer)?.0;
    let ours = Ours::boot(engine, options.memory_bytes, 0)?.0;
    for workload in Workload::all().iter().filter(|w| options.wants(w.name)) {
        told(workload.name);
        if !theirs.has(workload) {
            comparison.missing.push(workload.name);
            continue;
        }
        comparison.add(compare(workload, options, &ours, &mut theirs)?);
    }
    if options.wants("exec of true") {
        told("exec of true");
        comparison.add(execs(options, &ours, &mut theirs)?);
    }
    Ok(comparison)
}

impl Options {
    fn wants(&self, name: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|part| name.contains(part.as_str()))
    }
}

/// Starts of machines, in turn.
fn boots(engine: &Engine, peer: &Peer, options: &Options) -> Result<Row, BenchError> {
    let mut row = Row::new("boot", Group::Boot, 1);
    for round in 0..options.rounds.max(1) {
        row.theirs.push(Theirs::boot(peer)?.1);
        row.ours
            .push(Ours::boot(engine, options.memory_bytes, round + 1)?.1);
    }
    Ok(row)
}

/// One workload in both, in turn.
fn compare(
    workload: &Workload,
    options: &Options,
    ours: &Ours<'_>,
    theirs: &mut Theirs<'_>,
) -> Result<Row, BenchError> {
    // Files are read for the first time here.
    theirs.run(&workload.script(1))?;
    ours.run(&workload.script(1))?;
    let once = theirs.run(&workload.script(1))?;
    let times = repetitions(once.processor, options.least);
    let script = workload.script(times);
    let mut row = Row::new(workload.name, workload.group, times);
    for _ in 0..options.rounds.max(1) {
        row.theirs.push(theirs.run(&script)?);
        row.ours.push(ours.run(&script)?);
    }
    Ok(row)
}

/// Commands that do nothing, one after the other, from outside.
fn execs(options: &Options, ours: &Ours<'_>, theirs: &mut Theirs) -> Result<Row, BenchError> {
    const TRIED: u32 = 20;
    let processes = theirs.processes();
    let tried = time(&processes, || theirs.execs(TRIED))?;
    let times = TRIED * repetitions(tried.processor, options.least);
    let mut row = Row::new("exec of true", Group::Forks, times);
    for _ in 0..options.rounds.max(1) {
        row.theirs.push(time(&processes, || theirs.execs(times))?);
        row.ours.push(ours.execs(times)?);
    }
    Ok(row)
}

/// How often something that takes this long is to be done.
fn repetitions(once: Duration, least: Duration) -> u32 {
    let times = least.as_secs_f64() / once.as_secs_f64().max(0.01);
    (times.ceil() as u32).clamp(1, MOST_REPETITIONS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_workload_is_repeated_until_it_lasts() {
        let seconds = Duration::from_secs;
        assert_eq!(repetitions(seconds(1), seconds(3)), 3);
        assert_eq!(repetitions(seconds(2), seconds(3)), 2);
        assert_eq!(repetitions(seconds(9), seconds(3)), 1);
        assert_eq!(repetitions(Duration::ZERO, seconds(3)), 300);
    }

    #[test]
    fn parts_of_names_select() {
        let mut options = Options {
            rounds: 1,
            least: Duration::ZERO,
            only: Vec::new(),
            memory_bytes: 0,
            peer: PeerOptions { tsc_khz: 0 },
        };
        assert!(options.wants("boot"));
        options.only = vec!["sha".to_owned(), "json".to_owned()];
        assert!(options.wants("sha256") && options.wants("json") && !options.wants("boot"));
    }
}
