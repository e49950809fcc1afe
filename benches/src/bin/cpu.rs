//! The comparison of processors as a program; `cargo xtask bench cpu` prepares a home and runs it.
#![allow(clippy::print_stdout, clippy::print_stderr)] // reason: a program whose output is its result

use std::error::Error;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use benches::cpu::{Options, run};
use benches::peer::PeerOptions;
use clap::Parser;
use smolvm_engine::process::ProcessModel;
use smolvm_engine::{DEFAULT_MEMORY_BYTES, Engine, EngineOptions, Home, chain};

/// Compares the software CPU with QEMU's translator.
#[derive(Parser)]
struct Arguments {
    /// The smolvm program that runs the machines
    #[arg(long, value_name = "PROGRAM")]
    smolvm: PathBuf,
    /// A home with a kernel and an image
    #[arg(long, value_name = "DIR")]
    home: PathBuf,
    /// Rate of this host's time stamp counter in kHz, for QEMU's kernel
    #[arg(long)]
    tsc_khz: u64,
    /// How often each workload is run in each machine [default: 5, with --quick 1]
    #[arg(long)]
    rounds: Option<usize>,
    /// QEMU is busy with each workload for half a second instead of three
    #[arg(long)]
    quick: bool,
    /// Workloads whose names contain this; several times for several
    #[arg(long, value_name = "PART")]
    only: Vec<String>,
    /// Print one JSON object instead of a table
    #[arg(long)]
    json: bool,
}

fn main() -> ExitCode {
    match measure(&Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {}", chain(&*error));
            ExitCode::FAILURE
        }
    }
}

fn measure(arguments: &Arguments) -> Result<(), Box<dyn Error>> {
    let model = ProcessModel::Processes {
        // Its processes start in `/`.
        program: std::path::absolute(&arguments.smolvm)?,
    };
    let options = EngineOptions::new(Home::at(&arguments.home), model);
    // A boot is measured as one.
    let engine = Engine::open(options.with_booted_points(false))?;
    let (rounds, least) = match arguments.quick {
        true => (1, Duration::from_millis(500)),
        false => (5, Duration::from_secs(3)),
    };
    let options = Options {
        rounds: arguments.rounds.unwrap_or(rounds),
        least,
        only: arguments.only.clone(),
        memory_bytes: DEFAULT_MEMORY_BYTES,
        peer: PeerOptions {
            tsc_khz: arguments.tsc_khz,
        },
    };
    let comparison = run(&engine, &options, &|name| eprintln!("{name}"))?;
    if arguments.json {
        println!("{}", comparison.json()?);
    } else {
        for line in comparison.lines() {
            println!("{line}");
        }
    }
    Ok(())
}
