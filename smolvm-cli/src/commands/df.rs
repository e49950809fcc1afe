//! `df`.

use std::process::ExitCode;

use serde_json::json;
use smolvm_engine::{DiskUsage, Engine, UsageOf, Used, UsedByPoint, format_utc};

use crate::args::DfArgs;
use crate::failure::Failure;
use crate::output::{self, Object, Printer, Table, object};

/// Longest name in the table: with the other columns it fits a terminal of 80.
const NAME_WIDTH: usize = 44;

/// `df`.
pub(crate) fn df(engine: &Engine, printer: &Printer, args: &DfArgs) -> Result<ExitCode, Failure> {
    let usage = engine.disk_usage(args.store.as_deref())?;
    if printer.is_json() {
        for object in objects(&usage) {
            printer.result(object, "")?;
        }
        return Ok(ExitCode::SUCCESS);
    }
    let mut table = Table::new(["WHAT", "NAME", "OWN", "SHARED"]);
    let size = output::bytes;
    for Used { what, bytes, .. } in &usage.items {
        let (kind, name) = named(what);
        table.row([
            kind.to_owned(),
            fitting(&name),
            size(bytes.own_bytes),
            size(bytes.shared_bytes),
        ]);
    }
    for point in &usage.points {
        let entry = &point.entry;
        let [own, shared] = match &point.bytes {
            Some(bytes) => [size(bytes.own_bytes), size(bytes.shared_bytes)],
            None => ["damaged".to_owned(), "-".to_owned()],
        };
        let taken = format_utc(entry.taken_unix);
        let name = format!("{} {taken} {}", entry.short_id, entry.machine);
        table.row(["point".to_owned(), cut(&name), own, shared]);
    }
    printer.results([], table)?;
    printer.line(&format!(
        "{} in all, each file once",
        size(usage.total_bytes)
    ))?;
    if !usage.points.is_empty() {
        printer.note("a point's data lies in the store: OWN is what deleting it gives back");
    }
    Ok(ExitCode::SUCCESS)
}

/// What it is, and its name or path.
fn named(what: &UsageOf) -> (&'static str, String) {
    match what {
        UsageOf::Image(name) => ("image", name.clone()),
        UsageOf::Kernel(name) => ("kernel", name.clone()),
        UsageOf::Machine(name) => ("machine", name.clone()),
        UsageOf::Store { path, .. } => ("store", path.display().to_string()),
        UsageOf::Checkpoint(path) => ("checkpoint", path.display().to_string()),
        _ => ("cache", String::new()),
    }
}

/// A name that fits: of a path its end.
fn fitting(name: &str) -> String {
    let length = name.chars().count();
    if length <= NAME_WIDTH {
        return name.to_owned();
    }
    let end: String = name.chars().skip(length - (NAME_WIDTH - 1)).collect();
    format!("…{end}")
}

/// A line that fits: its beginning.
fn cut(name: &str) -> String {
    if name.chars().count() <= NAME_WIDTH {
        return name.to_owned();
    }
    let begin: String = name.chars().take(NAME_WIDTH - 1).collect();
    format!("{begin}…")
}

fn objects(usage: &DiskUsage) -> Vec<Object> {
    let item = |Used { what, bytes, .. }: &Used| {
        let (kind, name) = named(what);
        let points = match what {
            UsageOf::Store { points, .. } => Some(*points),
            _ => None,
        };
        object(json!({
            "what": kind,
            "name": name,
            "own_bytes": bytes.own_bytes,
            "shared_bytes": bytes.shared_bytes,
            "points": points,
        }))
    };
    let point = |UsedByPoint { entry, bytes, .. }: &UsedByPoint| {
        object(json!({
            "what": "point",
            "id": entry.id,
            "machine": entry.machine,
            "taken": format_utc(entry.taken_unix),
            "own_bytes": bytes.map(|bytes| bytes.own_bytes),
            "shared_bytes": bytes.map(|bytes| bytes.shared_bytes),
        }))
    };
    let total = object(json!({ "what": "total", "total_bytes": usage.total_bytes }));
    let items = usage.items.iter().map(item);
    let points = usage.points.iter().map(point);
    items.chain(points).chain([total]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_names_are_cut_where_they_say_least() {
        assert_eq!(fitting("short"), "short");
        let path = format!("/{}/x.checkpoint", "a".repeat(80));
        assert_eq!(fitting(&path).chars().count(), NAME_WIDTH);
        assert!(fitting(&path).starts_with('…') && fitting(&path).ends_with("/x.checkpoint"));
        assert_eq!(cut(&path).chars().count(), NAME_WIDTH);
        assert!(cut(&path).starts_with("/aaa"));
    }
}
