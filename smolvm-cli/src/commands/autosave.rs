//! `machine autosave`.

use serde_json::json;
use smolvm_engine::Engine;

use crate::args::AutosaveArgs;
use crate::failure::Failure;
use crate::output::{self, Printer, object};

/// `machine autosave`.
pub(crate) fn autosave(
    engine: &Engine,
    printer: &Printer,
    args: AutosaveArgs,
) -> Result<(), Failure> {
    if let Some(flag) = args.retention.given() {
        return Err(Failure::not_available(format!("`{flag}` of autosave")));
    }
    let name = engine.resolve(args.machine.given())?;
    engine.set_autosave(&name, args.every)?;
    let line = match args.every {
        Some(every) => format!(
            "'{name}' is saved every {} while it runs and changes",
            output::every(every.as_secs())
        ),
        None => format!("'{name}' is saved only when asked"),
    };
    let every = args.every.map(|every| every.as_secs());
    printer.result(
        object(json!({ "name": name.as_str(), "every_seconds": every })),
        &line,
    )
}
