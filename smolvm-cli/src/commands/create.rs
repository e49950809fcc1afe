//! `machine create` and `machine rename`.

use std::path::{Path, PathBuf};

use serde_json::json;
use smolvm_engine::{
    CreateFromOptions, CreateOptions, DEFAULT_DISK_BYTES, DEFAULT_MEMORY_BYTES, Engine,
    EngineError, MachineInfo, MachineName, MachineSpec, PointSource,
};

use super::describe;
use crate::args::values::SHORTEST_ID;
use crate::args::{CreateArgs, MachineShape, RenameArgs};
use crate::failure::Failure;
use crate::output::{Printer, object};

/// `machine create`.
pub(crate) fn create(engine: &Engine, printer: &Printer, args: CreateArgs) -> Result<(), Failure> {
    let (name, shape, labels) = args.split();
    let machine = Plan::new(name, shape, labels)?.make(engine)?;
    let line = format!(
        "Created '{}' from {}",
        machine.name,
        describe::origin(&machine.origin)
    );
    printer.result(describe::object(&machine), &line)
}

/// What the engine is to make.
pub(crate) enum Plan {
    /// A machine from an image.
    Image(CreateOptions),
    /// A machine from a point.
    Point(Box<CreateFromOptions>),
}

impl Plan {
    /// Takes what was typed.
    pub(crate) fn new(
        name: Option<MachineName>,
        shape: MachineShape,
        labels: Vec<(String, String)>,
    ) -> Result<Self, Failure> {
        if let Some(flag) = shape.unavailable.given() {
            return Err(Failure::not_available(format!("`{flag}`")));
        }
        let environment = shape.env.into_iter().collect();
        let labels = labels.into_iter().collect();
        let Some(from) = shape.from else {
            return Ok(Self::Image(CreateOptions {
                name,
                image: shape.image,
                kernel: shape.kernel,
                spec: MachineSpec {
                    cpus: shape.cpus,
                    memory_bytes: shape.mem.unwrap_or(DEFAULT_MEMORY_BYTES),
                    disk_bytes: shape.disk.unwrap_or(DEFAULT_DISK_BYTES),
                    cpu: shape.cpu,
                    backend: shape.backend,
                    environment,
                    working_directory: shape.workdir,
                    labels,
                },
            }));
        };
        Ok(Self::Point(Box::new(CreateFromOptions {
            name,
            at: shape.at,
            cpus: shape.cpus,
            memory_bytes: shape.mem,
            disk_bytes: shape.disk,
            cpu: shape.cpu,
            backend: shape.backend,
            environment,
            working_directory: shape.workdir,
            labels,
            keep_identity: shape.keep_identity,
            ..CreateFromOptions::new(source(from))
        })))
    }

    /// Makes the machine.
    pub(crate) fn make(self, engine: &Engine) -> Result<MachineInfo, EngineError> {
        match self {
            Self::Image(options) => engine.create(options),
            Self::Point(options) => engine.create_from(*options),
        }
    }
}

/// What names a point: an id where it looks like one and there is no such path, an exported file, or a checkpoint.
pub(super) fn source(from: PathBuf) -> PointSource {
    match id(&from) {
        Some(id) if !from.exists() => PointSource::Id(id),
        _ if from.is_file() => PointSource::Archive(from),
        _ => PointSource::Directory(from),
    }
}

pub(super) fn id(text: &Path) -> Option<String> {
    let text = text.to_str()?;
    let is_id = text.len() >= SHORTEST_ID && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    is_id.then(|| text.to_ascii_lowercase())
}

/// `machine rename`.
pub(crate) fn rename(engine: &Engine, printer: &Printer, args: RenameArgs) -> Result<(), Failure> {
    let (name, to) = args.resolve().ok_or_else(|| Failure::Usage {
        what: "the machine is named twice, by --name and before its new name".to_owned(),
        hint: Some("name it once: smolvm machine rename OLD NEW".to_owned()),
    })?;
    let name = engine.resolve(name)?;
    engine.rename(&name, &to)?;
    let line = format!("Renamed '{name}' to '{to}'");
    let result = json!({"name": to.as_str(), "renamed_from": name.as_str()});
    printer.result(object(result), &line)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_point_is_a_directory_unless_it_can_only_be_an_id() {
        let directory = |text: &str| PointSource::Directory(text.into());
        let source = |text: &str| source(text.into());
        assert_eq!(source("./x.checkpoint"), directory("./x.checkpoint"));
        assert_eq!(source("c4c23a7"), directory("c4c23a7"));
        assert_eq!(source("C4c23a7c"), PointSource::Id("c4c23a7c".into()));
        assert_eq!(
            source("c4c23a7c.checkpoint"),
            directory("c4c23a7c.checkpoint")
        );
    }
}
