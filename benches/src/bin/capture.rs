//! The benchmark of saving and going back as a program; `cargo xtask bench capture` prepares a home and runs it.
#![allow(clippy::print_stdout, clippy::print_stderr)] // reason: a program whose output is its result

use std::error::Error;
use std::path::PathBuf;
use std::process::ExitCode;

use benches::capture::{Options, run};
use benches::peer::PeerOptions;
use clap::{Parser, ValueEnum};
use smolvm_engine::process::ProcessModel;
use smolvm_engine::{Backend, Engine, EngineOptions, Home, chain};

/// Measures saves and ways back: the gap that a guest sees, times, bytes
#[derive(Parser)]
struct Arguments {
    /// The smolvm program that runs the machines
    #[arg(long, value_name = "PROGRAM")]
    smolvm: PathBuf,
    /// A home with a kernel and an image
    #[arg(long, value_name = "DIR")]
    home: PathBuf,
    /// Saves of the first scenario
    #[arg(long, default_value_t = Options::default().saves)]
    saves: usize,
    /// Saves of each scenario that differs from it in one thing; 0 leaves these out
    #[arg(long, default_value_t = Options::default().axis_saves)]
    axis_saves: usize,
    /// How often each machine goes back in each way
    #[arg(long, default_value_t = Options::default().returns)]
    returns: usize,
    /// Most GiB in use where a restore must not depend on it; 0 leaves that out
    #[arg(long, default_value_t = Options::default().in_use_gib)]
    in_use_gib: u32,
    /// What runs the vCPUs: auto, kvm or soft
    #[arg(long, default_value = "auto")]
    backend: Backend,
    /// Measure another virtual machine monitor with the same guest, scenario by scenario
    #[arg(long, value_enum, requires = "tsc_khz")]
    peer: Option<Peer>,
    /// Rate of this host's time stamp counter in kHz, for the peer's kernel
    #[arg(long)]
    tsc_khz: Option<u64>,
    /// Print one JSON object instead of tables
    #[arg(long)]
    json: bool,
}

/// What smolvm can be compared with.
#[derive(Clone, Copy, ValueEnum)]
enum Peer {
    /// QEMU's machine microvm, on KVM where smolvm is, else on TCG
    Qemu,
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
    let options = Options {
        saves: arguments.saves,
        axis_saves: arguments.axis_saves,
        returns: arguments.returns,
        in_use_gib: arguments.in_use_gib,
        backend: arguments.backend,
        peer: match (arguments.peer, arguments.tsc_khz) {
            (Some(Peer::Qemu), Some(tsc_khz)) => Some(PeerOptions { tsc_khz }),
            _ => None,
        },
    };
    let report = run(&engine, &options, &|next| eprintln!("{next}"))?;
    if arguments.json {
        println!("{}", serde_json::to_string(&report)?);
    } else {
        for line in report.lines() {
            println!("{line}");
        }
    }
    Ok(())
}
