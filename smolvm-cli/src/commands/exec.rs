//! `machine exec` and `machine shell`.

use std::process::ExitCode;

use serde_json::json;
use smolvm_engine::{Engine, ExecOptions, MachineName};

use super::session::{self, Foreground};
use super::terminal;
use crate::args::{CommandArgs, ExecArgs, ShellArgs};
use crate::failure::Failure;
use crate::interrupt::{Answer, Watch};
use crate::output::{Printer, object};

/// `machine exec`.
pub(crate) fn exec(
    engine: &Engine,
    printer: &Printer,
    args: ExecArgs,
) -> Result<ExitCode, Failure> {
    let name = engine.resolve(args.name)?;
    let mut options = options(args.command);
    options.environment.extend(args.env);
    options.directory = args.workdir;
    options.detach = args.detach;
    if args.detach {
        let session = engine.exec(&name, options)?;
        let result = json!({"session": session.session, "pid": session.pid});
        printer.result(object(result), &session.session.to_string())?;
        return Ok(ExitCode::SUCCESS);
    }
    in_front(engine, printer, &name, options)
}

/// `machine shell`.
pub(crate) fn shell(
    engine: &Engine,
    printer: &Printer,
    args: ShellArgs,
) -> Result<ExitCode, Failure> {
    let name = engine.resolve(args.machine.given())?;
    let mut environment = terminal_environment();
    environment.extend(args.env);
    let options = ExecOptions {
        environment,
        directory: args.workdir,
        user: args.user,
        stdin: true,
        tty: Some(terminal::size()),
        ..ExecOptions::default()
    };
    in_front(engine, printer, &name, options)
}

/// What `exec` and `run` have in common.
pub(crate) fn options(args: CommandArgs) -> ExecOptions {
    ExecOptions {
        argv: args.command,
        environment: if args.tty {
            terminal_environment()
        } else {
            Vec::new()
        },
        user: args.user,
        stdin: args.interactive,
        tty: args.tty.then(terminal::size),
        timeout: args.timeout,
        ..ExecOptions::default()
    }
}

/// What a command on our terminal has to know about it.
fn terminal_environment() -> Vec<(String, String)> {
    std::env::var("TERM")
        .ok()
        .filter(|term| !term.is_empty())
        .map(|term| ("TERM".to_owned(), term))
        .into_iter()
        .collect()
}

/// Runs a command while we wait. It gets the first signal that asks to end; the second ends us, and the
/// command with its connection.
fn in_front(
    engine: &Engine,
    printer: &Printer,
    name: &MachineName,
    options: ExecOptions,
) -> Result<ExitCode, Failure> {
    let foreground = Foreground::default();
    let receiver = foreground.clone();
    let _watch = Watch::start(move |signal| match receiver.receive(signal) {
        None => Answer::GoOn,
        Some(number) => {
            terminal::restore();
            Answer::End(number)
        }
    })?;
    session::run(engine, printer, name, options, &foreground)
}
