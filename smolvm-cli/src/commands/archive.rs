//! `machine checkpoint-export` and `machine checkpoint-import`.

use std::fs::File;
use std::io::{self, BufReader, BufWriter, IsTerminal, Read};
use std::path::{Path, PathBuf};

use serde_json::json;
use smolvm_engine::{Archived, Engine, ExportOptions};

use super::create;
use crate::args::{CheckpointExportArgs, CheckpointImportArgs};
use crate::failure::Failure;
use crate::output::{self, Object, Printer, object};

/// Suffix of a checkpoint directory.
const SUFFIX: &str = ".checkpoint";
/// Suffixes that an exported file's name loses.
const FILE_SUFFIXES: [&str; 2] = [".tar", SUFFIX];

/// `machine checkpoint-export`.
pub(crate) fn export(
    engine: &Engine,
    printer: &Printer,
    args: CheckpointExportArgs,
) -> Result<(), Failure> {
    let mut options = ExportOptions::new(create::source(args.point));
    options.at = args.at;
    options.history = args.history;
    if !is_dash(&args.output) {
        let progress = printer.progress();
        let archived = engine.export_file(&options, &args.output, &*progress);
        drop(progress);
        let archived = archived?;
        let place = args.output.display();
        let line = format!("Exported {} to {place}", points(&archived));
        return printer.result(describe(&archived, &args.output), &line);
    }
    if io::stdout().is_terminal() {
        return Err(Failure::Usage {
            what: "an archive is nothing for a terminal".to_owned(),
            hint: Some("give a file with -o, or pipe it".to_owned()),
        });
    }
    let mut stdout = BufWriter::new(output::raw_stdout()?);
    let progress = printer.progress();
    let archived = engine.export(&options, &mut stdout, &*progress);
    drop(progress);
    archived?;
    Ok(())
}

/// `machine checkpoint-import`.
pub(crate) fn import(
    engine: &Engine,
    printer: &Printer,
    args: CheckpointImportArgs,
) -> Result<(), Failure> {
    let dash = is_dash(&args.file);
    let output = match args.output {
        Some(output) => output,
        None if dash => {
            return Err(Failure::Usage {
                what: "what is read from stdin has no name".to_owned(),
                hint: Some("name the checkpoint with -o X.checkpoint".to_owned()),
            });
        }
        None => default_output(&args.file),
    };
    let mut from: Box<dyn Read> = match dash {
        true => Box::new(output::raw_stdin()?),
        false => {
            let file = File::open(&args.file).map_err(|source| Failure::File {
                path: args.file.clone(),
                source,
            })?;
            Box::new(BufReader::new(file))
        }
    };
    let progress = printer.progress();
    let archived = engine.import(&mut *from, &output, &*progress);
    drop(progress);
    let archived = archived?;
    let place = output.display();
    let line = format!("Imported {} to {place}", points(&archived));
    printer.result(describe(&archived, &output), &line)?;
    printer.note(&format!(
        "make a machine of it with: smolvm machine create --from {place}"
    ));
    Ok(())
}

fn is_dash(path: &Path) -> bool {
    path.as_os_str() == "-"
}

/// The file's name without its suffix, as a checkpoint in the working directory.
fn default_output(file: &Path) -> PathBuf {
    let name = file.file_name().unwrap_or_default().to_string_lossy();
    let name = FILE_SUFFIXES.iter().fold(&*name, |name, suffix| {
        name.strip_suffix(suffix).unwrap_or(name)
    });
    PathBuf::from(format!("{name}{SUFFIX}"))
}

/// `c4c23a7c6d3a and 2 earlier points, 121 MiB,`.
fn points(archived: &Archived) -> String {
    let mut text = archived.short_id.clone();
    match archived.points.saturating_sub(1) {
        0 => {}
        earlier => {
            let earlier = output::count(earlier as u64, "earlier point", "earlier points");
            text.push_str(&format!(" and {earlier}"));
        }
    }
    format!("{text}, {},", output::bytes(archived.bytes))
}

fn describe(archived: &Archived, output: &Path) -> Object {
    object(json!({
        "id": archived.id,
        "points": archived.points,
        "bytes": archived.bytes,
        "output": output.display().to_string(),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_names_its_checkpoint() {
        for (file, expected) in [
            ("before.tar", "before.checkpoint"),
            ("/tmp/before.checkpoint.tar", "before.checkpoint"),
            ("before", "before.checkpoint"),
        ] {
            assert_eq!(default_output(Path::new(file)), Path::new(expected));
        }
    }
}
