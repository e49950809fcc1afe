//! A command in a machine, joined to our streams, our terminal and our signals.

use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};

use signal_hook::consts::SIGINT;
use smolvm_engine::agent_protocol::client::ClientError;
use smolvm_engine::agent_protocol::message::Outcome;
use smolvm_engine::{Engine, EngineError, ExecOptions, ExecWriter, MachineName};

use super::describe;
use super::terminal::{self, RawMode};
use crate::failure::Failure;
use crate::interrupt::Signal;
use crate::output::{self, Printer};

/// The command in front, for whoever gets our signals.
#[derive(Clone, Default)]
pub(crate) struct Foreground {
    current: Arc<Mutex<Option<Current>>>,
}

struct Current {
    writer: ExecWriter,
    has_tty: bool,
}

impl Foreground {
    fn set(&self, current: Option<Current>) {
        *self.current.lock().unwrap_or_else(PoisonError::into_inner) = current;
    }

    /// Passes a signal on to a command on a terminal. Returns the number of one that ends us.
    pub(crate) fn receive(&self, signal: Signal) -> Option<i32> {
        let current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        match (signal, &*current) {
            (Signal::Resized, Some(current)) if current.has_tty => {
                // A command that has ended has no terminal any more.
                let _ = current.writer.resize(terminal::size());
                None
            }
            (Signal::Resized, _) => None,
            (Signal::End(SIGINT), Some(current))
                if current.has_tty && current.writer.signal(SIGINT).is_ok() =>
            {
                None
            }
            (Signal::End(number), _) => Some(number),
        }
    }
}

/// Runs a command to its end with our streams; returns its exit code.
pub(crate) fn run(
    engine: &Engine,
    printer: &Printer,
    name: &MachineName,
    options: ExecOptions,
    foreground: &Foreground,
) -> Result<ExitCode, Failure> {
    let (has_stdin, has_tty, timeout) = (options.stdin, options.tty.is_some(), options.timeout);
    let (mut stdout, mut stderr) = (output::raw_stdout()?, output::raw_stderr()?);
    let stdin = if has_stdin {
        Some(output::raw_stdin()?)
    } else {
        None
    };
    let undos = engine.undo_count(name)?;
    let session = engine.exec(name, options)?;
    foreground.set(Some(Current {
        writer: session.writer.clone(),
        has_tty,
    }));
    let raw = if has_tty && has_stdin {
        RawMode::enter()?
    } else {
        None
    };
    let ended = session.run(stdin, &mut stdout, &mut stderr);
    foreground.set(None);
    drop(raw);
    let outcome = ended.map_err(|source| broken(engine, name, undos, source))?;
    if let (Outcome::TimedOut, Some(timeout)) = (outcome, timeout) {
        printer.warning(&format!(
            "the command was ended after {}",
            output::seconds(timeout)
        ));
    }
    Ok(outcome.exit_code().into())
}

/// Why a command's connection ended before the command did; `undos` is how often the machine had gone back before.
fn broken(engine: &Engine, name: &MachineName, undos: u64, source: ClientError) -> Failure {
    if let ClientError::Output(source) = source {
        return Failure::Output(source);
    }
    let state = match (engine.went_back(name, undos), engine.machine(name)) {
        (Some(point), _) => format!("went back to point {}", describe::short(&point)),
        (None, Ok(machine)) => format!("is {}", describe::state(&machine.state)),
        (None, Err(EngineError::NoMachine { .. })) => "was deleted".to_owned(),
        (None, Err(_)) => "cannot be read".to_owned(),
    };
    Failure::Engine(EngineError::CommandLost {
        name: name.clone(),
        state,
        source,
    })
}
