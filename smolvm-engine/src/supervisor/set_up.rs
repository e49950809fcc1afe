//! What a guest gets between its start and the moment at which anybody works in it.

use std::time::Duration;

use thiserror::Error;

use super::agent::{AgentError, Patience};
use super::identity::{self, IdentityError, SEED_BYTES};
use super::shared::Shared;
use crate::channel::control::StartReport;
use crate::error_chain::chain;
use crate::machine::{MachineDirError, RecordedState, open_log};
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
/// How often a guest that is set up is looked at.
const LOOK: Duration = Duration::from_secs(60);
/// How long the end of a VMM may take to be noted after its guest's connections broke.
const END_PATIENCE: Duration = Duration::from_secs(1);

/// Sets the guest up after each of its boots, until the machine ends; `told` hears how that went. A reset ends the
/// attempt at hand.
pub(super) fn each_boot(shared: &Shared, mut told: impl FnMut(&StartReport)) {
    loop {
        let resets = shared.resets();
        if let Some(outcome) = set_up_guest(shared, resets) {
            told(&outcome);
        }
        let next = || shared.wait(LOOK, |live| live.end.is_some() || live.resets != resets);
        while !next() {
            keep_log_short(shared);
        }
        // Whoever waits for the start was told: the end of a machine is an outcome.
        if shared.has_ended() {
            return;
        }
    }
}

/// The log of these processes may be filled by what a guest does.
fn keep_log_short(shared: &Shared) {
    let path = shared.dir.process_log();
    if let Err(error) = open_log(&path) {
        tracing::debug!(%error, "the log is not looked at");
    }
}

/// Waits for the agent and gives the guest what it needs before anybody works in it. `None`: it was reset
/// meanwhile, once more than `resets` times.
fn set_up_guest(shared: &Shared, resets: u64) -> Option<StartReport> {
    let error = match set_up(shared, resets) {
        Ok(()) => {
            shared.set_up_done(resets, None);
            return Some(StartReport::Ready {
                backend: shared.backend.clone(),
            });
        }
        Err(error) => error,
    };
    shared.wait(error.end_patience(), |live| {
        live.end.is_some() || live.resets != resets
    });
    if shared.has_ended() {
        shared.wait_finished();
        let machine = shared.dir.read().ok().flatten();
        let why = match machine.map(|machine| machine.state) {
            Some(RecordedState::Failed { reason } | RecordedState::Damaged { reason }) => reason,
            _ => chain(&error),
        };
        return Some(StartReport::Failed {
            message: format!("the guest ended while it started: {why}"),
            hint: None,
        });
    }
    if shared.resets() != resets {
        return None;
    }
    let message = chain(&error);
    shared.set_up_done(resets, Some(message.clone()));
    Some(StartReport::AgentSilent { message })
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

fn set_up(shared: &Shared, resets: u64) -> Result<(), SetUpError> {
    let console = shared.dir.console_log();
    let console_bytes = || std::fs::metadata(&console).map_or(0, |log| log.len());
    let mut agent = shared.dialer.connect_to_living(
        AGENT_PATIENCE,
        CALL_TIMEOUT,
        || shared.has_ended() || shared.resets() != resets,
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
        let change = shared.dir.change(|machine| machine.has_identity = true);
        change.visible()?;
    }
    Ok(())
}
