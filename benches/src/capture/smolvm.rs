use std::path::PathBuf;
use std::time::{Duration, Instant};

use smolvm_engine::progress::Silent;
use smolvm_engine::{
    Backend, CheckpointOptions, CreateFromOptions, CreateOptions, Engine, EngineError, MachineSpec,
    PointSource, Saving, StartOptions, UndoOptions,
};

use super::side::{Io, SaveCost, Side};
use crate::BenchError;
use crate::host_cost::Processes;
use crate::machine::{Machine, beside, timed};

/// How often a state that an undo left is looked at until it is saved.
const LOOK_AGAIN: Duration = Duration::from_millis(5);

/// A machine of smolvm's, whose saves go to a store of its own.
pub(super) struct Smolvm<'a> {
    machine: Machine<'a>,
    backend: String,
    pids: Vec<u32>,
    store: PathBuf,
    copies: usize,
    /// Goes last.
    _folder: tempfile::TempDir,
}

impl<'a> Smolvm<'a> {
    /// Makes and starts one.
    pub(super) fn start(
        engine: &'a Engine,
        backend: Backend,
        memory_mib: u32,
    ) -> Result<Self, BenchError> {
        engine.home().ensure().map_err(EngineError::from)?;
        let folder = tempfile::Builder::new()
            .prefix("bench-")
            .tempdir_in(beside(engine.home().root()))
            .map_err(BenchError::Folder)?;
        let machine = Machine::named(engine, "capture", 0)?;
        engine.create(CreateOptions {
            name: Some(machine.name.clone()),
            spec: MachineSpec {
                cpus: Some(1),
                cpu: Some("v2".to_owned()),
                memory_bytes: u64::from(memory_mib) << 20,
                backend,
                ..MachineSpec::default()
            },
            ..CreateOptions::default()
        })?;
        let started = engine.start(&machine.name, StartOptions::default())?;
        let pids = Processes::of(machine.name.as_str()).map_err(BenchError::HostCost)?;
        Ok(Self {
            pids: pids.ids(),
            backend: started.backend,
            store: folder.path().join("store"),
            machine,
            copies: 0,
            _folder: folder,
        })
    }

    /// What runs it.
    pub(super) fn backend(&self) -> &str {
        &self.backend
    }

    fn undo(&self, discard: bool) -> Result<Duration, BenchError> {
        let begin = Instant::now();
        let mut options = UndoOptions::default();
        options.discard = discard;
        let undone = self
            .machine
            .engine
            .undo(&self.machine.name, &options, &Silent)?;
        self.machine.sh("true")?;
        match undone.in_place {
            true => Ok(begin.elapsed()),
            false => Err(BenchError::Output {
                what: "an undo in place",
                output: "another process took its place".to_owned(),
            }),
        }
    }
}

impl Side for Smolvm<'_> {
    fn sh(&mut self, command: &str) -> Result<String, BenchError> {
        // What runs on belongs to the guest.
        self.machine.sh(command)
    }

    fn save(&mut self) -> Result<SaveCost, BenchError> {
        let mut options = CheckpointOptions::default();
        options.store = Some(self.store.clone());
        let io = |pids: &[u32]| Io::of(pids).map_err(BenchError::HostCost);
        let before = io(&self.pids)?;
        let (engine, name) = (self.machine.engine, &self.machine.name);
        let (saved, returned) = timed(|| engine.checkpoint(name, &options, &Silent))?;
        Ok(SaveCost {
            paused: saved.paused,
            returned,
            io: io(&self.pids)?.since(before),
            new_bytes: Some(saved.written_bytes),
        })
    }

    fn sees_pauses(&self) -> bool {
        true
    }

    fn other_ways(&mut self, note: &mut dyn FnMut(&'static str, f64)) -> Result<(), BenchError> {
        for _ in 0..3 {
            self.machine
                .sh("python3 /root/guest.py dirty 64 contiguous")?;
            let begin = Instant::now();
            note("undo_kept", self.undo(false)?.as_secs_f64());
            let is_saving = || -> Result<bool, BenchError> {
                let info = self.machine.engine.machine(&self.machine.name)?;
                Ok(info.left.is_some_and(|left| left.saving == Saving::Saving))
            };
            while is_saving()? {
                std::thread::sleep(LOOK_AGAIN);
            }
            note("undo_durable", begin.elapsed().as_secs_f64());
        }
        Ok(())
    }

    fn restore(&mut self, command: &str) -> Result<Duration, BenchError> {
        self.copies += 1;
        let engine = self.machine.engine;
        let copy = Machine::named(engine, "copy", self.copies)?;
        let begin = Instant::now();
        let mut from = CreateFromOptions::new(PointSource::Machine(self.machine.name.clone()));
        from.name = Some(copy.name.clone());
        engine.create_from(from)?;
        engine.start(&copy.name, StartOptions::default())?;
        copy.sh(command)?;
        Ok(begin.elapsed())
    }

    fn go_back(&mut self) -> Result<Duration, BenchError> {
        self.undo(true)
    }
}
