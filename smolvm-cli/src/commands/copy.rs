//! `machine cp`.

use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};
use std::thread;
use std::time::Duration;

use serde_json::json;
use smolvm_engine::Engine;
use smolvm_engine::agent_protocol::message::CopyReport;
use smolvm_engine::progress::Progress;

use super::diff::{point_name, warn_of_unwritten};
use crate::args::{CopyArgs, Place};
use crate::failure::Failure;
use crate::interrupt::{self, Answer, Signal, Watch};
use crate::output::{self, Printer, object};

/// How long a copy that is interrupted has to leave nothing half-made behind. It may be waiting for its guest.
const END_GRACE: Duration = Duration::from_secs(1);

/// Progress of a copy that a signal gives up.
struct Interruptible {
    shown: Box<dyn Progress>,
    /// The signal, 0 before it.
    asked_by: Arc<AtomicI32>,
}

impl Progress for Interruptible {
    fn begin(&self, what: &str, total_bytes: Option<u64>) {
        self.shown.begin(what, total_bytes);
    }

    fn advance(&self, bytes: u64) {
        self.shown.advance(bytes);
    }

    fn end(&self) {
        self.shown.end();
    }

    fn is_stopped(&self) -> bool {
        self.asked_by.load(Ordering::SeqCst) != 0
    }
}

/// `machine cp`.
pub(crate) fn copy(engine: &Engine, printer: &Printer, args: CopyArgs) -> Result<(), Failure> {
    let asked_by = Arc::new(AtomicI32::new(0));
    let asked = Arc::clone(&asked_by);
    let watch = Watch::start(move |signal| match signal {
        Signal::Resized => Answer::GoOn,
        Signal::End(number) if asked.swap(number, Ordering::SeqCst) != 0 => Answer::End(number),
        Signal::End(number) => {
            let late = thread::Builder::new().spawn(move || {
                thread::sleep(END_GRACE);
                interrupt::die_of(number)
            });
            match late {
                Ok(_) => Answer::GoOn,
                Err(_) => Answer::End(number),
            }
        }
    })?;
    let progress = Interruptible {
        shown: printer.progress(),
        asked_by: Arc::clone(&asked_by),
    };
    let copied = carry_out(engine, printer, &args, &progress);
    drop((progress, watch));
    match asked_by.load(Ordering::SeqCst) {
        0 => told(printer, &copied?),
        number => interrupt::die_of(number),
    }
}

fn carry_out(
    engine: &Engine,
    printer: &Printer,
    args: &CopyArgs,
    progress: &dyn Progress,
) -> Result<CopyReport, Failure> {
    let report = match (&args.source, &args.target) {
        (Place::Host(source), Place::Machine { name, path }) => {
            engine.copy_in(name, source, path, progress)?
        }
        (Place::Machine { name, path }, Place::Host(target)) => {
            engine.copy_out(name, path, target, progress)?
        }
        (Place::Point { point, path }, Place::Host(target)) => {
            let point = point_name(engine, point)?;
            let copied = engine.copy_out_of_point(&point, path, target, progress)?;
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
    Ok(report)
}

/// Says what was copied, and what was not.
fn told(printer: &Printer, report: &CopyReport) -> Result<(), Failure> {
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
