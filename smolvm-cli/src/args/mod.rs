//! The command line as the user types it.

mod copy;
mod create;
mod exec;
mod habits;
#[cfg(test)]
mod hints;
mod image;
mod kernel;
mod machine;
mod point;
mod points;
mod spelling;
mod system;
mod unavailable;
pub(crate) mod values;

use std::ffi::OsString;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};

pub(crate) use copy::{CopyArgs, Place};
pub(crate) use create::{CreateArgs, MachineShape};
pub(crate) use exec::{CommandArgs, ExecArgs, RunArgs, ShellArgs};
pub(crate) use image::{ImageBuildArgs, ImageCommand, ImageImportArgs};
pub(crate) use kernel::{KernelCommand, KernelImportArgs};
pub(crate) use machine::{
    AutosaveArgs, BranchArgs, BranchReleaseArgs, CheckpointArgs, CheckpointExportArgs,
    CheckpointImportArgs, CheckpointLogArgs, CheckpointVerifyArgs, DeleteArgs, ListArgs, LogsArgs,
    MachineCommand, Named, PauseArgs, RenameArgs, RestartArgs, ResumeArgs, StartArgs, StopArgs,
    TreeArgs, TryArgs, UndoArgs,
};
pub(crate) use point::{CheckpointDiffArgs, PointText};
pub(crate) use points::{CheckpointDeleteArgs, CheckpointPruneArgs};
pub(crate) use system::{CompletionsArgs, DfArgs, HelpArgs};

/// The whole command line.
#[derive(Debug, Parser)]
#[command(
    name = "smolvm",
    version,
    about = "Linux machines with an undo button",
    long_about = "Linux machines with an undo button.\n\n\
        A machine is a small virtual computer of its own: kernel, memory, disk. Work in it with \
        `exec`, `shell` and `cp`; save it, memory and disk at one instant, with `checkpoint`.\n\n\
        Every command of `machine` also goes without that word: `smolvm start agent`.",
    after_help = "`smolvm start agent` is short for `smolvm machine start agent`, and so for every command of `machine`.\n\
        `smolvm help TOPIC`: checkpoints, images, exit-codes.\n\
        Begin with: smolvm start agent",
    after_long_help = "Begin with: smolvm start agent\n\n\
        Environment:\n  \
        SMOLVM_HOME          where everything is kept [default: $XDG_DATA_HOME/smolvm, else ~/.local/share/smolvm]\n  \
        SMOLVM_MACHINE_NAME  the machine that is meant where --name is left out\n  \
        SMOLVM_BACKEND       default of --backend [default: auto]\n  \
        SMOLVM_TRANSLATION   `off`: the software CPU only interprets [default: on]\n  \
        SMOLVM_BOOTED_POINTS `off`: each first start boots (see start --cold) [default: on]\n  \
        SMOLVM_LOG           what is logged to stderr, for instance debug [default: warn]\n\n\
        Exit codes:\n  \
        0 done; 1 failed; 2 wrong usage; 130 interrupted.\n  \
        run, exec and shell: the command's own; 124 timeout; 125 smolvm failed; 126 cannot be executed;\n  \
        127 not found; 128+N ended by signal N.\n\n\
        Data goes to stdout, everything else to stderr. With --json data is one object per line, and an\n\
        error is one object on stderr.",
    disable_help_subcommand = true,
    max_term_width = 100
)]
pub(crate) struct Cli {
    /// Print data, and errors, as JSON objects, one a line
    #[arg(long, global = true)]
    pub(crate) json: bool,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// The groups of commands.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Make machines, run them, work in them
    #[command(subcommand)]
    Machine(MachineCommand),
    /// Images: what a machine's disk is made of
    #[command(subcommand)]
    Image(ImageCommand),
    /// Kernels: what a machine boots
    #[command(subcommand)]
    Kernel(KernelCommand),
    /// Say what this host can do, and how to mend what it cannot
    #[command(
        long_about = "Say what this host can do, and how to mend what it cannot.\n\n\
            Exit code 0 exactly when some backend can run a machine here."
    )]
    Doctor,
    /// Say what takes how much room on the disk
    #[command(
        long_about = "Say what images, kernels, machines, checkpoints and the points of a store take on the disk.\n\n\
            OWN is what only it has, SHARED what others have as well: each file counts once in the sum. Of a point, OWN is what deleting it \
            gives back."
    )]
    Df(DfArgs),
    /// Print completions for a shell
    Completions(CompletionsArgs),
    /// Explain a command or a topic: checkpoints, images, exit-codes
    Help(HelpArgs),
    /// What users of docker type for `image ls`
    #[command(hide = true)]
    Images,
    /// A command of `machine` without that word.
    #[command(flatten)]
    Short(MachineCommand),
}

/// A command line that is not carried out.
#[derive(Debug)]
pub(crate) enum Refusal {
    /// Help, version or a usage error, as clap says it.
    Parser {
        /// What clap says.
        error: clap::Error,
        /// JSON was asked for.
        json: bool,
    },
    /// A command that no version has yet.
    NotAvailable {
        /// Which.
        what: String,
        /// JSON was asked for.
        json: bool,
    },
    /// The word that another tool has for a command.
    Habit {
        /// The word.
        word: String,
        /// What to type instead.
        command: &'static str,
        /// JSON was asked for.
        json: bool,
    },
}

/// Parses the program's arguments.
pub(crate) fn parse(arguments: impl IntoIterator<Item = OsString>) -> Result<Cli, Refusal> {
    let root = describe();
    let arguments = spelling::canonical(&root, arguments.into_iter().collect());
    let parsed = root
        .try_get_matches_from(&arguments)
        .and_then(|matches| Cli::from_arg_matches(&matches));
    parsed.map_err(|error| {
        let own = arguments.iter().take_while(|argument| *argument != "--");
        let json = own.into_iter().any(|argument| argument == "--json");
        if let Some(what) = unavailable::command(&error) {
            return Refusal::NotAvailable { what, json };
        }
        match habits::meant(&error) {
            Some((word, command)) => Refusal::Habit {
                word,
                command,
                json,
            },
            None => Refusal::Parser { error, json },
        }
    })
}

/// The description of the whole command line. The short forms of `machine`'s commands are understood, and not listed
/// twice.
pub(crate) fn describe() -> clap::Command {
    let root = Cli::command();
    let short: Vec<String> = root
        .find_subcommand("machine")
        .into_iter()
        .flat_map(clap::Command::get_subcommands)
        .map(|command| command.get_name().to_owned())
        .collect();
    short.into_iter().fold(root, |root, name| {
        root.mut_subcommand(name, |command| command.hide(true))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Result<Cli, String> {
        let words = std::iter::once("smolvm").chain(line.split(' '));
        parse(words.map(OsString::from)).map_err(|refusal| match refusal {
            Refusal::Parser { error, .. } => error.to_string(),
            Refusal::NotAvailable { what, .. } => what,
            Refusal::Habit { word, .. } => word,
        })
    }

    #[test]
    fn the_description_is_consistent() {
        describe().debug_assert();
    }

    #[test]
    fn the_spelling_that_users_know_is_understood() {
        for line in [
            "machine start --name agent --branchable",
            "machine start --name agent --no-branchable --cold",
            "machine checkpoint --name agent --store ./history -o ./x.checkpoint",
            "machine exec --name agent -- ./do-step.sh step",
            "machine exec --name agent -it -e A=b -w / -u nobody --timeout 5s -- sh",
            "machine stop --name agent --timeout 3s",
            "machine stop --all",
            "machine stop --name agent --discard",
            "machine pause --name agent",
            "machine resume --name agent",
            "pause agent",
            "resume agent",
            "machine delete --name agent -f",
            "machine delete --all -f",
            "machine create --name u --from ./x.checkpoint --at ~2",
            "machine create --image debian --cpus 2 --mem 1G --disk 8G -e A=b -w /root --label a=b",
            "machine checkpoint-log ./x.checkpoint",
            "machine checkpoint-log --store ./history --machine agent",
            "machine checkpoint-verify ./x.checkpoint --sample 5%",
            "machine checkpoint-diff agent@~1 ./x.checkpoint",
            "machine cp ./x.checkpoint@~1:/etc/hosts .",
            "machine checkpoint-verify --store ./history --quick --repair-from ./other",
            "machine checkpoint-export ./x.checkpoint -o x.tar",
            "machine checkpoint-export c4c23a7c --at ~1 --history 0 -o -",
            "machine checkpoint-import - -o ./y.checkpoint",
            "machine tree",
            "machine tree --dot --store ./history",
            "machine tree --json",
            "tree",
            "machine checkpoint-delete c4c23a7c --store ./history -f",
            "machine checkpoint-delete ./x.checkpoint",
            "machine checkpoint-prune --store ./history --keep-last 5 --keep-hourly 24 --dry-run",
            "machine checkpoint-prune --keep-daily 7 --keep-weekly 4",
            "machine autosave --every 5m --keep-last 12 --keep-hourly 24",
            "machine undo --name agent",
            "machine undo --to ~2 --discard",
            "machine try --check true -- make test",
            "machine branch --from agent --name try-a",
            "machine branch --from agent --name try-a --hold --ready-timeout 5m",
            "machine branch --from agent --count 2 --name-prefix b --ready-timeout 30s",
            "machine branch-release --name try-a",
            "branch-release try-a",
            "machine branch --from agent --count 8 --name-prefix try -o ./x.checkpoint --store ./history",
            "branch --name try-a",
            "machine run --image debian -- true",
            "machine ls --json",
            "machine status",
            "machine cp ./a agent:/root/a",
            "machine logs -f --name agent",
            "kernel import ./k.deb",
            "kernel import default",
            "image build debian --include gcc,make",
            "machine start agent",
            "machine start -n agent",
            "machine rename agent other",
            "machine rename --name agent other",
            "start agent --create --mem 2G",
            "run debian uname -a",
            "exec agent ls -la",
            "exec -it agent bash",
            "shell agent",
            "ssh agent",
            "ps",
            "list -v",
            "ls",
            "rm -f agent",
            "inspect agent",
            "snapshot agent -m before",
            "restart agent",
            "logs agent -f",
            "images",
            "help checkpoints",
            "df",
            "df --store ./history --json",
        ] {
            assert!(parsed(line).is_ok(), "{line}: {:?}", parsed(line).err());
        }
    }

    #[test]
    fn wrong_usage_is_refused() {
        for line in [
            "machine",
            "machine exec --name agent",
            "machine exec --name agent -e =x -- true",
            "machine create --mem 12",
            "machine create --mem 1Q",
            "machine create --backend cloud",
            "machine create --name ../x",
            "machine create --image a --from ./x.checkpoint",
            "machine create --at ~1",
            "machine stop --all --name agent",
            "machine delete --all --name agent",
            "machine stop --all agent",
            "machine start agent --name other",
            "machine rename a b c",
            "machine cp a:x ./b",
            "machine run --image debian",
            "machine tree --dot --json",
            "machine branch --from agent",
            "machine branch --from agent --name a --count 2 --name-prefix b",
            "machine branch --from agent --count 2",
            "machine branch --from agent --name a --ready-timeout 5m",
            "machine branch --from agent --name-prefix b",
            "machine branch --from agent --name a --store ./history",
            "machine checkpoint-delete",
            "machine checkpoint-prune --keep-last 0",
            "machine checkpoint-prune --keep-daily -1",
            "machine autosave --off --keep-last 3",
        ] {
            assert!(parsed(line).is_err(), "{line}");
        }
    }
}
