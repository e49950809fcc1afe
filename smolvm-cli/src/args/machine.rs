//! The group `machine`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};
use smolvm_engine::{DEFAULT_HISTORY, MachineName};

use super::unavailable::{Unavailable, UnavailableFlags};
use super::values;
use super::{CopyArgs, CreateArgs, ExecArgs, RunArgs, ShellArgs};

/// The commands of the group.
#[derive(Debug, Subcommand)]
pub(crate) enum MachineCommand {
    /// Run one command in a throw-away machine
    #[command(
        long_about = "Run one command in a throw-away machine: start, run, delete.\n\n\
            Exit code: the command's. The machine is deleted in any case."
    )]
    Run(Box<RunArgs>),
    /// Make a machine
    Create(Box<CreateArgs>),
    /// Start a machine; one that does not exist is made
    Start(StartArgs),
    /// Stop a machine, or all
    Stop(StopArgs),
    /// Delete a machine, or all; saved points stay
    Delete(DeleteArgs),
    /// Give a machine another name
    Rename(RenameArgs),
    /// Run a command in a machine
    Exec(ExecArgs),
    /// Open a login shell in a machine
    Shell(ShellArgs),
    /// Copy files and trees into a machine or out of it
    Cp(CopyArgs),
    /// Print a machine's log: its console and the output of `exec -d`
    Logs(LogsArgs),
    /// List the machines
    Ls,
    /// Say how a machine is
    Status(Named),
    /// Save a running machine without stopping it
    Checkpoint(CheckpointArgs),
    /// List a saved point and its parents
    CheckpointLog(CheckpointLogArgs),
    #[command(hide = true)]
    Undo(Unavailable),
    #[command(hide = true)]
    Try(Unavailable),
    #[command(hide = true)]
    Branch(Unavailable),
    #[command(hide = true)]
    BranchRelease(Unavailable),
    #[command(hide = true)]
    Autosave(Unavailable),
    #[command(hide = true)]
    Pause(Unavailable),
    #[command(hide = true)]
    Resume(Unavailable),
    #[command(hide = true)]
    CheckpointDiff(Unavailable),
    #[command(hide = true)]
    CheckpointVerify(Unavailable),
    #[command(hide = true)]
    CheckpointPrune(Unavailable),
    #[command(hide = true)]
    CheckpointExport(Unavailable),
    #[command(hide = true)]
    CheckpointImport(Unavailable),
    #[command(hide = true)]
    Tree(Unavailable),
}

/// One machine.
#[derive(Debug, Args)]
pub(crate) struct Named {
    /// The machine [default: $SMOLVM_MACHINE_NAME, or the only one]
    #[arg(long)]
    pub(crate) name: Option<MachineName>,
}

/// `machine start`.
#[derive(Debug, Args)]
#[command(after_help = "Example: smolvm machine start --name agent")]
pub(crate) struct StartArgs {
    #[command(flatten)]
    pub(crate) machine: Named,
    /// Boot, whatever it could be restored from
    #[arg(long)]
    pub(crate) cold: bool,
    /// Keep track of changes, which branches and quick saves need; this is the default
    #[arg(long, conflicts_with = "no_branchable")]
    pub(crate) branchable: bool,
    /// Do not keep track of changes
    #[arg(long)]
    pub(crate) no_branchable: bool,
    #[command(flatten)]
    pub(crate) unavailable: UnavailableFlags,
}

/// `machine stop`.
#[derive(Debug, Args)]
pub(crate) struct StopArgs {
    #[command(flatten)]
    pub(crate) machine: Named,
    /// Stop all machines
    #[arg(long, conflicts_with = "name")]
    pub(crate) all: bool,
    /// How long it may take to shut down by itself
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = values::duration)]
    pub(crate) timeout: Duration,
}

/// `machine delete`.
#[derive(Debug, Args)]
#[command(after_help = "Example: smolvm machine delete --name agent -f")]
pub(crate) struct DeleteArgs {
    #[command(flatten)]
    pub(crate) machine: Named,
    /// Do not ask, and end it if it runs
    #[arg(short, long)]
    pub(crate) force: bool,
    /// Delete all machines
    #[arg(long, conflicts_with = "name")]
    pub(crate) all: bool,
}

/// `machine rename`.
#[derive(Debug, Args)]
pub(crate) struct RenameArgs {
    #[command(flatten)]
    pub(crate) machine: Named,
    /// Its new name
    #[arg(value_name = "NEW")]
    pub(crate) to: MachineName,
}

/// `machine logs`.
#[derive(Debug, Args)]
pub(crate) struct LogsArgs {
    #[command(flatten)]
    pub(crate) machine: Named,
    /// Go on until the machine ends
    #[arg(short, long)]
    pub(crate) follow: bool,
}

/// `machine checkpoint`.
#[derive(Debug, Args)]
#[command(after_help = "Example: smolvm machine checkpoint --name agent -o ./before.checkpoint")]
pub(crate) struct CheckpointArgs {
    #[command(flatten)]
    pub(crate) machine: Named,
    /// Store of its data [default: the one in $SMOLVM_HOME]
    #[arg(long, value_name = "DIR")]
    pub(crate) store: Option<PathBuf>,
    /// Directory to make, ending in .checkpoint [default: none, the point is kept in the store]
    #[arg(short, long, value_name = "X.checkpoint")]
    pub(crate) output: Option<PathBuf>,
    /// Earlier points that it can go back to by itself
    #[arg(long, value_name = "N", default_value_t = DEFAULT_HISTORY)]
    pub(crate) history: usize,
    /// What to remember about it
    #[arg(short, long, value_name = "TEXT")]
    pub(crate) message: Option<String>,
}

/// `machine checkpoint-log`.
#[derive(Debug, Args)]
#[command(after_help = "Example: smolvm machine checkpoint-log ./before.checkpoint")]
pub(crate) struct CheckpointLogArgs {
    /// A checkpoint [default: the default store, as with --store]
    #[arg(value_name = "X.checkpoint", conflicts_with = "store")]
    pub(crate) point: Option<PathBuf>,
    /// List all points of a store, oldest first
    #[arg(long, value_name = "DIR")]
    pub(crate) store: Option<PathBuf>,
    /// Only those of this machine
    #[arg(long, value_name = "NAME", conflicts_with = "point")]
    pub(crate) machine: Option<MachineName>,
}
