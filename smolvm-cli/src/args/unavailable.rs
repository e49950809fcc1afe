//! Commands and flags that are known but not there yet: refused by name, never accepted silently, and unknown to help,
//! completions and suggestions.

use clap::Args;
use clap::error::{ContextKind, ContextValue, ErrorKind};

/// Commands that no version has yet, with the group that they will be in.
const COMMANDS: &[(&str, &str)] = &[
    ("port", "machine "),
    ("grants", "machine "),
    ("pull", "image "),
    ("push", "image "),
    ("serve", ""),
    ("mcp", ""),
];

/// Which command that is not there yet was typed, if that is what the error is about.
pub(super) fn command(error: &clap::Error) -> Option<String> {
    if error.kind() != ErrorKind::InvalidSubcommand {
        return None;
    }
    let Some(ContextValue::String(typed)) = error.get(ContextKind::InvalidSubcommand) else {
        return None;
    };
    let (word, group) = COMMANDS.iter().find(|(word, _)| word == typed)?;
    Some(format!("`{group}{word}`"))
}

/// Flags of a machine that are not there yet.
#[derive(Debug, Args)]
pub(crate) struct UnavailableFlags {
    #[arg(short = 'v', long = "volume", hide = true, value_name = "HOST:GUEST")]
    volume: Vec<String>,
    #[arg(short = 'p', long = "publish", hide = true, value_name = "HOST:GUEST")]
    publish: Vec<String>,
    #[arg(long, hide = true, num_args = 0..=1, value_name = "MODE")]
    net: Option<Option<String>>,
    #[arg(long, hide = true, value_name = "HOST")]
    allow_host: Vec<String>,
}

impl UnavailableFlags {
    /// The first one that was given.
    pub(crate) fn given(&self) -> Option<&'static str> {
        [
            (!self.volume.is_empty(), "-v"),
            (!self.publish.is_empty(), "-p"),
            (self.net.is_some(), "--net"),
            (!self.allow_host.is_empty(), "--allow-host"),
        ]
        .into_iter()
        .find_map(|(given, flag)| given.then_some(flag))
    }
}
