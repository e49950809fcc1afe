//! A home of a test's own, machines in it, and what all tests ask of them.

use std::collections::BTreeSet;
use std::fs;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use cas_store::{ChunkId, MAX_CHUNK_BYTES, PackSet, ReadError};
use smolvm_engine::phase::HOLD_VARIABLE;
use smolvm_engine::process::ProcessModel;
use smolvm_engine::progress::Silent;
use smolvm_engine::{
    Checkpoint, CheckpointOptions, CreateFromOptions, Engine, EngineError, EngineOptions, Home,
    MachineName, MachineState, PointSource, StartOptions, chain,
};
use snapshot_format::map::{MapNode, SeenNodes};
use snapshot_format::{ChunkLookup, ChunkRef, MapReader, MapRoot, NodeSource, Point, PointRecord};

/// Whether everything is to be done, not a sample.
pub(crate) fn long() -> bool {
    std::env::var("SMOLVM_LONG").is_ok_and(|value| value == "1")
}

/// Name of the folder of phases to hold at.
const HOLDS: &str = "holds";

/// A home and a folder to work in; everything in them ends with the test.
pub(crate) struct Bed {
    pub(crate) engine: Engine,
    smolvm: PathBuf,
    home: PathBuf,
    booted_points: bool,
    folder: tempfile::TempDir,
}

impl Bed {
    /// A bed below the temporary directory; `None`, and the test is skipped, where there is no binary
    /// or no prepared home.
    pub(crate) fn open(test: &str) -> Option<Self> {
        Self::open_in(test, &std::env::temp_dir())
    }

    /// A bed whose machines go on at booted points; there are none yet.
    pub(crate) fn open_with_booted_points(test: &str) -> Option<Self> {
        let mut bed = Self::open(test)?;
        // Those of the prepared home.
        let _ = fs::remove_dir_all(bed.home.join("cache/booted"));
        let model = ProcessModel::Processes {
            program: bed.smolvm.clone(),
        };
        let engine = Engine::open(EngineOptions::new(Home::at(&bed.home), model));
        bed.engine = engine.expect("an engine");
        bed.booted_points = true;
        Some(bed)
    }

    /// A bed in this folder.
    pub(crate) fn open_in(test: &str, parent: &Path) -> Option<Self> {
        let variable = |name: &str| std::env::var_os(name).map(PathBuf::from);
        let (Some(smolvm), Some(prepared)) = (variable("SMOLVM"), variable("SMOLVM_HOME")) else {
            conformance::skip::because(test, "$SMOLVM and $SMOLVM_HOME are not set");
            return None;
        };
        let folder = tempfile::Builder::new()
            .prefix("save-")
            .tempdir_in(parent)
            .expect("a folder for the test");
        let home = folder.path().join("home");
        fs::create_dir(&home).expect("a home");
        fs::create_dir(folder.path().join(HOLDS)).expect("a folder for holds");
        for part in ["images", "kernels", "cache"] {
            copy(&prepared.join(part), &home.join(part));
        }
        let model = ProcessModel::Processes {
            program: smolvm.clone(),
        };
        let options = EngineOptions::new(Home::at(&home), model).with_booted_points(false);
        let engine = Engine::open(options);
        Some(Self {
            engine: engine.expect("an engine"),
            smolvm,
            home,
            booted_points: false,
            folder,
        })
    }

    /// A path in the folder.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Where the phases are named at which processes are held that [`Bed::command`] started.
    pub(crate) fn holds(&self) -> PathBuf {
        self.path(HOLDS)
    }

    pub(crate) fn home(&self) -> &Path {
        &self.home
    }

    /// The command, with this home.
    pub(crate) fn command<'a>(&self, arguments: impl IntoIterator<Item = &'a str>) -> Command {
        let mut command = Command::new(&self.smolvm);
        command
            .args(arguments)
            .env("SMOLVM_HOME", &self.home)
            .env(
                "SMOLVM_BOOTED_POINTS",
                if self.booted_points { "on" } else { "off" },
            )
            .env(HOLD_VARIABLE, self.holds())
            .current_dir(self.folder.path())
            .stdin(Stdio::null());
        command
    }

    /// Runs the command; its standard output, or what it complained about.
    pub(crate) fn run<'a>(
        &self,
        arguments: impl IntoIterator<Item = &'a str>,
    ) -> Result<String, String> {
        text(self.command(arguments).output().expect("smolvm runs"))
    }

    /// Creates a machine from the image, with these further arguments, and starts it.
    pub(crate) fn boot(&self, name: &str, arguments: &[&str]) {
        let create = ["machine", "create", "--name", name];
        self.run(create.iter().chain(arguments).copied())
            .expect("create");
        self.start(name).expect("start");
    }

    pub(crate) fn start(&self, name: &str) -> Result<(), EngineError> {
        self.engine
            .start(&machine(name), StartOptions::default())
            .map(drop)
    }

    pub(crate) fn delete(&self, name: &str) {
        self.engine.delete(&machine(name), true).expect("delete");
    }

    pub(crate) fn state(&self, name: &str) -> MachineState {
        self.engine.machine(&machine(name)).expect("status").state
    }

    /// Runs a command in a machine; it must succeed. Returns its output without the last newline.
    pub(crate) fn exec(&self, name: &str, argv: &[&str]) -> String {
        self.try_exec(name, argv)
            .unwrap_or_else(|error| panic!("{argv:?} in {name}: {error}"))
    }

    pub(crate) fn try_exec(&self, name: &str, argv: &[&str]) -> Result<String, String> {
        let exec = ["machine", "exec", "--name", name, "--"];
        let output = self.run(exec.iter().chain(argv).copied())?;
        Ok(output.trim_end().to_owned())
    }

    /// Runs a shell script in a machine.
    pub(crate) fn sh(&self, name: &str, script: &str) -> String {
        self.exec(name, &["sh", "-euc", script])
    }

    /// What the guest's kernel complains about.
    pub(crate) fn complaints(&self, name: &str) -> String {
        // Said at every boot of a machine without PCI.
        let script =
            "dmesg --level=emerg,alert,crit,err | grep -v 'PCI: Fatal: No config space' || :";
        self.sh(name, script)
    }

    /// Starts a command in a machine that this process reads from.
    pub(crate) fn spawn(&self, name: &str, argv: &[&str]) -> Child {
        let exec = ["machine", "exec", "--name", name, "--"];
        self.command(exec.iter().chain(argv).copied())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("exec starts")
    }

    /// Puts a file into a machine.
    pub(crate) fn put(&self, name: &str, path: &str, content: &str) {
        let mut child = self
            .command(["machine", "exec", "-i", "--name", name, "--", "tee", path])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .expect("exec starts");
        let mut stdin = child.stdin.take().expect("its stdin");
        stdin.write_all(content.as_bytes()).expect("write");
        drop(stdin);
        assert!(child.wait().expect("tee ends").success());
    }

    /// Puts a Python program into a machine and starts it in the background; it lives on. Returns when
    /// it says so by making `/run/ready`.
    pub(crate) fn python(&self, name: &str, program: &str, arguments: &str) {
        self.put(name, "/root/program.py", program);
        let start = format!(
            "rm -f /run/ready; \
             setsid python3 /root/program.py {arguments} < /dev/null > /run/output 2>&1 & \
             until test -e /run/ready; do \
                 kill -0 $! || {{ cat /run/output; exit 1; }}; sleep 0.1; \
             done"
        );
        self.sh(name, &start);
    }

    /// Saves a machine into `FILE` with the store `store`, both in the folder.
    pub(crate) fn save(&self, name: &str, file: &str) -> Checkpoint {
        self.try_save(name, file, |_| {})
            .unwrap_or_else(|error| panic!("checkpoint of {name}: {}", chain(&error)))
    }

    pub(crate) fn try_save(
        &self,
        name: &str,
        file: &str,
        change: impl FnOnce(&mut CheckpointOptions),
    ) -> Result<Checkpoint, EngineError> {
        let mut options = CheckpointOptions::default();
        options.store = Some(self.path("store"));
        options.output = Some(self.path(file));
        change(&mut options);
        self.engine.checkpoint(&machine(name), &options, &Silent)
    }

    /// Makes a machine from a checkpoint in the folder.
    pub(crate) fn create_from(
        &self,
        name: &str,
        file: &str,
        at: Option<&str>,
    ) -> Result<(), EngineError> {
        let mut options = CreateFromOptions::new(PointSource::Directory(self.path(file)));
        options.name = Some(machine(name));
        options.at = at.map(str::to_owned);
        self.engine.create_from(options).map(drop)
    }

    /// Makes a machine from a checkpoint and starts it.
    pub(crate) fn restore(&self, name: &str, file: &str, at: Option<&str>) {
        self.create_from(name, file, at)
            .and_then(|()| self.start(name))
            .unwrap_or_else(|error| panic!("restore of {file} {at:?}: {}", chain(&error)));
    }

    /// What of the machine's processes are there, by their command lines: supervisors or VMMs.
    pub(crate) fn supervisors(&self, name: &str) -> Vec<i32> {
        let home = self.home.to_string_lossy().into_owned();
        processes()
            .into_iter()
            .filter(|(_, arguments, _)| arguments[1..] == ["__supervisor", &home, name])
            .map(|(pid, ..)| pid)
            .collect()
    }

    /// The VMMs of a machine's supervisors.
    pub(crate) fn vmms(&self, name: &str) -> Vec<i32> {
        let supervisors = self.supervisors(name);
        processes()
            .into_iter()
            .filter(|(_, arguments, parent)| {
                arguments[1..] == ["__vmm"] && supervisors.contains(parent)
            })
            .map(|(pid, ..)| pid)
            .collect()
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        // What failed to be deleted is shown by the test that left it.
        let _ = self
            .run(["machine", "delete", "--all", "-f"])
            .inspect_err(|error| {
                let _ = writeln!(std::io::stderr(), "machines are left: {error}");
            });
    }
}

pub(crate) fn machine(name: &str) -> MachineName {
    name.parse().expect("a machine's name")
}

pub(crate) fn kill(pid: i32) {
    let pid = rustix::process::Pid::from_raw(pid).expect("a process id");
    // It may have ended by itself.
    let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
}

/// Process id, arguments and parent of every process of ours that has at least two arguments.
fn processes() -> Vec<(i32, Vec<String>, i32)> {
    let entries = fs::read_dir("/proc").expect("/proc");
    let read = |entry: fs::DirEntry| {
        let pid = entry.file_name().to_str()?.parse().ok()?;
        let line = fs::read_to_string(entry.path().join("cmdline")).ok()?;
        let arguments: Vec<String> = line.split_terminator('\0').map(str::to_owned).collect();
        let stat = fs::read_to_string(entry.path().join("stat")).ok()?;
        let parent = stat
            .rsplit(')')
            .next()?
            .split_whitespace()
            .nth(1)?
            .parse()
            .ok()?;
        (arguments.len() > 1).then_some((pid, arguments, parent))
    };
    entries.flatten().filter_map(read).collect()
}

fn text(output: Output) -> Result<String, String> {
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    Err(format!(
        "{}: {}{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    ))
}

/// Copies a tree by hard links, on another file system by bytes.
fn copy(from: &Path, to: &Path) {
    if !from.exists() {
        return;
    }
    let cp = |option: &str| {
        let mut command = Command::new("cp");
        command.arg(option).arg(from).arg(to);
        command.output().expect("cp runs").status.success()
    };
    if !cp("-al") {
        let _ = fs::remove_dir_all(to);
        assert!(cp("-a"), "cannot copy {}", from.display());
    }
}

/// Copies a checkpoint by bytes, as `cp -r` does.
pub(crate) fn copy_bytes(from: &Path, to: &Path) {
    let status = Command::new("cp").arg("-r").arg(from).arg(to).status();
    assert!(status.expect("cp runs").success());
}

/// The names in a directory.
pub(crate) fn names(directory: &Path) -> BTreeSet<String> {
    let entries = fs::read_dir(directory).expect("a directory");
    let name = |entry: fs::DirEntry| entry.file_name().to_string_lossy().into_owned();
    entries.map(|entry| name(entry.expect("entry"))).collect()
}

/// Packs, as a source of maps' nodes and for verification.
pub(crate) struct InPacks<'a>(pub(crate) &'a PackSet);

impl NodeSource for InPacks<'_> {
    type Error = ReadError;

    fn node(&self, id: &ChunkRef) -> Result<Vec<u8>, ReadError> {
        let mut bytes = vec![0; MapNode::MAX_BYTES];
        let length = self.0.get(&ChunkId(id.0), &mut bytes)?;
        bytes.truncate(length);
        Ok(bytes)
    }
}

impl ChunkLookup for InPacks<'_> {
    fn has(&self, chunk: &ChunkRef) -> bool {
        self.0.contains(&ChunkId(chunk.0)).expect("readable packs")
    }

    fn node(&self, node: &ChunkRef) -> Option<Vec<u8>> {
        NodeSource::node(self, node).ok()
    }
}

/// All chunks that a point needs, nodes of its maps included.
pub(crate) fn chunks_of(record: &PointRecord, packs: &PackSet) -> BTreeSet<ChunkId> {
    let reader = MapReader::new(InPacks(packs));
    let mut chunks = BTreeSet::new();
    let mut seen = SeenNodes::default();
    for part in record.parts() {
        let visit = &mut |name: ChunkRef| {
            chunks.insert(ChunkId(name.0));
        };
        let visited = reader.visit_distinct(&part.map, &mut seen, visit);
        visited.expect("every node is there and sound");
    }
    chunks
}

/// A point as it lies in a checkpoint directory.
pub(crate) struct Saved {
    pub(crate) point: Point,
    packs: PackSet,
}

impl Saved {
    pub(crate) fn open(checkpoint: &Path) -> Self {
        let record = fs::read(checkpoint.join("point.record")).expect("its record");
        Self {
            point: Point::decode(&record).expect("a sound record"),
            packs: PackSet::open([checkpoint.join("packs")]),
        }
    }

    /// Reads every chunk, which verifies it, and looks for anything else that is wrong.
    pub(crate) fn verify(&self) {
        let record = self.point.record();
        let mut buffer = vec![0; MAX_CHUNK_BYTES];
        for chunk in &chunks_of(record, &self.packs) {
            self.packs
                .get(chunk, &mut buffer)
                .expect("every chunk is there and sound");
        }
        let mut findings = snapshot_format::verify(record);
        findings.extend(snapshot_format::verify_chunks(
            record,
            &InPacks(&self.packs),
        ));
        assert!(findings.is_empty(), "{findings:?}");
    }

    fn chunk(&self, map: &MapRoot, index: u64) -> Option<Vec<u8>> {
        let reader = MapReader::new(InPacks(&self.packs));
        let chunk = reader.get(map, index).expect("a sound map");
        if chunk.is_zero() {
            return None;
        }
        let mut bytes = vec![0; MAX_CHUNK_BYTES];
        self.packs
            .get(&ChunkId(chunk.0), &mut bytes)
            .expect("a sound chunk");
        Some(bytes)
    }

    /// A page of guest memory.
    pub(crate) fn page(&self, gpa: u64) -> Vec<u8> {
        let regions = &self.point.record().memory;
        let region = regions
            .iter()
            .find(|region| (region.start_gpa..region.start_gpa + region.size_bytes).contains(&gpa))
            .expect("an address in memory");
        let at = gpa - region.start_gpa;
        let within = (at % MAX_CHUNK_BYTES as u64) as usize;
        self.chunk(&region.map, at / MAX_CHUNK_BYTES as u64)
            .map_or_else(
                || vec![0; 4096],
                |bytes| bytes[within..within + 4096].to_vec(),
            )
    }

    /// Writes the root disk as a sparse file.
    pub(crate) fn write_disk(&self, path: &Path) {
        let disk = self.point.record().disk("root").expect("a root disk");
        let file = fs::File::create(path).expect("a file for the disk");
        file.set_len(disk.size_bytes).expect("its size");
        let reader = MapReader::new(InPacks(&self.packs));
        let mut bytes = vec![0; MAX_CHUNK_BYTES];
        for found in reader.data(&disk.map) {
            let (index, chunk) = found.expect("a sound map");
            let read = self.packs.get(&ChunkId(chunk.0), &mut bytes);
            let at = index * MAX_CHUNK_BYTES as u64;
            let length = (disk.size_bytes - at).min(read.expect("a sound chunk") as u64);
            file.write_all_at(&bytes[..length as usize], at)
                .expect("write");
        }
    }
}
