//! A command in a machine, joined to our streams, our terminal and our signals.

use std::process::ExitCode;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

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
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    current: Option<Current>,
    /// A signal that asks to end has been passed on.
    asked: bool,
}

struct Current {
    writer: ExecWriter,
    has_tty: bool,
}

impl Foreground {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set(&self, current: Option<Current>) {
        self.state().current = current;
    }

    /// Passes a signal on to the command, which then does with it what a local one would. Returns the
    /// number of one that ends us: there is no command, or it was asked before. Never waits for the
    /// guest.
    pub(crate) fn receive(&self, signal: Signal) -> Option<i32> {
        let mut state = self.state();
        match (signal, &state.current) {
            (Signal::Resized, Some(current)) if current.has_tty => {
                // A command that has ended has no terminal any more.
                let _ = current.writer.resize(terminal::size());
                None
            }
            (Signal::Resized, _) => None,
            (Signal::End(number), Some(current))
                if !state.asked && current.writer.signal(number).is_ok() =>
            {
                state.asked = true;
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
    let raw = match (has_tty, has_stdin) {
        (true, true) => RawMode::for_input()?,
        (true, false) => RawMode::for_output()?,
        (false, _) => None,
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
