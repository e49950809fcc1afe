//! Which QEMU runs the emulated host: the installed one, or a newer one kept in the cache.
//!
//! Before release 8.1, QEMU may translate code on one processor while another rewrites it, and keep
//! the old translation (fixed by its commit deba78709ae8, "accel/tcg: Always lock pages before
//! translation"). Linux rewrites its code while it boots. With QEMU 7.2 and two processors, 2 of 24 guests
//! in the emulated host failed; `docs/testing.md` says what is left with newer ones.

use std::ffi::OsString;
use std::fs;
use std::path::Path;
use std::process::Command;

use crate::error::{Error, Result};
use crate::{cache, output, process};

/// The name under which a package manager installs it.
pub const INSTALLED: &str = "qemu-system-x86_64";

/// The first release whose processors may run in threads of their own.
const FIRST_SOUND: Release = Release(8, 1);

/// The Debian release whose QEMU is taken where the installed one is older than [`FIRST_SOUND`].
const NEWER_SUITE: &str = "trixie";

/// Part of the cached folder's name: to be raised when its content changes.
const VERSION: u32 = 1;

/// What of Debian's packages is kept: the program, its libraries and its firmware.
const KEPT: &[&str] = &[
    "./usr/bin/qemu-system-x86_64",
    "./usr/lib/x86_64-linux-gnu",
    "./usr/share/qemu",
    "./usr/share/seabios",
];

/// Major and minor number of a release.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Release(u32, u32);

impl Release {
    /// Reads what `qemu-system-x86_64 --version` prints.
    fn parse(text: &str) -> Option<Self> {
        let version = text.split_once("version ")?.1;
        let mut numbers = version.split('.').map(str::parse);
        match (numbers.next(), numbers.next()) {
            (Some(Ok(major)), Some(Ok(minor))) => Some(Self(major, minor)),
            _ => None,
        }
    }
}

/// A QEMU that can be run.
#[derive(Debug)]
pub struct Program {
    executable: OsString,
    /// What comes before its other options.
    options: Vec<OsString>,
    /// Whether processors may run in threads of their own.
    pub parallel: bool,
}

impl Program {
    /// The installed QEMU if it is sound, else a newer one from the cache, fetched if need be. Where that
    /// cannot be had, the installed one, which then must run all processors in one thread.
    pub fn find(cache_folder: &Path) -> Result<Self> {
        let installed = release(Command::new(INSTALLED));
        if let Ok(found) = installed
            && found >= FIRST_SOUND
        {
            return Ok(Self::installed(true));
        }
        match (Self::fetch(cache_folder), installed) {
            (Ok(program), _) => Ok(program),
            (Err(error), Err(_)) => Err(error),
            (Err(error), Ok(Release(major, minor))) => {
                output::note(format_args!(
                    "no newer QEMU than {major}.{minor}, so its processors run in one thread, slowly: {error}"
                ));
                Ok(Self::installed(false))
            }
        }
    }

    fn installed(parallel: bool) -> Self {
        Self {
            executable: INSTALLED.into(),
            options: Vec::new(),
            parallel,
        }
    }

    /// Unpacks Debian's newer QEMU beside the system, with its own libraries; needs no privilege but
    /// what mmdebstrap asks for.
    fn fetch(cache_folder: &Path) -> Result<Self> {
        let name = format!("qemu-{NEWER_SUITE}-v{VERSION}");
        let root = cache::entry(cache_folder, &name, download)?;
        let libraries = root.join("usr/lib/x86_64-linux-gnu");
        let executable = libraries.join("ld-linux-x86-64.so.2").into();
        let mut options: Vec<OsString> = vec![
            "--library-path".into(),
            libraries.into(),
            root.join("usr/bin/qemu-system-x86_64").into(),
        ];
        for firmware in ["qemu", "seabios"] {
            options.push("-L".into());
            options.push(root.join("usr/share").join(firmware).into());
        }
        let program = Self {
            executable,
            options,
            parallel: true,
        };
        // A damaged copy shall not be found out by a machine that does not start.
        let mut command = Command::new(&program.executable);
        command.args(&program.options);
        release(command)?;
        Ok(program)
    }

    /// A command that runs it, ready for options. It is killed when this program ends, however that happens.
    pub fn command(&self) -> Command {
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL"]).arg(&self.executable);
        command.args(&self.options);
        command
    }
}

/// Asks a QEMU for its release.
fn release(mut command: Command) -> Result<Release> {
    command.arg("--version");
    let printed = process::capture(&mut command)?;
    let text = String::from_utf8_lossy(&printed);
    Release::parse(&text).ok_or_else(|| Error::Output {
        program: process::shown(&command),
        found: text.lines().next().unwrap_or_default().to_owned(),
    })
}

fn download(folder: &Path) -> Result<()> {
    output::note(format_args!(
        "fetching the QEMU of Debian {NEWER_SUITE} (once): none is installed that is right with two processors"
    ));
    fs::create_dir(folder).map_err(Error::file("create", folder))?;
    let archive = folder.join("packages.tar");
    let mut packages = Command::new("mmdebstrap");
    packages
        .args(["--quiet", "--mode=auto", "--variant=extract"])
        .args(["--include=qemu-system-x86", NEWER_SUITE])
        .arg(&archive);
    process::capture(&mut packages)?;
    let mut unpack = Command::new("tar");
    unpack.args(["--extract", "--no-same-owner", "--file"]);
    unpack.arg(&archive).arg("--directory").arg(folder);
    process::capture(unpack.args(KEPT))?;
    cache::remove(&archive)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_are_read_and_compared() {
        let debian = "QEMU emulator version 7.2.22 (Debian 1:7.2+dfsg-7+deb12u18+b3)\nCopyright";
        assert_eq!(Release::parse(debian), Some(Release(7, 2)));
        assert!(Release(7, 2) < FIRST_SOUND);
        let newer = Release::parse("QEMU emulator version 10.0.13 (Debian 1:10.0.13+ds)");
        assert!(newer.is_some_and(|found| found >= FIRST_SOUND));
        assert_eq!(
            Release::parse("QEMU emulator version 8.1.50"),
            Some(FIRST_SOUND)
        );
        assert_eq!(Release::parse("no such thing"), None);
        assert_eq!(Release::parse("version x.y"), None);
    }
}
