//! `cargo xtask vmtest`: tests, scripts or a shell in an emulated host that has real KVM.
//!
//! QEMU emulates a machine whose processor has AMD's virtualization; Debian's cloud kernel in it
//! offers a working `/dev/kvm`. Everything runs without privilege on the outside. Intel's
//! virtualization is never exercised this way.

pub mod cpio;
pub mod disk;
pub mod home;
pub mod initrd;
pub mod jobs;
pub mod kernel;
pub mod mend;
pub mod program;
pub mod qemu;
pub mod report;
pub mod root;
pub mod select;
pub mod tags;
pub mod tsc;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};

use crate::cargo::{self, Workspace};
use crate::error::{Error, Result};
use crate::totals::Totals;
use crate::{cache, output, process};
use jobs::Payload;
use kernel::Kernel;
use program::Program;
use qemu::{Disk, Emulator, Ending, Verdict};
use report::{Kind, Reader, Shown};
use select::{Account, Item};
use tags::Long;

/// Variable by which tests know that they may take long and be thorough.
pub const LONG: &str = "SMOLVM_LONG";

/// Size of the data disk; the file is sparse.
const DATA_SIZE_BYTES: u64 = 16 << 30;

/// Folder of the running emulator, beside the data disk.
const RUN_FOLDER: &str = "run";

/// How often the emulated host is started again after its kernel hung.
const RESTART_LIMIT: u32 = 2;

/// How long after its time limit a job may take to end.
const JOB_END_GRACE: Duration = Duration::from_secs(60);

/// What to run in the emulated host.
#[derive(Debug, clap::Args)]
pub struct Options {
    /// Run only tests whose name contains this
    filter: Option<String>,
    /// Run only tests of this package (may be repeated) [default: all that ask for it in their manifest]
    #[arg(short, long = "package", value_name = "PACKAGE")]
    packages: Vec<String>,
    /// Leave out what takes minutes each (packages say so in their manifests)
    #[arg(long)]
    short: bool,
    /// Run this script as an ordinary user, instead of tests; its exit code is returned. With
    /// --shell: run it before the shell, on the same terminal
    #[arg(long, value_name = "FILE", conflicts_with_all = ["filter", "packages"])]
    script: Option<PathBuf>,
    /// Run a shell on this terminal as an ordinary user, instead of tests
    #[arg(long, conflicts_with_all = ["filter", "packages"])]
    shell: bool,
    /// With --script or --shell: leave smolvm, kernel and image out
    #[arg(long)]
    bare: bool,
    /// Processors of the emulated host; with 1 its clocks count as synchronized
    #[arg(long, default_value_t = 2, value_name = "N")]
    cpus: u32,
    /// Memory of the emulated host in MiB
    #[arg(long, default_value_t = 6144, value_name = "MIB")]
    mem: u32,
    /// End everything after this many seconds
    #[arg(long, default_value_t = 1800, value_name = "SECONDS")]
    timeout: u64,
    /// End one test executable or script after this many seconds
    #[arg(long, default_value_t = 900, value_name = "SECONDS")]
    job_timeout: u64,
    /// Print the emulated host's serial console at the end
    #[arg(short, long)]
    verbose: bool,
}

impl Options {
    /// The options that these arguments mean.
    ///
    /// # Panics
    ///
    /// If the arguments are not valid: they are written in this program.
    pub fn of(arguments: &[&str]) -> Self {
        #[derive(clap::Parser)]
        #[command(no_binary_name = true)]
        struct Line {
            #[command(flatten)]
            options: Options,
        }
        <Line as clap::Parser>::parse_from(arguments).options
    }
}

/// How a run ended.
pub enum Outcome {
    /// Tests ran.
    Tests(Totals),
    /// A script or shell ended with this code.
    Code(i32),
}

/// What every run needs.
pub struct Host {
    program: Program,
    kernel: Kernel,
    initrd: PathBuf,
    root: PathBuf,
    cache_folder: PathBuf,
    folder: PathBuf,
    _lock: fs::File,
}

/// Runs what the options say.
pub fn run(options: &Options) -> Result<Outcome> {
    let workspace = Workspace::read()?;
    let host = Host::prepare(&workspace)?;
    let mut payload = Payload::begin(host.folder.join("data"))?;
    let needs_smolvm = if options.shell || options.script.is_some() {
        if let Some(script) = &options.script {
            payload.add(&script_item(script), None)?;
        }
        !options.bare
    } else {
        let filter = options.filter.as_deref();
        let mut items = select::select(&workspace, &options.packages, filter)?;
        items.retain(|item| !(options.short && item.long != Long::Nowhere));
        for item in &items {
            payload.add(item, filter)?;
        }
        items.iter().any(|item| item.smolvm)
    };
    if needs_smolvm {
        payload.add_smolvm(&cargo::build_smolvm(&workspace)?)?;
        host.prepare_home(&payload.folder.join("bin/smolvm"))?;
    }
    if options.shell {
        return host.shell(options, &payload).map(|()| Outcome::Code(0));
    }
    let reader = host.run(options, &payload)?;
    if options.script.is_some() {
        let code = payload
            .jobs
            .first()
            .and_then(|job| reader.exit_code(&job.id));
        return code
            .map(Outcome::Code)
            .ok_or_else(|| Error::Failed("the script".to_owned()));
    }
    let totals = reader.totals();
    for failure in reader.failures() {
        output::line(format_args!("failed: {failure}"));
    }
    Ok(Outcome::Tests(totals))
}

fn script_item(script: &Path) -> Item {
    Item {
        name: "script".to_owned(),
        path: script.to_owned(),
        kind: Kind::Script,
        account: Account::User,
        smolvm: true,
        long: Long::Nowhere,
    }
}

impl Host {
    /// Fetches or builds what is missing, and takes the lock of this working copy.
    pub fn prepare(workspace: &Workspace) -> Result<Self> {
        let folder = workspace.target_folder.join("vmtest");
        fs::create_dir_all(&folder).map_err(Error::file("create", &folder))?;
        let lock = lock(&folder.join("lock"))?;
        let cache_folder = cache::folder()?;
        let program = Program::find(&cache_folder)?;
        let kernel = Kernel::fetch(&cache_folder)?;
        let initrd = folder.join("initrd");
        fs::write(&initrd, initrd::build(&kernel)?).map_err(Error::file("write", &initrd))?;
        let root = root::fetch(
            &cache_folder,
            &program,
            &kernel,
            &initrd,
            &folder.join(RUN_FOLDER),
        )?;
        Ok(Self {
            program,
            kernel,
            initrd,
            root,
            cache_folder,
            folder,
            _lock: lock,
        })
    }

    /// The QEMU that is used here.
    pub fn program(&self) -> &Program {
        &self.program
    }

    /// The kernel that is used here.
    pub fn kernel(&self) -> &Kernel {
        &self.kernel
    }

    /// Makes `$SMOLVM_HOME` ready for this smolvm and returns where it is.
    pub fn prepare_home(&self, smolvm: &Path) -> Result<PathBuf> {
        let home = self.folder.join("data/home");
        home::prepare(smolvm, &self.kernel, &self.cache_folder, &home)?;
        Ok(home)
    }

    fn run(&self, options: &Options, payload: &Payload) -> Result<Reader> {
        let token = token();
        payload.settings(&[
            ("token", &token),
            ("shell", "no"),
            ("job_timeout", &options.job_timeout.to_string()),
            ("variables", &variables()),
        ])?;
        let jobs = payload
            .jobs
            .iter()
            .map(|job| (job.id.clone(), job.name.clone(), job.kind));
        let mut reader = Reader::new(&token, jobs);
        let deadline = Instant::now() + Duration::from_secs(options.timeout);
        let mut restarts = 0;
        let console = loop {
            match self.attempt(options, payload, &mut reader, deadline)? {
                Ending::PoweredOff(console) => break console,
                Ending::Hung(console) if restarts == RESTART_LIMIT => {
                    return Err(problem("hung again", &console));
                }
                Ending::Hung(console) => {
                    restarts += 1;
                    let (done, interrupted) = reader.start_again();
                    payload.leave_out(&done)?;
                    output::note(process::tail(&console, 1000));
                    output::note(format_args!(
                        "the emulated host hung in {}; started again for what is left",
                        interrupted.as_deref().unwrap_or("its own work")
                    ));
                }
            }
        };
        if options.verbose {
            output::note(&console);
        }
        if reader.ended() {
            return Ok(reader);
        }
        Err(problem(
            &format!("ended early ({})", reader.totals()),
            &console,
        ))
    }

    /// One start of the emulated host, to its end.
    fn attempt(
        &self,
        options: &Options,
        payload: &Payload,
        reader: &mut Reader,
        deadline: Instant,
    ) -> Result<Ending> {
        // `inside.sh` ends a job that is late; if that fails, its kernel is at fault.
        let job_limit = Duration::from_secs(options.job_timeout) + JOB_END_GRACE;
        let started = Instant::now();
        let limit = deadline.saturating_duration_since(started);
        let ending = self.with_emulator(options, payload, |emulator| {
            emulator.run(limit, |bytes| {
                show(reader.receive(bytes));
                match reader.current_for() {
                    Some(time) if time > job_limit => Verdict::Break(()),
                    _ => Verdict::Continue(()),
                }
            })
        });
        show(reader.finish());
        output::note(format_args!(
            "the emulated host ran for {:.1} s",
            started.elapsed().as_secs_f64()
        ));
        ending
    }

    fn shell(&self, options: &Options, payload: &Payload) -> Result<()> {
        let size = rustix::termios::tcgetwinsize(std::io::stdin());
        let (rows, columns) = size
            .map(|size| (size.ws_row, size.ws_col))
            .ok()
            .filter(|(rows, columns)| *rows > 0 && *columns > 0)
            .unwrap_or((24, 80));
        let first = payload.jobs.first().map_or("", |job| job.id.as_str());
        payload.settings(&[
            ("shell", "yes"),
            ("first", first),
            ("variables", &variables()),
            ("rows", &rows.to_string()),
            ("columns", &columns.to_string()),
            (
                "term",
                &std::env::var("TERM").unwrap_or_else(|_| "linux".to_owned()),
            ),
        ])?;
        output::note("starting the emulated host; `exit` ends it and drops what was changed in it");
        self.with_emulator(options, payload, |emulator| emulator.run_on_terminal())
    }

    fn with_emulator<T>(
        &self,
        options: &Options,
        payload: &Payload,
        run: impl FnOnce(&Emulator<'_>) -> Result<T>,
    ) -> Result<T> {
        let data = self.folder.join("DATA.img");
        disk::format(&data, DATA_SIZE_BYTES, Some(&payload.folder))?;
        let disks = [&self.root, &data].map(|path| Disk { path, keep: false });
        run(&Emulator {
            program: &self.program,
            kernel: &self.kernel.image,
            initrd: &self.initrd,
            mode: "run",
            cpu: qemu::HOST_CPU,
            cpus: options.cpus,
            memory_mib: options.mem,
            disks: &disks,
            folder: &self.folder.join(RUN_FOLDER),
        })
    }
}

fn problem(problem: &str, console: &str) -> Error {
    Error::EmulatedHost {
        problem: problem.to_owned(),
        console: process::tail(console, 3000).to_owned(),
    }
}

/// Words `NAME=VALUE` for `inside.sh`: of this program's environment, what tests look at.
fn variables() -> String {
    std::env::var(LONG).map_or_else(|_| String::new(), |value| format!("{LONG}={value}"))
}

fn show(parts: Vec<Shown>) {
    for part in parts {
        match part {
            Shown::Output(bytes) => output::bytes(&bytes),
            Shown::Remark(text) => output::line(text),
        }
    }
}

/// Takes the lock of this working copy's test folder; says so if another run has it.
fn lock(path: &Path) -> Result<fs::File> {
    let file = fs::File::create(path).map_err(Error::file("create", path))?;
    if flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
        output::note("waiting for another vmtest of this working copy");
        flock(&file, FlockOperation::LockExclusive)
            .map_err(|e| Error::file("lock", path)(e.into()))?;
    }
    Ok(file)
}

/// A word that no job can know beforehand.
fn token() -> String {
    use std::hash::{BuildHasher, RandomState};
    let random = || RandomState::new().hash_one(std::process::id());
    format!("@@{:016x}{:016x}", random(), random())
}
