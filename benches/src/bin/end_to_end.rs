//! The end-to-end benchmark as a program; `cargo xtask bench` prepares a home and runs it.
#![allow(clippy::print_stdout, clippy::print_stderr)] // reason: a program whose output is its result

use std::error::Error;
use std::path::PathBuf;
use std::process::ExitCode;

use benches::end_to_end::{Options, Report, run};
use benches::peer::PeerOptions;
use clap::{Parser, ValueEnum};
use smolvm_engine::process::ProcessModel;
use smolvm_engine::{Backend, Engine, EngineOptions, Home, chain};

/// Measures whole machines: start, exec, two checkpoints, restore.
#[derive(Parser)]
struct Arguments {
    /// The smolvm program that runs the machines
    #[arg(long, value_name = "PROGRAM")]
    smolvm: PathBuf,
    /// A home with a kernel and an image
    #[arg(long, value_name = "DIR")]
    home: PathBuf,
    /// Machines made one after the other
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// MiB of random bytes written between two checkpoints
    #[arg(long, default_value_t = 4)]
    dirty_mib: u32,
    /// What runs the vCPUs: auto, kvm or soft
    #[arg(long, default_value = "auto")]
    backend: Backend,
    /// Measure another virtual machine monitor with the same guest, round by round
    #[arg(long, value_enum, requires = "tsc_khz")]
    peer: Option<Peer>,
    /// Rate of this host's time stamp counter in kHz, for the peer's kernel
    #[arg(long)]
    tsc_khz: Option<u64>,
    /// Print one JSON object instead of a table
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
        rounds: arguments.rounds,
        dirty_mib: arguments.dirty_mib,
        backend: arguments.backend,
        peer: match (arguments.peer, arguments.tsc_khz) {
            (Some(Peer::Qemu), Some(tsc_khz)) => Some(PeerOptions { tsc_khz }),
            _ => None,
        },
        ..Options::default()
    };
    let measured = run(&engine, &options, &|number| {
        eprintln!("round {number} of {}", arguments.rounds.max(1));
    })?;
    let report = Report::of(&measured.rounds, &measured.peer_rounds);
    if arguments.json {
        println!("{}", serde_json::to_string(&report)?);
    } else {
        for line in report.lines() {
            println!("{line}");
        }
    }
    Ok(())
}
