//! Commands about the program and its host.

use std::path::PathBuf;

use clap::Args;
use clap_complete::Shell;

/// `completions`.
#[derive(Debug, Args)]
#[command(
    after_help = "Example: smolvm completions bash > ~/.local/share/bash-completion/completions/smolvm"
)]
pub(crate) struct CompletionsArgs {
    /// The shell
    #[arg(value_enum)]
    pub(crate) shell: Shell,
}

/// `help`.
#[derive(Debug, Args)]
#[command(after_help = "Example: smolvm help checkpoints")]
pub(crate) struct HelpArgs {
    /// A topic (checkpoints, images, exit-codes) or the words of a command
    #[arg(value_name = "TOPIC")]
    pub(crate) words: Vec<String>,
}

/// `df`.
#[derive(Debug, Args)]
#[command(after_help = "Example: smolvm df")]
pub(crate) struct DfArgs {
    /// Store whose points are listed [default: the one in $SMOLVM_HOME]
    #[arg(long, value_name = "DIR")]
    pub(crate) store: Option<PathBuf>,
}
