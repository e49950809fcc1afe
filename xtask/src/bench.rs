//! `cargo xtask bench`: benchmarks of whole machines on this host, with the release binary.

use std::fs;
use std::process::Command;

use crate::cargo::{self, Workspace};
use crate::error::{Error, Result};
use crate::vmtest::kernel::Kernel;
use crate::vmtest::{home, tsc};
use crate::{cache, process};

/// The benchmarks: programs of the crate `benches`. The first is meant where none is named.
const BENCHES: [&str; 3] = ["end-to-end", "capture", "cpu"];

/// Which benchmark, and what is passed on to it.
#[derive(Debug, clap::Args)]
pub struct Options {
    /// Which one [default: end-to-end], and its options, such as --rounds 3, --backend soft, --peer qemu, --json
    /// [default: none; --help after -- lists them]
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<String>,
}

impl Options {
    /// The benchmark's name, and its options.
    fn split(&self) -> Result<(&str, &[String])> {
        match self.arguments.split_first() {
            Some((name, options)) if !name.starts_with('-') => {
                let known = BENCHES.into_iter().find(|known| known == name);
                let known = known.ok_or_else(|| Error::NoBench {
                    name: name.clone(),
                    known: BENCHES.join(", "),
                })?;
                // As typed for the one without a name.
                Ok((
                    known,
                    options.strip_prefix(&["--".to_owned()]).unwrap_or(options),
                ))
            }
            _ => Ok((BENCHES[0], &self.arguments)),
        }
    }
}

/// Builds smolvm and the benchmark, prepares a home and measures.
pub fn run(options: &Options) -> Result<()> {
    let (name, arguments) = options.split()?;
    let workspace = Workspace::read()?;
    let smolvm = cargo::build_smolvm(&workspace)?;
    let folder = workspace.target_folder.join("bench");
    fs::create_dir_all(&folder).map_err(Error::file("create", &folder))?;
    let cache_folder = cache::folder()?;
    let kernel = Kernel::fetch(&cache_folder)?;
    let home = folder.join("home");
    home::prepare(&smolvm, &kernel, &cache_folder, &home)?;
    let mut command: Command = cargo::cargo();
    command.args(["run", "--release", "--quiet", "-p", "benches", "--bin"]);
    command.arg(name.replace('-', "_"));
    command.args(["--", "--smolvm"]).arg(&smolvm);
    command.arg("--home").arg(&home);
    // For QEMU's guest; what comes later counts.
    command.arg("--tsc-khz").arg(tsc::measure_khz().to_string());
    command.args(arguments).current_dir(&workspace.root);
    process::run(&mut command)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(words: &str) -> Options {
        Options {
            arguments: words.split_whitespace().map(str::to_owned).collect(),
        }
    }

    #[test]
    fn the_first_word_names_the_benchmark() {
        for words in [
            "",
            "--rounds 3",
            "end-to-end --rounds 3",
            "end-to-end -- --rounds 3",
        ] {
            let options = options(words);
            let (name, rest) = options.split().unwrap();
            assert_eq!(name, "end-to-end");
            assert!(rest.len() == 2 || words.is_empty());
        }
        let error = options("nothing").split().unwrap_err().to_string();
        assert!(
            error.contains("nothing") && error.contains("end-to-end"),
            "{error}"
        );
    }
}
