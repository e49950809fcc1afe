//! The agent proper: a child of PID 1 that listens for the host.

use std::fs::{self, File};
use std::io;
use std::path::Path;
use std::thread;
use std::time::Duration;

use agent_protocol::AGENT_PORT;

use super::console;
use crate::agent::{Agent, Config};
use crate::ready;
use crate::sys::vsock;

/// The agent's nice value; commands get 0.
const PRIORITY: i32 = -10;
/// Pause after a failure of the socket that may last.
const RETRY: Duration = Duration::from_millis(200);

/// Serves until the process is killed; returns its exit code if it cannot. `numbers` is that of
/// [`Config`].
pub(super) fn run(numbers: Option<File>) -> i32 {
    // The OOM killer must leave the way into the machine open.
    if let Err(error) = fs::write("/proc/self/oom_score_adj", "-1000") {
        console::say(&format!(
            "cannot protect the agent from the OOM killer: {error}"
        ));
    }
    // A guest whose commands take all of its processors is saved and stopped all the same.
    if let Err(error) = rustix::process::setpriority_process(None, PRIORITY) {
        console::say(&format!(
            "the agent runs at its commands' priority: {error}"
        ));
    }
    let agent = match Agent::new(Config {
        owns_machine: true,
        log: console::log(),
        numbers,
    }) {
        Ok(agent) => agent,
        Err(error) => {
            console::say(&format!("the agent cannot start: {error}"));
            return 1;
        }
    };
    match ready::listen(Path::new(ready::SOCKET)) {
        Ok(listener) => agent.hear_waiting(listener),
        Err(error) => agent.log(&format!("nothing can wait for a branch: {error}")),
    }
    let mut said = false;
    loop {
        let failure = match vsock::listener(AGENT_PORT) {
            Ok(listener) => {
                if !said {
                    console::say("ready");
                    said = true;
                }
                accept_all(&agent, &listener)
            }
            Err(error) => error,
        };
        // After a transport reset the socket may have to be made anew.
        agent.log(&format!(
            "vsock port {AGENT_PORT}: {failure}; listening again"
        ));
        thread::sleep(RETRY);
    }
}

/// Accepts until the listener fails.
fn accept_all(agent: &std::sync::Arc<Agent>, listener: &std::os::fd::OwnedFd) -> io::Error {
    loop {
        match vsock::accept(listener) {
            Ok((connection, true)) => agent.accept(connection),
            Ok((_, false)) => {} // a process of the guest itself: closed
            Err(error) => match error.raw_os_error() {
                // The connection that waited is gone again; the listener is well.
                Some(libc::ECONNABORTED | libc::EINTR | libc::EPROTO) => {}
                Some(libc::EMFILE | libc::ENFILE | libc::ENOMEM) => thread::sleep(RETRY),
                _ => return error,
            },
        }
    }
}
