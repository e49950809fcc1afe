//! The one place where developer commands print.

use std::fmt::Display;
use std::io::{self, Write};

/// Prints a line to standard output. A reader that went away is not an error.
pub fn line(text: impl Display) {
    let mut out = io::stdout().lock();
    let _gone = writeln!(out, "{text}").and_then(|()| out.flush());
}

/// Passes bytes through to standard output at once.
pub fn bytes(data: &[u8]) {
    let mut out = io::stdout().lock();
    let _gone = out.write_all(data).and_then(|()| out.flush());
}

/// Prints a remark to standard error: progress, notes, errors.
pub fn note(text: impl Display) {
    let _gone = writeln!(io::stderr().lock(), "{text}");
}

/// Prints an error with its chain of causes.
pub fn error(error: &dyn std::error::Error) {
    note_because("error", error);
}

/// Prints a remark, the error that it is about and its chain of causes.
pub fn note_because(remark: impl Display, error: &dyn std::error::Error) {
    note(format_args!("{remark}: {error}"));
    let mut cause = error.source();
    while let Some(inner) = cause {
        note(format_args!("  because: {inner}"));
        cause = inner.source();
    }
}
