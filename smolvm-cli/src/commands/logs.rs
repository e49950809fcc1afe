//! `machine logs`.

use std::io::{self, IsTerminal, Write};

use smolvm_engine::{Engine, EngineError, LogPart};

use crate::args::LogsArgs;
use crate::failure::Failure;
use crate::output::{self, ConsoleFilter, LineObjects, Printer};

/// `machine logs`: the bytes as they are, but nothing that steers a terminal to a terminal; an object a line for programs.
pub(crate) fn logs(engine: &Engine, printer: &Printer, args: LogsArgs) -> Result<(), Failure> {
    let name = engine.resolve(args.machine.given())?;
    let stdout = output::raw_stdout()?;
    let mut to: Box<dyn Write> = if printer.is_json() {
        Box::new(LineObjects::new(stdout))
    } else if io::stdout().is_terminal() {
        Box::new(ConsoleFilter::new(stdout))
    } else {
        Box::new(stdout)
    };
    let mut failed = None;
    let mut part = LogPart::default();
    part.follow = args.follow;
    part.last_lines = args.tail;
    let result = engine.read_console(&name, part, &mut |bytes| {
        to.write_all(bytes).map_err(|error| {
            let kind = error.kind();
            failed = Some(error);
            kind.into()
        })
    });
    // What comes last may lack its line feed.
    if result.is_ok() {
        to.flush().map_err(Failure::Output)?;
    }
    match (result, failed) {
        (Err(EngineError::Io(_)), Some(error)) => Err(Failure::Output(error)),
        (result, _) => Ok(result?),
    }
}
