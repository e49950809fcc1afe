//! Developer commands: `cargo xtask --help`.

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use xtask::error::{Error, Result};
use xtask::output;
use xtask::vmtest::{self, Outcome};

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
            Outcome::Tests(totals) => {
                output::line(totals);
                if totals.failed > 0 {
                    return Err(Error::Failed("vmtest".to_owned()));
                }
                Ok(ExitCode::SUCCESS)
            }
        },
    }
}
