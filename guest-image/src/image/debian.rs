//! A Debian image made by mmdebstrap.

use std::collections::VecDeque;
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read, Seek};
use std::path::{Path, PathBuf};
use std::process::{ChildStderr, Command, Stdio};

use durable_files::FileError;

use super::error::ImageError;
use crate::progress::{Phase, Progress};

/// The release that images are made of.
const SUITE: &str = "bookworm";
/// What is installed beside the minimal base.
const PACKAGES: [&str; 8] = [
    "ca-certificates",
    "git",
    "iproute2",
    "less",
    "openssh-server",
    "procps",
    "python3",
    "sqlite3",
];
/// Files that a machine has no use for. Only files: the scripts of packages make links in these directories, and
/// fail where one is missing.
const DPKG_OPTIONS: [&str; 5] = [
    "path-exclude=/usr/share/man/*.gz",
    "path-exclude=/usr/share/doc/*",
    "path-include=/usr/share/doc/*/copyright",
    "path-exclude=/usr/share/locale/*/LC_MESSAGES/*.mo",
    "path-exclude=/usr/share/info/*.gz",
];
/// Most packages that may be added.
const MAX_INCLUDES: usize = 512;
/// Lines of mmdebstrap's messages that an error repeats, those among which they are looked for, and their length.
const MESSAGE_LINES: usize = 6;
const KEPT_LINES: usize = 400;
const MAX_LINE_BYTES: u64 = 1024;
/// What apt and mmdebstrap say after the cause: that they failed as well, and with which command line.
const CONSEQUENCES: [&str; 6] = [
    "E: Sub-process ",
    "E: setup failed",
    "E: mmdebstrap failed",
    "E: run_chroot failed",
    "E: apt-get ",
    "Errors were encountered",
];

/// Runs mmdebstrap and returns the archive it made, unnamed, in `scratch`.
pub(crate) fn build_archive(
    scratch: &Path,
    includes: &[String],
    progress: &dyn Progress,
) -> Result<File, ImageError> {
    check_packages(includes)?;
    let in_path = |program: &str| find_program(program).is_some();
    if !in_path("mmdebstrap") {
        return Err(missing("mmdebstrap", "mmdebstrap"));
    }
    let is_root = rustix::process::geteuid().is_root();
    let can_build =
        is_root || in_path("newuidmap") || (in_path("fakechroot") && in_path("fakeroot"));
    if !can_build {
        return Err(missing("newuidmap", "uidmap"));
    }
    let mut archive =
        tempfile::tempfile_in(scratch).map_err(FileError::at("make a file in", scratch))?;
    let stdout = archive
        .try_clone()
        .map_err(FileError::at("write to", scratch))?;
    let phase = Phase::begin(progress, "building a Debian image with mmdebstrap", None);
    let mut child = command(includes)
        .stdin(Stdio::null())
        .stdout(stdout)
        .stderr(Stdio::piped())
        .spawn()
        .map_err(FileError::at("run", Path::new("mmdebstrap")))?;
    let lines = child.stderr.take().map(last_lines).unwrap_or_default();
    let status = child
        .wait()
        .map_err(FileError::at("run", Path::new("mmdebstrap")))?;
    if !status.success() {
        return Err(ImageError::Build {
            message: cause(&lines).join("; "),
        });
    }
    phase.advance(archive.metadata().map_or(0, |metadata| metadata.len()));
    archive.rewind().map_err(FileError::at("read", scratch))?;
    Ok(archive)
}

fn command(includes: &[String]) -> Command {
    let mut packages: Vec<&str> = PACKAGES.to_vec();
    packages.extend(includes.iter().map(String::as_str));
    let mut command = Command::new("mmdebstrap");
    command.args(["--variant=minbase", "--format=tar"]);
    command.arg(format!("--include={}", packages.join(",")));
    command.args(DPKG_OPTIONS.map(|option| format!("--dpkgopt={option}")));
    command
        .args([SUITE, "-"])
        .args(host_sources(Path::new("/etc")));
    command.env("LC_ALL", "C.UTF-8");
    command
}

/// The host's own apt sources, if it runs the release that is built: its
/// mirrors are the ones that can be reached from here. Otherwise mmdebstrap's
/// default mirror is used.
fn host_sources(etc: &Path) -> Vec<PathBuf> {
    let release = fs::read_to_string(etc.join("os-release")).unwrap_or_default();
    let says = |wanted: &str| release.lines().any(|line| line.replace('"', "") == wanted);
    if !says("ID=debian") || !says(&format!("VERSION_CODENAME={SUITE}")) {
        return Vec::new();
    }
    let mut files = vec![etc.join("apt/sources.list")];
    let parts = fs::read_dir(etc.join("apt/sources.list.d"))
        .into_iter()
        .flatten();
    files.extend(parts.filter_map(|entry| Some(entry.ok()?.path())));
    let is_source = |path: &PathBuf| {
        let known = path
            .extension()
            .is_some_and(|end| end == "list" || end == "sources");
        known && fs::metadata(path).is_ok_and(|metadata| metadata.len() > 0)
    };
    files.retain(is_source);
    files.sort();
    files
}

/// Refuses what is no package name: options and lists would get through to
/// mmdebstrap.
fn check_packages(packages: &[String]) -> Result<(), ImageError> {
    let valid_byte =
        |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || matches!(b, b'+' | b'-' | b'.');
    let valid = |package: &str| {
        (2..=128).contains(&package.len())
            && package.bytes().all(valid_byte)
            && package.as_bytes()[0].is_ascii_alphanumeric()
    };
    let bad = packages.iter().find(|package| !valid(package));
    match bad.or(packages.get(MAX_INCLUDES)) {
        Some(package) => Err(ImageError::BadPackage {
            package: package.escape_debug().to_string(),
        }),
        None => Ok(()),
    }
}

fn find_program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path)
        .map(|dir| dir.join(name))
        .find(|file| file.is_file())
}

fn missing(program: &'static str, package: &'static str) -> ImageError {
    ImageError::MissingProgram { program, package }
}

/// The lines that say why: those of dpkg, apt and the packages' scripts about errors, the first of them; else the last.
fn cause(lines: &[String]) -> Vec<&str> {
    let is_consequence = |line: &str| CONSEQUENCES.iter().any(|start| line.starts_with(start));
    let is_error = |line: &str| {
        line.starts_with("E: ") || line.starts_with("dpkg: ") || line.contains("error")
    };
    let others = lines.iter().map(String::as_str);
    let others: Vec<&str> = others.filter(|line| !is_consequence(line)).collect();
    let errors: Vec<&str> = others
        .iter()
        .copied()
        .filter(|line| is_error(line))
        .take(MESSAGE_LINES)
        .collect();
    if errors.is_empty() {
        return others[others.len().saturating_sub(MESSAGE_LINES)..].to_vec();
    }
    errors
}

/// Reads to the end and keeps the last lines, made harmless.
fn last_lines(stderr: ChildStderr) -> Vec<String> {
    let mut lines = VecDeque::new();
    let mut input = BufReader::new(stderr);
    loop {
        let mut line = Vec::new();
        match (&mut input)
            .take(MAX_LINE_BYTES)
            .read_until(b'\n', &mut line)
        {
            Ok(0) => break,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(_) => break,
            Ok(_) => {}
        }
        let text = String::from_utf8_lossy(&line)
            .trim()
            .escape_debug()
            .to_string();
        tracing::debug!(line = %text, "mmdebstrap");
        if !text.is_empty() {
            lines.push_back(text);
        }
        if lines.len() > KEPT_LINES {
            lines.pop_front();
        }
    }
    lines.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_package_names_get_through() {
        let check = |name: &str| check_packages(&[name.to_string()]);
        for good in ["gcc", "libstdc++6", "python3.11", "g++"] {
            check(good).unwrap();
        }
        for bad in ["", "a", "--mode=root", "a,b", "A b", "x\ny"] {
            assert!(
                matches!(check(bad), Err(ImageError::BadPackage { .. })),
                "{bad:?}"
            );
        }
    }

    #[test]
    fn the_cause_is_shown_and_not_the_command_line() {
        let told = |text: &str| -> Vec<String> { text.lines().map(String::from).collect() };
        let lines = told(
            "Setting up openjdk-17-jre-headless:amd64 (17.0.21.1+2-1~deb12u1) ...\n\
             update-alternatives: error: error creating symbolic link '/usr/share/man/man1/java.1.gz.dpkg-tmp'\n\
             dpkg: error processing package openjdk-17-jre-headless:amd64 (--configure):\n\
             Processing triggers for libc-bin (2.36-9+deb12u14) ...\n\
             Errors were encountered while processing:\n\
             E: Sub-process env returned an error code (1)\n\
             E: setup failed: E: apt-get -o Dir::Bin::dpkg=env --yes install failed",
        );
        assert_eq!(cause(&lines), [&lines[1], &lines[2]]);
        let lines =
            told("I: running\nE: Unable to locate package nothing\nE: mmdebstrap failed to run");
        assert_eq!(cause(&lines), ["E: Unable to locate package nothing"]);
        let lines = told("one\ntwo");
        assert_eq!(cause(&lines), ["one", "two"]);
    }

    #[test]
    fn takes_the_hosts_sources_only_for_the_same_release() {
        let etc = tempfile::tempdir().unwrap();
        let path = etc.path();
        fs::create_dir_all(path.join("apt/sources.list.d")).unwrap();
        fs::write(path.join("apt/sources.list"), "").unwrap();
        fs::write(
            path.join("apt/sources.list.d/debian.sources"),
            "Types: deb\n",
        )
        .unwrap();
        fs::write(path.join("apt/sources.list.d/old.bak"), "x").unwrap();
        fs::write(
            path.join("os-release"),
            "ID=debian\nVERSION_CODENAME=bookworm\n",
        )
        .unwrap();
        assert_eq!(
            host_sources(path),
            [path.join("apt/sources.list.d/debian.sources")]
        );
        fs::write(
            path.join("os-release"),
            "ID=ubuntu\nVERSION_CODENAME=noble\n",
        )
        .unwrap();
        assert!(host_sources(path).is_empty());
    }
}
