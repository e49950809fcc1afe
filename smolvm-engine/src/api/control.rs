//! Talking with the supervisor of a machine that runs, and through it with the agent.

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use agent_protocol::client::{ClientError, Connection, Deadline, TimedStream};
use agent_protocol::hello::HelloError;

use super::Engine;
use crate::api::EngineError;
use crate::channel::control::{Control, ControlReply, LiveStatus};
use crate::channel::{self, ChannelError, control_socket};
use crate::name::MachineName;

/// How long a guest may take to answer the hello of one connection. In one that computes at all, the
/// agent gets on, so this is for a guest that hangs, and for an agent that was killed meanwhile.
const HELLO_TIMEOUT: Duration = Duration::from_secs(60);
/// How long an agent that answers nothing is tried: it may be about to be started again.
const AGENT_PATIENCE: Duration = Duration::from_secs(120);
/// Pause between two attempts to reach an agent that does not listen.
const RETRY_PAUSE: Duration = Duration::from_millis(50);

/// How long a supervisor may take to answer a short request.
const CONTROL_PATIENCE: Duration = Duration::from_secs(20);
/// How long it may take to say how the machine is, its own question to the agent included.
pub(super) const STATUS_PATIENCE: Duration = Duration::from_millis(2500);

/// A connection to a machine's agent.
pub type AgentConnection = Connection<TimedStream, TimedStream>;

impl Engine {
    /// A fresh connection to the agent of a running machine. Waits for an agent that does not answer
    /// at once: the guest may have much to do, or have just killed it (`kill -9 -1`).
    pub fn connect_agent(&self, name: &MachineName) -> Result<AgentConnection, EngineError> {
        self.connect_agent_timed(name).map(|(agent, _)| agent)
    }

    /// As [`Self::connect_agent`], with a time limit for its calls, which is not set yet.
    pub(super) fn connect_agent_timed(
        &self,
        name: &MachineName,
    ) -> Result<(AgentConnection, Deadline), EngineError> {
        self.connect_agent_within(name, AGENT_PATIENCE)
    }

    /// As [`Self::connect_agent_timed`], for somebody who has only so much time.
    pub(super) fn connect_agent_within(
        &self,
        name: &MachineName,
        patience: Duration,
    ) -> Result<(AgentConnection, Deadline), EngineError> {
        let until = Instant::now() + patience.min(AGENT_PATIENCE);
        loop {
            // Fails when the machine does not run any more.
            let stream = self.agent_stream_until(name, until)?;
            let failed = |source| EngineError::Supervisor {
                name: name.clone(),
                source: ChannelError::Io(source),
            };
            let (reader, writer, deadline) = TimedStream::pair(stream).map_err(failed)?;
            deadline.set(HELLO_TIMEOUT.min(patience));
            match Connection::open(reader, writer) {
                Ok(connection) => {
                    deadline.clear();
                    return Ok((connection, deadline));
                }
                // Nobody listens, nobody answers, or the listener went away meanwhile.
                Err(ClientError::Hello(HelloError::Io(_))) if Instant::now() < until => {
                    std::thread::sleep(RETRY_PAUSE);
                }
                Err(source) => {
                    return Err(EngineError::Agent {
                        name: name.clone(),
                        operation: "answer",
                        source,
                    });
                }
            }
        }
    }

    /// A fresh stream to the agent of a running machine, before the hello.
    pub fn agent_stream(&self, name: &MachineName) -> Result<UnixStream, EngineError> {
        self.agent_stream_until(name, Instant::now() + AGENT_PATIENCE)
    }

    fn agent_stream_until(
        &self,
        name: &MachineName,
        until: Instant,
    ) -> Result<UnixStream, EngineError> {
        let answer = loop {
            self.require_running(name, "work in")?;
            match self.control(name, &Control::Agent)? {
                (ControlReply::NotYet, _) if Instant::now() < until => {
                    std::thread::sleep(RETRY_PAUSE);
                }
                answer => break answer,
            }
        };
        match answer {
            (ControlReply::Agent, Some(stream)) => Ok(stream),
            (ControlReply::NotYet, _) => Err(EngineError::Refused {
                name: name.clone(),
                reason: "it is still being started".to_owned(),
                hint: None,
            }),
            (ControlReply::Failed { message, hint }, _) => Err(EngineError::Refused {
                name: name.clone(),
                reason: message,
                hint,
            }),
            _ => Err(EngineError::Supervisor {
                name: name.clone(),
                source: ChannelError::Closed,
            }),
        }
    }

    /// Asks the supervisor for long work; progress goes to `on_progress`.
    pub(crate) fn control_with_progress(
        &self,
        name: &MachineName,
        request: &Control,
        on_progress: &mut dyn FnMut(&str, u64, Option<u64>),
    ) -> Result<ControlReply, EngineError> {
        let (reply, _) = self.long_work(name, request, on_progress)?;
        Ok(reply)
    }

    /// As [`Self::control_with_progress`], with what came with the answer.
    pub(super) fn long_work(
        &self,
        name: &MachineName,
        request: &Control,
        on_progress: &mut dyn FnMut(&str, u64, Option<u64>),
    ) -> Result<(ControlReply, Vec<OwnedFd>), EngineError> {
        self.exchange(name, request, None, on_progress)
    }

    /// Asks the supervisor; the stream is what came with its answer.
    pub(super) fn control(
        &self,
        name: &MachineName,
        request: &Control,
    ) -> Result<(ControlReply, Option<UnixStream>), EngineError> {
        self.control_within(name, request, CONTROL_PATIENCE)
    }

    /// As [`Self::control`], within another time.
    pub(super) fn control_within(
        &self,
        name: &MachineName,
        request: &Control,
        patience: Duration,
    ) -> Result<(ControlReply, Option<UnixStream>), EngineError> {
        let exchanged = self.exchange(name, request, Some(patience), &mut |_, _, _| ());
        let (reply, descriptors) = exchanged?;
        Ok((reply, descriptors.into_iter().next().map(UnixStream::from)))
    }

    /// Sends a request and waits for the answer, with what came with it; progress in between goes to
    /// `on_progress`.
    fn exchange(
        &self,
        name: &MachineName,
        request: &Control,
        patience: Option<Duration>,
        on_progress: &mut dyn FnMut(&str, u64, Option<u64>),
    ) -> Result<(ControlReply, Vec<OwnedFd>), EngineError> {
        let failed = |source| EngineError::Supervisor {
            name: name.clone(),
            source,
        };
        let until = patience.and_then(|patience| Instant::now().checked_add(patience));
        let connect_patience = patience.unwrap_or(CONTROL_PATIENCE).min(CONTROL_PATIENCE);
        let socket = control_socket::connect(&self.dir(name).control_socket(), connect_patience)
            .map_err(|error| failed(ChannelError::Io(error)))?;
        channel::send(&socket, request, &[]).map_err(failed)?;
        loop {
            if let Some(until) = until {
                // Connecting and whatever came before are part of that time. No time at all would be no limit.
                let left = until.saturating_duration_since(Instant::now());
                let left = left.max(Duration::from_millis(1));
                let limited = socket.set_read_timeout(Some(left));
                limited.map_err(|error| failed(ChannelError::Io(error)))?;
            }
            let received = channel::receive::<ControlReply>(&socket).map_err(failed)?;
            match received.message {
                ControlReply::Progress {
                    phase,
                    done_bytes,
                    total_bytes,
                } => on_progress(&phase, done_bytes, total_bytes),
                reply => return Ok((reply, received.descriptors)),
            }
        }
    }

    /// What the supervisor says about a machine that is neither starting nor ending.
    pub(super) fn live_status(&self, name: &MachineName) -> Option<LiveStatus> {
        self.ask_status(name, false)
    }

    /// As [`Self::live_status`]; `ping`: the supervisor asks the agent, too.
    pub(super) fn ask_status(&self, name: &MachineName, ping: bool) -> Option<LiveStatus> {
        self.ask_status_until(name, ping, Instant::now() + STATUS_PATIENCE)
    }

    /// As [`Self::ask_status`], up to a moment.
    pub(super) fn ask_status_until(
        &self,
        name: &MachineName,
        ping: bool,
        until: Instant,
    ) -> Option<LiveStatus> {
        let patience = until.saturating_duration_since(Instant::now());
        match self.control_within(name, &Control::Status { ping }, patience) {
            Ok((ControlReply::Status(status), _)) => Some(status),
            // It starts, or ends right now, or is stopped.
            _ => None,
        }
    }
}
