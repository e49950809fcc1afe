//! `machine create` and `machine rename`.

use serde_json::json;
use smolvm_engine::{
    CreateOptions, DEFAULT_DISK_BYTES, DEFAULT_MEMORY_BYTES, Engine, MachineName, MachineSpec,
};

use super::describe;
use crate::args::{CreateArgs, MachineShape, RenameArgs};
use crate::failure::Failure;
use crate::output::{Printer, object};

/// `machine create`.
pub(crate) fn create(engine: &Engine, printer: &Printer, args: CreateArgs) -> Result<(), Failure> {
    let mut options = options(args.name, args.shape)?;
    options.spec.labels = args.label.into_iter().collect();
    let machine = engine.create(options)?;
    let line = format!(
        "Created '{}' from {}",
        machine.name,
        describe::origin(&machine.origin)
    );
    printer.result(describe::object(&machine), &line)
}

/// What the engine is to make.
pub(crate) fn options(
    name: Option<MachineName>,
    shape: MachineShape,
) -> Result<CreateOptions, Failure> {
    if let Some(flag) = shape.unavailable.given() {
        return Err(Failure::not_available(format!("`{flag}`")));
    }
    if shape.from.is_some() {
        return Err(Failure::not_available("`--from`"));
    }
    Ok(CreateOptions {
        name,
        image: shape.image,
        kernel: shape.kernel,
        spec: MachineSpec {
            cpus: shape.cpus,
            memory_bytes: shape.mem.unwrap_or(DEFAULT_MEMORY_BYTES),
            disk_bytes: shape.disk.unwrap_or(DEFAULT_DISK_BYTES),
            cpu: shape.cpu,
            backend: shape.backend,
            environment: shape.env.into_iter().collect(),
            working_directory: shape.workdir,
            ..MachineSpec::default()
        },
    })
}

/// `machine rename`.
pub(crate) fn rename(engine: &Engine, printer: &Printer, args: RenameArgs) -> Result<(), Failure> {
    let name = engine.resolve(args.machine.name)?;
    engine.rename(&name, &args.to)?;
    let line = format!("Renamed '{name}' to '{}'", args.to);
    let result = json!({"name": args.to.as_str(), "renamed_from": name.as_str()});
    printer.result(object(result), &line)
}
