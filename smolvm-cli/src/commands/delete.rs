//! `machine delete`.

use serde_json::json;
use smolvm_engine::{Engine, EngineError, MachineName, MachineState};

use crate::args::DeleteArgs;
use crate::failure::Failure;
use crate::output::{Printer, object};

/// `machine delete`.
pub(crate) fn delete(engine: &Engine, printer: &Printer, args: DeleteArgs) -> Result<(), Failure> {
    if args.all {
        return delete_all(engine, printer, args.force);
    }
    let name = engine.resolve(args.machine.given())?;
    // An unknown name is told before anything is asked.
    let state = engine.machine(&name)?.state;
    let is_running = state == MachineState::Running;
    let question = if is_running {
        format!(
            "'{name}' is running. End it and delete it with all its files? What is saved in stores stays."
        )
    } else if state == MachineState::Paused {
        format!("'{name}' is paused. Delete it with all its files, and what was in its memory?")
    } else {
        format!("Delete '{name}' with all its files?")
    };
    if !args.force && !ask(printer, &question, &format!("--name {name}"))? {
        printer.note("Nothing deleted");
        return Ok(());
    }
    // Whoever answered was asked about the machine as it was then.
    engine.delete(&name, args.force || is_running)?;
    report(printer, &name)
}

fn delete_all(engine: &Engine, printer: &Printer, force: bool) -> Result<(), Failure> {
    let names = engine.machine_names()?;
    if names.is_empty() {
        printer.note("There are no machines");
        return Ok(());
    }
    let question = format!("Delete all {} machines with their files?", names.len());
    if !force && !ask(printer, &question, "--all")? {
        printer.note("Nothing deleted");
        return Ok(());
    }
    let mut failed = 0;
    for name in names {
        match engine.delete(&name, force) {
            // Somebody else deleted it.
            Ok(()) | Err(EngineError::NoMachine { .. }) => report(printer, &name)?,
            Err(error) => {
                failed += 1;
                printer.warning(&smolvm_engine::chain(&error));
            }
        }
    }
    Failure::unless_all(failed, "deleted")
}

fn ask(printer: &Printer, question: &str, what: &str) -> Result<bool, Failure> {
    printer.confirm(question)?.ok_or_else(|| Failure::Usage {
        what: "deleting needs a confirmation, and there is no terminal to ask on".to_owned(),
        hint: Some(format!(
            "confirm it with -f: smolvm machine delete {what} -f"
        )),
    })
}

fn report(printer: &Printer, name: &MachineName) -> Result<(), Failure> {
    printer.result(
        object(json!({"name": name.as_str(), "deleted": true})),
        &format!("Deleted '{name}'"),
    )
}
