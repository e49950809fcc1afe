//! Talking to the guest's agent.

use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use agent_protocol::AGENT_PORT;
use agent_protocol::client::{ClientError, Connection};
use thiserror::Error;

use crate::channel::{self, ChannelError};

/// Pause between two attempts to reach an agent that does not listen yet.
const RETRY_PAUSE: Duration = Duration::from_millis(20);
/// How long one attempt may wait for the hello.
const HELLO_TIMEOUT: Duration = Duration::from_secs(2);

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
        channel::send(&socket, &AGENT_PORT, &[theirs.as_fd()])?;
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
        let deadline = Instant::now() + patience;
        loop {
            if ended() {
                return Err(AgentError::Ended);
            }
            let stream = self.dial()?;
            stream.set_read_timeout(Some(HELLO_TIMEOUT))?;
            if let Ok(connection) = Connection::open(stream.try_clone()?, stream.try_clone()?) {
                stream.set_read_timeout(Some(call_timeout))?;
                return Ok(connection);
            }
            if Instant::now() >= deadline {
                return Err(AgentError::Silent(patience));
            }
            std::thread::sleep(RETRY_PAUSE);
        }
    }
}
