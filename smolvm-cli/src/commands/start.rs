//! `machine start` and `machine restart`.

use serde_json::json;
use smolvm_engine::{
    CreateOptions, Engine, EngineError, MachineName, StartOptions, Started, StopOptions,
};

use super::{describe, stop};
use crate::args::{RestartArgs, StartArgs};
use crate::failure::Failure;
use crate::output::{Printer, object};

/// From this similarity on, of 0 to 1, a name may be meant by another one.
const SIMILAR: f64 = 0.7;

/// `machine start`.
pub(crate) fn start(engine: &Engine, printer: &Printer, args: StartArgs) -> Result<(), Failure> {
    if let Some(flag) = args.unavailable.given() {
        return Err(Failure::not_available(format!("`{flag}`")));
    }
    let mut create = CreateOptions {
        image: args.image,
        ..CreateOptions::default()
    };
    if let Some(memory_bytes) = args.mem {
        create.spec.memory_bytes = memory_bytes;
    }
    let is_shaped = create.image.is_some() || args.mem.is_some();
    let name = engine.resolve(args.machine.given())?;
    let created = match engine.machine(&name) {
        Err(EngineError::NoMachine { .. }) => {
            if !args.create {
                refuse_beside_others(engine, &name)?;
            }
            make(engine, printer, &name, create)?
        }
        known => {
            known?;
            if is_shaped {
                return Err(Failure::Usage {
                    what: format!("'{name}' exists: its image and memory are settled"),
                    hint: Some(format!("start it as it is: smolvm machine start {name}")),
                });
            }
            false
        }
    };
    let mut options = StartOptions::default();
    options.cold = args.cold;
    // --branchable is the default and accepted as such.
    options.branchable = args.branchable || !args.no_branchable;
    launch(engine, printer, &name, options, created)
}

/// `machine restart`.
pub(crate) fn restart(
    engine: &Engine,
    printer: &Printer,
    args: RestartArgs,
) -> Result<(), Failure> {
    let name = engine.resolve(args.machine.given())?;
    let options = StopOptions::with_timeout(args.timeout);
    let spinner = printer.spinner(&format!("stopping {name}"));
    let stopped = engine.stop(&name, options);
    drop(spinner);
    stop::warn_if_forced(printer, &name, stopped?, options);
    launch(engine, printer, &name, StartOptions::default(), false)
}

/// With other machines there, an unknown name is more likely a slip than a wish for one more.
fn refuse_beside_others(engine: &Engine, name: &MachineName) -> Result<(), Failure> {
    let others = engine.machine_names()?;
    if others.is_empty() {
        return Ok(());
    }
    let closest = others
        .iter()
        .map(|other| (strsim::jaro_winkler(name.as_str(), other.as_str()), other))
        .filter(|(similarity, _)| *similarity >= SIMILAR)
        .max_by(|one, other| one.0.total_cmp(&other.0));
    let meant = closest.map_or_else(String::new, |(_, other)| {
        format!("did you mean: smolvm machine start {other} ; ")
    });
    Err(Failure::NotFound {
        what: format!("there is no machine {name}"),
        hint: format!("{meant}make it with: smolvm machine start {name} --create"),
    })
}

/// Makes a machine; `false` if somebody else just did.
fn make(
    engine: &Engine,
    printer: &Printer,
    name: &MachineName,
    mut options: CreateOptions,
) -> Result<bool, Failure> {
    options.name = Some(name.clone());
    match engine.create(options) {
        // Theirs is as good.
        Err(EngineError::MachineExists { .. }) => Ok(false),
        made => {
            let origin = describe::origin(&made?.origin);
            if !printer.is_json() {
                printer.line(&format!("Created '{name}' from {origin}"))?;
            }
            Ok(true)
        }
    }
}

fn launch(
    engine: &Engine,
    printer: &Printer,
    name: &MachineName,
    options: StartOptions,
    created: bool,
) -> Result<(), Failure> {
    let spinner = printer.spinner(&format!("starting {name}"));
    let started = engine.start(name, options);
    drop(spinner);
    report(printer, name, &started?, created)
}

/// Says how a start went.
pub(super) fn report(
    printer: &Printer,
    name: &MachineName,
    started: &Started,
    created: bool,
) -> Result<(), Failure> {
    if let Some(not_kvm) = &started.not_kvm {
        printer.warning(&format!("slower than it could be: {}", not_kvm.reason));
        if let Some(hint) = &not_kvm.hint {
            printer.note(&format!("hint: {hint}"));
        }
    }
    for step in &started.pending {
        printer.warning(&format!("not for good: {step}; the next start tries again"));
    }
    let line = if started.was_running {
        format!("'{name}' runs already")
    } else if started.was_paused {
        format!("Resumed '{name}' ({})", started.backend)
    } else {
        format!("Started '{name}' ({})", started.backend)
    };
    let result = json!({
        "name": name.as_str(),
        "state": "running",
        "created": created,
        "was_running": started.was_running,
        "was_paused": started.was_paused,
        "backend": started.backend,
        "pending": started.pending,
    });
    printer.result(object(result), &line)
}
