//! What the emulated host shall run, laid out as a folder that becomes its data disk.
//!
//! ```text
//! bin/        smolvm, and before it keep-logs/smolvm
//! tests/      test executables
//! scripts/    scripts
//! jobs/       one small script for each thing to run, in order; the ending names the account
//! home/       $SMOLVM_HOME
//! settings    for inside.sh
//! ```

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::report::Kind;
use super::select::{Account, Item};
use crate::error::{Error, Result};
use crate::{cache, process};

/// Runs as PID 1 once the disks are mounted.
const INSIDE: &str = include_str!("inside.sh");
/// The story in it is a test.
pub(crate) const README: &str = include_str!("../../../README.md");

/// What jobs know as smolvm: keeps the logs of machines for the case that the job fails.
const KEEP_LOGS: &str = include_str!("keep-logs.sh");

/// Shared libraries that the emulated host's Debian has.
const LIBRARIES: &[&str] = &[
    "linux-vdso.so.1",
    "libc.so.6",
    "libm.so.6",
    "libgcc_s.so.1",
    "libpthread.so.0",
    "libdl.so.2",
    "librt.so.1",
    "ld-linux-x86-64.so.2",
];

/// One thing to run.
pub struct Job {
    /// The name of its file.
    pub id: String,
    /// The name to show.
    pub name: String,
    /// How it tells its result.
    pub kind: Kind,
}

/// The folder that becomes the data disk, and the jobs in it.
pub struct Payload {
    /// The folder.
    pub folder: PathBuf,
    /// The jobs, in order.
    pub jobs: Vec<Job>,
}

impl Payload {
    /// Begins with an empty folder; `home` in it is kept from run to run.
    pub fn begin(folder: PathBuf) -> Result<Self> {
        for name in ["bin", "tests", "scripts", "jobs"] {
            let path = folder.join(name);
            cache::remove(&path)?;
            fs::create_dir_all(&path).map_err(Error::file("create", &path))?;
        }
        write(&folder.join("inside.sh"), INSIDE, 0o755)?;
        write(&folder.join("scripts/README.md"), README, 0o644)?;
        Ok(Self {
            folder,
            jobs: Vec::new(),
        })
    }

    /// Puts the smolvm binary on the emulated host's PATH.
    pub fn add_smolvm(&self, binary: &Path) -> Result<()> {
        check_libraries(binary)?;
        copy(binary, &self.folder.join("bin/smolvm"))?;
        let folder = self.folder.join("bin/keep-logs");
        fs::create_dir_all(&folder).map_err(Error::file("create", &folder))?;
        write(&folder.join("smolvm"), KEEP_LOGS, 0o755)
    }

    /// Adds something to run; the filter is for test executables.
    pub fn add(&mut self, item: &Item, filter: Option<&str>) -> Result<()> {
        let file = format!("{:03}-{}", self.jobs.len(), flat(&item.name));
        let line = match item.kind {
            Kind::Harness => {
                check_libraries(&item.path)?;
                copy(&item.path, &self.folder.join("tests").join(&file))?;
                let filter = filter.map(quoted).unwrap_or_default();
                format!("exec /data/tests/{file} --test-threads=1 {filter}\n")
            }
            Kind::Script => {
                let copied = self.folder.join("scripts").join(&file);
                copy(&item.path, &copied)?;
                set_mode(&copied, 0o755)?;
                format!("exec /data/scripts/{file}\n")
            }
        };
        let ending = match item.account {
            Account::User => "user",
            Account::Outsider => "outsider",
            Account::Root => "root",
        };
        let id = format!("{file}.{ending}");
        write(&self.folder.join("jobs").join(&id), &line, 0o755)?;
        self.jobs.push(Job {
            id,
            name: item.name.clone(),
            kind: item.kind,
        });
        Ok(())
    }

    /// Leaves these jobs out when the emulated host starts again.
    pub fn leave_out(&self, ids: &[String]) -> Result<()> {
        for id in ids {
            cache::remove(&self.folder.join("jobs").join(id))?;
        }
        Ok(())
    }

    /// Writes the values that `inside.sh` reads.
    pub fn settings(&self, values: &[(&str, &str)]) -> Result<()> {
        let text: String = values
            .iter()
            .map(|(name, value)| format!("{name}={}\n", quoted(value)))
            .collect();
        write(&self.folder.join("settings"), &text, 0o644)
    }
}

/// A name as a file name.
fn flat(name: &str) -> String {
    name.replace(
        |letter: char| !letter.is_ascii_alphanumeric() && letter != '-' && letter != '_',
        "-",
    )
}

/// A value quoted for the shell.
fn quoted(value: &str) -> String {
    format!("'{}'", value.replace('\'', r"'\''"))
}

fn write(path: &Path, text: &str, mode: u32) -> Result<()> {
    fs::write(path, text).map_err(Error::file("write", path))?;
    set_mode(path, mode)
}

fn set_mode(path: &Path, mode: u32) -> Result<()> {
    fs::set_permissions(path, fs::Permissions::from_mode(mode))
        .map_err(Error::file("change the mode of", path))
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    fs::copy(from, to)
        .map(drop)
        .map_err(Error::file("copy", from))
}

/// Refuses a program whose libraries the emulated host does not have, before it fails there.
fn check_libraries(executable: &Path) -> Result<()> {
    let output = process::capture(Command::new("ldd").arg(executable));
    let text = match output {
        Ok(text) => String::from_utf8_lossy(&text).into_owned(),
        // ldd fails on a static executable, which needs nothing.
        Err(Error::Program { .. }) => return Ok(()),
        Err(other) => return Err(other),
    };
    for line in text.lines() {
        let Some(first) = line.split_whitespace().next() else {
            continue;
        };
        let name = first.rsplit('/').next().unwrap_or(first);
        if name.contains(".so") && !LIBRARIES.contains(&name) {
            return Err(Error::Library {
                executable: executable.to_owned(),
                library: name.to_owned(),
            });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vmtest::tags::Long;

    #[test]
    fn filters_and_names_reach_the_shell_whole() {
        let folder = tempfile::tempdir().unwrap();
        let mut payload = Payload::begin(folder.path().to_owned()).unwrap();
        let item = Item {
            name: "a::b c".to_owned(),
            path: std::env::current_exe().unwrap(),
            kind: Kind::Harness,
            account: Account::Root,
            smolvm: false,
            long: Long::Nowhere,
        };
        payload.add(&item, Some("it's $HOME")).unwrap();
        let job = &payload.jobs[0];
        assert_eq!(job.id, "000-a--b-c.root");
        let line = fs::read_to_string(folder.path().join("jobs").join(&job.id)).unwrap();
        assert_eq!(
            line,
            "exec /data/tests/000-a--b-c --test-threads=1 'it'\\''s $HOME'\n"
        );
        let printed =
            process::capture(Command::new("sh").args(["-c", "printf %s 'it'\\''s $HOME'"]));
        assert_eq!(printed.unwrap(), b"it's $HOME");
    }
}
