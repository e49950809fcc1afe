//! Commands and flags that are known but not there yet: refused, never accepted silently.

use std::ffi::OsString;

use clap::Args;

/// Whatever follows a command that is not there yet.
#[derive(Debug, Args)]
#[command(disable_help_flag = true)]
pub(crate) struct Unavailable {
    #[arg(
        trailing_var_arg = true,
        allow_hyphen_values = true,
        num_args = 0..,
        hide = true
    )]
    rest: Vec<OsString>,
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
