//! `machine branch`.

use serde_json::{Value, json};
use smolvm_engine::{
    BranchChild, BranchOptions, Branched, CheckpointOptions, Engine, MachineName, READY_TIMEOUT,
    chain,
};

use super::checkpoint;
use crate::args::{BranchArgs, BranchReleaseArgs};
use crate::failure::Failure;
use crate::output::{self, Object, Printer, object};

/// `machine branch`.
pub(crate) fn branch(engine: &Engine, printer: &Printer, args: BranchArgs) -> Result<(), Failure> {
    let source = engine.resolve(args.from)?;
    let mut options = match (args.name, args.count, args.name_prefix) {
        (None, Some(count), Some(prefix)) => BranchOptions::numbered(&prefix, count)?,
        (name, ..) => BranchOptions::new(name.into_iter().collect()),
    };
    options.hold = args.hold;
    if args.hold || args.count.is_some() {
        options.ready_timeout = args.ready_timeout.or(Some(READY_TIMEOUT));
    }
    if args.output.is_some() {
        let mut save = CheckpointOptions::default();
        save.output = args.output;
        save.store = args.store;
        options.checkpoint = Some(save);
    }
    let progress = printer.progress();
    let branched = engine.branch(&source, &options, &*progress);
    drop(progress);
    report(printer, &source, &branched?)
}

/// `machine branch-release`.
pub(crate) fn release(
    engine: &Engine,
    printer: &Printer,
    args: BranchReleaseArgs,
) -> Result<(), Failure> {
    let name = engine.resolve(args.machine.given())?;
    let count = engine.branch_release(&name)?.count;
    let line = match count {
        0 => format!("nothing waits in '{name}'"),
        1 => format!("1 process of '{name}' goes on"),
        count => format!("{count} processes of '{name}' go on"),
    };
    let released = json!({ "name": name.as_str(), "released": count });
    printer.result(object(released), &line)
}

/// Says what was done; a failure where a child did not come up.
fn report(printer: &Printer, source: &MachineName, branched: &Branched) -> Result<(), Failure> {
    for child in &branched.children {
        let name = &child.name;
        let line = format!("'{name}' goes on from '{source}'");
        printer.result(describe(source, child, branched), &line)?;
        for step in &child.pending {
            printer.warning(&format!(
                "{name}: not for good: {step}; the next start tries again"
            ));
        }
    }
    if !printer.is_json() {
        let point = branched.saved.as_ref();
        let point = point.map_or_else(String::new, |saved| match &saved.output {
            Some(output) => format!(" · saved to {} as {}", output.display(), saved.short_id),
            None => format!(" · saved as {}", saved.short_id),
        });
        printer.line(&format!(
            "  paused {} · {:.2} s{point}",
            output::milliseconds(branched.paused),
            branched.took.as_secs_f64()
        ))?;
    }
    for (name, error) in &branched.failed {
        printer.warning(&format!("{name} did not come up: {}", chain(error)));
    }
    if branched.failed.is_empty() {
        return Ok(());
    }
    let count = branched.failed.len() as u64;
    Err(Failure::Partly {
        what: format!(
            "{} did not come up and {} gone",
            output::count(count, "branch", "branches"),
            if count == 1 { "is" } else { "are" }
        ),
    })
}

fn describe(source: &MachineName, child: &BranchChild, branched: &Branched) -> Object {
    let saved = branched.saved.as_ref();
    object(json!({
        "name": child.name.as_str(),
        "branched_from": source.as_str(),
        "backend": child.backend,
        "pending": child.pending,
        "paused_ms": checkpoint::thousandths(branched.paused),
        "took_ms": branched.took.as_secs_f64() * 1e3,
        "saved": saved.map(|saved| Value::Object(checkpoint::describe(source.as_str(), saved))),
    }))
}
