use std::path::Path;
use std::time::{Duration, Instant};

use smolvm_engine::progress::Silent;
use smolvm_engine::{
    Checkpoint, CheckpointOptions, CreateFromOptions, CreateOptions, Engine, EngineError,
    ExecOptions, MachineSpec, PointSource, StartOptions,
};

use super::{Options, workload};
use crate::BenchError;
use crate::host_cost::Processes;
use crate::machine::{Machine, beside, timed};
use crate::median::median;

/// How long a booted point may take to be made behind the start that it is made of.
const BOOTED_PATIENCE: Duration = Duration::from_secs(120);
/// How often it is looked for.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// What was measured with one machine.
#[derive(Debug, Clone)]
pub struct Round {
    /// The backend in use.
    pub backend: String,
    /// Start of a new machine until its agent answers and its identity is set.
    pub boot: Duration,
    /// Start of a new machine that goes on where the first of its kind had booted, until its agent answers and its identity is set.
    pub booted_start: Duration,
    /// One command that does nothing, median of several.
    pub exec: Duration,
    /// Much code of many kinds run in the guest: Python modules, SQLite, decimals, compression.
    pub work: Duration,
    /// The part of one processor that the machine's processes use while the guest has nothing to do.
    pub idle_share: f64,
    /// What the machine's processes take of the host's memory besides the guest's, after all that was
    /// done in it.
    pub host_memory_bytes: u64,
    /// First checkpoint: all of memory.
    pub first: Checkpoint,
    /// Second checkpoint: what changed.
    pub second: Checkpoint,
    /// Making a machine from the second checkpoint.
    pub create_from: Duration,
    /// Its start, which restores memory, until its agent answers and its identity is set.
    pub restore: Duration,
}

impl Round {
    /// Makes a machine and its restored copy, measures, and deletes both.
    pub(super) fn measure(
        engine: &Engine,
        options: &Options,
        number: usize,
    ) -> Result<Self, BenchError> {
        engine.home().ensure().map_err(EngineError::from)?;
        // Beside the machines: links need one file system.
        let folder = tempfile::Builder::new()
            .prefix("bench-")
            .tempdir_in(beside(engine.home().root()))
            .map_err(BenchError::Folder)?;
        let source = Machine::named(engine, "source", number)?;
        let copy = Machine::named(engine, "copy", number)?;
        let spec = MachineSpec {
            // On every backend, and in the peer's machine too.
            cpus: Some(1),
            cpu: Some("v2".to_owned()),
            memory_bytes: options.memory_bytes,
            backend: options.backend,
            ..MachineSpec::default()
        };
        engine.create(CreateOptions {
            name: Some(source.name.clone()),
            spec: spec.clone(),
            ..CreateOptions::default()
        })?;
        let (started, boot) = timed(|| engine.start(&source.name, StartOptions::default()))?;
        let exec = exec_latency(&source, options.execs)?;
        let begin = Instant::now();
        source.sh(workload::WORK)?;
        let work = begin.elapsed();
        let first = checkpoint(&source, folder.path(), "first")?;
        let digest = source.sh(&workload::dirty(options.dirty_mib))?;
        let second = checkpoint(&source, folder.path(), "second")?;
        let processes = Processes::of(source.name.as_str()).map_err(BenchError::HostCost)?;
        let (idle_share, host_memory_bytes) = processes
            .cost(options.idle_time, options.memory_bytes)
            .map_err(BenchError::HostCost)?;

        let mut from = CreateFromOptions::new(PointSource::Directory(checkpoint_path(
            folder.path(),
            "second",
        )));
        from.name = Some(copy.name.clone());
        from.backend = options.backend;
        let (_, create_from) = timed(|| engine.create_from(from))?;
        let (_, restore) = timed(|| engine.start(&copy.name, StartOptions::default()))?;
        workload::check(digest, copy.sh(workload::DIGEST)?)?;
        let booted_start = booted_start(engine, &spec, number)?;
        Ok(Self {
            backend: started.backend,
            boot,
            booted_start,
            exec,
            work,
            idle_share,
            host_memory_bytes,
            first,
            second,
            create_from,
            restore,
        })
    }
}

/// Starts a machine of this kind from its booted point, which another one makes where there is none.
fn booted_start(
    engine: &Engine,
    spec: &MachineSpec,
    number: usize,
) -> Result<Duration, BenchError> {
    let engine = engine.clone().with_booted_points(true);
    let points = engine.home().cache().join("booted");
    let mut took = Duration::ZERO;
    for part in ["first", "next"] {
        let machine = Machine::named(&engine, part, number)?;
        engine.create(CreateOptions {
            name: Some(machine.name.clone()),
            spec: spec.clone(),
            ..CreateOptions::default()
        })?;
        took = timed(|| engine.start(&machine.name, StartOptions::default()))?.1;
        let begin = Instant::now();
        while !has_point(&points) {
            if begin.elapsed() > BOOTED_PATIENCE {
                return Err(BenchError::NoBootedPoint);
            }
            std::thread::sleep(LOOK_AGAIN);
        }
    }
    Ok(took)
}

/// Whether a point is there that is not in the making.
fn has_point(points: &Path) -> bool {
    let mut entries = std::fs::read_dir(points).into_iter().flatten().flatten();
    entries.any(|entry| !entry.file_name().to_string_lossy().starts_with('.'))
}

fn checkpoint_path(folder: &Path, name: &str) -> std::path::PathBuf {
    folder.join(format!("{name}.checkpoint"))
}

fn exec_latency(machine: &Machine<'_>, count: usize) -> Result<Duration, BenchError> {
    median((0..count.max(1)).map(|_| {
        let begin = Instant::now();
        let options = ExecOptions {
            argv: vec!["/bin/true".into()],
            ..ExecOptions::default()
        };
        let session = machine.engine.exec(&machine.name, options)?;
        session.run(None::<&[u8]>, &mut std::io::sink(), &mut std::io::sink())?;
        Ok::<_, BenchError>(begin.elapsed())
    }))
}

fn checkpoint(machine: &Machine<'_>, folder: &Path, name: &str) -> Result<Checkpoint, BenchError> {
    let mut options = CheckpointOptions::default();
    options.store = Some(folder.join("history"));
    options.output = Some(checkpoint_path(folder, name));
    Ok(machine
        .engine
        .checkpoint(&machine.name, &options, &Silent)?)
}
