use std::time::{Duration, Instant};

use super::side::{Io, SaveCost, Side};
use crate::BenchError;
use crate::peer::{Monitor, Peer, PeerMachine, Process, Shell};

/// A machine of QEMU's, with one save at a time.
pub(super) struct Qemu<'a> {
    machine: PeerMachine<'a>,
    run: Option<Run>,
    saves: usize,
}

/// A process that runs it.
struct Run {
    shell: Shell,
    monitor: Monitor,
    /// Goes last.
    process: Process,
}

impl<'a> Qemu<'a> {
    /// Makes and starts one.
    pub(super) fn start(peer: &'a Peer, backend: &str) -> Result<Self, BenchError> {
        let machine = peer.machine(backend)?;
        let mut process = machine.start(None)?;
        let mut shell = process.starting_shell()?;
        shell.run("true")?;
        let run = Run {
            shell,
            monitor: process.monitor()?,
            process,
        };
        Ok(Self {
            machine,
            run: Some(run),
            saves: 0,
        })
    }

    fn run(&mut self) -> Result<&mut Run, BenchError> {
        self.run.as_mut().ok_or_else(ended)
    }

    fn tag(&self) -> String {
        format!("save{}", self.saves)
    }
}

fn ended() -> BenchError {
    BenchError::Output {
        what: "a process of QEMU's",
        output: "it has ended".to_owned(),
    }
}

impl Side for Qemu<'_> {
    fn sh(&mut self, command: &str) -> Result<String, BenchError> {
        Ok(self.run()?.shell.sh(command)?)
    }

    fn save(&mut self) -> Result<SaveCost, BenchError> {
        let before = self.tag();
        self.saves += 1;
        let tag = self.tag();
        let run = self.run.as_mut().ok_or_else(ended)?;
        let pids = [run.process.id()];
        let io = || Io::of(&pids).map_err(BenchError::HostCost);
        let begin = io()?;
        let saved = self.machine.save(&mut run.monitor, &tag)?;
        let io = io()?.since(begin);
        if self.saves > 1 {
            run.monitor.human(&format!("delvm {before}"))?;
        }
        Ok(SaveCost {
            paused: saved.paused,
            returned: saved.saved_in,
            io,
            new_bytes: None,
        })
    }

    fn sees_pauses(&self) -> bool {
        false
    }

    fn other_ways(&mut self, note: &mut dyn FnMut(&'static str, f64)) -> Result<(), BenchError> {
        let run = self.run()?;
        for _ in 0..3 {
            run.shell.sh("python3 /root/guest.py dirty 32 contiguous")?;
            let (took, stood) = run.monitor.migrate_to_file()?;
            note("migrate", took.as_secs_f64());
            note("migrate_paused", stood.as_secs_f64());
        }
        Ok(())
    }

    fn restore(&mut self, command: &str) -> Result<Duration, BenchError> {
        // Two processes cannot have the disk.
        self.run = None;
        let begin = Instant::now();
        let mut process = self.machine.start(Some(&self.tag()))?;
        let mut shell = process.waiting_shell()?;
        shell.sh(command)?;
        let took = begin.elapsed();
        self.run = Some(Run {
            shell,
            monitor: process.monitor()?,
            process,
        });
        Ok(took)
    }

    fn go_back(&mut self) -> Result<Duration, BenchError> {
        let tag = self.tag();
        let run = self.run()?;
        let begin = Instant::now();
        run.monitor.human(&format!("loadvm {tag}"))?;
        run.shell.run("true")?;
        Ok(begin.elapsed())
    }
}
