//! Debian's cloud kernel, fetched by apt as an ordinary user.

use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use durable_files::FileError;

use super::error::KernelError;
use crate::progress::{Phase, Progress};

/// A package that depends on the current kernel.
#[cfg(target_arch = "aarch64")]
const META_PACKAGE: &str = "linux-image-cloud-arm64";
/// A package that depends on the current kernel.
#[cfg(not(target_arch = "aarch64"))]
const META_PACKAGE: &str = "linux-image-cloud-amd64";
/// Last lines of apt's messages that an error repeats.
const MESSAGE_LINES: usize = 3;

/// Downloads the current Debian cloud kernel package into `dir` with the
/// host's own apt and its configured sources; needs no privilege.
///
/// # Errors
///
/// [`KernelError::MissingProgram`] where there is no apt,
/// [`KernelError::Fetch`] with apt's message otherwise.
pub fn fetch_debian(dir: &Path, progress: &dyn Progress) -> Result<PathBuf, KernelError> {
    let phase = Phase::begin(progress, "fetching Debian's kernel", None);
    let show = run(
        "apt-cache",
        &["show", "--no-all-versions", META_PACKAGE],
        dir,
        META_PACKAGE,
    )?;
    let text = String::from_utf8_lossy(&show.stdout).into_owned();
    let package = kernel_dependency(&text).ok_or_else(|| KernelError::Fetch {
        package: META_PACKAGE.into(),
        message: "it names no kernel".into(),
    })?;
    run("apt-get", &["download", "--quiet", &package], dir, &package)?;
    let entries = std::fs::read_dir(dir).map_err(FileError::at("list", dir))?;
    let mut file = None;
    for entry in entries {
        let path = entry.map_err(FileError::at("list", dir))?.path();
        if path.extension().is_some_and(|end| end == "deb") {
            file = Some(path);
        }
    }
    let message = "apt-get download left no file".into();
    let file = file.ok_or(KernelError::Fetch { package, message })?;
    phase.advance(file.metadata().map_or(0, |metadata| metadata.len()));
    Ok(file)
}

/// The kernel package in the `Depends` line of a control record.
fn kernel_dependency(record: &str) -> Option<String> {
    let depends = record
        .lines()
        .find_map(|line| line.strip_prefix("Depends:"))?;
    let mut names = depends
        .split([',', '|'])
        .filter_map(|one| one.split_whitespace().next());
    let name = names.find(|name| name.starts_with("linux-image-"))?;
    let valid = |b: u8| b.is_ascii_alphanumeric() || b"+-.".contains(&b);
    name.bytes().all(valid).then(|| name.to_string())
}

fn run(
    program: &'static str,
    args: &[&str],
    dir: &Path,
    package: &str,
) -> Result<Output, KernelError> {
    let mut command = Command::new(program);
    command
        .args(args)
        .current_dir(dir)
        .env("LC_ALL", "C")
        .stdin(Stdio::null());
    let output = command.output().map_err(|source| match source.kind() {
        io::ErrorKind::NotFound => KernelError::MissingProgram { program },
        _ => FileError::at("run", Path::new(program))(source).into(),
    })?;
    if output.status.success() {
        return Ok(output);
    }
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    let lines: Vec<&str> = text
        .lines()
        .filter(|line| !line.trim().is_empty())
        .collect();
    let message = lines[lines.len().saturating_sub(MESSAGE_LINES)..].join("; ");
    Err(KernelError::Fetch {
        package: package.into(),
        message,
    })
}

#[cfg(test)]
mod tests {
    use super::kernel_dependency;

    #[test]
    fn finds_the_kernel_among_the_dependencies() {
        let record = "Package: m\nDepends: foo, linux-image-6.1.0-9-cloud-amd64 (= 6.1.27-1)\n";
        assert_eq!(
            kernel_dependency(record).unwrap(),
            "linux-image-6.1.0-9-cloud-amd64"
        );
        assert_eq!(kernel_dependency("Depends: linux-image-$(x)"), None);
        assert_eq!(kernel_dependency("Package: m\n"), None);
    }
}
