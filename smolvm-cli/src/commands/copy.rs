//! `machine cp`.

use serde_json::json;
use smolvm_engine::Engine;

use crate::args::{CopyArgs, Place};
use crate::failure::Failure;
use crate::output::{self, Printer, object};

/// `machine cp`.
pub(crate) fn copy(engine: &Engine, printer: &Printer, args: CopyArgs) -> Result<(), Failure> {
    let progress = printer.progress();
    let report = match (&args.source, &args.target) {
        (Place::Host(source), Place::Machine { name, path }) => {
            engine.copy_in(name, source, path, &*progress)?
        }
        (Place::Machine { name, path }, Place::Host(target)) => {
            engine.copy_out(name, path, target, &*progress)?
        }
        _ => return Err(Failure::not_available("copying out of a saved point")),
    };
    drop(progress);
    for problem in &report.problems {
        printer.warning(problem);
    }
    let line = format!(
        "Copied {} {}, {}",
        report.entries,
        if report.entries == 1 {
            "entry"
        } else {
            "entries"
        },
        output::bytes(report.data_bytes)
    );
    let result = json!({
        "entries": report.entries,
        "data_bytes": report.data_bytes,
        "problems": report.problem_count,
    });
    if printer.is_json() {
        printer.result(object(result), &line)?;
    } else {
        printer.note(&line);
    }
    if report.problem_count > 0 {
        return Err(Failure::Partly {
            what: format!(
                "{} of the files were not copied wholly",
                report.problem_count
            ),
        });
    }
    Ok(())
}
