//! What a guest gets between its start and the moment at which anybody works in it.

use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use agent_protocol::client::ClientError;
use agent_protocol::message::{ErrorKind, StepOutcome, StepReport};
use thiserror::Error;

use super::agent::{AgentConnection, AgentError, Control, Patience};
use super::booted;
use super::guest_log;
use super::identity::{self, IdentityError, SEED_BYTES};
use super::shared::{Live, Shared};
use crate::channel::control::{StartReport, Trouble};
use crate::error_chain::chain;
use crate::machine::{BranchWord, MachineDirError, RecordedState, open_log};
use crate::phase::Phase;

/// A guest that starts is silent when its agent does not answer and its console says nothing more. On
/// a host that has little time for it a boot takes minutes, but it gets on.
const AGENT_PATIENCE: Patience = Patience {
    silence: Duration::from_secs(120),
    at_most: Duration::from_secs(600),
};
/// As long for a machine that went on at a booted point: it can still boot.
const BOOTED_PATIENCE: Patience = Patience {
    silence: Duration::from_secs(20),
    at_most: Duration::from_secs(60),
};
/// How long one control call to the agent may take. The guest's disk is synced in it, for which a host
/// whose disks are busy takes many seconds.
const CALL_TIMEOUT: Duration = AGENT_PATIENCE.silence;
/// How often a guest that is set up is looked at.
const LOOK: Duration = Duration::from_secs(60);
/// How long the end of a VMM may take to be noted after its guest's connections broke.
const END_PATIENCE: Duration = Duration::from_secs(1);

/// Sets the guest up after each of its boots, and when asked to try again, until the machine ends; `told` hears how
/// that went. A reset ends the attempt at hand.
pub(super) fn each_boot(shared: &Arc<Shared>, mut told: impl FnMut(&StartReport)) {
    loop {
        let (resets, wanted) = (shared.resets(), shared.retries_wanted());
        if let Some(outcome) = set_up_guest(shared, resets) {
            told(&outcome);
        }
        shared.change(|live| live.retries_done = wanted);
        let changed = |live: &Live| live.resets != resets || live.retries_wanted != wanted;
        let next = || shared.wait(LOOK, |live| live.end.is_some() || changed(live));
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
fn set_up_guest(shared: &Arc<Shared>, resets: u64) -> Option<StartReport> {
    let error = match set_up(shared, resets) {
        Ok(pending) => {
            shared.set_up_done(resets, Ok(pending.clone()));
            return Some(StartReport::Ready {
                backend: shared.backend.clone(),
                pending,
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
    let trouble = match &error {
        SetUpError::Incomplete(_) => Trouble::Incomplete(chain(&error)),
        _ => Trouble::Silent(chain(&error)),
    };
    shared.set_up_done(resets, Err(trouble.clone()));
    Some(StartReport::NotReady(trouble))
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
    /// The agent answers, but not everything could be done that must be.
    #[error("{}", .0.join("; "))]
    Incomplete(Vec<String>),
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

/// Tries every step, whatever became of the others. Returns what is left for the next start.
fn set_up(shared: &Arc<Shared>, resets: u64) -> Result<Vec<String>, SetUpError> {
    let mut guest = Guest::reach(shared, resets)?;
    Phase::AgentAnswers.reached();
    let making = shared.making.lock();
    let making = making.unwrap_or_else(PoisonError::into_inner).take();
    if let Some(making) = making.filter(|_| resets == 0) {
        // Every machine of the kind has a disk of this size.
        guest.may("resize of the root file system", |agent| {
            agent.resize_root()
        })?;
        if guest.pending.is_empty() {
            booted::leave_behind(shared, making);
        }
        guest.pending.clear();
    }
    guest.must("clock", |agent| agent.set_clock_to_now())?;
    let (seed, id) = (identity::random::<SEED_BYTES>()?, identity::random()?);
    guest.must_all("reseed", |agent| agent.reseed(&seed, id))?;
    guest.may("resize of the root file system", |agent| {
        agent.resize_root()
    })?;
    let machine = shared.dir.read()?;
    if let Some(machine) = machine.filter(|file| !file.has_identity && !file.keep_identity) {
        let restored = shared.restored || machine.undos > 0;
        let identity = identity::new_identity(&machine.name, restored)?;
        if guest.must_all("new identity", |agent| agent.set_identity(&identity))? {
            Phase::IdentityGiven.reached();
            let now = SystemTime::now().duration_since(UNIX_EPOCH);
            let now = now.unwrap_or_default();
            let change = shared.dir.change(|machine| {
                machine.has_identity = true;
                let since = (now.as_secs(), now.subsec_nanos());
                machine.identity_since.get_or_insert(since);
            });
            change.visible()?;
        }
    }
    guest_log::follow(shared, resets);
    guest.become_branch()?;
    if guest.failed.is_empty() {
        Ok(guest.pending)
    } else {
        Err(SetUpError::Incomplete(guest.failed))
    }
}

/// A guest that is set up: how to reach it, and what became of the steps.
struct Guest<'a> {
    shared: &'a Shared,
    resets: u64,
    agent: AgentConnection,
    /// Steps without which it must not be used.
    failed: Vec<String>,
    /// Others.
    pending: Vec<String>,
}

impl<'a> Guest<'a> {
    fn reach(shared: &'a Shared, resets: u64) -> Result<Self, AgentError> {
        Ok(Self {
            shared,
            resets,
            agent: connect(shared, resets)?,
            failed: Vec::new(),
            pending: Vec::new(),
        })
    }

    /// The last step of a branch: what waited for it in the source goes on, unless it is held. Nothing does in a guest that must
    /// not be used.
    fn become_branch(&mut self) -> Result<(), SetUpError> {
        let Some(machine) = self.shared.dir.read()? else {
            return Ok(());
        };
        let Some(place) = machine.branch else {
            return Ok(());
        };
        let due = place.word == BranchWord::Due;
        if due && self.failed.is_empty() {
            let release =
                |agent: &mut Control| match agent.release(place.index, machine.name.as_str()) {
                    // An agent of a point from before that: nothing waits.
                    Err(ClientError::Agent {
                        kind: ErrorKind::Unsupported,
                        ..
                    }) => Ok(0),
                    other => other,
                };
            self.must("word to what waits for the branch", release)?;
        }
        if self.failed.is_empty() && (due || !place.up) {
            let change = self.shared.dir.change(|machine| {
                if let Some(place) = &mut machine.branch {
                    place.up = true;
                    if due {
                        place.word = BranchWord::Told;
                    }
                }
            });
            change.visible()?;
        }
        Ok(())
    }

    /// Makes one call. What the agent answers is inside; an agent that is lost is looked for once more,
    /// since the next step needs it.
    fn call<T>(
        &mut self,
        call: &'static str,
        make: impl FnOnce(&mut Control) -> Result<T, ClientError>,
    ) -> Result<Result<T, AgentError>, AgentError> {
        let begin = Instant::now();
        let made = self.agent.call(call, CALL_TIMEOUT, make);
        tracing::debug!(call, took = ?begin.elapsed(), "the agent was called");
        if let Err(error) = &made
            && !error.is_answer()
        {
            self.agent = connect(self.shared, self.resets)?;
        }
        Ok(made)
    }

    /// A call that must succeed before the machine is ready.
    fn must<T>(
        &mut self,
        call: &'static str,
        make: impl FnOnce(&mut Control) -> Result<T, ClientError>,
    ) -> Result<(), AgentError> {
        if let Err(error) = self.call(call, make)? {
            self.failed.push(chain(&error));
        }
        Ok(())
    }

    /// A call without which the machine can be used.
    fn may<T>(
        &mut self,
        call: &'static str,
        make: impl FnOnce(&mut Control) -> Result<T, ClientError>,
    ) -> Result<(), AgentError> {
        if let Err(error) = self.call(call, make)? {
            self.pending.push(chain(&error));
        }
        Ok(())
    }

    /// A call with several steps; whether all of them were done for good.
    fn must_all(
        &mut self,
        call: &'static str,
        make: impl FnOnce(&mut Control) -> Result<Vec<StepReport>, ClientError>,
    ) -> Result<bool, AgentError> {
        let steps = match self.call(call, make)? {
            Ok(steps) => steps,
            Err(error) => {
                self.failed.push(chain(&error));
                return Ok(false);
            }
        };
        for step in &steps {
            let text = format!("{}: {}", step.step, step.reason);
            match step.outcome {
                StepOutcome::Done => {}
                StepOutcome::UntilBoot => self.pending.push(text),
                StepOutcome::Failed => self.failed.push(text),
            }
        }
        Ok(steps.iter().all(|step| step.outcome == StepOutcome::Done))
    }
}

fn connect(shared: &Shared, resets: u64) -> Result<AgentConnection, AgentError> {
    let console = shared.dir.console_log();
    let console_bytes = || std::fs::metadata(&console).map_or(0, |log| log.len());
    // A set-up of the guest before a reset is of no use any more.
    let ended = || shared.has_ended() || shared.resets() != resets;
    let patience = match shared.at_booted && resets == 0 {
        true => BOOTED_PATIENCE,
        false => AGENT_PATIENCE,
    };
    shared
        .dialer
        .connect_to_living(patience, ended, console_bytes)
}
