//! Commands about the program and its host.

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
