//! The client's side: blocking calls over any pair of a reader and a writer.
//!
//! A [`Connection`] is one connection to the agent's port after the hello. Control calls may
//! follow each other on it; `exec`, `copy_in` and `copy_out` consume it. Time limits are the
//! stream's own: set a read timeout on the socket where one is wanted.

mod copy;
mod exec;

pub use exec::{ExecEvent, ExecReader, ExecSession, ExecWriter};

use std::io::{Read, Write};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use thiserror::Error;

use crate::frame::{FrameError, read_message, write_message};
use crate::hello::{HelloError, greet};
use crate::message::{ErrorKind, Identity, Reply, Request, Status};
use crate::tree::{ReceiveError, SendError};

/// Why a call to the agent failed.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ClientError {
    /// The two sides cannot talk.
    #[error("no agent answered")]
    Hello(#[from] HelloError),
    /// The connection failed or the agent broke the protocol.
    #[error("the connection to the guest agent broke")]
    Frame(#[from] FrameError),
    /// The agent could not do it.
    #[error("{message}")]
    Agent {
        /// Kind of failure.
        kind: ErrorKind,
        /// The agent's words.
        message: String,
    },
    /// The command could not be started.
    #[error("{message}")]
    NotStarted {
        /// Exit code for it: 126 or 127.
        code: u8,
        /// Why.
        message: String,
    },
    /// The agent answered something else than was asked.
    #[error("the guest agent answered {reply} to another question")]
    Unexpected {
        /// What it answered.
        reply: String,
    },
    /// Files could not be sent.
    #[error("files could not be sent")]
    Send(#[from] SendError),
    /// Files could not be made here.
    #[error("files could not be received")]
    Receive(#[from] ReceiveError),
    /// The command has ended and takes no more input.
    #[error("the command has ended")]
    Ended,
    /// The caller's stream for output failed.
    #[error("the command's output could not be written")]
    Output(#[source] std::io::Error),
    /// The caller's stream for input failed.
    #[error("the command's input could not be read")]
    Input(#[source] std::io::Error),
}

/// A connection to the agent after the hello.
#[derive(Debug)]
pub struct Connection<R, W> {
    reader: R,
    writer: W,
    version: u16,
}

impl<R: Read, W: Write> Connection<R, W> {
    /// Greets the agent on a fresh connection.
    ///
    /// # Errors
    /// [`ClientError::Hello`].
    pub fn open(mut reader: R, mut writer: W) -> Result<Self, ClientError> {
        let version = greet(&mut reader, &mut writer)?;
        Ok(Self {
            reader,
            writer,
            version,
        })
    }

    /// The protocol version spoken.
    #[must_use]
    pub fn version(&self) -> u16 {
        self.version
    }

    /// Sends `request` and waits for the reply; an error reply is an error here.
    ///
    /// # Errors
    /// [`ClientError::Frame`], [`ClientError::Agent`].
    pub fn call(&mut self, request: &Request) -> Result<Reply, ClientError> {
        write_message(&mut self.writer, request)?;
        checked(read_message(&mut self.reader)?)
    }

    fn call_ok(&mut self, request: &Request) -> Result<(), ClientError> {
        match self.call(request)? {
            Reply::Ok => Ok(()),
            other => unexpected(&other),
        }
    }

    /// Waits for a sign of life.
    ///
    /// # Errors
    /// As [`Connection::call`].
    pub fn ping(&mut self) -> Result<(), ClientError> {
        self.call_ok(&Request::Ping)
    }

    /// Writes the guest's page cache to its disks, within `timeout`.
    ///
    /// # Errors
    /// As [`Connection::call`]; [`ErrorKind::TimedOut`] when it takes longer.
    pub fn sync(&mut self, timeout: Duration) -> Result<(), ClientError> {
        self.call_ok(&Request::Sync {
            timeout_ms: milliseconds(timeout),
        })
    }

    /// Asks for a clean power-off; returns when the agent has begun.
    ///
    /// # Errors
    /// As [`Connection::call`].
    pub fn power_off(&mut self, grace: Duration) -> Result<(), ClientError> {
        self.call_ok(&Request::PowerOff {
            grace_ms: milliseconds(grace),
        })
    }

    /// Asks for a clean reboot; returns when the agent has begun.
    ///
    /// # Errors
    /// As [`Connection::call`].
    pub fn reboot(&mut self, grace: Duration) -> Result<(), ClientError> {
        self.call_ok(&Request::Reboot {
            grace_ms: milliseconds(grace),
        })
    }

    /// Sets the guest's wall clock to the host's, half a measured round trip added for the way.
    ///
    /// # Errors
    /// As [`Connection::call`].
    pub fn set_clock_to_now(&mut self) -> Result<(), ClientError> {
        let start = Instant::now();
        self.ping()?;
        let way = start.elapsed() / 2;
        let now = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default()
            + way;
        let unix_nanos = u64::try_from(now.as_nanos()).unwrap_or(u64::MAX);
        self.call_ok(&Request::SetClock { unix_nanos })
    }

    /// Gives the guest's kernel new randomness; see [`Request::Reseed`].
    ///
    /// # Errors
    /// As [`Connection::call`].
    pub fn reseed(&mut self, seed: &[u8], restore_id: [u8; 16]) -> Result<(), ClientError> {
        self.call_ok(&Request::Reseed {
            seed: seed.into(),
            restore_id,
        })
    }

    /// Gives the machine an identity of its own.
    ///
    /// # Errors
    /// As [`Connection::call`]; the message names the step that failed.
    pub fn set_identity(&mut self, identity: &Identity) -> Result<(), ClientError> {
        self.call_ok(&Request::SetIdentity(identity.clone()))
    }

    /// Grows the root file system to its disk; returns its size in bytes.
    ///
    /// # Errors
    /// As [`Connection::call`].
    pub fn resize_root(&mut self) -> Result<u64, ClientError> {
        match self.call(&Request::ResizeRoot)? {
            Reply::Resized { size_bytes } => Ok(size_bytes),
            other => unexpected(&other),
        }
    }

    /// What the agent runs.
    ///
    /// # Errors
    /// As [`Connection::call`].
    pub fn status(&mut self) -> Result<Status, ClientError> {
        match self.call(&Request::Status)? {
            Reply::Status(status) => Ok(status),
            other => unexpected(&other),
        }
    }
}

fn milliseconds(duration: Duration) -> u32 {
    u32::try_from(duration.as_millis()).unwrap_or(u32::MAX)
}

fn checked(reply: Reply) -> Result<Reply, ClientError> {
    match reply {
        Reply::Error { kind, message } => Err(ClientError::Agent { kind, message }),
        Reply::NotStarted { code, message } => Err(ClientError::NotStarted { code, message }),
        other => Ok(other),
    }
}

fn unexpected<T>(reply: &Reply) -> Result<T, ClientError> {
    Err(ClientError::Unexpected {
        reply: format!("{reply:?}"),
    })
}
