//! The emulated host's root file system: a small Debian, made once and never changed afterwards.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use super::disk;
use super::kernel::Kernel;
use super::program::Program;
use super::qemu::{Disk, Emulator, HOST_CPU};
use crate::error::{Error, Result};
use crate::{cache, output, process};

/// What scripts and tests in the emulated host may use, besides Debian's essential packages.
const PACKAGES: &str =
    "mount,procps,e2fsprogs,python3-minimal,sqlite3,libgcc-s1,iproute2,kmod,openssl";

/// Size of the root file system; the file is sparse.
const SIZE_BYTES: u64 = 2 << 30;

/// Part of the cached file's name: to be raised when its content changes.
const VERSION: u32 = 1;

/// Unpacking takes about half a minute; a hung emulator shall not hang the build.
const FILL_LIMIT: Duration = Duration::from_secs(600);

/// Finds the root file system in the cache or makes it there.
///
/// Owners and modes of a Debian tree need root to be written, so the emulated host unpacks the
/// archive itself: nothing here needs privilege but what mmdebstrap asks for.
pub fn fetch(
    cache_folder: &Path,
    program: &Program,
    kernel: &Kernel,
    initrd: &Path,
    run_folder: &Path,
) -> Result<PathBuf> {
    let suite = suite();
    let name = format!("root-{suite}-v{VERSION}");
    let archive = cache::entry(cache_folder, &format!("{name}.tar"), |path| {
        debootstrap(&suite, path)
    })?;
    cache::entry(cache_folder, &format!("{name}.img"), |path| {
        output::note("unpacking the emulated host's root file system (once)");
        disk::format(path, SIZE_BYTES, None)?;
        fill(program, kernel, initrd, path, &archive, run_folder)
    })
}

/// The host's own Debian release, so that dynamically linked programs built here run there;
/// Debian 12 elsewhere.
fn suite() -> String {
    let release = fs::read_to_string("/etc/os-release").unwrap_or_default();
    let value = |key: &str| {
        release
            .lines()
            .find_map(|line| line.strip_prefix(key)?.strip_prefix('='))
            .map(|value| value.trim_matches('"').to_owned())
    };
    match (value("ID").as_deref(), value("VERSION_CODENAME")) {
        (Some("debian"), Some(codename)) => codename,
        _ => "bookworm".to_owned(),
    }
}

/// A command that makes a tar archive of Debian's essential packages and `packages`, which are
/// separated by commas; suite and path of the archive are still to be added.
pub(super) fn mmdebstrap(packages: &str) -> Command {
    let mut command = Command::new("mmdebstrap");
    command
        .args([
            "--quiet",
            "--mode=auto",
            "--variant=essential",
            "--format=tar",
        ])
        .arg(format!("--include={packages}"));
    command
}

fn debootstrap(suite: &str, path: &Path) -> Result<()> {
    output::note(format_args!(
        "making a small Debian ({suite}) with mmdebstrap (once)"
    ));
    let mut command = mmdebstrap(PACKAGES);
    command
        .args(["--dpkgopt=path-exclude=/usr/share/man/*"])
        .args(["--dpkgopt=path-exclude=/usr/share/doc/*"])
        .args(["--dpkgopt=path-exclude=/usr/share/locale/*"])
        .arg(suite)
        .arg(path);
    process::capture(&mut command).map(drop).inspect_err(|_| {
        output::note(
            "mmdebstrap needs root, or user namespaces: the package uidmap and a range for this \
             user in /etc/subuid and /etc/subgid",
        );
    })
}

fn fill(
    program: &Program,
    kernel: &Kernel,
    initrd: &Path,
    image: &Path,
    archive: &Path,
    folder: &Path,
) -> Result<()> {
    let emulator = Emulator {
        program,
        kernel: &kernel.image,
        initrd,
        mode: "fill",
        cpu: HOST_CPU,
        cpus: 1,
        memory_mib: 1024,
        folder,
        disks: &[
            Disk {
                path: image,
                keep: true,
            },
            Disk {
                path: archive,
                keep: false,
            },
        ],
    };
    let console = emulator.run_silently(FILL_LIMIT)?;
    if console.contains("vmtest: filled") {
        return Ok(());
    }
    Err(Error::EmulatedHost {
        problem: "did not unpack its root file system".to_owned(),
        console: process::tail(&console, 3000).to_owned(),
    })
}
