//! Developer commands: `cargo xtask --help`.

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use xtask::cargo::Workspace;
use xtask::error::Result;
use xtask::totals::Totals;
use xtask::vmtest::kernel::Kernel;
use xtask::vmtest::{self, Outcome};
use xtask::{bench, boots, cache, ci, output};

#[derive(Parser)]
#[command(name = "cargo xtask", about = "Developer commands of smolvm")]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Runs tests, a script or a shell in an emulated host that has real KVM
    Vmtest(vmtest::Options),
    /// Runs every check of the project and counts them
    Ci(ci::Options),
    /// Measures whole machines: start, exec, checkpoints, restore
    Bench(bench::Options),
    /// Boots a guest on the software CPU and on QEMU and compares what it computes
    Boots,
    /// Fetches Debian's cloud kernel package and prints its path
    KernelPackage,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    match run(&arguments.command) {
        Ok(code) => code,
        Err(error) => {
            output::error(&error);
            ExitCode::FAILURE
        }
    }
}

fn run(command: &Command) -> Result<ExitCode> {
    match command {
        Command::Vmtest(options) => match vmtest::run(options)? {
            Outcome::Code(code) => Ok(ExitCode::from(u8::try_from(code).unwrap_or(1))),
            Outcome::Tests(totals) => Ok(report(totals)),
        },
        Command::Ci(options) => Ok(report(ci::run(options)?)),
        Command::Bench(options) => {
            bench::run(options)?;
            Ok(ExitCode::SUCCESS)
        }
        Command::Boots => Ok(report(boots::run(&Workspace::read()?)?)),
        Command::KernelPackage => {
            let kernel = Kernel::fetch(&cache::folder()?)?;
            output::line(kernel.package.display());
            Ok(ExitCode::SUCCESS)
        }
    }
}

/// Prints the totals as the last line.
fn report(totals: Totals) -> ExitCode {
    output::line(totals);
    if totals.failed > 0 {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    }
}
