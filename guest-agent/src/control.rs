//! Calls that are answered at once: clock, identity, random pool, sizes, power.

pub(crate) mod disk;
pub(crate) mod identity;
mod place;
pub(crate) mod power;
pub(crate) mod processes;
mod reseed;
mod resize;
pub(crate) mod sync;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use agent_protocol::message::{ErrorKind, Reply, Request, SyncReport};
use rustix::time::{ClockId, Timespec, clock_settime};
use thiserror::Error;

use crate::agent::Agent;
use crate::ready::is_branch_name;
use agent_protocol::message::chain;
use power::End;

/// Why a call was not carried out.
#[derive(Debug, Error)]
pub(crate) enum ControlError {
    #[error("{what}")]
    Invalid { what: &'static str },
    #[error("this agent does not own the machine it runs on")]
    NotOwner,
    #[error("cannot {step} {}", path.display())]
    File {
        step: &'static str,
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error("cannot {step}")]
    System {
        step: &'static str,
        #[source]
        source: std::io::Error,
    },
}

impl ControlError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Invalid { .. } | Self::NotOwner => ErrorKind::Invalid,
            Self::File { source, .. } | Self::System { source, .. } => match source.kind() {
                std::io::ErrorKind::TimedOut => ErrorKind::TimedOut,
                _ => ErrorKind::Failed,
            },
        }
    }

    /// Makes an error of a failed system call.
    pub(crate) fn system<E: Into<std::io::Error>>(step: &'static str) -> impl FnOnce(E) -> Self {
        move |source| Self::System {
            step,
            source: source.into(),
        }
    }
}

/// What happens once the reply is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum After {
    Nothing,
    End { end: End, grace: Duration },
}

impl After {
    pub(crate) fn run(self, agent: &Agent) {
        if let Self::End { end, grace } = self {
            agent.log(end.announcement());
            if let Err(error) = power::end_machine(end, grace) {
                agent.log(&format!("the kernel does not end the machine: {error}"));
            }
        }
    }
}

/// Carries out one call.
pub(crate) fn answer(agent: &Arc<Agent>, request: Request) -> (Reply, After) {
    match carry_out(agent, request) {
        Ok(done) => done,
        Err(error) => {
            let reply = Reply::Error {
                kind: error.kind(),
                message: chain(&error),
            };
            (reply, After::Nothing)
        }
    }
}

fn carry_out(agent: &Arc<Agent>, request: Request) -> Result<(Reply, After), ControlError> {
    let end = |end: End, grace_ms: u32| After::End {
        end,
        grace: Duration::from_millis(grace_ms.into()),
    };
    let mut after = After::Nothing;
    let mut reply = Reply::Ok;
    match request {
        Request::Exec(_)
        | Request::CopyIn(_)
        | Request::CopyOut { .. }
        | Request::Log
        | Request::AwaitReady => {
            let what = "exec, copies, the log and waiting need a connection of their own";
            return Err(ControlError::Invalid { what });
        }
        Request::Ping => {}
        Request::Sync { timeout_ms } => {
            let deadline = Instant::now() + Duration::from_millis(timeout_ms.into());
            let number = agent.syncer.begin();
            let processes::Survey {
                processes,
                activity,
            } = processes::survey(agent.counted(), deadline);
            let left = deadline.saturating_duration_since(Instant::now());
            let written = agent.syncer.wait(number, left);
            reply = Reply::Synced(SyncReport {
                written,
                processes,
                activity,
            });
        }
        Request::Release { index, name } => {
            if !is_branch_name(&name) {
                let what = "that is no name of a branch";
                return Err(ControlError::Invalid { what });
            }
            let count = agent.waiting.release(index, &name);
            reply = Reply::Released { count };
        }
        Request::Status => reply = Reply::Status(agent.status()),
        _ if !agent.owns_machine => return Err(ControlError::NotOwner),
        Request::PowerOff { grace_ms } => after = end(End::PowerOff, grace_ms),
        Request::Reboot { grace_ms } => after = end(End::Reboot, grace_ms),
        Request::SetClock { unix_nanos } => set_clock(unix_nanos)?,
        Request::Reseed { seed, restore_id } => {
            if let Some(step) = reseed::reseed(&seed, restore_id)? {
                reply = Reply::Steps(vec![step]);
            }
        }
        Request::SetIdentity(identity) => {
            let root = identity::Root::machine(&agent.disk);
            reply = Reply::Steps(root.apply(&identity)?);
        }
        Request::ResizeRoot => {
            let size_bytes = resize::resize_root(&agent.disk)?;
            reply = Reply::Resized { size_bytes };
        }
    }
    Ok((reply, after))
}

fn set_clock(unix_nanos: u64) -> Result<(), ControlError> {
    const NANOS: u64 = 1_000_000_000;
    let time = Timespec {
        tv_sec: i64::try_from(unix_nanos / NANOS).unwrap_or(i64::MAX),
        tv_nsec: i64::try_from(unix_nanos % NANOS).unwrap_or(0),
    };
    clock_settime(ClockId::Realtime, time).map_err(ControlError::system("set the clock"))
}
