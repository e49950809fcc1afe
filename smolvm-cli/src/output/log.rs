//! What the program reports about itself, on stderr.

use tracing_subscriber::EnvFilter;

/// Variable that says what is logged.
const VARIABLE: &str = "SMOLVM_LOG";

/// Starts logging to stderr: warnings, or what `SMOLVM_LOG` says. A machine's processes, whose stderr
/// is a file, also log what they do.
pub(crate) fn start() {
    let is_machine = std::env::args_os()
        .nth(1)
        .is_some_and(|first| first.to_string_lossy().starts_with("__"));
    let default = if is_machine { "info" } else { "warn" };
    let filter = EnvFilter::try_from_env(VARIABLE).unwrap_or_else(|_| EnvFilter::new(default));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(false)
        .with_target(false)
        // A log that cannot be written, as on a full file system, would be complained about on stderr, which
        // is the log: that complaint panics.
        .log_internal_errors(false)
        .init();
}
