//! `machine checkpoint` and `machine checkpoint-log`.

use std::path::Path;
use std::time::Duration;

use serde_json::json;
use smolvm_engine::{Checkpoint, CheckpointOptions, Engine, LogEntry, format_utc};

use crate::args::{CheckpointArgs, CheckpointLogArgs};
use crate::failure::Failure;
use crate::output::{self, Object, Printer, object};

/// `machine checkpoint`.
pub(crate) fn checkpoint(
    engine: &Engine,
    printer: &Printer,
    args: CheckpointArgs,
) -> Result<(), Failure> {
    let name = engine.resolve(args.machine.given())?;
    let mut options = CheckpointOptions::default();
    options.store = args.store;
    options.output = args.output.clone();
    options.history = args.history;
    options.message = args.message.unwrap_or_default();
    let progress = printer.progress();
    let saved = engine.checkpoint(&name, &options, &*progress);
    drop(progress);
    let saved = saved?;
    for warning in &saved.warnings {
        printer.warning(warning);
    }
    if printer.is_json() {
        return printer.result(describe(name.as_str(), &saved), "");
    }
    let place = args.output.map_or_else(
        || "into the store".to_owned(),
        |output| format!("to {}", output.display()),
    );
    printer.line(&format!(
        "Checkpointed '{name}' {place}   {}",
        saved.short_id
    ))?;
    printer.line(&format!(
        "  paused {} · saved in {:.2} s · {} written, {} data, {} shared",
        output::milliseconds(saved.paused),
        saved.saved_in.as_secs_f64(),
        output::bytes(saved.written_bytes),
        output::bytes(saved.data_bytes),
        output::bytes(saved.shared_bytes)
    ))?;
    if !saved.tracked {
        printer.note(&format!(
            "'{name}' keeps no track of changes: it was saved in full, standing still meanwhile"
        ));
    }
    Ok(())
}

pub(super) fn describe(name: &str, saved: &Checkpoint) -> Object {
    object(json!({
        "name": name,
        "id": saved.id,
        "output": saved.output.as_ref().map(|path| path.display().to_string()),
        "paused_ms": thousandths(saved.paused),
        "saved_in_ms": thousandths(saved.saved_in),
        "written_bytes": saved.written_bytes,
        "data_bytes": saved.data_bytes,
        "shared_bytes": saved.shared_bytes,
        "tracked": saved.tracked,
    }))
}

/// A time in milliseconds, with three digits after the point.
pub(super) fn thousandths(time: Duration) -> f64 {
    time.as_micros() as f64 / 1e3
}

/// `machine checkpoint-log`.
pub(crate) fn log(
    engine: &Engine,
    printer: &Printer,
    args: CheckpointLogArgs,
) -> Result<(), Failure> {
    let entries = match &args.point {
        Some(point) => engine.checkpoint_log(point)?,
        None => engine.store_log(args.store.as_deref(), args.machine.as_ref())?,
    };
    for entry in &entries {
        printer.result(describe_entry(entry), &line(entry))?;
    }
    if let Some(point) = &args.point {
        printer.note(&restore_with(point));
    }
    Ok(())
}

fn restore_with(point: &Path) -> String {
    format!(
        "restore one with: smolvm machine create --name NEW --from {} --at '~N'",
        point.display()
    )
}

fn line(entry: &LogEntry) -> String {
    let mut line = String::new();
    if let Some(generation) = entry.generation {
        line.push_str(&format!("{:<5}", format!("~{generation}")));
    }
    if let Some(reason) = &entry.damaged {
        line.push_str(&format!("{}  (damaged: {reason})", entry.short_id));
        return line;
    }
    line.push_str(&format!(
        "{}  {}  {}  {} data",
        entry.short_id,
        format_utc(entry.taken_unix),
        entry.machine,
        output::bytes(entry.data_bytes)
    ));
    if !entry.message.is_empty() {
        line.push_str(&format!("  \"{}\"", entry.message));
    }
    if entry.autosave {
        line.push_str("  autosave");
    }
    if entry.generation == Some(0) {
        line.push_str("  (this checkpoint)");
    }
    if entry.gone {
        line.push_str("  (gone)");
    }
    line
}

fn describe_entry(entry: &LogEntry) -> Object {
    object(json!({
        "generation": entry.generation,
        "id": entry.id,
        "parent": entry.parent,
        "taken": format_utc(entry.taken_unix),
        "machine": entry.machine,
        "message": entry.message,
        "autosave": entry.autosave,
        "data_bytes": entry.data_bytes,
        "gone": entry.gone,
        "damaged": entry.damaged,
    }))
}
