//! `machine checkpoint` and `machine checkpoint-log`.

use std::path::PathBuf;
use std::time::Duration;

use serde_json::json;
use smolvm_engine::{Checkpoint, CheckpointOptions, Engine, LogEntry, MachineName, format_utc};

use super::create;
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
    let (entries, hint) = match args.point {
        Some(point) => of_point_or_machine(engine, point)?,
        None => {
            let log = engine.store_log(args.store.as_deref(), args.machine.as_ref())?;
            let none = "no points yet; save one with: smolvm machine checkpoint";
            let hint = log.is_empty().then(|| none.to_owned());
            (log, hint)
        }
    };
    for entry in &entries {
        printer.result(describe_entry(entry), &line(entry))?;
    }
    if let Some(hint) = hint {
        printer.note(&hint);
    }
    Ok(())
}

/// The log of what is named, with what one does with it. A machine is meant only where nothing else can be.
fn of_point_or_machine(
    engine: &Engine,
    named: PathBuf,
) -> Result<(Vec<LogEntry>, Option<String>), Failure> {
    let machine = named
        .to_str()
        .and_then(|name| name.parse::<MachineName>().ok());
    let machine = machine.filter(|_| !named.exists());
    let machine = machine.filter(|name| engine.machine(name).is_ok());
    if let Some(name) = machine {
        let entries = engine.machine_log(&name)?;
        let hint = match entries.is_empty() {
            true => {
                format!("no points yet; save one with: smolvm machine checkpoint --name {name}")
            }
            false => format!("go back to one with: smolvm machine undo --name {name} --to '~N'"),
        };
        return Ok((entries, Some(hint)));
    }
    let hint = format!(
        "restore one with: smolvm machine create --name NEW --from {} --at '~N'",
        named.display()
    );
    Ok((engine.checkpoint_log(&create::source(named))?, Some(hint)))
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
