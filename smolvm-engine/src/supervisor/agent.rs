//! Talking to the guest's agent.

use std::error::Error;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use agent_protocol::AGENT_PORT;
use agent_protocol::client::{ClientError, Connection, Deadline, LogReader, TimedStream};
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

/// What a call is made on.
pub(super) type Control = Connection<TimedStream, TimedStream>;

/// A connection on which control calls are made. Each has a time limit for the whole call: an agent that
/// sends one byte at a time gets no more of it.
pub(super) struct AgentConnection {
    connection: Control,
    deadline: Deadline,
}

impl AgentConnection {
    /// Makes one call, which may take `limit` in all.
    pub(super) fn call<T>(
        &mut self,
        call: &'static str,
        limit: Duration,
        make: impl FnOnce(&mut Control) -> Result<T, ClientError>,
    ) -> Result<T, AgentError> {
        self.deadline.set(limit);
        make(&mut self.connection).map_err(|source| AgentError::of_call(call, limit, source))
    }

    /// Reads the output of detached commands, without any limit.
    pub(super) fn log(self, limit: Duration) -> Result<LogReader<TimedStream>, AgentError> {
        self.deadline.set(limit);
        let log = self.connection.log();
        self.deadline.clear();
        log.map_err(|source| AgentError::of_call("log", limit, source))
    }
}

/// Why the agent could not be reached.
#[derive(Debug, Error)]
pub(crate) enum AgentError {
    /// The VMM does not take connections any more.
    #[error("the VMM takes no connections")]
    Dial(#[from] ChannelError),
    /// The VMM has not taken earlier connections yet: it is stopped, or its guest boots.
    #[error("the VMM takes no more connections before it took those that wait")]
    Busy,
    /// What was sent to the VMM last was not sent whole.
    #[error("the VMM hangs")]
    VmmHangs,
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
    /// Whether the agent answered, and only that.
    pub(super) fn is_answer(&self) -> bool {
        let Self::Call { source, .. } = self else {
            return false;
        };
        matches!(
            source,
            ClientError::Agent { .. } | ClientError::Unexpected { .. }
        )
    }

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
    line: Arc<Mutex<Line>>,
    /// The newest protocol that the agent speaks; 0 before it has answered.
    spoken: Arc<AtomicU16>,
}

/// The way to the VMM.
struct Line {
    /// `None` once a message to the VMM was not sent whole.
    socket: Option<UnixStream>,
    /// It did not take the last connection in time; that one was waited for, others are not.
    busy: bool,
}

impl AgentDialer {
    /// A dialer over the socket whose other end the VMM has.
    pub(crate) fn new(socket: UnixStream) -> Self {
        Self {
            line: Arc::new(Mutex::new(Line {
                socket: Some(socket),
                busy: false,
            })),
            spoken: Arc::default(),
        }
    }

    /// A stream to the agent's port. It is closed by the other side when nobody listens there.
    pub(crate) fn dial(&self) -> Result<UnixStream, AgentError> {
        let (ours, theirs) = UnixStream::pair()?;
        let mut line = self.line.lock().unwrap_or_else(PoisonError::into_inner);
        let open = line.socket.as_ref().ok_or(AgentError::VmmHangs)?;
        let patience = if line.busy {
            Duration::ZERO
        } else {
            DIAL_PATIENCE
        };
        let sent = channel::send_within(open, &AGENT_PORT, &[theirs.as_fd()], patience);
        line.busy = matches!(sent, Err(ChannelError::Busy));
        match sent {
            Ok(()) => Ok(ours),
            // Nothing was sent.
            Err(ChannelError::Busy) => Err(AgentError::Busy),
            Err(error) => {
                // Part of the message may be sent: what follows would not be understood.
                line.socket = None;
                Err(error.into())
            }
        }
    }

    /// One attempt to get a connection after the hello; the inner error is one after which others may succeed.
    fn attempt(
        &self,
        patience: Duration,
    ) -> Result<Result<AgentConnection, Box<dyn Error>>, AgentError> {
        let stream = match self.dial() {
            Err(error @ AgentError::Busy) => return Ok(Err(error.into())),
            dialed => dialed?,
        };
        let (reader, writer, deadline) = TimedStream::pair(stream)?;
        deadline.set(patience);
        Ok(match Connection::open(reader, writer) {
            Ok(connection) => {
                self.spoken.store(connection.agent().max, Ordering::Relaxed);
                Ok(AgentConnection {
                    connection,
                    deadline,
                })
            }
            Err(error) => Err(error.into()),
        })
    }

    /// The newest protocol that the agent speaks, as it said itself; 0 when it never answered.
    pub(super) fn spoken(&self) -> u16 {
        self.spoken.load(Ordering::Relaxed)
    }

    /// A connection after the hello, tried for `patience` or until `ended` says that there is no
    /// machine any more.
    pub(super) fn connect(
        &self,
        patience: Duration,
        ended: impl Fn() -> bool,
    ) -> Result<AgentConnection, AgentError> {
        let patience = Patience {
            silence: patience,
            at_most: patience,
        };
        self.connect_to_living(patience, ended, || 0)
    }

    /// As [`AgentDialer::connect`]; the time of silence begins anew whenever `sign_of_life` gives
    /// another value, so that a guest on a slow host is waited for as long as it gets on.
    pub(super) fn connect_to_living(
        &self,
        patience: Patience,
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
            let failed = match self.attempt(hello_timeout.min(left))? {
                Ok(connection) => return Ok(connection),
                Err(error) => error,
            };
            let now = Instant::now();
            let next = sign_of_life();
            if next != sign {
                (sign, silent_since) = (next, now);
            }
            let silent = now >= silent_since + patience.silence;
            if silent || now >= begin + patience.at_most {
                tracing::warn!(error = %chain(&*failed), "the last attempt to reach the agent");
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
        let result = dialer
            .connect_to_living(patience, || false, living)
            .map(drop);
        assert!(matches!(result, Err(AgentError::Silent(_))));
        assert!(looks.get() > 20, "given up after {} looks", looks.get());
    }

    #[test]
    fn a_guest_without_signs_of_life_is_given_up() {
        let result = without_agent().connect(Duration::ZERO, || false).map(drop);
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
        let result = without_agent().connect(patience, ended).map(drop);
        assert!(matches!(result, Err(AgentError::Ended)));
    }

    /// A dialer whose guest has an agent that does `then` with each connection after the hello.
    fn with_agent(then: impl Fn(UnixStream) + Send + Clone + 'static) -> AgentDialer {
        let (ours, vmm) = UnixStream::pair().unwrap();
        std::thread::spawn(move || {
            while let Ok(mut received) = channel::receive::<u32>(&vmm) {
                let stream = UnixStream::from(received.descriptors.remove(0));
                let then = then.clone();
                std::thread::spawn(move || {
                    if welcome(&mut &stream, &mut &stream).is_ok() {
                        then(stream);
                    }
                });
            }
        });
        AgentDialer::new(ours)
    }

    /// Its answer comes one byte at a time, each well within the limit: the call ends all the same.
    #[test]
    fn an_agent_that_trickles_holds_no_call_up() {
        let dialer = with_agent(|mut stream| {
            let _ = io::Write::write_all(&mut stream, &[0, 0, 8, 0]);
            while io::Write::write_all(&mut stream, b"x").is_ok() {
                std::thread::sleep(Duration::from_millis(5));
            }
        });
        let patience = Duration::from_secs(60);
        let mut agent = dialer.connect(patience, || false).ok().unwrap();
        let limit = Duration::from_millis(500);
        let error = agent.call("power-off", limit, |agent| agent.power_off(limit));
        assert_eq!(
            error.unwrap_err().to_string(),
            "the agent did not finish the power-off within 0.5 s"
        );
        assert_eq!(dialer.spoken(), agent_protocol::hello::MAX_VERSION);
    }

    #[test]
    fn what_the_agent_answers_is_told_apart_from_a_broken_connection() {
        let call = |source| AgentError::of_call("reseed", Duration::from_secs(2), source);
        let answer = ClientError::Agent {
            kind: agent_protocol::message::ErrorKind::Failed,
            message: "x".to_owned(),
        };
        assert!(call(answer).is_answer());
        let closed = ClientError::Frame(agent_protocol::frame::FrameError::Closed);
        assert!(!call(closed).is_answer());
    }

    /// A VMM that takes nothing any more (it is stopped, or hangs) holds up one dial, and those after it
    /// not at all. Once it takes them again, all is as before.
    #[test]
    fn a_vmm_that_hangs_holds_nobody_up() {
        let (ours, vmm) = UnixStream::pair().unwrap();
        let dialer = AgentDialer::new(ours);
        let mut kept = Vec::new();
        let hangs = loop {
            match dialer.dial() {
                Ok(stream) => kept.push(stream),
                Err(error) => break error,
            }
        };
        assert!(matches!(hangs, AgentError::Busy), "{hangs:?}");
        assert!(matches!(dialer.dial(), Err(AgentError::Busy)));
        for _ in 0..kept.len() {
            channel::receive::<u32>(&vmm).unwrap();
        }
        dialer.dial().unwrap();
        assert_eq!(channel::receive::<u32>(&vmm).unwrap().message, AGENT_PORT);
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
            .connect(patience, || false)
            .map(drop)
            .unwrap();
    }
}
