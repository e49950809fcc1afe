use std::path::Path;
use std::time::{Duration, Instant};

use smolvm_engine::progress::Silent;
use smolvm_engine::{
    Checkpoint, CheckpointOptions, CreateFromOptions, CreateOptions, Engine, EngineError,
    ExecOptions, MachineName, MachineSpec, PointSource, StartOptions,
};

use super::host_cost::Processes;
use super::{BenchError, Options};

/// What was measured with one machine.
#[derive(Debug, Clone)]
pub struct Round {
    /// The backend in use.
    pub backend: String,
    /// Start of a new machine until its agent answers and its identity is set.
    pub boot: Duration,
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
            .tempdir_in(engine.home().root())
            .map_err(BenchError::Folder)?;
        let source = Temporary::named(engine, "source", number)?;
        let copy = Temporary::named(engine, "copy", number)?;
        let spec = MachineSpec {
            memory_bytes: options.memory_bytes,
            backend: options.backend,
            ..MachineSpec::default()
        };
        engine.create(CreateOptions {
            name: Some(source.name.clone()),
            spec,
            ..CreateOptions::default()
        })?;
        let (started, boot) = timed(|| engine.start(&source.name, StartOptions::default()))?;
        let exec = source.exec_latency(options.execs)?;
        let begin = Instant::now();
        source.sh(WORK)?;
        let work = begin.elapsed();
        let first = source.checkpoint(folder.path(), "first")?;
        let digest = source.dirty(options.dirty_mib)?;
        let second = source.checkpoint(folder.path(), "second")?;
        let processes = Processes::of(source.name.as_str()).map_err(BenchError::HostCost)?;
        let idle_share = processes
            .processor_share(options.idle_time)
            .map_err(BenchError::HostCost)?;
        let host_memory_bytes = processes
            .memory_beyond_guest(options.memory_bytes)
            .map_err(BenchError::HostCost)?;

        let mut from = CreateFromOptions::new(PointSource::Directory(checkpoint_path(
            folder.path(),
            "second",
        )));
        from.name = Some(copy.name.clone());
        from.backend = options.backend;
        let (_, create_from) = timed(|| engine.create_from(from))?;
        let (_, restore) = timed(|| engine.start(&copy.name, StartOptions::default()))?;
        let found = copy.sh(DIGEST)?;
        if found != digest {
            return Err(BenchError::Lost {
                expected: digest,
                found,
            });
        }
        Ok(Self {
            backend: started.backend,
            boot,
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

/// More code than stays decoded on the software CPU, and a hot loop.
const WORK: &str = "python3 -c '
import asyncio, ctypes, decimal, email.message, http.server, json, multiprocessing, pydoc, sqlite3
import unittest.mock, urllib.request, xml.dom.minidom, xml.sax.expatreader, xmlrpc.client, zipfile, zlib
rows = [(i, str(i)) for i in range(5000)]
base = sqlite3.connect(\":memory:\")
base.execute(\"create table t(a, b)\")
base.executemany(\"insert into t values (?, ?)\", rows)
assert base.execute(\"select sum(a) from t\").fetchone() == (12497500,)
assert json.loads(json.dumps(rows))[7] == [7, \"7\"]
assert zlib.decompress(zlib.compress(repr(rows).encode())) == repr(rows).encode()
assert decimal.Decimal(2).sqrt() ** 2 - 2 < decimal.Decimal(10) ** -20
assert sum(i * i % 7 for i in range(300000)) == 599998' && find /usr/lib -name '*.py' | sort | md5sum";

/// Prints the digest of what [`Temporary::dirty`] wrote.
const DIGEST: &str = "sha256sum < /dev/shm/dirty";

fn timed<T>(work: impl FnOnce() -> Result<T, EngineError>) -> Result<(T, Duration), BenchError> {
    let begin = Instant::now();
    let value = work()?;
    Ok((value, begin.elapsed()))
}

fn checkpoint_path(folder: &Path, name: &str) -> std::path::PathBuf {
    folder.join(format!("{name}.checkpoint"))
}

/// A machine that is deleted when dropped, if it was made.
struct Temporary<'a> {
    engine: &'a Engine,
    name: MachineName,
}

impl<'a> Temporary<'a> {
    fn named(engine: &'a Engine, part: &str, number: usize) -> Result<Self, BenchError> {
        let text = format!("bench-{}-{part}-{number}", std::process::id());
        let name = text.parse().map_err(EngineError::from)?;
        Ok(Self { engine, name })
    }

    /// Runs a shell command and returns what it printed.
    fn sh(&self, command: &str) -> Result<String, BenchError> {
        let options = ExecOptions {
            argv: vec!["sh".into(), "-c".into(), command.into()],
            ..ExecOptions::default()
        };
        let session = self.engine.exec(&self.name, options)?;
        let (mut out, mut err) = (Vec::new(), Vec::new());
        let outcome = session.run(None::<&[u8]>, &mut out, &mut err)?;
        if outcome.exit_code() == 0 {
            return Ok(String::from_utf8_lossy(&out).trim().to_owned());
        }
        Err(BenchError::Failed {
            command: command.to_owned(),
            code: outcome.exit_code(),
            output: String::from_utf8_lossy(&err).trim().to_owned(),
        })
    }

    fn exec_latency(&self, count: usize) -> Result<Duration, BenchError> {
        let mut times = Vec::new();
        for _ in 0..count.max(1) {
            let begin = Instant::now();
            let options = ExecOptions {
                argv: vec!["/bin/true".into()],
                ..ExecOptions::default()
            };
            let session = self.engine.exec(&self.name, options)?;
            session.run(None::<&[u8]>, &mut std::io::sink(), &mut std::io::sink())?;
            times.push(begin.elapsed());
        }
        times.sort_unstable();
        Ok(times[times.len() / 2])
    }

    fn checkpoint(&self, folder: &Path, name: &str) -> Result<Checkpoint, BenchError> {
        let mut options = CheckpointOptions::default();
        options.store = Some(folder.join("history"));
        options.output = Some(checkpoint_path(folder, name));
        Ok(self.engine.checkpoint(&self.name, &options, &Silent)?)
    }

    /// Writes random bytes to memory and returns their digest.
    fn dirty(&self, mib: u32) -> Result<String, BenchError> {
        self.sh(&format!(
            "head -c {mib}M /dev/urandom > /dev/shm/dirty && {DIGEST}"
        ))
    }
}

impl Drop for Temporary<'_> {
    fn drop(&mut self) {
        // It may not have been made; what is left otherwise shows in `smolvm machine ls`.
        let _ = self.engine.delete(&self.name, true);
    }
}
