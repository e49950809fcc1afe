//! Talking to the guest's agent.

use std::error::Error;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use agent_protocol::AGENT_PORT;
use agent_protocol::client::{ClientError, Connection};
use thiserror::Error;

use crate::channel::{self, ChannelError};
use crate::error_chain::{chain, sources};

/// Pause between two attempts to reach an agent that does not listen yet.
const RETRY_PAUSE: Duration = Duration::from_millis(20);
/// How long the VMM may take to take a connection: it is stopped, or has too many waiting.
const DIAL_PATIENCE: Duration = Duration::from_secs(1);
/// How long the first attempt may wait for the hello. One that took so long was answered too late,
/// by a guest that has little of the host's time: the next may take twice as long.
const FIRST_HELLO_TIMEOUT: Duration = Duration::from_secs(2);
/// How long an attempt may wait for the hello at most.
const LAST_HELLO_TIMEOUT: Duration = Duration::from_secs(32);

/// How long an agent is waited for.
#[derive(Debug, Clone, Copy)]
pub(super) struct Patience {
    /// Without any sign of life of the guest.
    pub(super) silence: Duration,
    /// In all, with signs of life but without an answer.
    pub(super) at_most: Duration,
}

/// A connection on which control calls are made.
pub(super) type AgentConnection = Connection<UnixStream, UnixStream>;

/// Why the agent could not be reached.
#[derive(Debug, Error)]
pub(crate) enum AgentError {
    /// The VMM does not take connections any more.
    #[error("the VMM takes no connections")]
    Dial(#[from] ChannelError),
    /// The host has no sockets left.
    #[error("no socket for the connection")]
    Socket(#[from] io::Error),
    /// The agent did not answer.
    #[error("the agent did not answer for {} s", .0.as_secs())]
    Silent(Duration),
    /// The machine ended meanwhile.
    #[error("the machine ended")]
    Ended,
    /// A call was not answered in time.
    #[error("the agent did not finish the {call} within {} s", patience.as_secs_f32())]
    Late {
        /// Which call.
        call: &'static str,
        /// How long it had.
        patience: Duration,
    },
    /// A call failed.
    #[error("the agent's {call} failed")]
    Call {
        /// Which call.
        call: &'static str,
        /// What went wrong.
        #[source]
        source: ClientError,
    },
}

impl AgentError {
    /// The failure of a call whose answer was waited for so long.
    pub(super) fn of_call(call: &'static str, patience: Duration, source: ClientError) -> Self {
        // What a socket says whose read timeout has passed.
        let is_late = |error: &(dyn Error + 'static)| {
            let error = error.downcast_ref::<io::Error>().map(io::Error::kind);
            matches!(
                error,
                Some(io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
            )
        };
        if sources(&source).any(is_late) {
            return Self::Late { call, patience };
        }
        Self::Call { call, source }
    }
}

/// Makes connections to the agent through the VMM's vsock device.
#[derive(Clone)]
pub(crate) struct AgentDialer {
    socket: Arc<Mutex<UnixStream>>,
}

impl AgentDialer {
    /// A dialer over the socket whose other end the VMM has.
    pub(crate) fn new(socket: UnixStream) -> Self {
        Self {
            socket: Arc::new(Mutex::new(socket)),
        }
    }

    /// A stream to the agent's port. It is closed by the other side when nobody listens there.
    pub(crate) fn dial(&self) -> Result<UnixStream, AgentError> {
        let (ours, theirs) = UnixStream::pair()?;
        let socket = self
            .socket
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        channel::send_within(&socket, &AGENT_PORT, &[theirs.as_fd()], DIAL_PATIENCE)?;
        Ok(ours)
    }

    /// A connection after the hello, tried for `patience` or until `ended` says that there is no
    /// machine any more. Each answer to a call on it may take `call_timeout`.
    pub(super) fn connect(
        &self,
        patience: Duration,
        call_timeout: Duration,
        ended: impl Fn() -> bool,
    ) -> Result<AgentConnection, AgentError> {
        let patience = Patience {
            silence: patience,
            at_most: patience,
        };
        self.connect_to_living(patience, call_timeout, ended, || 0)
    }

    /// As [`AgentDialer::connect`]; the time of silence begins anew whenever `sign_of_life` gives
    /// another value, so that a guest on a slow host is waited for as long as it gets on.
    pub(super) fn connect_to_living(
        &self,
        patience: Patience,
        call_timeout: Duration,
        ended: impl Fn() -> bool,
        sign_of_life: impl Fn() -> u64,
    ) -> Result<AgentConnection, AgentError> {
        let begin = Instant::now();
        let mut sign = sign_of_life();
        let mut silent_since = begin;
        let mut hello_timeout = FIRST_HELLO_TIMEOUT;
        loop {
            if ended() {
                return Err(AgentError::Ended);
            }
            let attempt = Instant::now();
            let deadline = (silent_since + patience.silence).min(begin + patience.at_most);
            // The last attempt may come late, but it gets some time.
            let left = deadline.saturating_duration_since(attempt).max(RETRY_PAUSE);
            let stream = self.dial()?;
            stream.set_read_timeout(Some(hello_timeout.min(left)))?;
            let failed = match Connection::open(stream.try_clone()?, stream.try_clone()?) {
                Ok(connection) => {
                    stream.set_read_timeout(Some(call_timeout))?;
                    return Ok(connection);
                }
                Err(error) => error,
            };
            let now = Instant::now();
            let next = sign_of_life();
            if next != sign {
                (sign, silent_since) = (next, now);
            }
            let silent = now >= silent_since + patience.silence;
            if silent || now >= begin + patience.at_most {
                tracing::warn!(error = %chain(&failed), "the last attempt to reach the agent");
                return Err(AgentError::Silent(now - begin));
            }
            if now - attempt >= hello_timeout {
                hello_timeout = (hello_timeout * 2).min(LAST_HELLO_TIMEOUT);
            }
            std::thread::sleep(RETRY_PAUSE);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use agent_protocol::hello::welcome;

    use super::*;

    /// A dialer whose VMM closes each connection at once, as a guest without an agent does.
    fn without_agent() -> AgentDialer {
        let (ours, theirs) = UnixStream::pair().unwrap();
        std::thread::spawn(move || while channel::receive::<u32>(&theirs).is_ok() {});
        AgentDialer::new(ours)
    }

    #[test]
    fn patience_lasts_as_long_as_there_are_signs_of_life() {
        let looks = Cell::new(0);
        let living = || {
            looks.set(looks.get() + 1);
            looks.get().min(20)
        };
        // Any two looks are further apart than the silence that is allowed.
        let patience = Patience {
            silence: RETRY_PAUSE / 2,
            at_most: Duration::from_secs(3600),
        };
        let dialer = without_agent();
        let result = dialer.connect_to_living(patience, RETRY_PAUSE, || false, living);
        assert!(matches!(result, Err(AgentError::Silent(_))));
        assert!(looks.get() > 20, "given up after {} looks", looks.get());
    }

    #[test]
    fn a_guest_without_signs_of_life_is_given_up() {
        let result = without_agent().connect(Duration::ZERO, RETRY_PAUSE, || false);
        assert!(matches!(result, Err(AgentError::Silent(_))));
    }

    #[test]
    fn the_end_of_the_machine_ends_the_attempts() {
        let attempts = Cell::new(0);
        let ended = || {
            attempts.set(attempts.get() + 1);
            attempts.get() > 3
        };
        let patience = Duration::from_secs(3600);
        let result = without_agent().connect(patience, patience, ended);
        assert!(matches!(result, Err(AgentError::Ended)));
    }

    #[test]
    fn a_call_that_takes_too_long_is_told_as_such() {
        let (ours, _theirs) = UnixStream::pair().unwrap();
        ours.set_read_timeout(Some(Duration::from_millis(10)))
            .unwrap();
        let (reader, writer) = (ours.try_clone().unwrap(), ours);
        let error = Connection::open(reader, writer).unwrap_err();
        let late = AgentError::of_call("new identity", Duration::from_secs(2), error);
        assert_eq!(
            late.to_string(),
            "the agent did not finish the new identity within 2 s"
        );
        let broken = ClientError::Unexpected {
            reply: "x".to_owned(),
        };
        let error = AgentError::of_call("reseed", Duration::from_secs(2), broken);
        assert!(matches!(error, AgentError::Call { call: "reseed", .. }));
    }

    /// A host may be so busy that no agent answers within the first attempt's time.
    #[test]
    fn an_agent_that_is_always_late_is_heard_in_the_end() {
        let (ours, vmm) = UnixStream::pair().unwrap();
        let late = FIRST_HELLO_TIMEOUT + Duration::from_millis(500);
        std::thread::spawn(move || {
            while let Ok(mut received) = channel::receive::<u32>(&vmm) {
                let stream = UnixStream::from(received.descriptors.remove(0));
                std::thread::spawn(move || {
                    std::thread::sleep(late);
                    // Nobody listens any more where the attempt was given up.
                    let _ = welcome(&mut &stream, &mut &stream);
                });
            }
        });
        let patience = Duration::from_secs(60);
        AgentDialer::new(ours)
            .connect(patience, patience, || false)
            .unwrap();
    }
}
