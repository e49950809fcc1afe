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
pub mod qemu;
pub mod report;
pub mod root;
pub mod tags;
pub mod tsc;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};

pub use report::{HarnessCounter, SKIP_PREFIX, Totals};

use crate::cargo::{self, Workspace};
use crate::error::{Error, Result};
use crate::{cache, output, process};
use jobs::{Account, Payload};
use kernel::Kernel;
use qemu::{Disk, Emulator};
use report::{Reader, Shown};
use tags::Tagged;

/// Size of the data disk; the file is sparse.
const DATA_SIZE_BYTES: u64 = 16 << 30;

/// What to run in the emulated host.
#[derive(Debug, clap::Args)]
pub struct Options {
    /// Run only tests whose name contains this
    filter: Option<String>,
    /// Run only tests of this package (may be repeated) [default: all that ask for it in their manifest]
    #[arg(short, long = "package", value_name = "PACKAGE")]
    packages: Vec<String>,
    /// Run this script as an ordinary user, instead of tests; its exit code is returned
    #[arg(long, value_name = "FILE", conflicts_with_all = ["filter", "packages", "shell"])]
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

/// How a run ended.
pub enum Outcome {
    /// Tests ran.
    Tests(Totals),
    /// A script or shell ended with this code.
    Code(i32),
}

/// What every run needs.
struct Host {
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
            payload.add_script("script", script, Account::User)?;
        }
        !options.bare
    } else {
        add_tests(&workspace, options, &mut payload)?
    };
    if needs_smolvm {
        let smolvm = cargo::build_smolvm(&workspace)?;
        payload.add_smolvm(&smolvm)?;
        let home = payload.folder.join("home");
        home::prepare(&smolvm, &host.kernel, &host.cache_folder, &home)?;
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

/// Adds the tests of tagged packages; returns whether one of them needs smolvm.
fn add_tests(workspace: &Workspace, options: &Options, payload: &mut Payload) -> Result<bool> {
    let tagged = tags::read(workspace, &options.packages)?;
    let names: Vec<&str> = tagged
        .iter()
        .filter(|found| !found.section.tests.is_empty() || !found.section.root_tests.is_empty())
        .map(|found| found.package.name.as_str())
        .collect();
    let executables = if names.is_empty() {
        Vec::new()
    } else {
        cargo::build_tests(workspace, &names)?
    };
    let filter = options.filter.as_deref();
    let mut needs_smolvm = false;
    for found in &tagged {
        let before = payload.jobs.len();
        let package = &found.package.name;
        for executable in executables.iter().filter(|built| built.package == *package) {
            let target = if executable.target.is("test") {
                executable.target.name.as_str()
            } else if executable.target.is("lib") {
                "lib"
            } else {
                continue;
            };
            let name = format!("{package}::{target}");
            for (list, account) in [
                (&found.section.tests, Account::User),
                (&found.section.root_tests, Account::Root),
            ] {
                if list.iter().any(|listed| listed == target) {
                    payload.add_tests(&name, &executable.path, account, filter)?;
                }
            }
        }
        add_scripts(found, filter, payload)?;
        needs_smolvm |= found.section.smolvm && payload.jobs.len() > before;
    }
    Ok(needs_smolvm)
}

fn add_scripts(found: &Tagged<'_>, filter: Option<&str>, payload: &mut Payload) -> Result<()> {
    let Some(folder) = &found.section.scripts else {
        return Ok(());
    };
    let folder = found.package.manifest_path.with_file_name("").join(folder);
    let mut scripts = Vec::new();
    for entry in fs::read_dir(&folder).map_err(Error::file("read", &folder))? {
        let path = entry.map_err(Error::file("read", &folder))?.path();
        if path.extension().is_some_and(|extension| extension == "sh") {
            scripts.push(path);
        }
    }
    scripts.sort();
    for script in scripts {
        let stem = script.file_stem().unwrap_or_default().to_string_lossy();
        let name = format!("{}::script::{stem}", found.package.name);
        if filter.is_none_or(|filter| name.contains(filter)) {
            payload.add_script(&name, &script, Account::User)?;
        }
    }
    Ok(())
}

impl Host {
    fn prepare(workspace: &Workspace) -> Result<Self> {
        let folder = workspace.target_folder.join("vmtest");
        fs::create_dir_all(&folder).map_err(Error::file("create", &folder))?;
        let lock = lock(&folder.join("lock"))?;
        let cache_folder = cache::folder()?;
        let kernel = Kernel::fetch(&cache_folder)?;
        let initrd = folder.join("initrd");
        fs::write(&initrd, initrd::build(&kernel)?).map_err(Error::file("write", &initrd))?;
        let root = root::fetch(&cache_folder, &kernel, &initrd)?;
        Ok(Self {
            kernel,
            initrd,
            root,
            cache_folder,
            folder,
            _lock: lock,
        })
    }

    fn run(&self, options: &Options, payload: &Payload) -> Result<Reader> {
        let token = token();
        payload.settings(&[
            ("token", &token),
            ("shell", "no"),
            ("job_timeout", &options.job_timeout.to_string()),
        ])?;
        let jobs = payload
            .jobs
            .iter()
            .map(|job| (job.id.clone(), job.name.clone(), job.kind));
        let mut reader = Reader::new(&token, jobs);
        let started = Instant::now();
        let console = self.with_emulator(options, payload, |emulator| {
            emulator.run(Duration::from_secs(options.timeout), |bytes| {
                show(reader.receive(bytes));
            })
        });
        show(reader.finish());
        let console = console?;
        if options.verbose {
            output::note(&console);
        }
        output::note(format_args!(
            "the emulated host ran for {:.1} s",
            started.elapsed().as_secs_f64()
        ));
        if reader.ended() {
            return Ok(reader);
        }
        Err(Error::EmulatedHost {
            problem: format!("ended early ({})", reader.totals()),
            console: process::tail(&console, 3000).to_owned(),
        })
    }

    fn shell(&self, options: &Options, payload: &Payload) -> Result<()> {
        let size = rustix::termios::tcgetwinsize(std::io::stdin());
        let (rows, columns) = size.map_or((24, 80), |size| (size.ws_row, size.ws_col));
        payload.settings(&[
            ("shell", "yes"),
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
            kernel: &self.kernel.image,
            initrd: &self.initrd,
            mode: "run",
            cpus: options.cpus,
            memory_mib: options.mem,
            disks: &disks,
        })
    }
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
