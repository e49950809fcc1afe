//! `machine cp`.

use serde_json::json;
use smolvm_engine::Engine;

use super::diff::{point_name, warn_of_unwritten};
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
        (Place::Point { point, path }, Place::Host(target)) => {
            let point = point_name(engine, point)?;
            let copied = engine.copy_out_of_point(&point, path, target, &*progress)?;
            if !copied.disk_is_whole {
                warn_of_unwritten(printer, &copied.short_id);
            }
            copied.report
        }
        (_, Place::Point { .. }) => {
            return Err(usage(
                "a saved point is never changed",
                "copy into a machine made from it with: smolvm machine create --from POINT",
            ));
        }
        (Place::Point { .. }, Place::Machine { .. }) => {
            return Err(usage(
                "a point's files go to this host only",
                "copy them here first, then into the machine",
            ));
        }
        (Place::Host(_), Place::Host(_)) => {
            return Err(usage(
                "neither place is in a machine or a point",
                "write one as NAME:/path, or in a saved point as POINT@~0:/path",
            ));
        }
        (Place::Machine { .. }, Place::Machine { .. }) => {
            return Err(usage(
                "both places are in machines",
                "copy to this host first",
            ));
        }
    };
    drop(progress);
    for problem in &report.problems {
        printer.warning(problem);
    }
    let line = format!(
        "Copied {}, {}",
        output::count(report.entries, "entry", "entries"),
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
                "{} not copied wholly",
                output::count(report.problem_count, "entry was", "entries were")
            ),
        });
    }
    Ok(())
}

fn usage(what: &str, hint: &str) -> Failure {
    Failure::Usage {
        what: what.to_owned(),
        hint: Some(hint.to_owned()),
    }
}
