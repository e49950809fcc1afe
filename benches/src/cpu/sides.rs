//! The two machines, and what a command takes in them.

use std::time::Instant;

use smolvm_engine::{Backend, CreateOptions, Engine, ExecOptions, MachineSpec, StartOptions};

use super::{BACKEND, Took, Workload};
use crate::BenchError;
use crate::host_cost::Processes;
use crate::machine::Machine;
use crate::peer::{Peer, PeerMachine, Process, Shell};

/// What it takes these processes to do something.
pub(super) fn time(
    processes: &Processes,
    work: impl FnOnce() -> Result<(), BenchError>,
) -> Result<Took, BenchError> {
    let used = || processes.processor_time().map_err(BenchError::HostCost);
    let (before, begin) = (used()?, Instant::now());
    work()?;
    let clock = begin.elapsed();
    Ok(Took {
        processor: used()?.saturating_sub(before),
        clock,
    })
}

/// A machine of smolvm's.
pub(super) struct Ours<'a> {
    machine: Machine<'a>,
    processes: Processes,
}

impl<'a> Ours<'a> {
    /// Boots one, and tells what that took.
    pub(super) fn boot(
        engine: &'a Engine,
        memory_bytes: u64,
        number: usize,
    ) -> Result<(Self, Took), BenchError> {
        let machine = Machine::named(engine, "cpu", number)?;
        engine.create(CreateOptions {
            name: Some(machine.name.clone()),
            spec: MachineSpec {
                cpus: Some(1),
                cpu: Some("v2".to_owned()),
                memory_bytes,
                backend: Backend::Soft,
                ..MachineSpec::default()
            },
            ..CreateOptions::default()
        })?;
        let begin = Instant::now();
        engine.start(&machine.name, StartOptions::default())?;
        let clock = begin.elapsed();
        let processes = Processes::of(machine.name.as_str()).map_err(BenchError::HostCost)?;
        let processor = processes.processor_time().map_err(BenchError::HostCost)?;
        Ok((Self { machine, processes }, Took { processor, clock }))
    }

    pub(super) fn run(&self, script: &str) -> Result<Took, BenchError> {
        time(&self.processes, || self.machine.sh(script).map(drop))
    }

    pub(super) fn execs(&self, times: u32) -> Result<Took, BenchError> {
        time(&self.processes, || {
            let Machine { engine, name } = &self.machine;
            for _ in 0..times {
                let options = ExecOptions {
                    argv: vec!["/bin/true".into()],
                    ..ExecOptions::default()
                };
                let session = engine.exec(name, options)?;
                session.run(None::<&[u8]>, &mut std::io::sink(), &mut std::io::sink())?;
            }
            Ok(())
        })
    }
}

/// A machine of QEMU's.
pub(super) struct Theirs<'a> {
    // Before the folder that it works in.
    process: Process,
    shell: Shell,
    _machine: PeerMachine<'a>,
}

impl<'a> Theirs<'a> {
    /// Boots one, and tells what that took.
    pub(super) fn boot(peer: &'a Peer) -> Result<(Self, Took), BenchError> {
        let machine = peer.machine(BACKEND)?;
        let begin = Instant::now();
        let mut process = machine.start(None)?;
        let mut shell = process.starting_shell()?;
        shell.run("true")?;
        let clock = begin.elapsed();
        let theirs = Self {
            process,
            shell,
            _machine: machine,
        };
        let processor = theirs.processes().processor_time();
        let processor = processor.map_err(BenchError::HostCost)?;
        Ok((theirs, Took { processor, clock }))
    }

    pub(super) fn processes(&self) -> Processes {
        Processes::single(self.process.id())
    }

    pub(super) fn run(&mut self, script: &str) -> Result<Took, BenchError> {
        let processes = self.processes();
        time(&processes, || Ok(self.shell.sh(script).map(drop)?))
    }

    pub(super) fn execs(&mut self, times: u32) -> Result<(), BenchError> {
        for _ in 0..times {
            self.shell.run("/bin/true")?;
        }
        Ok(())
    }

    /// Whether the image has what a workload needs.
    pub(super) fn has(&mut self, workload: &Workload) -> bool {
        let ask = format!("command -v {}", workload.program);
        self.shell.sh(&ask).is_ok()
    }
}
