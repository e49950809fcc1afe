//! The output of the guest's detached commands, on its way into the machine's log.

use std::io::{self, Write};
use std::sync::Arc;
use std::time::Duration;

use agent_protocol::client::LogReader;
use agent_protocol::message::LogOutput;

use super::agent::AgentError;
use super::shared::Shared;
use crate::error_chain::chain;
use crate::machine::{BoundedLog, open_log};

/// How long the agent may take to begin with its log.
const BEGIN_PATIENCE: Duration = Duration::from_secs(60);
/// Pause before the log of an agent that went away is asked for again.
const RETRY_PAUSE: Duration = Duration::from_secs(1);

/// Follows the log on a thread of its own, until the machine ends or resets. Asked again, a new thread
/// takes over: the agent ends the old one's connection.
pub(super) fn follow(shared: &Arc<Shared>, resets: u64) {
    let shared = Arc::clone(shared);
    let mut number = 0;
    shared.change(|live| {
        live.log_readers += 1;
        number = live.log_readers;
    });
    let spawned = std::thread::Builder::new()
        .name("guest log".to_owned())
        .spawn(move || {
            let goes_on = || {
                !shared.has_ended() && shared.resets() == resets && shared.log_readers() == number
            };
            while goes_on() {
                if let Err(error) = read(&shared, &goes_on) {
                    tracing::debug!(error = %chain(&error), "the guest's log is not read");
                }
                std::thread::sleep(RETRY_PAUSE);
            }
        });
    if let Err(error) = spawned {
        tracing::warn!(%error, "the output of detached commands is not logged");
    }
}

/// Reads until the agent goes away.
fn read(shared: &Shared, goes_on: &impl Fn() -> bool) -> Result<(), AgentError> {
    let agent = shared.dialer.connect(BEGIN_PATIENCE, || !goes_on())?;
    let reader = agent.log(BEGIN_PATIENCE)?;
    if let Err(error) = copy(reader, shared) {
        tracing::debug!(%error, "the guest's log has ended");
    }
    Ok(())
}

fn copy<R: io::Read>(mut reader: LogReader<R>, shared: &Shared) -> io::Result<()> {
    let mut log = BoundedLog::new(open_log(&shared.dir.console_log())?);
    loop {
        match reader.next_output().map_err(io::Error::other)? {
            LogOutput::Lines(lines) => log.write_all(&lines)?,
            LogOutput::Lost { bytes } => {
                writeln!(
                    log,
                    "smolvm: {bytes} bytes of older output of detached commands are lost"
                )?;
            }
        }
    }
}
