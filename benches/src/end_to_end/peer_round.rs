use std::time::{Duration, Instant};

use super::{Options, workload};
use crate::BenchError;
use crate::host_cost::Processes;
use crate::median::median;
use crate::peer::{Peer, PeerError, Saved};

/// What was measured with one machine of QEMU's.
#[derive(Debug, Clone)]
pub struct PeerRound {
    /// QEMU's version.
    pub version: String,
    /// What ran the vCPU: `tcg` or `kvm`.
    pub accelerator: &'static str,
    /// A new process until a command works in it.
    pub boot: Duration,
    /// One command that does nothing, median of several.
    pub exec: Duration,
    /// The same work as smolvm's.
    pub work: Duration,
    /// First save.
    pub first: Saved,
    /// Second save, after the same change.
    pub second: Saved,
    /// The part of one processor that it uses while the guest has nothing to do.
    pub idle_share: f64,
    /// What it takes of the host's memory besides the guest's, after all that was done in it.
    pub host_memory_bytes: u64,
    /// A new process that goes on at the second save, until a command works in it.
    pub go_back: Duration,
}

impl PeerRound {
    /// Makes a machine that runs as smolvm's did with this backend, measures it and removes it.
    pub(super) fn measure(
        peer: &Peer,
        options: &Options,
        backend: &str,
    ) -> Result<Self, BenchError> {
        let machine = peer.machine(backend)?;
        let begin = Instant::now();
        let mut process = machine.start(None)?;
        let mut shell = process.starting_shell()?;
        shell.run("true")?;
        let boot = begin.elapsed();
        let exec = median((0..options.execs.max(1)).map(|_| timed(|| shell.run("/bin/true"))))?;
        let work = timed(|| shell.sh(workload::WORK))?;
        let mut monitor = process.monitor()?;
        let first = machine.save(&mut monitor, "first")?;
        let digest = shell.sh(&workload::dirty(options.dirty_mib))?;
        let second = machine.save(&mut monitor, "second")?;
        let processes = Processes::single(process.id());
        let cost = processes.cost(options.idle_time, options.memory_bytes);
        let (idle_share, host_memory_bytes) = cost.map_err(BenchError::HostCost)?;
        // Two processes cannot have the disk.
        drop(process);

        let begin = Instant::now();
        let mut process = machine.start(Some("second"))?;
        let mut shell = process.waiting_shell()?;
        shell.run("true")?;
        let go_back = begin.elapsed();
        workload::check(digest, shell.sh(workload::DIGEST)?)?;
        Ok(Self {
            version: monitor.version().to_owned(),
            accelerator: machine.accelerator,
            boot,
            exec,
            work,
            first,
            second,
            idle_share,
            host_memory_bytes,
            go_back,
        })
    }
}

fn timed(work: impl FnOnce() -> Result<String, PeerError>) -> Result<Duration, PeerError> {
    let begin = Instant::now();
    work()?;
    Ok(begin.elapsed())
}
