//! `machine try`: a command that may fail, and the way back if it does.

use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};

use smolvm_engine::{CheckpointOptions, Engine, ExecOptions, MachineName, UndoOptions};

use super::session::{self, Foreground};
use super::{describe, exec, terminal, undo};
use crate::args::TryArgs;
use crate::failure::Failure;
use crate::interrupt::{Answer, Watch};
use crate::output::Printer;

/// Most characters of the command in the point's message.
const MESSAGE_CHARACTERS: usize = 60;

/// `machine try`.
pub(crate) fn attempt(
    engine: &Engine,
    printer: &Printer,
    args: TryArgs,
) -> Result<ExitCode, Failure> {
    let name = engine.resolve(args.name)?;
    let mut save = CheckpointOptions::default();
    save.message = message(&args.command.command);
    let progress = printer.progress();
    let saved = engine.checkpoint(&name, &save, &*progress);
    drop(progress);
    let way_back = WayBack {
        engine: engine.clone(),
        printer: *printer,
        name,
        id: saved?.id,
        gone: Arc::default(),
    };
    let foreground = Foreground::default();
    let (receiver, interrupted) = (foreground.clone(), way_back.clone());
    let _watch = Watch::start(move |signal| match receiver.receive(signal) {
        None => Answer::GoOn,
        Some(number) => {
            terminal::restore();
            if let Err(error) = interrupted.go() {
                interrupted.printer.failure(&error);
            }
            Answer::End(number)
        }
    })?;
    let run = |options| session::run(engine, printer, &way_back.name, options, &foreground);
    let mut outcome = run(exec::options(args.command));
    if let (Ok(ExitCode::SUCCESS), Some(check)) = (&outcome, args.check) {
        outcome = run(ExecOptions {
            argv: ["sh".into(), "-c".into(), check].into(),
            ..ExecOptions::default()
        });
    }
    if !matches!(outcome, Ok(ExitCode::SUCCESS)) {
        way_back.go()?;
    }
    outcome
}

/// What the point is remembered by.
fn message(command: &[std::ffi::OsString]) -> String {
    let words: Vec<_> = command.iter().map(|word| word.to_string_lossy()).collect();
    let whole = format!("before {}", words.join(" "));
    if whole.chars().count() <= MESSAGE_CHARACTERS {
        return whole;
    }
    let begin: String = whole.chars().take(MESSAGE_CHARACTERS - 1).collect();
    format!("{begin}…")
}

/// The way to where the machine was before.
#[derive(Clone)]
struct WayBack {
    engine: Engine,
    printer: Printer,
    name: MachineName,
    id: String,
    /// It was gone, or is: nobody goes twice.
    gone: Arc<Mutex<bool>>,
}

impl WayBack {
    /// Goes back, unless that was done; waits for one who is on the way.
    fn go(&self) -> Result<(), Failure> {
        let mut gone = self.gone.lock().unwrap_or_else(PoisonError::into_inner);
        if std::mem::replace(&mut *gone, true) {
            return Ok(());
        }
        let mut options = UndoOptions::default();
        options.to = Some(self.id.clone());
        let progress = self.printer.progress();
        let undone = self.engine.undo(&self.name, &options, &*progress);
        drop(progress);
        let undone = undone?;
        let name = &self.name;
        self.printer.note(&format!(
            "'{name}' is back where it was before, at {}",
            undone.short_id
        ));
        if let Some(kept) = &undone.kept {
            self.printer.note(&format!(
                "  what it had become: smolvm machine undo --name {name} --to {}",
                describe::short(&kept.id)
            ));
        }
        undo::usable(name, undone)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_short() {
        let words = |text: &str| text.split(' ').map(Into::into).collect::<Vec<_>>();
        assert_eq!(message(&words("make test")), "before make test");
        let long = message(&words(&"é".repeat(100)));
        assert_eq!(long.chars().count(), MESSAGE_CHARACTERS);
        assert!(long.ends_with('…'));
    }
}
