//! The group `image`.

use std::process::ExitCode;

use serde_json::json;
use smolvm_engine::image::{self, Image};
use smolvm_engine::{Engine, EngineError};

use super::readable;
use crate::args::{ImageBuildArgs, ImageCommand, ImageImportArgs};
use crate::failure::Failure;
use crate::output::{self, Object, Printer, Table, object};

/// The source that stands for standard input.
const STANDARD_INPUT: &str = "-";

/// Carries out a command of the group.
pub(crate) fn run(
    command: ImageCommand,
    engine: &Engine,
    printer: &Printer,
) -> Result<ExitCode, Failure> {
    match command {
        ImageCommand::Import(args) => import(engine, printer, &args)?,
        ImageCommand::Build(args) => build(engine, printer, &args)?,
        ImageCommand::Ls => list(engine, printer)?,
        ImageCommand::Rm { name } => {
            image::remove(engine.home().root(), &name)?;
            printer.result(
                object(json!({"name": name, "removed": true})),
                &format!("Removed the image {name}"),
            )?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn import(engine: &Engine, printer: &Printer, args: &ImageImportArgs) -> Result<(), Failure> {
    engine.home().ensure().map_err(EngineError::from)?;
    let progress = printer.progress();
    let root = engine.home().root();
    let image = if args.source.as_os_str() == STANDARD_INPUT {
        image::import_stream(root, &args.name, std::io::stdin(), &*progress)?
    } else {
        image::import(root, &args.name, &args.source, &*progress)?
    };
    drop(progress);
    report(printer, "Imported", &image)
}

fn build(engine: &Engine, printer: &Printer, args: &ImageBuildArgs) -> Result<(), Failure> {
    engine.home().ensure().map_err(EngineError::from)?;
    let progress = printer.progress();
    let root = engine.home().root();
    let image = image::build(root, &args.name, &args.include, &*progress)?;
    drop(progress);
    report(printer, "Built", &image)
}

fn report(printer: &Printer, done: &str, image: &Image) -> Result<(), Failure> {
    let line = format!(
        "{done} the image {}: {} of data, {} on disk",
        image.name(),
        output::bytes(image.info().data_bytes),
        output::bytes(image.info().stored_bytes)
    );
    printer.result(describe(image), &line)?;
    for (kind, count) in image.info().left_out.kinds() {
        printer.note(&format!(
            "left out: {kind} ({})",
            output::count(count, "time", "times")
        ));
    }
    Ok(())
}

fn describe(image: &Image) -> Object {
    let info = image.info();
    object(json!({
        "name": image.name(),
        "created": info.created,
        "source": info.source,
        "size_bytes": info.size_bytes,
        "data_bytes": info.data_bytes,
        "stored_bytes": info.stored_bytes,
        "architecture": info.config.architecture,
        "left_out": info.left_out,
    }))
}

fn list(engine: &Engine, printer: &Printer) -> Result<(), Failure> {
    let mut table = Table::new(["NAME", "DISK", "DATA", "STORED", "CREATED", "SOURCE"]);
    let root = engine.home().root();
    let (images, damaged) = readable(printer, image::names(root)?, |name| Image::open(root, name));
    for image in &images {
        let info = image.info();
        table.row([
            image.name().to_owned(),
            output::bytes(info.size_bytes),
            output::bytes(info.data_bytes),
            output::bytes(info.stored_bytes),
            info.created.clone(),
            info.source.clone(),
        ]);
    }
    printer.results(images.iter().map(describe), table)?;
    Failure::unless_readable(damaged, "image", "images")
}
