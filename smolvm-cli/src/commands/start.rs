//! `machine start`.

use serde_json::json;
use smolvm_engine::{Engine, StartOptions};

use super::describe;
use crate::args::StartArgs;
use crate::failure::Failure;
use crate::output::{Printer, object};

/// `machine start`.
pub(crate) fn start(engine: &Engine, printer: &Printer, args: StartArgs) -> Result<(), Failure> {
    if let Some(flag) = args.unavailable.given() {
        return Err(Failure::not_available(format!("`{flag}`")));
    }
    let name = engine.resolve(args.machine.name)?;
    let mut options = StartOptions::default();
    options.cold = args.cold;
    // --branchable is the default and accepted as such.
    options.branchable = args.branchable || !args.no_branchable;
    let spinner = printer.spinner(&format!("starting {name}"));
    let started = engine.start(&name, options);
    drop(spinner);
    let started = started?;
    if started.created && !printer.is_json() {
        let origin = engine.machine(&name)?.origin;
        let from = describe::origin(&origin);
        printer.line(&format!("Created '{name}' from {from}"))?;
    }
    if let Some(not_kvm) = &started.not_kvm {
        printer.warning(&format!("slower than it could be: {}", not_kvm.reason));
        if let Some(hint) = &not_kvm.hint {
            printer.note(&format!("hint: {hint}"));
        }
    }
    let line = if started.was_running {
        format!("'{name}' runs already")
    } else {
        format!("Started '{name}' ({})", started.backend)
    };
    let result = json!({
        "name": name.as_str(),
        "state": "running",
        "created": started.created,
        "was_running": started.was_running,
        "backend": started.backend,
    });
    printer.result(object(result), &line)
}
