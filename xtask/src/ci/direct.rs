//! Steps that use the real `smolvm` on this host itself: examples, and the end-to-end tests on
//! the software CPU.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::{Options, stream};
use crate::cargo::{self, Workspace};
use crate::error::{Error, Result};
use crate::totals::{HarnessCounter, Totals};
use crate::vmtest::jobs::README;
use crate::vmtest::report::Kind;
use crate::vmtest::select::{self, Account, Item};
use crate::vmtest::tags::Long;
use crate::vmtest::{Host, home};
use crate::{cache, output, process};

/// One executable or script that hangs is ended after this time, with `--long` after the other.
const JOB_LIMIT_SECONDS: u32 = 900;
const LONG_JOB_LIMIT_SECONDS: u32 = 3600;

/// Debian's account that owns nothing; tests run as it where this program is root.
const NOBODY: &str = "65534";

/// Runs each example; one that cannot run here says so and counts as skipped.
pub fn examples(workspace: &Workspace, _options: &Options) -> Result<Totals> {
    let mut totals = Totals::default();
    let examples = cargo::build_examples(workspace, "examples")?;
    // Examples of single layers run without it.
    let place = Place::prepare(workspace)
        .inspect_err(|error| output::error(error))
        .ok();
    if place.is_none() {
        totals.failed += 1;
    }
    for (name, executable) in examples {
        let command = match &place {
            Some(place) => place.command(&executable, JOB_LIMIT_SECONDS)?,
            None => limited(JOB_LIMIT_SECONDS, &executable),
        };
        let mut skipped = false;
        let status = stream::run(command, |line| {
            skipped |= line.starts_with(crate::totals::SKIP_PREFIX);
        })?;
        let result = match (status.success(), skipped) {
            (true, true) => Totals::one_skipped(),
            (passed, _) => Totals::one(passed),
        };
        output::line(format_args!("example {name}: {result}"));
        totals.add(result);
    }
    Ok(totals)
}

/// Runs every test that needs `smolvm` as an ordinary user on the software CPU.
pub fn end_to_end(workspace: &Workspace, options: &Options) -> Result<Totals> {
    let items: Vec<Item> = select::select(workspace, &[], None)?
        .into_iter()
        .filter(|item| item.smolvm && item.account != Account::Root)
        .filter(|item| options.long || item.long != Long::Everywhere)
        .collect();
    let mut totals = Totals::default();
    if items.is_empty() {
        return Ok(totals);
    }
    let place = Place::prepare(workspace)?;
    if options.long {
        place.add_dev_image()?;
    }
    for item in &items {
        totals.add(place.run(item, options)?);
    }
    Ok(totals)
}

/// A folder that an ordinary user may use, with `smolvm` and a home in it.
struct Place {
    folder: tempfile::TempDir,
    as_nobody: bool,
}

impl Place {
    fn prepare(workspace: &Workspace) -> Result<Self> {
        let smolvm = cargo::build_smolvm(workspace)?;
        let home = Host::prepare(workspace)?.prepare_home(&smolvm)?;
        // Not below the repository, which may be closed to other users; not /tmp, which may be
        // memory.
        let parent = Path::new("/var/tmp");
        let folder = tempfile::Builder::new()
            .prefix("smolvm-test-")
            .tempdir_in(parent)
            .map_err(Error::file("create a folder in", parent))?;
        let place = Self {
            folder,
            as_nobody: rustix::process::geteuid().is_root(),
        };
        for name in ["bin", "tmp"] {
            let path = place.path(name);
            fs::create_dir(&path).map_err(Error::file("create", &path))?;
        }
        let binary = place.path("bin/smolvm");
        fs::copy(&smolvm, &binary).map_err(Error::file("copy", &smolvm))?;
        // The story in it is a test, which finds it beside the program that it is run as.
        let readme = place.path("bin/README.md");
        fs::write(&readme, README).map_err(Error::file("write", &readme))?;
        let copied = place.path("home");
        process::capture(Command::new("cp").arg("-a").arg(&home).arg(&copied))?;
        place.give_away()?;
        Ok(place)
    }

    fn add_dev_image(&self) -> Result<()> {
        let home = self.path("home");
        home::add_dev_image(&self.path("bin/smolvm"), &cache::folder()?, &home)?;
        self.give_away()
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Gives everything in the folder to the account that runs the tests.
    fn give_away(&self) -> Result<()> {
        if !self.as_nobody {
            return Ok(());
        }
        let owner = format!("{NOBODY}:{NOBODY}");
        process::capture(
            Command::new("chown")
                .args(["-R", &owner])
                .arg(self.folder.path()),
        )
        .map(drop)
    }

    fn environment(&self) -> Vec<(&'static str, PathBuf)> {
        vec![
            ("SMOLVM", self.path("bin/smolvm")),
            ("SMOLVM_HOME", self.path("home")),
            ("SMOLVM_BACKEND", PathBuf::from("soft")),
            ("SMOLVM_BOOTED_POINTS", PathBuf::from("off")),
            ("HOME", self.path("tmp")),
            ("TMPDIR", self.path("tmp")),
        ]
    }

    /// A copy of the program in this folder, run by the account that owns the folder's home.
    fn command(&self, program: &Path, limit_seconds: u32) -> Result<Command> {
        let copy = self
            .path("bin")
            .join(program.file_name().unwrap_or_default());
        fs::copy(program, &copy).map_err(Error::file("copy", program))?;
        let mut command = if self.as_nobody {
            self.give_away()?;
            let mut command = Command::new("setpriv");
            command.args(["--reuid", NOBODY, "--regid", NOBODY, "--clear-groups"]);
            let inner = limited(limit_seconds, &copy);
            command.arg(inner.get_program()).args(inner.get_args());
            command
        } else {
            limited(limit_seconds, &copy)
        };
        command.envs(self.environment());
        command.current_dir(self.path("tmp"));
        Ok(command)
    }

    fn run(&self, item: &Item, options: &Options) -> Result<Totals> {
        let limit = match options.long {
            true => LONG_JOB_LIMIT_SECONDS,
            false => JOB_LIMIT_SECONDS,
        };
        let mut command = self.command(&item.path, limit)?;
        command.envs(options.environment().iter().copied());
        match item.kind {
            Kind::Harness => {
                command.arg("--test-threads=1");
                stream::harness(command)
            }
            Kind::Script => {
                let mut counter = HarnessCounter::default();
                let status = stream::run(command, |line| counter.line(line))?;
                let totals = counter.script(status.code());
                let word = match totals {
                    Totals { failed: 1.., .. } => "FAILED",
                    Totals { passed: 0, .. } => "skipped",
                    _ => "ok",
                };
                output::line(format_args!("test {} ... {word}", item.name));
                Ok(totals)
            }
        }
    }
}

/// The program, ended when it takes longer.
fn limited(limit_seconds: u32, program: &Path) -> Command {
    let mut command = Command::new("timeout");
    command.args(["--kill-after=10", &limit_seconds.to_string()]);
    command.arg(program);
    command
}
