//! Type-checking for platforms that are not at hand: macOS and Linux on arm64.
//!
//! Debian's second Rust compiler (`rustc-web` with its sources) checks the standard library and
//! the crates that shall be portable. Nothing is linked or run. C parts of dependencies are not
//! compiled: a stand-in for the C compiler makes empty objects. A second compiler that is older than what the
//! crates need, as on a Debian without its security updates, is a reason to skip the checks.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::{STEP_LIMIT_SECONDS, stream};
use crate::cargo::Workspace;
use crate::error::{Error, Result};
use crate::totals::{SKIP_PREFIX, Totals};
use crate::{output, process};

/// Crates that must compile everywhere.
const PORTABLE: &[&str] = &[
    "snapshot-format",
    "durable-files",
    "cas-store",
    "cow-disk",
    "agent-protocol",
    "vmm-core",
    "hvf-backend",
];

/// The platforms.
const TARGETS: &[&str] = &["aarch64-apple-darwin", "aarch64-unknown-linux-gnu"];

/// Debian's second compiler, which comes with its library's sources.
const RUSTC: &str = "/usr/bin/rustc";
const CARGO: &str = "/usr/bin/cargo";

/// Makes the object file that it is asked for, empty. Asked who it is (`-E`, and `-?` for options of
/// another maker's style), it answers as GCC does: build scripts choose their options by that.
const EMPTY_COMPILER: &str = r#"#!/bin/sh
# Stands in for a C compiler where only Rust is checked.
while [ $# -gt 0 ]; do
    case $1 in
    -E) echo '#pragma message "gcc"'; exit 0 ;;
    '-?') exit 1 ;;
    -o) : > "$2"; shift ;;
    -o?*) : > "${1#-o}" ;;
    esac
    shift
done
"#;

/// Checks every portable crate for every platform; each platform counts as one test.
pub fn run(workspace: &Workspace) -> Result<Totals> {
    let folder = workspace.target_folder.join("cross");
    fs::create_dir_all(&folder).map_err(Error::file("create", &folder))?;
    let compiler = empty_compiler(&folder)?;
    let mut totals = Totals::default();
    if let Some(reason) = too_old()? {
        for target in TARGETS {
            output::line(format_args!(
                "{SKIP_PREFIX}type-check for {target}: {reason}"
            ));
            totals.add(Totals::one_skipped());
        }
        return Ok(totals);
    }
    for target in TARGETS {
        let status = stream::run(command(workspace, &folder, &compiler, target), |_| {})?;
        let word = if status.success() { "ok" } else { "FAILED" };
        output::line(format_args!("test type-check for {target} ... {word}"));
        totals.add(Totals::one(status.success()));
    }
    Ok(totals)
}

/// Why the second compiler cannot check these crates, if so.
fn too_old() -> Result<Option<String>> {
    let needed = env!("CARGO_PKG_RUST_VERSION");
    let output = process::capture(Command::new(RUSTC).arg("--version"))?;
    let said = String::from_utf8_lossy(&output);
    let enough = release(said.trim_start_matches("rustc ")) >= release(needed);
    Ok((!enough).then(|| {
        format!(
            "needs Rust {needed}, Debian's second compiler is {}; as root: apt-get update && apt-get install rustc-web",
            said.trim()
        )
    }))
}

/// The release that a version begins with, as numbers: `1.95.0 (f2d3ce0bd)` is 1, 95. `None` is less than any.
fn release(version: &str) -> Option<(u32, u32)> {
    let mut numbers = version.split(|c: char| !c.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

fn empty_compiler(folder: &Path) -> Result<PathBuf> {
    let path = folder.join("empty-compiler");
    fs::write(&path, EMPTY_COMPILER).map_err(Error::file("write", &path))?;
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755))
        .map_err(Error::file("change the mode of", &path))?;
    Ok(path)
}

fn command(workspace: &Workspace, folder: &Path, compiler: &Path, target: &str) -> Command {
    let mut command = Command::new("timeout");
    command.args(["--kill-after=10", &STEP_LIMIT_SECONDS.to_string(), CARGO]);
    command.args(["check", "-Zbuild-std=std,panic_abort", "--target", target]);
    for package in PORTABLE {
        command.args(["-p", package]);
    }
    command.current_dir(&workspace.root);
    command.env("CARGO_TARGET_DIR", folder);
    command.env("RUSTC", RUSTC);
    // The standard library is not only checked; what comes of it is not run.
    command.env("CARGO_PROFILE_DEV_OPT_LEVEL", "0");
    command.env("CARGO_PROFILE_DEV_DEBUG", "false");
    // Building the standard library is an unstable option of a stable compiler.
    command.env("RUSTC_BOOTSTRAP", "1");
    for tool in ["CC", "CXX"] {
        command.env(format!("{tool}_{}", target.replace('-', "_")), compiler);
    }
    // A compiler cache would look into the stand-in; empty means none, whatever cargo's settings say.
    command.env("RUSTC_WRAPPER", "");
    // Set by the cargo that runs this program; they name the other compiler.
    for variable in ["RUSTUP_TOOLCHAIN", "CARGO", "RUSTDOC"] {
        command.env_remove(variable);
    }
    command
}

#[cfg(test)]
mod tests {
    use super::release;

    #[test]
    fn releases_are_compared_as_numbers() {
        assert_eq!(release("1.96.0 (ac68faa20 2026-05-25)"), Some((1, 96)));
        assert!(release("1.100.0") > release("1.95"));
        assert!(release("1.85.0") < release("1.95"));
        assert!(release("rustc") < release("1.0"));
    }
}
