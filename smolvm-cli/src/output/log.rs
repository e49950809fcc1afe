//! What the program reports about itself, on stderr.

use std::io;

use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::prelude::*;

/// Variable that says what is logged.
const VARIABLE: &str = "SMOLVM_LOG";

/// Starts logging to stderr: warnings, or what `SMOLVM_LOG` says. A machine's processes, whose stderr
/// is a file, also log what they do.
pub(crate) fn start() {
    let is_machine = std::env::args_os()
        .nth(1)
        .is_some_and(|first| first.to_string_lossy().starts_with("__"));
    let default = match is_machine {
        true => LevelFilter::INFO,
        false => LevelFilter::WARN,
    };
    let default = Targets::new().with_default(default);
    let said = std::env::var(VARIABLE).unwrap_or_default();
    let (filter, not_understood) = match said.parse::<Targets>() {
        // Empty means unset, not silence.
        _ if said.is_empty() => (default, None),
        Ok(filter) => (filter, None),
        Err(error) => (default, Some(error)),
    };
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(io::stderr)
        .with_ansi(false)
        .with_target(false)
        // A log that cannot be written, as on a full file system, would be complained about on stderr, which
        // is the log: that complaint panics.
        .log_internal_errors(false);
    tracing_subscriber::registry()
        .with(lines)
        .with(filter)
        .init();
    if let Some(error) = not_understood {
        tracing::warn!("{VARIABLE} is not understood: {error}");
    }
}
