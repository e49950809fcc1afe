//! `machine pause` and `machine resume`.

use serde_json::json;
use smolvm_engine::Engine;

use super::{checkpoint, start};
use crate::args::{PauseArgs, ResumeArgs};
use crate::failure::Failure;
use crate::output::{self, Printer, object};

/// `machine pause`.
pub(crate) fn pause(engine: &Engine, printer: &Printer, args: PauseArgs) -> Result<(), Failure> {
    let name = engine.resolve(args.machine.given())?;
    let progress = printer.progress();
    let paused = engine.pause(&name, &*progress);
    drop(progress);
    let paused = paused?;
    if printer.is_json() {
        let result = json!({
            "name": name.as_str(),
            "state": "paused",
            "saved_in_ms": checkpoint::thousandths(paused.saved_in),
            "written_bytes": paused.written_bytes,
            "data_bytes": paused.data_bytes,
        });
        return printer.result(object(result), "");
    }
    printer.line(&format!("Paused '{name}'"))?;
    printer.line(&format!(
        "  saved in {:.2} s · {} written, {} data",
        paused.saved_in.as_secs_f64(),
        output::bytes(paused.written_bytes),
        output::bytes(paused.data_bytes),
    ))?;
    printer.note(&format!("go on with: smolvm machine resume --name {name}"));
    Ok(())
}

/// `machine resume`.
pub(crate) fn resume(engine: &Engine, printer: &Printer, args: ResumeArgs) -> Result<(), Failure> {
    let name = engine.resolve(args.machine.given())?;
    let spinner = printer.spinner(&format!("resuming {name}"));
    let started = engine.resume(&name);
    drop(spinner);
    start::report(printer, &name, &started?, false)
}
