//! `machine branch`.

use serde_json::{Value, json};
use smolvm_engine::{
    BranchChild, BranchOptions, Branched, CheckpointOptions, Engine, MachineName, chain,
};

use super::checkpoint;
use crate::args::BranchArgs;
use crate::failure::Failure;
use crate::output::{self, Object, Printer, object};

/// `machine branch`.
pub(crate) fn branch(engine: &Engine, printer: &Printer, args: BranchArgs) -> Result<(), Failure> {
    if args.hold {
        return Err(Failure::not_available("`--hold`".to_owned()));
    }
    let source = engine.resolve(args.from)?;
    let mut options = match (args.name, args.count, args.name_prefix) {
        (None, Some(count), Some(prefix)) => BranchOptions::numbered(&prefix, count)?,
        (name, ..) => BranchOptions::new(name.into_iter().collect()),
    };
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
        let point = point.map_or_else(String::new, |saved| {
            format!(" · saved as {}", saved.short_id)
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
