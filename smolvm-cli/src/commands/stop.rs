//! `machine stop`.

use std::thread;

use serde_json::json;
use smolvm_engine::{Engine, EngineError, MachineName, MachineState, StopOptions, Stopped};

use crate::args::StopArgs;
use crate::failure::Failure;
use crate::output::{self, Printer, object};

/// `machine stop`.
pub(crate) fn stop(engine: &Engine, printer: &Printer, args: StopArgs) -> Result<(), Failure> {
    let options = StopOptions::with_timeout(args.timeout).with_discard(args.discard);
    if args.all {
        return stop_all(engine, printer, options);
    }
    let name = engine.resolve(args.machine.given())?;
    let spinner = printer.spinner(&format!("stopping {name}"));
    let stopped = engine.stop(&name, options);
    drop(spinner);
    report(printer, &name, stopped?, options)
}

/// Stops all machines that run, at the same time.
fn stop_all(engine: &Engine, printer: &Printer, options: StopOptions) -> Result<(), Failure> {
    let (mut running, mut failed) = (Vec::<MachineName>::new(), 0);
    for (name, machine) in engine.machines()? {
        let state = machine.map(|machine| machine.state);
        match state {
            Ok(MachineState::Running) => running.push(name),
            Ok(MachineState::Paused) if options.discard => running.push(name),
            Ok(_) => {}
            Err(error) => {
                failed += 1;
                printer.warning(&format!("{name}: {}", smolvm_engine::chain(&error)));
            }
        }
    }
    if running.is_empty() {
        if failed == 0 {
            printer.note("No machine runs");
        }
        return Failure::unless_all(failed, "stopped");
    }
    let spinner = printer.spinner("stopping all machines");
    let results: Vec<_> = thread::scope(|scope| {
        let stops: Vec<_> = running
            .iter()
            .map(|name| scope.spawn(|| engine.stop(name, options)))
            .collect();
        stops
            .into_iter()
            .map(thread::ScopedJoinHandle::join)
            .collect()
    });
    drop(spinner);
    for (name, result) in running.iter().zip(results) {
        match result.unwrap_or_else(|panic| std::panic::resume_unwind(panic)) {
            Ok(stopped) => report(printer, name, stopped, options)?,
            // Deleted meanwhile: it does not run.
            Err(EngineError::NoMachine { .. }) => {}
            Err(error) => {
                failed += 1;
                printer.warning(&smolvm_engine::chain(&error));
            }
        }
    }
    Failure::unless_all(failed, "stopped")
}

/// Says so if a machine had to be ended.
pub(super) fn warn_if_forced(
    printer: &Printer,
    name: &MachineName,
    stopped: Stopped,
    options: StopOptions,
) {
    if stopped.forced {
        printer.warning(&format!(
            "'{name}' did not shut down by itself within {} and was ended",
            output::seconds(options.timeout)
        ));
    }
}

fn report(
    printer: &Printer,
    name: &MachineName,
    stopped: Stopped,
    options: StopOptions,
) -> Result<(), Failure> {
    warn_if_forced(printer, name, stopped, options);
    let line = if stopped.discarded {
        format!("Stopped '{name}': what was in its memory is given up")
    } else if stopped.was_stopped {
        format!("'{name}' did not run")
    } else {
        format!("Stopped '{name}'")
    };
    let result = json!({
        "name": name.as_str(),
        "state": "stopped",
        "was_stopped": stopped.was_stopped,
        "forced": stopped.forced,
        "discarded": stopped.discarded,
    });
    printer.result(object(result), &line)
}
