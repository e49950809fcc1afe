//! Everything that is printed: the only place that writes to stdout and stderr.
//!
//! Data goes to stdout, everything else to stderr. What came from guests, files or the host may hold
//! anything: it is made [`harmless()`] here, whoever prints it.

mod closed;
mod harmless;
mod json;
mod lines;
pub(crate) mod log;
mod progress;
mod raw;
mod table;
mod text;

use std::io::{self, IsTerminal, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::process::ExitCode;

use clap::error::ErrorKind;
use serde_json::json;
use smolvm_engine::chain;
use smolvm_engine::progress::{Progress, Silent};

pub(crate) use harmless::{ConsoleFilter, harmless};
pub(crate) use json::{Object, object};
pub(crate) use lines::LineObjects;
pub(crate) use progress::Spinner;
pub(crate) use raw::RawStream;
pub(crate) use table::Table;
pub(crate) use text::{age, bytes, count, every, milliseconds, seconds, yes_no};

use crate::args::Refusal;
use crate::failure::Failure;

/// Prints what a command has to say, in the form that was asked for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Printer {
    json: bool,
}

impl Printer {
    pub(crate) fn new(json: bool) -> Self {
        Self { json }
    }

    /// One result: the object for programs, else the line for people.
    pub(crate) fn result(&self, object: Object, line: &str) -> Result<(), Failure> {
        if self.json {
            self.object(object)
        } else {
            self.line(line)
        }
    }

    /// Many results: an object each for programs, else a table for people.
    pub(crate) fn results(
        &self,
        objects: impl IntoIterator<Item = Object>,
        table: Table,
    ) -> Result<(), Failure> {
        if !self.json {
            return self.text(&table.render());
        }
        objects.into_iter().try_for_each(|one| self.object(one))
    }

    /// Whether objects are wanted.
    pub(crate) fn is_json(&self) -> bool {
        self.json
    }

    fn object(&self, object: Object) -> Result<(), Failure> {
        self.text(&format!("{}\n", json::render(object)))
    }

    /// A line of data.
    pub(crate) fn line(&self, line: &str) -> Result<(), Failure> {
        self.text(&format!("{}\n", harmless(line)))
    }

    /// Finished text, line ends included, that holds nothing foreign.
    fn text(&self, text: &str) -> Result<(), Failure> {
        let mut stdout = io::stdout().lock();
        stdout
            .write_all(text.as_bytes())
            .and_then(|()| stdout.flush())
            .map_err(Failure::Output)
    }

    /// Something to know that is not data.
    pub(crate) fn note(&self, text: &str) {
        if !self.json {
            say(&harmless(text));
        }
    }

    /// Something that went otherwise than expected, and is no failure.
    pub(crate) fn warning(&self, text: &str) {
        if self.json {
            say(&json::render(json::warning(text)));
        } else {
            say(&format!("warning: {}", harmless(text)));
        }
    }

    /// Why nothing came of it; the exit code that says so.
    pub(crate) fn failure(&self, failure: &Failure) -> ExitCode {
        if !failure.is_broken_pipe() {
            let message = chain(failure);
            let (code, hint) = (failure.code(), failure.hint());
            if self.json {
                say(&json::render(json::error(code, &message, hint.as_deref())));
            } else {
                say(&format!("error: {}", harmless(&message)));
                if let Some(hint) = hint {
                    say(&format!("hint: {}", harmless(&hint)));
                }
            }
        }
        failure.into()
    }

    /// Draws long work on a terminal; says nothing elsewhere.
    pub(crate) fn progress(&self) -> Box<dyn Progress> {
        if !self.json && io::stderr().is_terminal() {
            Box::new(progress::Bars::default())
        } else {
            Box::new(Silent)
        }
    }

    /// Says on a terminal that something takes a while.
    pub(crate) fn spinner(&self, what: &str) -> Spinner {
        Spinner::start(what, !self.json && io::stderr().is_terminal())
    }

    /// Asks a question on the terminal; `None` where there is nobody to ask.
    pub(crate) fn confirm(&self, question: &str) -> Result<Option<bool>, Failure> {
        if !(io::stdin().is_terminal() && io::stderr().is_terminal()) {
            return Ok(None);
        }
        let mut stderr = io::stderr().lock();
        let asked = write!(stderr, "{} [y/N] ", harmless(question)).and_then(|()| stderr.flush());
        asked.map_err(Failure::host("ask on the terminal"))?;
        let mut answer = String::new();
        io::stdin()
            .read_line(&mut answer)
            .map_err(Failure::host("read the answer"))?;
        let answer = answer.trim().to_ascii_lowercase();
        Ok(Some(answer == "y" || answer == "yes"))
    }
}

/// One line on stderr. With stderr gone there is nobody to tell, and nothing to do about it.
fn say(line: &str) {
    let _ = writeln!(io::stderr().lock(), "{line}");
}

/// Answers a command line that was not understood, or that asked for help.
pub(crate) fn refusal(refusal: Refusal) -> ExitCode {
    let (error, json) = match refusal {
        Refusal::Parser { error, json } => (error, json),
        Refusal::NotAvailable { what, json } => {
            return Printer::new(json).failure(&Failure::not_available(what));
        }
        Refusal::Habit {
            word,
            command,
            json,
        } => {
            return Printer::new(json).failure(&Failure::Usage {
                what: format!("there is no command `{word}`"),
                hint: Some(format!("what it does elsewhere is here: {command}")),
            });
        }
    };
    let code = u8::try_from(error.exit_code()).unwrap_or(crate::failure::USAGE);
    if json && error.use_stderr() {
        let text = error.to_string();
        let first = text.lines().next().unwrap_or_default();
        let message = first.strip_prefix("error: ").unwrap_or(first);
        let hint = Some("see: smolvm --help");
        say(&json::render(json::error("usage", message, hint)));
    } else if json && error.kind() == ErrorKind::DisplayVersion {
        let version = json!({"version": env!("CARGO_PKG_VERSION")});
        if let Err(failure) = Printer::new(json).object(object(version)) {
            return Printer::new(json).failure(&failure);
        }
    } else {
        // A reader of the help that is gone needs no help.
        let _ = error.print();
    }
    code.into()
}

/// Finished bytes of data.
pub(crate) fn data(bytes: &[u8]) -> Result<(), Failure> {
    raw_stdout()?.write_all(bytes).map_err(Failure::Output)
}

/// Our stdout as it is, for a guest's bytes.
pub(crate) fn raw_stdout() -> Result<RawStream, Failure> {
    match closed::instead_of_stdout() {
        Some(closed) => raw(closed.map(OwnedFd::from)),
        None => raw(io::stdout().as_fd().try_clone_to_owned()),
    }
}

/// Our stderr as it is, for a guest's bytes.
pub(crate) fn raw_stderr() -> Result<RawStream, Failure> {
    raw(io::stderr().as_fd().try_clone_to_owned())
}

/// Our stdin as it is, unbuffered.
pub(crate) fn raw_stdin() -> Result<RawStream, Failure> {
    raw(io::stdin().as_fd().try_clone_to_owned())
}

fn raw(descriptor: io::Result<OwnedFd>) -> Result<RawStream, Failure> {
    descriptor
        .map(RawStream::new)
        .map_err(Failure::host("use the standard streams"))
}
