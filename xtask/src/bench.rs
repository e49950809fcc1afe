//! `cargo xtask bench`: the end-to-end benchmark on this host, with the release binary.

use std::fs;
use std::process::Command;

use crate::cargo::{self, Workspace};
use crate::error::{Error, Result};
use crate::vmtest::kernel::Kernel;
use crate::vmtest::{home, tsc};
use crate::{cache, process};

/// What is passed on to the benchmark.
#[derive(Debug, clap::Args)]
pub struct Options {
    /// Options of the benchmark, such as --rounds 3, --backend soft, --peer qemu, --json [default: none; --help
    /// after -- lists them]
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<String>,
}

/// Builds smolvm and the benchmark, prepares a home and measures.
pub fn run(options: &Options) -> Result<()> {
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
    command.args(["end_to_end", "--", "--smolvm"]).arg(&smolvm);
    command.arg("--home").arg(&home);
    // For QEMU's guest; what comes later counts.
    command.arg("--tsc-khz").arg(tsc::measure_khz().to_string());
    command
        .args(&options.arguments)
        .current_dir(&workspace.root);
    process::run(&mut command)
}
