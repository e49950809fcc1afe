//! The group `machine`.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};
use smolvm_engine::{DEFAULT_HISTORY, MachineName};

use super::points::{CheckpointDeleteArgs, CheckpointPruneArgs, RetentionArgs};
use super::unavailable::UnavailableFlags;
use super::values;
use super::{CheckpointDiffArgs, CommandArgs, CopyArgs, CreateArgs, ExecArgs, RunArgs, ShellArgs};

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
    /// Start a machine; the first one is made if there is none
    Start(StartArgs),
    /// Stop a machine, or all
    Stop(StopArgs),
    /// Stop a machine and start it again
    Restart(RestartArgs),
    /// Delete a machine, or all; saved points stay
    #[command(visible_alias = "rm")]
    Delete(DeleteArgs),
    /// Give a machine another name
    Rename(RenameArgs),
    /// Run a command in a machine
    Exec(ExecArgs),
    /// Open a login shell in a machine
    #[command(visible_alias = "sh", alias = "ssh")]
    Shell(ShellArgs),
    /// Copy files and trees into a machine or out of it
    Cp(CopyArgs),
    /// Print a machine's log: its console and the output of `exec -d`
    Logs(LogsArgs),
    /// List the machines
    #[command(visible_aliases = ["ps", "list"])]
    Ls(ListArgs),
    /// Say how a machine is
    #[command(alias = "inspect")]
    Status(Named),
    /// Save a machine into its own directory and end it, until resume
    #[command(
        long_about = "Save a machine into its own directory and end it: memory, processes and disk, at one instant. \
            Nothing of it runs or takes memory afterwards, also over a restart of the host.\n\n\
            It is no point in the history and needs no store: `resume`, or `start`, goes on there and uses it up."
    )]
    Pause(PauseArgs),
    /// Let a paused machine go on
    #[command(alias = "unpause")]
    Resume(ResumeArgs),
    /// Save a running machine without stopping it
    #[command(alias = "snapshot")]
    Checkpoint(CheckpointArgs),
    /// List saved points, or one point and its parents
    #[command(alias = "log")]
    CheckpointLog(CheckpointLogArgs),
    /// List what differs between two saved points
    #[command(
        long_about = "List what differs between two saved points: files added (A), changed (M) and removed (D), processes that began (+) \
            and ended (-), and how much memory and disk changed. Nothing is started.\n\n\
            A file is changed where its data, target, kind, permissions or owner are others; times and extended attributes do not \
            count. It is what was on the disks: not what lay in memory, as /run does. Processes are unknown where the machine did \
            not list them when it was saved. Exit code: 0, or 1 if something could not be compared."
    )]
    CheckpointDiff(CheckpointDiffArgs),
    /// Draw what came from what: machines and points
    #[command(
        long_about = "Draw what came from what: machines (@) below the points (o) that they are at, points below their parents.\n\n\
            Points between that say nothing new are counted on one line. Nothing is changed."
    )]
    Tree(TreeArgs),
    /// Check that saved points can be restored, and repair them
    #[command(
        long_about = "Check that saved points can be restored: that their records are whole and that all the data they name \
            is there and undamaged.\n\nNothing is changed, unless a repair is asked for. Exit code: 0 if all is sound, else 1."
    )]
    CheckpointVerify(CheckpointVerifyArgs),
    /// Write a saved point into one file
    #[command(
        long_about = "Write a saved point, with its earlier generations, into one file that needs nothing else. \
            It is a tar archive: it can be piped, and it becomes a checkpoint again by checkpoint-import."
    )]
    CheckpointExport(CheckpointExportArgs),
    /// Make a checkpoint of an exported file
    #[command(
        long_about = "Make a checkpoint of an exported file. Every byte is verified before the checkpoint appears."
    )]
    CheckpointImport(CheckpointImportArgs),
    /// Delete a saved point
    #[command(
        long_about = "Delete a point that a store keeps, or a checkpoint. Machines, other points and other checkpoints have all that they \
            had.\n\nThe data that only a point of a store needed is given back by checkpoint-prune."
    )]
    CheckpointDelete(CheckpointDeleteArgs),
    /// Give back the room of data that no point needs any more
    #[command(
        long_about = "Give back the room of data that nothing needs any more: of points that were deleted, of checkpoints that were removed, \
            and, with --keep-..., of points that these do not keep.\n\n\
            The rule is for the points that the store keeps, of each machine by itself. A point stays if any part of the rule keeps it. \
            --keep-last counts points, the others count hours, days and weeks in which there is a point, from the newest on, and keep the newest \
            point of each. A checkpoint made with -o is never removed.\n\n\
            Machines that run, saves, restores and undos go on beside it."
    )]
    CheckpointPrune(CheckpointPruneArgs),
    /// Take a machine back to a saved point, in whatever state it is
    #[command(
        long_about = "Take a machine back to a saved point, in place and under its name, in whatever state it is.\n\n\
            The state that is left is saved first; going there again is `undo --to` its id."
    )]
    Undo(UndoArgs),
    /// Run a command, and go back to before it if it fails
    #[command(
        long_about = "Save the machine, run a command, and go back to before it if it, or the check after it, fails.\n\n\
            Exit codes: those of exec, of whichever failed."
    )]
    Try(TryArgs),
    /// Let new machines go on from where a running one is
    #[command(
        long_about = "Let new machines go on from where a running one is: memory, processes and disk. All begin at the same instant, none \
            sees what the others do, and the source, which stands still for a moment only, may go at any time.\n\n\
            Returns when they run and answer. Each has a host name, keys and random numbers of its own.\n\n\
            A process of the guest that calls `smolvm-branch-ready [CMD]` waits there, in the source for good; in each branch it goes \
            on, with SMOLVM_BRANCH_INDEX (0, 1, ...) and SMOLVM_BRANCH_NAME set for CMD, or printed for `eval` where there is none."
    )]
    Branch(BranchArgs),
    /// Let the processes of a branch go on that wait in it
    #[command(
        long_about = "Let the processes of a branch go on that wait in smolvm-branch-ready: those of a branch that was made with \
            --hold, or that went back to its beginning by undo.\n\n\
            What begins to wait later waits for the next release, or for a branch of the branch."
    )]
    BranchRelease(BranchReleaseArgs),
    /// Save a machine again and again while it runs and changes
    #[command(
        long_about = "Save a machine again and again while it runs, into the store that it was last saved into.\n\n\
            Where nothing changed nothing is saved: nothing was written to its disk, and nothing ran in it but smolvm's own agent. \
            The first time after a start or an undo it is always saved.\n\n\
            --keep-... says which of its autosaves stay, as in checkpoint-prune; without it all do. Its last point, and every point that \
            was saved otherwise, stays in any case."
    )]
    Autosave(AutosaveArgs),
}

/// One machine, named as `NAME`, `--name NAME` or `-n NAME`.
#[derive(Debug, Args)]
pub(crate) struct Named {
    /// The machine [default: $SMOLVM_MACHINE_NAME, or the only one]
    #[arg(value_name = "NAME", conflicts_with = "name")]
    machine: Option<MachineName>,
    /// The same, spelled out
    #[arg(short, long, value_name = "NAME")]
    name: Option<MachineName>,
}

impl Named {
    /// The name that was typed.
    pub(crate) fn given(self) -> Option<MachineName> {
        self.machine.or(self.name)
    }
}

/// `machine start`.
#[derive(Debug, Args)]
#[command(after_help = "Example: smolvm start agent")]
pub(crate) struct StartArgs {
    #[command(flatten)]
    pub(crate) machine: Named,
    /// Boot, whatever it could be restored from, and though another machine of its kind has booted
    #[arg(long)]
    pub(crate) cold: bool,
    /// Keep track of changes, which branches and quick saves need; this is the default
    #[arg(long, conflicts_with = "no_branchable")]
    pub(crate) branchable: bool,
    /// Do not keep track of changes
    #[arg(long)]
    pub(crate) no_branchable: bool,
    /// Make it if there is no such machine, also where there are others
    #[arg(long)]
    pub(crate) create: bool,
    /// Image of a machine that has to be made [default: `debian`, or the only one]
    #[arg(long, value_name = "NAME")]
    pub(crate) image: Option<String>,
    /// Memory of a machine that has to be made [default: 1G]
    #[arg(long, value_name = "SIZE", value_parser = values::size)]
    pub(crate) mem: Option<u64>,
    #[command(flatten)]
    pub(crate) unavailable: UnavailableFlags,
}

/// `machine restart`.
#[derive(Debug, Args)]
#[command(after_help = "Example: smolvm restart agent")]
pub(crate) struct RestartArgs {
    #[command(flatten)]
    pub(crate) machine: Named,
    /// How long it may take to shut down by itself
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = values::duration)]
    pub(crate) timeout: Duration,
}

/// `machine ls`.
#[derive(Debug, Args)]
#[command(after_help = "Example: smolvm ls -v")]
pub(crate) struct ListArgs {
    /// Also backend, vCPUs, disk, time of creation and parent
    #[arg(short, long)]
    pub(crate) verbose: bool,
}

/// `machine stop`.
#[derive(Debug, Args)]
#[command(after_help = "Example: smolvm stop agent")]
pub(crate) struct StopArgs {
    #[command(flatten)]
    pub(crate) machine: Named,
    /// Stop all machines
    #[arg(long, conflicts_with_all = ["name", "machine"])]
    pub(crate) all: bool,
    /// How long it may take to shut down by itself
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = values::duration)]
    pub(crate) timeout: Duration,
    /// Of a paused machine: give up what was in its memory
    #[arg(long)]
    pub(crate) discard: bool,
}

/// `machine pause`.
#[derive(Debug, Args)]
#[command(after_help = "Example: smolvm pause agent")]
pub(crate) struct PauseArgs {
    #[command(flatten)]
    pub(crate) machine: Named,
}

/// `machine resume`.
#[derive(Debug, Args)]
#[command(after_help = "Example: smolvm resume agent")]
pub(crate) struct ResumeArgs {
    #[command(flatten)]
    pub(crate) machine: Named,
}

/// `machine delete`.
#[derive(Debug, Args)]
#[command(after_help = "Example: smolvm delete agent -f")]
pub(crate) struct DeleteArgs {
    #[command(flatten)]
    pub(crate) machine: Named,
    /// Do not ask, and end it if it runs
    #[arg(short, long)]
    pub(crate) force: bool,
    /// Delete all machines
    #[arg(long, conflicts_with_all = ["name", "machine"])]
    pub(crate) all: bool,
}

/// `machine rename`.
#[derive(Debug, Args)]
#[command(
    override_usage = "smolvm machine rename [OPTIONS] [OLD] <NEW>",
    after_help = "Example: smolvm rename agent worker"
)]
pub(crate) struct RenameArgs {
    /// Its new name; before it, the machine's name
    #[arg(value_name = "NEW", required = true, num_args = 1..=2)]
    names: Vec<MachineName>,
    /// The machine [default: $SMOLVM_MACHINE_NAME, or the only one]
    #[arg(short, long, value_name = "OLD")]
    name: Option<MachineName>,
}

impl RenameArgs {
    /// The machine, if it was named, and its new name; `None` if it was named twice.
    pub(crate) fn resolve(self) -> Option<(Option<MachineName>, MachineName)> {
        let mut names = self.names;
        let to = names.pop()?;
        match (names.pop(), self.name) {
            (Some(_), Some(_)) => None,
            (old, name) => Some((old.or(name), to)),
        }
    }
}

/// `machine logs`.
#[derive(Debug, Args)]
#[command(after_help = "Example: smolvm logs agent -f")]
pub(crate) struct LogsArgs {
    #[command(flatten)]
    pub(crate) machine: Named,
    /// Go on until the machine ends
    #[arg(short, long)]
    pub(crate) follow: bool,
    /// Only the last lines
    #[arg(long, value_name = "LINES")]
    pub(crate) tail: Option<u64>,
}

/// `machine checkpoint`.
#[derive(Debug, Args)]
#[command(after_help = "Example: smolvm checkpoint agent -m 'before migrate'")]
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

/// `machine undo`.
#[derive(Debug, Args)]
#[command(after_help = "Example: smolvm undo agent")]
pub(crate) struct UndoArgs {
    #[command(flatten)]
    pub(crate) machine: Named,
    /// Point: ~N counted from the last one, an id, the beginning of one, or a message [default: the last one]
    #[arg(long, value_name = "GEN", value_parser = values::generation)]
    pub(crate) to: Option<String>,
    /// Give the present state up instead of saving it first
    #[arg(long)]
    pub(crate) discard: bool,
}

/// `machine try`.
#[derive(Debug, Args)]
#[command(after_help = "Example: smolvm try --name agent --check 'make test' -- ./migrate.sh")]
pub(crate) struct TryArgs {
    /// The machine [default: $SMOLVM_MACHINE_NAME, or the only one]
    #[arg(long, short)]
    pub(crate) name: Option<MachineName>,
    /// Shell command that has to succeed afterwards, too
    #[arg(long, value_name = "CMD")]
    pub(crate) check: Option<OsString>,
    #[command(flatten)]
    pub(crate) command: CommandArgs,
}

/// `machine branch`.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples: smolvm branch --from agent --name try-a\n          \
    smolvm branch --from agent --count 8 --name-prefix try\n          \
    smolvm branch --from agent --name try-b --hold; smolvm branch-release try-b",
    group = clap::ArgGroup::new("waits").args(["count", "hold"]).multiple(true)
)]
pub(crate) struct BranchArgs {
    /// The machine to go on from [default: $SMOLVM_MACHINE_NAME, or the only one]
    #[arg(long, value_name = "NAME")]
    pub(crate) from: Option<MachineName>,
    /// Name of the new machine
    #[arg(short, long, value_name = "NAME", conflicts_with_all = ["count", "name_prefix"], required_unless_present = "count")]
    pub(crate) name: Option<MachineName>,
    /// Make so many: PREFIX-0, PREFIX-1, ...
    #[arg(long, value_name = "K", requires = "name_prefix")]
    pub(crate) count: Option<usize>,
    /// What their names begin with
    #[arg(long, value_name = "PREFIX", requires = "count")]
    pub(crate) name_prefix: Option<String>,
    /// Save the same instant, too: directory to make, ending in .checkpoint
    #[arg(short, long, value_name = "X.checkpoint")]
    pub(crate) output: Option<PathBuf>,
    /// Store of its data [default: the one in $SMOLVM_HOME]
    #[arg(long, value_name = "DIR", requires = "output")]
    pub(crate) store: Option<PathBuf>,
    /// What waits in smolvm-branch-ready waits in the new machines, too, until branch-release
    #[arg(long)]
    pub(crate) hold: bool,
    /// With --count or --hold: how long to wait for processes that `smolvm-branch-ready --announce` has announced [default: 10m]
    #[arg(long, value_name = "TIME", value_parser = values::duration, requires = "waits")]
    pub(crate) ready_timeout: Option<Duration>,
}

/// `machine branch-release`.
#[derive(Debug, Args)]
#[command(after_help = "Example: smolvm branch-release --name try-a")]
pub(crate) struct BranchReleaseArgs {
    #[command(flatten)]
    pub(crate) machine: Named,
}

/// `machine autosave`.
#[derive(Debug, Args)]
#[command(after_help = "Example: smolvm autosave agent --every 5m --keep-last 12 --keep-daily 7")]
pub(crate) struct AutosaveArgs {
    #[command(flatten)]
    pub(crate) machine: Named,
    /// How often
    #[arg(
        long,
        value_name = "TIME",
        value_parser = values::duration,
        required_unless_present = "off",
        conflicts_with = "off"
    )]
    pub(crate) every: Option<Duration>,
    /// Not any more
    #[arg(long, conflicts_with_all = ["keep_last", "keep_hourly", "keep_daily", "keep_weekly"])]
    pub(crate) off: bool,
    #[command(flatten)]
    pub(crate) keep: RetentionArgs,
}

/// `machine checkpoint-log`.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples: smolvm checkpoint-log agent\n          smolvm checkpoint-log ./before.checkpoint"
)]
pub(crate) struct CheckpointLogArgs {
    /// A checkpoint, the id of a point in the default store, or a machine [default: the default store, as with --store]
    #[arg(value_name = "X.checkpoint|ID|NAME", conflicts_with = "store")]
    pub(crate) point: Option<PathBuf>,
    /// List all points of a store, oldest first
    #[arg(long, value_name = "DIR")]
    pub(crate) store: Option<PathBuf>,
    /// Only those of this machine
    #[arg(long, value_name = "NAME", conflicts_with = "point")]
    pub(crate) machine: Option<MachineName>,
}

/// `machine tree`.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples: smolvm tree\n          smolvm tree --dot | dot -Tsvg > family.svg"
)]
pub(crate) struct TreeArgs {
    /// Points of this store, and the machines that keep any of them [default: all machines, and the stores that they are saved into]
    #[arg(long, value_name = "DIR")]
    pub(crate) store: Option<PathBuf>,
    /// All points, in the language of Graphviz
    #[arg(long, conflicts_with = "json")]
    pub(crate) dot: bool,
}

/// `machine checkpoint-verify`.
#[derive(Debug, Args)]
#[command(after_help = "Example: smolvm machine checkpoint-verify ./before.checkpoint")]
pub(crate) struct CheckpointVerifyArgs {
    /// A checkpoint and its earlier generations [default: the default store, as with --store]
    #[arg(value_name = "X.checkpoint", conflicts_with = "store")]
    pub(crate) point: Option<PathBuf>,
    /// All points of a store
    #[arg(long, value_name = "DIR")]
    pub(crate) store: Option<PathBuf>,
    /// Look whether all is there, but not at the data
    #[arg(long, conflicts_with_all = ["sample", "full"])]
    pub(crate) quick: bool,
    /// Look at this part of the data, chosen anew each time
    #[arg(long, value_name = "PERCENT", value_parser = values::percent, conflicts_with = "full")]
    pub(crate) sample: Option<u8>,
    /// Look at every byte, which is the default
    #[arg(long)]
    pub(crate) full: bool,
    /// Replace what is damaged or missing by what a store, a checkpoint or a machine has
    #[arg(long, value_name = "STORE|MACHINE")]
    pub(crate) repair_from: Option<PathBuf>,
}

/// `machine checkpoint-export`.
#[derive(Debug, Args)]
#[command(
    after_help = "Example: smolvm machine checkpoint-export ./before.checkpoint -o before.tar"
)]
pub(crate) struct CheckpointExportArgs {
    /// A checkpoint, or the id of a point in the default store
    #[arg(value_name = "X.checkpoint|ID")]
    pub(crate) point: PathBuf,
    /// File to make; - is stdout
    #[arg(short, long, value_name = "FILE|-")]
    pub(crate) output: PathBuf,
    /// Which generation: ~N, an id, the beginning of one, or a message [default: the newest]
    #[arg(long, value_name = "GEN", value_parser = values::generation)]
    pub(crate) at: Option<String>,
    /// Earlier points that go with it
    #[arg(long, value_name = "N", default_value_t = DEFAULT_HISTORY)]
    pub(crate) history: usize,
}

/// `machine checkpoint-import`.
#[derive(Debug, Args)]
#[command(
    after_help = "Example: smolvm machine checkpoint-import before.tar -o ./before.checkpoint"
)]
pub(crate) struct CheckpointImportArgs {
    /// An exported file; - is stdin
    #[arg(value_name = "FILE|-")]
    pub(crate) file: PathBuf,
    /// Directory to make [default: the file's name with .checkpoint, here]
    #[arg(short, long, value_name = "X.checkpoint")]
    pub(crate) output: Option<PathBuf>,
}
