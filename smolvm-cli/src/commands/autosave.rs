//! `machine autosave`.

use serde_json::json;
use smolvm_engine::Engine;

use super::describe;
use crate::args::AutosaveArgs;
use crate::failure::Failure;
use crate::output::{self, Printer, object};

/// `machine autosave`.
pub(crate) fn autosave(
    engine: &Engine,
    printer: &Printer,
    args: AutosaveArgs,
) -> Result<(), Failure> {
    let name = engine.resolve(args.machine.given())?;
    let keep = args.keep.rule();
    engine.set_autosave(&name, args.every, keep)?;
    let line = match args.every {
        Some(every) => format!(
            "'{name}' is saved every {} while it runs and changes{}",
            output::every(every.as_secs()),
            describe::kept(&keep)
                .map_or_else(String::new, |kept| format!("; of these stay {kept}"))
        ),
        None => format!("'{name}' is saved only when asked"),
    };
    let every = args.every.map(|every| every.as_secs());
    printer.result(
        object(json!({ "name": name.as_str(), "every_seconds": every, "keep": keep })),
        &line,
    )
}
