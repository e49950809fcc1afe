//! The group `kernel`.

use std::process::ExitCode;

use serde_json::json;
use smolvm_engine::kernel::{self, Kernel, KernelSource};
use smolvm_engine::{Engine, EngineError};

use super::readable;
use crate::args::{KernelCommand, KernelImportArgs};
use crate::failure::Failure;
use crate::output::{Object, Printer, Table, object};

/// Carries out a command of the group.
pub(crate) fn run(
    command: KernelCommand,
    engine: &Engine,
    printer: &Printer,
) -> Result<ExitCode, Failure> {
    match command {
        KernelCommand::Import(args) => import(engine, printer, args)?,
        KernelCommand::Ls => list(engine, printer)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn import(engine: &Engine, printer: &Printer, args: KernelImportArgs) -> Result<(), Failure> {
    let (name, source) = args.resolve();
    engine.home().ensure().map_err(EngineError::from)?;
    let (root, progress) = (engine.home().root(), printer.progress());
    let kernel = match source {
        Some(source) => {
            let source = KernelSource::detect(&source)?;
            kernel::import(root, &name, &source, &*progress)?
        }
        None => kernel::import_debian(root, &name, &*progress)?,
    };
    drop(progress);
    let line = format!(
        "Imported the kernel {}: {}",
        kernel.name(),
        kernel.info().version
    );
    printer.result(describe(&kernel), &line)
}

fn describe(kernel: &Kernel) -> Object {
    let info = kernel.info();
    object(json!({
        "name": kernel.name(),
        "version": info.version,
        "created": info.created,
        "source": info.source,
        "size_bytes": info.size_bytes,
        "modules": info.modules,
        "command_line": info.cmdline,
    }))
}

fn list(engine: &Engine, printer: &Printer) -> Result<(), Failure> {
    let mut table = Table::new(["NAME", "VERSION", "CREATED", "SOURCE"]);
    let root = engine.home().root();
    let (kernels, damaged) = readable(printer, kernel::names(root)?, |name| {
        Kernel::open(root, name)
    });
    for kernel in &kernels {
        let info = kernel.info();
        table.row([
            kernel.name().to_owned(),
            info.version.clone(),
            info.created.clone(),
            info.source.clone(),
        ]);
    }
    printer.results(kernels.iter().map(describe), table)?;
    Failure::unless_readable(damaged, "kernel", "kernels")
}
