//! Which QEMU runs the emulated host: a copy of the installed one, or of a newer one, in the cache and mended.
//!
//! Before release 8.1, QEMU may translate code on one processor while another rewrites it, and keep
//! the old translation (fixed by its commit deba78709ae8, "accel/tcg: Always lock pages before
//! translation"). Linux rewrites its code while it boots. What [`mend`](super::mend) mends is in newer
//! releases too.

use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::mend::mend;
use crate::error::{Error, Result};
use crate::{cache, output, process};

/// The name under which a package manager installs it.
pub const INSTALLED: &str = "qemu-system-x86_64";

/// The first release whose processors may run in threads of their own.
const FIRST_SOUND: Release = Release(8, 1);

/// The Debian release whose QEMU is taken where the installed one is older than [`FIRST_SOUND`].
const NEWER_SUITE: &str = "trixie";

/// Part of the cached folders' names: to be raised when their content changes.
const VERSION: u32 = 3;

/// Where the program is in a folder of the cache.
const PLACE: &str = "usr/bin/qemu-system-x86_64";

/// Where Debian has its firmware, below the root.
const FIRMWARE: [&str; 2] = ["usr/share/qemu", "usr/share/seabios"];

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
    /// The installed QEMU if it is sound, else a newer one, fetched into the cache if need be. Where that
    /// cannot be had, the installed one, which then must run all processors in one thread.
    pub fn find(cache_folder: &Path) -> Result<Self> {
        let installed = release(Command::new(INSTALLED));
        if let Ok((found, text)) = &installed
            && *found >= FIRST_SOUND
        {
            return Ok(Self::installed(cache_folder, text, true));
        }
        match (Self::fetch(cache_folder), installed) {
            (Ok(program), _) => Ok(program),
            (Err(error), Err(_)) => Err(error),
            (Err(error), Ok((Release(major, minor), text))) => {
                let remark = format_args!(
                    "no newer QEMU than {major}.{minor}, so its processors run in one thread, slowly"
                );
                output::note_because(remark, &error);
                Ok(Self::installed(cache_folder, &text, false))
            }
        }
    }

    /// A mended copy of the installed QEMU, which says `text` of its release; itself where it cannot be mended.
    fn installed(cache_folder: &Path, text: &str, parallel: bool) -> Self {
        let release = text.replace(|letter: char| !letter.is_ascii_alphanumeric(), "-");
        let copied = cache::entry(
            cache_folder,
            &format!("qemu-{release}-v{VERSION}"),
            |folder| mended_copy(&installed_file()?, &folder.join(PLACE)),
        );
        let executable = match copied {
            Ok(folder) => folder.join(PLACE).into_os_string(),
            Err(error) => {
                let remark = "the installed QEMU is used as it is: guests under its KVM may fail";
                output::note_because(remark, &error);
                INSTALLED.into()
            }
        };
        Self {
            executable,
            options: firmware_of(Path::new("/")),
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
            root.join(PLACE).into(),
        ];
        options.extend(firmware_of(&root));
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

/// Asks a QEMU for its release, as numbers and as it says it.
fn release(mut command: Command) -> Result<(Release, String)> {
    command.arg("--version");
    let printed = process::capture(&mut command)?;
    let text = String::from_utf8_lossy(&printed);
    let line = text.lines().next().unwrap_or_default().to_owned();
    match Release::parse(&line) {
        Some(release) => Ok((release, line)),
        None => Err(Error::Output {
            program: process::shown(&command),
            found: line,
        }),
    }
}

/// The file of the installed QEMU.
fn installed_file() -> Result<PathBuf> {
    let folders = std::env::var_os("PATH").unwrap_or_default();
    let mut files = std::env::split_paths(&folders).map(|folder| folder.join(INSTALLED));
    let found = files.find(|file| file.is_file());
    found.ok_or_else(|| Error::Failed(format!("there is no {INSTALLED} on the PATH")))
}

/// Options that name the firmware of a Debian root.
fn firmware_of(root: &Path) -> Vec<OsString> {
    let named = |place| ["-L".into(), root.join(place).into_os_string()];
    FIRMWARE.into_iter().flat_map(named).collect()
}

/// Writes a mended copy of a program file, which may be the file itself.
fn mended_copy(from: &Path, to: &Path) -> Result<()> {
    let mut program = fs::read(from).map_err(Error::file("read", from))?;
    let missing = mend(&mut program).map_err(|source| Error::Mend {
        program: from.to_owned(),
        source,
    })?;
    if let Some(missing) = missing {
        let remark = "one of QEMU's two faults that guests under its KVM die of was not found, the other is mended";
        output::note_because(remark, &missing);
    }
    if let Some(folder) = to.parent() {
        fs::create_dir_all(folder).map_err(Error::file("create", folder))?;
    }
    fs::write(to, program).map_err(Error::file("write", to))?;
    let executable = fs::Permissions::from_mode(0o755);
    fs::set_permissions(to, executable).map_err(Error::file("change the mode of", to))
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
    cache::remove(&archive)?;
    let program = folder.join(PLACE);
    mended_copy(&program, &program)
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
