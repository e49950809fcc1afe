//! Running other programs, with errors that say which one and how to get it.

use std::process::{Command, Stdio};

use crate::error::{Error, Result};

/// How much of a failed program's output an error repeats, in bytes.
const OUTPUT_TAIL_BYTES: usize = 4000;

/// Debian packages of the programs that developer commands use.
const PACKAGES: &[(&str, &str)] = &[
    ("apt-get", "apt"),
    ("apt-cache", "apt"),
    ("dpkg", "dpkg"),
    ("mmdebstrap", "mmdebstrap"),
    ("mke2fs", "e2fsprogs"),
    ("qemu-system-x86_64", "qemu-system-x86"),
    ("setpriv", "util-linux"),
    ("xz", "xz-utils"),
    ("zstd", "zstd"),
    ("ldd", "libc-bin"),
];

/// Shows a command as one would type it.
pub fn shown(command: &Command) -> String {
    let mut text = command.get_program().to_string_lossy().into_owned();
    for argument in command.get_args() {
        text.push(' ');
        text.push_str(&argument.to_string_lossy());
    }
    text
}

/// The error for a program that could not be started.
pub fn start_error(command: &Command, source: std::io::Error) -> Error {
    let program = command.get_program().to_string_lossy().into_owned();
    let hint = PACKAGES
        .iter()
        .find(|(name, _)| *name == program)
        .map_or_else(
            || "is it installed?".to_owned(),
            |(_, package)| format!("install it with: apt-get install {package}"),
        );
    Error::Start {
        program,
        hint,
        source,
    }
}

/// Runs a command with its output shown.
pub fn run(command: &mut Command) -> Result<()> {
    let status = command.status().map_err(|e| start_error(command, e))?;
    if status.success() {
        return Ok(());
    }
    Err(Error::Program {
        program: shown(command),
        status,
        output: String::new(),
    })
}

/// Runs a command and returns its standard output; both streams are kept for the error.
pub fn capture(command: &mut Command) -> Result<Vec<u8>> {
    let output = command
        .stdin(Stdio::null())
        .output()
        .map_err(|e| start_error(command, e))?;
    if output.status.success() {
        return Ok(output.stdout);
    }
    let mut text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.push_str(&String::from_utf8_lossy(&output.stderr));
    Err(Error::Program {
        program: shown(command),
        status: output.status,
        output: tail(&text, OUTPUT_TAIL_BYTES).trim_end().to_owned(),
    })
}

/// The last part of a text, at most `limit_bytes` long, cut at a character boundary.
pub fn tail(text: &str, limit_bytes: usize) -> &str {
    let mut start = text.len().saturating_sub(limit_bytes);
    while !text.is_char_boundary(start) {
        start += 1;
    }
    &text[start..]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tail_keeps_whole_characters() {
        assert_eq!(tail("grün", 2), "n");
        assert_eq!(tail("grün", 3), "ün");
        assert_eq!(tail("abc", 10), "abc");
    }

    #[test]
    fn a_failing_program_shows_what_it_printed() {
        let mut command = Command::new("sh");
        command.args(["-c", "echo out; echo err >&2; exit 3"]);
        let text = capture(&mut command).unwrap_err().to_string();
        assert!(text.contains("out\nerr"), "{text}");
        assert!(text.contains('3'), "{text}");
    }

    #[test]
    fn a_missing_program_names_its_package() {
        let mut command = Command::new("mmdebstrap");
        command.env("PATH", "/nonexistent");
        let error = start_error(&command, std::io::ErrorKind::NotFound.into());
        assert!(error.to_string().contains("apt-get install mmdebstrap"));
    }
}
