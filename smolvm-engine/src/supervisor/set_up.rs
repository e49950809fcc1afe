//! What a guest gets between its start and the moment at which anybody works in it.

use std::time::Duration;

use thiserror::Error;

use super::agent::{AgentError, Patience};
use super::end_record::change_file;
use super::identity::{self, IdentityError, SEED_BYTES};
use super::shared::Shared;
use crate::channel::control::StartReport;
use crate::error_chain::chain;
use crate::machine::{MachineDirError, RecordedState};
use crate::phase::Phase;

/// A guest that starts is silent when its agent does not answer and its console says nothing more. On
/// a host that has little time for it a boot takes minutes, but it gets on.
const AGENT_PATIENCE: Patience = Patience {
    silence: Duration::from_secs(120),
    at_most: Duration::from_secs(600),
};
/// How long one control call to the agent may take. The guest's disk is synced in it, for which a host
/// whose disks are busy takes many seconds.
const CALL_TIMEOUT: Duration = AGENT_PATIENCE.silence;
/// How long the end of a VMM may take to be noted after its guest's connections broke.
const END_PATIENCE: Duration = Duration::from_secs(1);

/// Waits for the agent and gives the guest what it needs before anybody works in it.
pub(super) fn set_up_guest(shared: &Shared) -> StartReport {
    let result = set_up(shared);
    match result {
        Ok(()) => {
            shared.set_ready();
            StartReport::Ready {
                backend: shared.backend.clone(),
            }
        }
        Err(error) if shared.wait_end(error.end_patience()) => {
            shared.wait_finished();
            let state = shared
                .dir
                .read()
                .ok()
                .flatten()
                .map(|machine| machine.state);
            let why = match state {
                Some(RecordedState::Failed { reason } | RecordedState::Damaged { reason }) => {
                    reason
                }
                _ => chain(&error),
            };
            StartReport::Failed {
                message: format!("the guest ended while it started: {why}"),
                hint: None,
            }
        }
        Err(error) => {
            let message = chain(&error);
            shared.set_silent(message.clone());
            StartReport::AgentSilent { message }
        }
    }
}

/// Why a guest could not be set up.
#[derive(Debug, Error)]
enum SetUpError {
    #[error(transparent)]
    Agent(#[from] AgentError),
    #[error(transparent)]
    Identity(#[from] IdentityError),
    #[error(transparent)]
    Dir(#[from] MachineDirError),
    #[error("the connection to the agent cannot be bounded in time")]
    Timeout(#[from] std::io::Error),
}

impl SetUpError {
    /// How long the machine may still be found to have ended: a connection breaks just before that.
    fn end_patience(&self) -> Duration {
        match self {
            Self::Agent(AgentError::Silent(_)) => Duration::ZERO,
            _ => END_PATIENCE,
        }
    }
}

fn set_up(shared: &Shared) -> Result<(), SetUpError> {
    let console = shared.dir.console_log();
    let console_bytes = || std::fs::metadata(&console).map_or(0, |log| log.len());
    let mut agent = shared.dialer.connect_to_living(
        AGENT_PATIENCE,
        CALL_TIMEOUT,
        || shared.has_ended(),
        console_bytes,
    )?;
    Phase::AgentAnswers.reached();
    let call = |call| move |source| AgentError::of_call(call, CALL_TIMEOUT, source);
    agent.set_clock_to_now().map_err(call("clock"))?;
    agent
        .reseed(&identity::random::<SEED_BYTES>()?, identity::random()?)
        .map_err(call("reseed"))?;
    agent
        .resize_root()
        .map_err(call("resize of the root file system"))?;
    let Some(machine) = shared.dir.read()? else {
        return Ok(());
    };
    if !machine.has_identity && !machine.keep_identity {
        let identity = identity::new_identity(&machine.name, shared.restored)?;
        agent
            .set_identity(&identity)
            .map_err(call("new identity"))?;
        Phase::IdentityGiven.reached();
        change_file(&shared.dir, |machine| machine.has_identity = true)?;
    }
    Ok(())
}
