//! `machine checkpoint-diff`, and which point is meant.

use std::ops::ControlFlow;

use serde_json::json;
use smolvm_engine::{
    Changed, DiffSummary, Difference, Engine, FileKind, MachineName, PointName, PointSource,
    ProcessDifference,
};

use super::create;
use super::describe::short;
use crate::args::{CheckpointDiffArgs, PointText};
use crate::failure::Failure;
use crate::output::{self, Object, Printer, object};

/// The point that was typed: a path that is there, else a machine, else an id.
pub(super) fn point_name(engine: &Engine, text: &PointText) -> Result<PointName, Failure> {
    let at = text.at.clone();
    if text.from.exists() {
        let source = create::source(text.from.clone());
        return Ok(PointName { source, at });
    }
    let name = text.from.to_str().unwrap_or_default();
    let source = match name.parse::<MachineName>() {
        Ok(name) if engine.machine_names()?.contains(&name) => PointSource::Machine(name),
        _ => create::source(text.from.clone()),
    };
    if let PointSource::Directory(path) = &source {
        return Err(Failure::NotFound {
            what: format!(
                "{} is no checkpoint, exported file, machine or id of a point",
                path.display()
            ),
            hint: "list the points with: smolvm machine checkpoint-log".to_owned(),
        });
    }
    Ok(PointName { source, at })
}

/// Says that a point's disk may lack something.
pub(super) fn warn_of_unwritten(printer: &Printer, id: &str) {
    printer.warning(&format!(
        "{id} was saved before its guest had written everything to its disk: what it changed just before may be missing"
    ));
}

/// `machine checkpoint-diff`.
pub(crate) fn diff(
    engine: &Engine,
    printer: &Printer,
    args: CheckpointDiffArgs,
) -> Result<(), Failure> {
    let (from, to) = (
        point_name(engine, &args.from)?,
        point_name(engine, &args.to)?,
    );
    let mut printed = Ok(());
    let mut visit = |difference: Difference| {
        printed = print(printer, &difference);
        match printed {
            Ok(()) => ControlFlow::Continue(()),
            Err(_) => ControlFlow::Break(()),
        }
    };
    let progress = printer.progress();
    let summary = engine.diff(&from, &to, &mut visit, &*progress);
    drop(progress);
    printed?;
    let Some(summary) = summary? else {
        return Ok(());
    };
    for (id, is_whole) in summary.ids.iter().zip(summary.disk_is_whole) {
        if !is_whole {
            warn_of_unwritten(printer, short(id));
        }
    }
    for process in summary.processes.iter().flatten() {
        let sign = if process.began { '+' } else { '-' };
        let line = format!("{sign} {} {}", process.pid, process.command);
        printer.result(process_object(process), &line)?;
    }
    printer.result(summary_object(&summary), &summary_line(&summary))?;
    match summary.unknown {
        0 => Ok(()),
        unknown => Err(Failure::Partly {
            what: format!(
                "{} not be compared",
                output::count(unknown, "file could", "files could")
            ),
        }),
    }
}

fn print(printer: &Printer, difference: &Difference) -> Result<(), Failure> {
    let (letter, word, path, kind, changed) = match difference {
        Difference::Added { path, kind } => ("A", "added", path, kind, None),
        Difference::Changed {
            path,
            kind,
            changed,
        } => ("M", "changed", path, kind, Some(changed)),
        Difference::Removed { path, kind } => ("D", "removed", path, kind, None),
        Difference::Unknown { path, reason } => {
            printer.warning(&format!("{path}: {reason}"));
            return Ok(());
        }
        _ => return Ok(()),
    };
    let mut result = object(json!({
        "type": "file",
        "change": word,
        "path": path,
        "kind": kind_word(*kind),
    }));
    if let Some(changed) = changed {
        result.insert("what".to_owned(), what(changed).into());
    }
    printer.result(result, &format!("{letter} {path}"))
}

fn kind_word(kind: FileKind) -> &'static str {
    match kind {
        FileKind::File => "file",
        FileKind::Directory => "directory",
        FileKind::Symlink => "symlink",
        _ => "special",
    }
}

fn what(changed: &Changed) -> Vec<&'static str> {
    let parts = [
        (changed.content, "content"),
        (changed.mode, "mode"),
        (changed.owner, "owner"),
    ];
    let parts = parts.into_iter().filter(|(differs, _)| *differs);
    parts.map(|(_, word)| word).collect()
}

fn process_object(process: &ProcessDifference) -> Object {
    object(json!({
        "type": "process",
        "change": if process.began { "began" } else { "ended" },
        "pid": process.pid,
        "command": process.command,
    }))
}

fn summary_object(summary: &DiffSummary) -> Object {
    object(json!({
        "type": "summary",
        "from": summary.ids[0],
        "to": summary.ids[1],
        "added": summary.added,
        "changed": summary.changed,
        "removed": summary.removed,
        "unknown": summary.unknown,
        "memory_bytes": summary.memory_bytes,
        "disk_bytes": summary.disk_bytes,
        "processes": summary.processes.as_ref().map(Vec::len),
        "disks_whole": summary.disk_is_whole,
        "unlisted_processes": summary.unlisted_processes,
    }))
}

/// `2 added, 1 changed, 0 removed · memory 12.4 MiB, disk 1.2 MiB · processes: 1`.
fn summary_line(summary: &DiffSummary) -> String {
    let processes = match (&summary.processes, summary.unlisted_processes) {
        (None, _) => "unknown".to_owned(),
        (Some(processes), 0) => processes.len().to_string(),
        (Some(processes), unlisted) => format!("{}, {unlisted} not listed", processes.len()),
    };
    format!(
        "{} added, {} changed, {} removed · memory {}, disk {} · processes: {processes}",
        summary.added,
        summary.changed,
        summary.removed,
        output::bytes(summary.memory_bytes),
        output::bytes(summary.disk_bytes),
    )
}
