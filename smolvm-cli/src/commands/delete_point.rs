//! `machine checkpoint-delete`.

use serde_json::json;
use smolvm_engine::{Engine, format_utc};

use super::create::id;
use crate::args::CheckpointDeleteArgs;
use crate::failure::Failure;
use crate::output::{Printer, object};

/// `machine checkpoint-delete`.
pub(crate) fn delete(
    engine: &Engine,
    printer: &Printer,
    args: CheckpointDeleteArgs,
) -> Result<(), Failure> {
    match id(&args.point) {
        Some(id) if args.store.is_some() || !args.point.exists() => {
            delete_stored(engine, printer, &args, &id)
        }
        _ if args.store.is_some() => Err(Failure::Usage {
            what: format!("{} is no id of a point", args.point.display()),
            hint: Some("list the ids with: smolvm machine checkpoint-log --store STORE".to_owned()),
        }),
        _ => delete_directory(engine, printer, &args),
    }
}

fn delete_stored(
    engine: &Engine,
    printer: &Printer,
    args: &CheckpointDeleteArgs,
    id: &str,
) -> Result<(), Failure> {
    let store = args.store.as_deref();
    // An unknown one is told before anything is asked.
    let point = engine.stored_point(store, id)?;
    let (short, taken) = (&point.short_id, format_utc(point.taken_unix));
    let question = format!("Delete point {short} of '{}', {taken}?", point.machine);
    if !args.force && !ask(printer, &question, args)? {
        printer.note("Nothing deleted");
        return Ok(());
    }
    engine.delete_point(store, &point.id)?;
    let result = json!({"id": point.id, "machine": point.machine, "deleted": true});
    printer.result(
        object(result),
        &format!("Deleted point {short} of '{}'", point.machine),
    )?;
    let next = match store {
        Some(store) => format!(
            "smolvm machine checkpoint-prune --store {}",
            store.display()
        ),
        None => "smolvm machine checkpoint-prune".to_owned(),
    };
    printer.note(&format!("give back what only it needed with: {next}"));
    Ok(())
}

fn delete_directory(
    engine: &Engine,
    printer: &Printer,
    args: &CheckpointDeleteArgs,
) -> Result<(), Failure> {
    let path = &args.point;
    engine.check_deletable(path)?;
    let question = format!("Delete {} with all its points?", path.display());
    if !args.force && !ask(printer, &question, args)? {
        printer.note("Nothing deleted");
        return Ok(());
    }
    let deleted = engine.delete_checkpoint(path)?;
    printer.result(
        object(json!({"directory": deleted.display().to_string(), "deleted": true})),
        &format!("Deleted {}", path.display()),
    )
}

fn ask(printer: &Printer, question: &str, args: &CheckpointDeleteArgs) -> Result<bool, Failure> {
    let point = args.point.display();
    let confirmed = || match &args.store {
        Some(store) => {
            let store = store.display();
            format!("smolvm machine checkpoint-delete {point} --store {store} -f")
        }
        None => format!("smolvm machine checkpoint-delete {point} -f"),
    };
    printer.confirm(question)?.ok_or_else(|| Failure::Usage {
        what: "deleting needs a confirmation, and there is no terminal to ask on".to_owned(),
        hint: Some(format!("confirm it with -f: {}", confirmed())),
    })
}
