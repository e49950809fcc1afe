//! Running a command with its output shown as it comes and read at the same time.

use std::io::{self, BufRead, BufReader};
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};

use crate::error::{Error, Result};
use crate::totals::{HarnessCounter, Totals};
use crate::{output, process};

/// Runs a command, both of its output streams in one; each line is shown and handed on.
pub(super) fn run(mut command: Command, mut line: impl FnMut(&str)) -> Result<ExitStatus> {
    let pipe_error = Error::file("make a pipe for", Path::new(command.get_program()));
    let (reader, writer) = io::pipe().map_err(pipe_error)?;
    let second = writer.try_clone().map_err(Error::file(
        "copy the pipe of",
        Path::new(command.get_program()),
    ))?;
    command.stdin(Stdio::null()).stdout(writer).stderr(second);
    let mut child = command
        .spawn()
        .map_err(|e| process::start_error(&command, e))?;
    let program = process::shown(&command);
    // The command holds the writing ends; the output would never end otherwise.
    drop(command);
    let mut reader = BufReader::new(reader);
    let mut bytes = Vec::new();
    while reader
        .read_until(b'\n', &mut bytes)
        .map_err(Error::file("read from", Path::new(&program)))?
        > 0
    {
        output::bytes(&bytes);
        line(String::from_utf8_lossy(&bytes).trim_end());
        bytes.clear();
    }
    child
        .wait()
        .map_err(Error::file("wait for", Path::new(&program)))
}

/// Runs a command that prints what Rust's test harness prints; a bad exit code without a failed
/// test is one failure.
pub(super) fn harness(command: Command) -> Result<Totals> {
    let mut counter = HarnessCounter::default();
    let status = run(command, |line| counter.line(line))?;
    let mut totals = counter.totals();
    if !status.success() && totals.failed == 0 {
        totals.failed = 1;
    }
    Ok(totals)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_crash_without_results_is_a_failure() {
        let mut command = Command::new("sh");
        command.args(["-c", "echo 'test result: ok. 2 passed; 0 failed'; exit 9"]);
        assert_eq!(
            harness(command).unwrap().to_string(),
            "2 passed, 1 failed, 0 skipped"
        );
    }
}
