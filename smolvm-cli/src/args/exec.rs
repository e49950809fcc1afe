//! `machine exec`, `machine shell` and `machine run`.

use std::ffi::OsString;
use std::time::Duration;

use clap::Args;
use smolvm_engine::MachineName;

use super::Named;
use super::create::MachineShape;
use super::values;

/// How a command is run. What `exec` and `run` share.
#[derive(Debug, Args)]
pub(crate) struct CommandArgs {
    /// Give it our stdin; without it, its stdin is empty
    #[arg(short, long)]
    pub(crate) interactive: bool,
    /// Run it on a terminal
    #[arg(short, long)]
    pub(crate) tty: bool,
    /// User: NAME, UID, NAME:GROUP or UID:GID [default: root]
    #[arg(short, long)]
    pub(crate) user: Option<String>,
    /// End it after this time, as 30s or 5m, with exit code 124 [default: never]
    #[arg(long, value_name = "TIME", value_parser = values::duration)]
    pub(crate) timeout: Option<Duration>,
    /// The command and its arguments
    #[arg(last = true, required = true, value_name = "CMD")]
    pub(crate) command: Vec<OsString>,
}

/// `machine exec`.
#[derive(Debug, Args)]
#[command(
    override_usage = "smolvm machine exec [OPTIONS] [NAME] [--] <CMD>...",
    after_help = "Example: smolvm exec agent -- python3 -c 'print(6 * 7)'",
    after_long_help = "stdout and stderr of the command come out separately and unchanged; with -t both are the \
        terminal's.\nIt returns when the command exits; what the command left in the background goes on.\n\n\
        Exit codes: the command's own; 124 timeout; 125 smolvm failed; 126 cannot be executed; 127 not\n\
        found; 128+N ended by signal N; 130 interrupted.\n\n\
        Examples: smolvm exec agent -- python3 -c 'print(6 * 7)'\n          \
        smolvm exec -it agent bash"
)]
pub(crate) struct ExecArgs {
    /// The machine; NAME before the command does the same [default: $SMOLVM_MACHINE_NAME, or the only one]
    #[arg(short, long)]
    pub(crate) name: Option<MachineName>,
    /// Only start it and print its id; its output goes to the machine's log
    #[arg(short, long, conflicts_with_all = ["interactive", "tty"])]
    pub(crate) detach: bool,
    /// Variable for it (may be repeated)
    #[arg(short, long = "env", value_name = "K=V", value_parser = values::assignment)]
    pub(crate) env: Vec<(String, String)>,
    /// Directory to start in [default: that of create, else the image's, else /root]
    #[arg(short, long, value_name = "DIR")]
    pub(crate) workdir: Option<String>,
    #[command(flatten)]
    pub(crate) command: CommandArgs,
}

/// `machine shell`.
#[derive(Debug, Args)]
#[command(after_help = "Example: smolvm shell agent")]
pub(crate) struct ShellArgs {
    #[command(flatten)]
    pub(crate) machine: Named,
    /// User whose login shell it is [default: root]
    #[arg(short, long)]
    pub(crate) user: Option<String>,
    /// Variable for it (may be repeated)
    #[arg(short, long = "env", value_name = "K=V", value_parser = values::assignment)]
    pub(crate) env: Vec<(String, String)>,
    /// Directory to start in [default: that of create, else the image's, else /root]
    #[arg(short, long, value_name = "DIR")]
    pub(crate) workdir: Option<String>,
}

/// `machine run`.
#[derive(Debug, Args)]
#[command(
    override_usage = "smolvm machine run [OPTIONS] [IMAGE] [--] <CMD>...",
    after_help = "Example: smolvm run debian -- uname -a"
)]
pub(crate) struct RunArgs {
    #[command(flatten)]
    pub(crate) shape: MachineShape,
    #[command(flatten)]
    pub(crate) command: CommandArgs,
    /// As docker is told; a machine of `run` is always removed
    #[arg(long, hide = true)]
    rm: bool,
}
