//! The console, which is the machine's log.

use std::fs::File;
use std::io::{self, Write};

/// Writes one message. Without a console there is nobody to tell.
pub(super) fn say(message: &str) {
    let line = format!("smolvm-agent: {message}\n");
    let _ = io::stderr().write_all(line.as_bytes());
}

/// Makes the console stdin, stdout and stderr of this process and of what it starts.
pub(super) fn attach() {
    // Without it the kernel has given us another one, or none at all.
    let Ok(console) = File::options().read(true).write(true).open("/dev/console") else {
        return;
    };
    let attached = rustix::stdio::dup2_stdin(&console)
        .and_then(|()| rustix::stdio::dup2_stdout(&console))
        .and_then(|()| rustix::stdio::dup2_stderr(&console));
    if let Err(error) = attached {
        say(&format!("cannot use the console: {error}"));
    }
}

/// The console for the agent's log.
pub(super) fn log() -> Box<dyn Write + Send> {
    Box::new(io::stderr())
}
