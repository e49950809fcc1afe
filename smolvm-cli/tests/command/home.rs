//! A home of a test's own.

use std::path::Path;
use std::process::Output;

use assert_cmd::Command;
use tempfile::TempDir;

/// A home that does not exist yet, and a directory to work in.
pub(crate) struct Home {
    directory: TempDir,
}

impl Home {
    pub(crate) fn new() -> Self {
        Self {
            directory: TempDir::new().unwrap(),
        }
    }

    /// The working directory.
    pub(crate) fn path(&self) -> &Path {
        self.directory.path()
    }

    /// Whether the home was made.
    pub(crate) fn exists(&self) -> bool {
        self.path().join("home").exists()
    }

    /// `smolvm` with these arguments, split at spaces, and nothing of this process's environment that
    /// it looks at.
    pub(crate) fn command(&self, line: &str) -> Command {
        let mut command = Command::cargo_bin("smolvm").unwrap();
        command
            .args(line.split(' ').filter(|word| !word.is_empty()))
            .current_dir(self.path())
            .env("SMOLVM_HOME", "home")
            .env_remove("SMOLVM_MACHINE_NAME")
            .env_remove("SMOLVM_BACKEND")
            .env_remove("SMOLVM_LOG");
        command
    }

    /// What comes of a command.
    pub(crate) fn run(&self, line: &str) -> Output {
        self.command(line).output().unwrap()
    }

    /// Exit code, stdout and stderr as one text, without paths of this run.
    pub(crate) fn transcript(&self, line: &str) -> String {
        let output = self.run(line);
        let text = |bytes: &[u8]| {
            String::from_utf8_lossy(bytes)
                .replace(&self.path().display().to_string(), "/WORK")
                .trim_end()
                .to_owned()
        };
        format!(
            "$ smolvm {line}\n{}{}[{}]",
            block("", &text(&output.stdout)),
            block("! ", &text(&output.stderr)),
            output.status.code().unwrap_or(-1)
        )
    }
}

fn block(prefix: &str, text: &str) -> String {
    text.lines()
        .map(|line| format!("{prefix}{line}\n"))
        .collect()
}
