//! `machine checkpoint-verify`.

use std::path::Path;

use serde_json::json;
use smolvm_engine::{
    Engine, MachineName, RepairSource, Verification, VerifiedPoint, VerifyLevel, VerifyOptions,
    VerifySource, format_utc,
};

use crate::args::CheckpointVerifyArgs;
use crate::failure::Failure;
use crate::output::{self, Object, Printer, object};

/// `machine checkpoint-verify`.
pub(crate) fn verify(
    engine: &Engine,
    printer: &Printer,
    args: CheckpointVerifyArgs,
) -> Result<(), Failure> {
    let source = match &args.point {
        Some(point) => VerifySource::Directory(point.clone()),
        None => VerifySource::Store(args.store.clone()),
    };
    let mut options = VerifyOptions::new(source);
    options.level = level(&args);
    options.repair_from = args
        .repair_from
        .as_deref()
        .map(|from| repair_source(engine, from));
    let progress = printer.progress();
    let found = engine.verify(&options, &*progress);
    drop(progress);
    let found = found?;
    for point in &found.points {
        if printer.is_json() {
            printer.result(describe(point), "")?;
            continue;
        }
        for line in lines(point) {
            printer.line(&line)?;
        }
    }
    tell_problems(printer, &found);
    summarize(printer, &found)?;
    verdict(&found, &args)
}

fn level(args: &CheckpointVerifyArgs) -> VerifyLevel {
    match (args.quick, args.sample) {
        (true, _) => VerifyLevel::Quick,
        (_, Some(percent)) => VerifyLevel::Sample(percent),
        _ => VerifyLevel::Full,
    }
}

/// A machine's name, or the path of a store or a checkpoint.
fn repair_source(engine: &Engine, from: &Path) -> RepairSource {
    let name = from
        .to_str()
        .and_then(|from| from.parse::<MachineName>().ok());
    match name {
        Some(name) if engine.machine(&name).is_ok() => RepairSource::Machine(name),
        _ => RepairSource::Directory(from.to_owned()),
    }
}

/// A line about the point, and one for each of its problems.
fn lines(point: &VerifiedPoint) -> Vec<String> {
    let entry = &point.entry;
    let mut first = match entry.generation {
        Some(generation) => format!("{:<5}{}", format!("~{generation}"), entry.short_id),
        None => entry.short_id.clone(),
    };
    if !entry.machine.is_empty() {
        first.push_str(&format!(
            "  {}  {}",
            format_utc(entry.taken_unix),
            entry.machine
        ));
    }
    if let Some(directory) = &point.directory {
        first.push_str(&format!("  {}", directory.display()));
    }
    let verdict = if point.is_sound() { "sound" } else { "damaged" };
    first.push_str(&format!("  {verdict}"));
    let problems = point
        .problems
        .iter()
        .map(|problem| format!("       {problem}"));
    [first].into_iter().chain(problems).collect()
}

fn describe(point: &VerifiedPoint) -> Object {
    object(json!({
        "generation": point.entry.generation,
        "id": point.entry.id,
        "machine": point.entry.machine,
        "directory": point.directory.as_ref().map(|path| path.display().to_string()),
        "sound": point.is_sound(),
        "problems": point.problems,
    }))
}

fn tell_problems(printer: &Printer, found: &Verification) {
    for problem in &found.problems {
        let elsewhere = if problem.lost {
            ""
        } else {
            "; another copy is sound"
        };
        printer.warning(&format!("{}{elsewhere}", problem.what));
    }
    if found.unlisted > 0 {
        printer.warning(&format!("{} more problems are not listed", found.unlisted));
    }
}

fn summarize(printer: &Printer, found: &Verification) -> Result<(), Failure> {
    if printer.is_json() {
        let summary = json!({
            "points": found.points.len(),
            "packs": found.packs,
            "chunks": found.chunks,
            "verified_chunks": found.verified_chunks,
            "repaired_chunks": found.repaired.as_ref().map(|repaired| repaired.recovered_chunks),
            "lost_chunks": found.repaired.as_ref().map(|repaired| repaired.lost_chunks),
            "sound": found.is_sound(),
        });
        return printer.result(object(summary), "");
    }
    if let Some(repaired) = &found.repaired {
        let mut line = format!(
            "Repaired with {} from there",
            output::count(repaired.recovered_chunks, "chunk", "chunks")
        );
        if repaired.lost_chunks > 0 {
            line.push_str(&format!(
                "; {} more are not there either",
                repaired.lost_chunks
            ));
        }
        printer.line(&line)?;
    }
    printer.line(&format!(
        "Verified {}, {}, {} of {} chunks read",
        output::count(found.points.len() as u64, "point", "points"),
        output::count(found.packs as u64, "pack", "packs"),
        found.verified_chunks,
        found.chunks
    ))
}

fn verdict(found: &Verification, args: &CheckpointVerifyArgs) -> Result<(), Failure> {
    if found.is_sound() {
        return Ok(());
    }
    let damaged = found.points.iter().filter(|point| !point.is_sound());
    let what = match damaged.count() {
        0 => "data is damaged that none of these points needs".to_owned(),
        count => format!(
            "{} of {} cannot be restored",
            count,
            output::count(found.points.len() as u64, "point", "points")
        ),
    };
    let target = match (&args.point, &args.store) {
        (Some(point), _) => format!(" {}", point.display()),
        (None, Some(store)) => format!(" --store {}", store.display()),
        (None, None) => String::new(),
    };
    Err(Failure::Damaged {
        what,
        hint: format!(
            "repair from a store, checkpoint or machine that has the data: \
             smolvm machine checkpoint-verify{target} --repair-from STORE"
        ),
    })
}
