//! `machine undo`.

use serde_json::json;
use smolvm_engine::{Engine, EngineError, MachineName, UndoOptions, Undone, format_utc};

use crate::args::UndoArgs;
use crate::failure::Failure;
use crate::output::{Object, Printer, object};

/// `machine undo`.
pub(crate) fn undo(engine: &Engine, printer: &Printer, args: UndoArgs) -> Result<(), Failure> {
    let name = engine.resolve(args.machine.given())?;
    let mut options = UndoOptions::default();
    options.to = args.to;
    options.discard = args.discard;
    let progress = printer.progress();
    let undone = engine.undo(&name, &options, &*progress);
    drop(progress);
    report(printer, &name, undone?)
}

/// Says what was done; a failure where the guest at the point does not answer.
fn report(printer: &Printer, name: &MachineName, undone: Undone) -> Result<(), Failure> {
    if printer.is_json() {
        printer.result(describe(name, &undone), "")?;
    } else {
        for line in lines(name, &undone) {
            printer.line(&line)?;
        }
    }
    if let Some(reason) = &undone.lost {
        printer.warning(&format!("the state that was left is lost: {reason}"));
    }
    for step in &undone.pending {
        printer.warning(&format!("not for good: {step}; the next start tries again"));
    }
    usable(name, undone)
}

/// A failure where the machine runs at the point, but cannot be worked in.
pub(super) fn usable(name: &MachineName, undone: Undone) -> Result<(), Failure> {
    let name = name.clone();
    match (undone.silent, undone.not_set_up) {
        (None, None) => Ok(()),
        (Some(reason), _) => Err(Failure::Engine(EngineError::AgentSilent { name, reason })),
        (None, Some(reason)) => Err(Failure::Engine(EngineError::NotSetUp { name, reason })),
    }
}

fn lines(name: &MachineName, undone: &Undone) -> Vec<String> {
    let of = if undone.autosave {
        ", autosave,"
    } else {
        " of"
    };
    let mut first = format!(
        "'{name}' is back at {}{of} {}",
        undone.short_id,
        format_utc(undone.taken_unix)
    );
    if !undone.message.is_empty() {
        first.push_str(&format!("  \"{}\"", undone.message));
    }
    first.push_str(&format!("   {:.2} s", undone.took.as_secs_f64()));
    let mut lines = vec![first];
    if undone.autosave {
        lines.push(format!(
            "  further back: smolvm machine undo --name {name} --to '~1'"
        ));
    }
    if let Some(kept) = &undone.kept {
        lines.push(format!(
            "  what it was is {}: smolvm machine undo --name {name} --to {}",
            kept.short_id, kept.short_id
        ));
    }
    lines
}

fn describe(name: &MachineName, undone: &Undone) -> Object {
    let kept = undone.kept.as_ref();
    object(json!({
        "name": name.as_str(),
        "id": undone.id,
        "taken": format_utc(undone.taken_unix),
        "message": undone.message,
        "autosave": undone.autosave,
        "kept": kept.map(|kept| &kept.id),
        "store": kept.map(|kept| kept.store.display().to_string()),
        "lost": undone.lost,
        "in_place": undone.in_place,
        "backend": undone.backend,
        "answers": undone.silent.is_none(),
        "pending": undone.pending,
        "took_ms": undone.took.as_secs_f64() * 1e3,
    }))
}
