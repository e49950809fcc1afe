//! What each command does: typed options in, calls of the engine, results out.

mod archive;
mod attempt;
mod autosave;
mod branch;
mod checkpoint;
mod copy;
mod create;
mod delete;
mod delete_point;
mod describe;
mod df;
mod diff;
mod exec;
mod help;
mod image;
mod kernel;
mod list;
mod logs;
mod pause;
mod prune;
mod run;
mod session;
mod start;
mod stop;
mod system;
mod terminal;
mod tree;
mod undo;
mod verify;

use std::process::ExitCode;

use smolvm_engine::{Engine, EngineOptions};

use crate::args::{Command, ImageCommand, MachineCommand};
use crate::failure::Failure;
use crate::output::Printer;

/// Carries out a command; the exit code where it is not simply success.
pub(crate) fn run(command: Command, printer: &Printer) -> Result<ExitCode, Failure> {
    let engine = || -> Result<Engine, Failure> {
        let options = EngineOptions::from_environment()?;
        Ok(Engine::open(options)?)
    };
    match command {
        Command::Machine(command) | Command::Short(command) => machine(command, &engine, printer),
        Command::Image(command) => image::run(command, &engine()?, printer),
        Command::Kernel(command) => kernel::run(command, &engine()?, printer),
        Command::Doctor => system::doctor(&engine()?, printer),
        Command::Df(args) => df::df(&engine()?, printer, &args),
        Command::Completions(args) => system::completions(&args),
        Command::Help(args) => help::help(&args),
        Command::Images => image::run(ImageCommand::Ls, &engine()?, printer),
    }
}

fn machine(
    command: MachineCommand,
    engine: &dyn Fn() -> Result<Engine, Failure>,
    printer: &Printer,
) -> Result<ExitCode, Failure> {
    let done = |()| ExitCode::SUCCESS;
    match command {
        MachineCommand::Run(args) => {
            let engine = engine().map_err(Failure::around_command)?;
            run::run(&engine, printer, *args).map_err(Failure::around_command)
        }
        MachineCommand::Exec(args) => {
            let engine = engine().map_err(Failure::around_command)?;
            exec::exec(&engine, printer, args).map_err(Failure::around_command)
        }
        MachineCommand::Shell(args) => {
            let engine = engine().map_err(Failure::around_command)?;
            exec::shell(&engine, printer, args).map_err(Failure::around_command)
        }
        MachineCommand::Create(args) => create::create(&engine()?, printer, *args).map(done),
        MachineCommand::Start(args) => start::start(&engine()?, printer, args).map(done),
        MachineCommand::Stop(args) => stop::stop(&engine()?, printer, args).map(done),
        MachineCommand::Pause(args) => pause::pause(&engine()?, printer, args).map(done),
        MachineCommand::Resume(args) => pause::resume(&engine()?, printer, args).map(done),
        MachineCommand::Restart(args) => start::restart(&engine()?, printer, args).map(done),
        MachineCommand::Delete(args) => delete::delete(&engine()?, printer, args).map(done),
        MachineCommand::Rename(args) => create::rename(&engine()?, printer, args).map(done),
        MachineCommand::Cp(args) => copy::copy(&engine()?, printer, args).map(done),
        MachineCommand::Logs(args) => logs::logs(&engine()?, printer, args).map(done),
        MachineCommand::Ls(args) => list::list(&engine()?, printer, &args).map(done),
        MachineCommand::Status(args) => list::status(&engine()?, printer, args).map(done),
        MachineCommand::Checkpoint(args) => {
            checkpoint::checkpoint(&engine()?, printer, args).map(done)
        }
        MachineCommand::CheckpointLog(args) => checkpoint::log(&engine()?, printer, args).map(done),
        MachineCommand::CheckpointDiff(args) => diff::diff(&engine()?, printer, args).map(done),
        MachineCommand::Tree(args) => tree::tree(&engine()?, printer, &args).map(done),
        MachineCommand::CheckpointVerify(args) => {
            verify::verify(&engine()?, printer, args).map(done)
        }
        MachineCommand::CheckpointExport(args) => {
            archive::export(&engine()?, printer, args).map(done)
        }
        MachineCommand::CheckpointImport(args) => {
            archive::import(&engine()?, printer, args).map(done)
        }
        MachineCommand::CheckpointDelete(args) => {
            delete_point::delete(&engine()?, printer, args).map(done)
        }
        MachineCommand::CheckpointPrune(args) => prune::prune(&engine()?, printer, args).map(done),
        MachineCommand::Try(args) => {
            let engine = engine().map_err(Failure::around_command)?;
            attempt::attempt(&engine, printer, args).map_err(Failure::around_command)
        }
        MachineCommand::Autosave(args) => autosave::autosave(&engine()?, printer, args).map(done),
        MachineCommand::Branch(args) => branch::branch(&engine()?, printer, args).map(done),
        MachineCommand::BranchRelease(args) => branch::release(&engine()?, printer, args).map(done),
        MachineCommand::Undo(args) => undo::undo(&engine()?, printer, args).map(done),
    }
}

/// Those of the named things that can be opened, and how many cannot: each of these is named in a warning, and hides none of the others.
fn readable<T, E: std::error::Error + 'static>(
    printer: &Printer,
    names: Vec<String>,
    open: impl Fn(&str) -> Result<T, E>,
) -> (Vec<T>, u64) {
    let (mut found, mut damaged) = (Vec::new(), 0);
    for name in names {
        match open(&name) {
            Ok(one) => found.push(one),
            Err(error) => {
                damaged += 1;
                printer.warning(&smolvm_engine::chain(&error));
            }
        }
    }
    (found, damaged)
}
