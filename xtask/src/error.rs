//! Why a developer command failed.

use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;

/// Result of a developer command.
pub type Result<T> = std::result::Result<T, Error>;

/// What went wrong, with the next thing to try where there is one.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file operation failed.
    #[error("cannot {action} {path}")]
    File {
        /// What was tried, as a verb.
        action: &'static str,
        /// On which path.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// There is no such benchmark.
    #[error("there is no benchmark {name}, but {known}")]
    NoBench {
        /// What was asked for.
        name: String,
        /// Those that there are.
        known: String,
    },
    /// A program could not be started.
    #[error("cannot start {program}; {hint}")]
    Start {
        /// The program's name.
        program: String,
        /// How to get it.
        hint: String,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// A program ran and failed.
    #[error("{program} failed ({status}){}{output}", if output.is_empty() { "" } else { ":\n" })]
    Program {
        /// The command line.
        program: String,
        /// How it ended.
        status: ExitStatus,
        /// The end of what it printed, where that was captured.
        output: String,
    },
    /// A program printed something that was not understood.
    #[error("{program} printed something unexpected: {found}")]
    Output {
        /// The command line.
        program: String,
        /// What was found.
        found: String,
    },
    /// JSON that does not parse.
    #[error("{program} printed damaged JSON")]
    Json {
        /// The command line.
        program: String,
        /// Why.
        #[source]
        source: serde_json::Error,
    },
    /// A QEMU is not as it must be to be mended.
    #[error("{program} cannot be mended")]
    Mend {
        /// Its file.
        program: PathBuf,
        /// What differs.
        #[source]
        source: crate::vmtest::mend::MendError,
    },
    /// A kernel module is missing or damaged.
    #[error("kernel module {module}: {problem}")]
    Module {
        /// The module's name.
        module: String,
        /// What is wrong with it.
        problem: String,
    },
    /// A test executable needs a library that the emulated host does not have.
    #[error("{executable} needs {library}, which the emulated host does not carry")]
    Library {
        /// The executable.
        executable: PathBuf,
        /// The shared library.
        library: String,
    },
    /// A package is not part of the workspace or has no tests for the emulated host.
    #[error("package {0} has no [package.metadata.vmtest] section (see docs/testing.md)")]
    NotTagged(String),
    /// The section in a manifest is not understood.
    #[error("[package.metadata.vmtest] of {package}: {problem}")]
    Tag {
        /// The package.
        package: String,
        /// What is wrong.
        problem: String,
    },
    /// The emulated host ended without finishing its work.
    #[error("the emulated host {problem}; its console ended with:\n{console}")]
    EmulatedHost {
        /// What happened.
        problem: String,
        /// The last lines of its serial console.
        console: String,
    },
    /// A guest whose results are compared did not give them.
    #[error("the guest on {cpu} {problem}; its console ended with:\n{console}")]
    Boot {
        /// What it ran on.
        cpu: &'static str,
        /// What happened.
        problem: String,
        /// The last lines of its serial console.
        console: String,
    },
    /// Some tests failed; they have been reported.
    #[error("{0} failed")]
    Failed(String),
}

impl Error {
    /// Names the file operation that an I/O error belongs to.
    pub fn file(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::File {
            action,
            path,
            source,
        }
    }
}
