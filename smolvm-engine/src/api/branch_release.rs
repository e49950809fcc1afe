//! Processes of a guest that wait until it is branched, as the host sees them.

use std::time::{Duration, Instant};

use agent_protocol::client::ClientError;
use agent_protocol::message::ErrorKind;

use crate::api::{Engine, EngineError};
use crate::error_chain::sources;
use crate::machine::BranchWord;
use crate::name::MachineName;
use crate::progress::Progress;

/// How long the agent may take for an answer: whoever wants to stop the machine waits for it.
const RELEASE_PATIENCE: Duration = Duration::from_secs(10);
/// What is shown while processes are waited for.
const PHASE: &str = "waiting for smolvm-branch-ready";

/// What [`Engine::branch_release`] did.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct BranchReleased {
    /// How many processes went on.
    pub count: u32,
}

impl Engine {
    /// Lets processes of a branch go on that wait in `smolvm-branch-ready`.
    ///
    /// # Errors
    ///
    /// [`EngineError::WrongState`], [`EngineError::NotABranch`], [`EngineError::Agent`].
    pub fn branch_release(&self, name: &MachineName) -> Result<BranchReleased, EngineError> {
        self.read(name)?;
        let dir = self.dir(name);
        let _operation = self.lock_operation(name, &dir)?;
        let not_a_branch = || EngineError::NotABranch { name: name.clone() };
        let place = self.read(name)?.branch.ok_or_else(not_a_branch)?;
        self.require_running(name, "release")?;
        let (mut agent, deadline) = self.connect_agent_timed(name)?;
        deadline.set(RELEASE_PATIENCE);
        let count = agent.release(place.index, name.as_str());
        let count = count.map_err(|source| EngineError::Agent {
            name: name.clone(),
            operation: "let the waiting processes go on",
            source,
        })?;
        let change = dir.change(|machine| {
            if let Some(branch) = &mut machine.branch {
                branch.word = BranchWord::Told;
            }
        });
        change.visible()?;
        Ok(BranchReleased { count })
    }

    /// Waits until all processes of the guest that have announced themselves wait for the branch, or have ended.
    pub(super) fn await_ready(
        &self,
        name: &MachineName,
        limit: Duration,
        progress: &dyn Progress,
    ) -> Result<(), EngineError> {
        let begin = Instant::now();
        let failed = |source| EngineError::Agent {
            name: name.clone(),
            operation: "say what waits for a branch",
            source,
        };
        let (mut agent, deadline) = self.connect_agent_timed(name)?;
        deadline.set(limit.saturating_sub(begin.elapsed()));
        // Most often nobody did: nothing is shown then.
        match agent.status() {
            Ok(status) if status.announced.is_empty() => return Ok(()),
            status => drop(status.map_err(failed)?),
        }
        progress.begin(PHASE, None);
        deadline.set(limit.saturating_sub(begin.elapsed()));
        let waited = agent.await_ready();
        progress.end();
        let error = match waited {
            // An agent of a point from before it could be asked: nothing can have told it anything.
            Err(ClientError::Agent {
                kind: ErrorKind::Unsupported,
                ..
            }) => return Ok(()),
            Err(error) => error,
            Ok(()) => return Ok(()),
        };
        if !is_late(&error) {
            return Err(failed(error));
        }
        let (mut agent, deadline) = self.connect_agent_timed(name)?;
        deadline.set(RELEASE_PATIENCE);
        let announced = agent.status().map_err(failed)?.announced;
        let processes: Vec<_> = announced.iter().map(u32::to_string).collect();
        Err(EngineError::NotReady {
            name: name.clone(),
            processes: processes.join(", "),
            limit,
        })
    }
}

/// Whether the time was over.
fn is_late(error: &ClientError) -> bool {
    sources(error).any(|error| {
        let error = error.downcast_ref::<std::io::Error>();
        error.is_some_and(|error| error.kind() == std::io::ErrorKind::TimedOut)
    })
}
