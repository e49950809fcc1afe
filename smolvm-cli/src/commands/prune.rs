//! `machine checkpoint-prune`.

use serde_json::json;
use smolvm_engine::{Engine, JudgedPoint, PruneOptions, Pruned, format_utc};

use crate::args::CheckpointPruneArgs;
use crate::failure::Failure;
use crate::output::{self, Object, Printer, object};

/// `machine checkpoint-prune`.
pub(crate) fn prune(
    engine: &Engine,
    printer: &Printer,
    args: CheckpointPruneArgs,
) -> Result<(), Failure> {
    let mut options = PruneOptions::default();
    options.keep = args.keep.rule();
    options.dry_run = args.dry_run;
    options.store = args.store;
    let progress = printer.progress();
    let pruned = engine.prune(&options, &*progress);
    drop(progress);
    let pruned = pruned?;
    for point in &pruned.points {
        printer.result(describe(point), &line(point, args.dry_run))?;
    }
    if printer.is_json() {
        return printer.result(summary(&pruned, args.dry_run), "");
    }
    for line in said(&pruned, args.dry_run) {
        printer.line(&line)?;
    }
    Ok(())
}

fn line(point: &JudgedPoint, dry_run: bool) -> String {
    let entry = &point.entry;
    let rules: Vec<_> = point.kept_by.iter().map(|rule| rule.name()).collect();
    let verdict = match (point.given_up, point.in_use, dry_run) {
        (true, _, true) => "would go".to_owned(),
        (true, _, false) => "deleted".to_owned(),
        (_, true, _) => "in use, stays for now".to_owned(),
        _ => format!("stays: {}", rules.join(", ")),
    };
    let taken = format_utc(entry.taken_unix);
    format!("{}  {taken}  {}  {verdict}", entry.short_id, entry.machine)
}

fn describe(point: &JudgedPoint) -> Object {
    let rules: Vec<_> = point.kept_by.iter().map(|rule| rule.name()).collect();
    object(json!({
        "id": point.entry.id,
        "taken": format_utc(point.entry.taken_unix),
        "machine": point.entry.machine,
        "message": point.entry.message,
        "autosave": point.entry.autosave,
        "kept_by": rules,
        "in_use": point.in_use,
        "deleted": point.given_up,
    }))
}

fn given_up(pruned: &Pruned) -> usize {
    pruned.points.iter().filter(|point| point.given_up).count()
}

fn summary(pruned: &Pruned, dry_run: bool) -> Object {
    object(json!({
        "dry_run": dry_run,
        "deleted_points": given_up(pruned),
        "freed_bytes": pruned.freed_bytes,
        "written_bytes": pruned.written_bytes,
        "removed_packs": pruned.removed_packs,
        "replaced_packs": pruned.replaced_packs,
        "linked_packs": pruned.linked_packs,
        "pinned_packs": pruned.pinned_packs,
        "left_alone_packs": pruned.left_alone,
        "missing_directories": pruned.missing_directories,
    }))
}

/// What was done, and what stays although no point of the store needs it.
fn said(pruned: &Pruned, dry_run: bool) -> Vec<String> {
    let count = |number: usize, one: &str, many: &str| output::count(number as u64, one, many);
    let points = count(given_up(pruned), "point", "points");
    let freed = output::bytes(pruned.freed_bytes);
    let mut lines = vec![match dry_run {
        true => format!("Would delete {points} and give back {freed}"),
        false => format!("Deleted {points}, gave back {freed}"),
    }];
    let kept = [
        (
            pruned.linked_packs,
            "that no point here needs: checkpoints or machines have it",
            "that no point here needs: checkpoints or machines have them",
        ),
        (
            pruned.pinned_packs,
            "that no point here needs: a save or restore that runs uses it",
            "that no point here needs: saves or restores that run use them",
        ),
        (
            pruned.left_alone,
            "with data of no use: a machine or a moved checkpoint has it too",
            "with data of no use: machines or moved checkpoints have them too",
        ),
    ];
    for (number, one, many) in kept.into_iter().filter(|(number, ..)| *number > 0) {
        let why = if number == 1 { one } else { many };
        lines.push(format!("  left: {} {why}", count(number, "pack", "packs")));
    }
    lines
}
