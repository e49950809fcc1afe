//! The client's side: blocking calls over any pair of a reader and a writer.
//!
//! A [`Connection`] is one connection to the agent's port after the hello. Control calls may
//! follow each other on it; `exec`, `copy_in`, `copy_out` and `log` consume it. Time limits are the
//! stream's own: a [`TimedStream`] has one for a whole call.

mod copy;
mod exec;
mod input;
mod log;
mod timed;

pub use exec::{ExecEvent, ExecReader, ExecSession, ExecWriter};
pub use log::LogReader;
pub use timed::{Deadline, HangUp, TimedStream};

use std::io::{Read, Write};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use thiserror::Error;

use crate::frame::{FrameError, read_message, write_message};
use crate::hello::{Hello, HelloError, greet};
use crate::message::{
    ErrorKind, Identity, MAX_REQUEST_BYTES, Reply, Request, Status, StepReport, SyncReport,
};
use crate::tree::{BadRootName, ReceiveError, SendError};
use crate::words::harmless;

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
        /// The agent's words, [`harmless`].
        message: String,
    },
    /// The command could not be started.
    #[error("{message}")]
    NotStarted {
        /// Exit code for it: 126 or 127.
        code: u8,
        /// Why, in the agent's words, [`harmless`].
        message: String,
    },
    /// A command line and environment beyond what the agent takes.
    #[error(
        "the command line and its environment have {bytes} bytes, at most {MAX_REQUEST_BYTES} are possible"
    )]
    RequestTooLarge {
        /// Bytes of the request.
        bytes: usize,
    },
    /// The source of a copy has a last component that cannot be a file's name.
    #[error("the last part of the path cannot be the name of a file")]
    RootName(#[from] BadRootName),
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
    /// The command has ended, or its connection has, and takes no more input.
    #[error("the command has ended")]
    Ended,
    /// Many signals wait already: the guest does not take them.
    #[error("the guest does not take the signals that were sent before")]
    NotTaken,
    /// A command's time is over, and so is that which its guest had to say so.
    #[error("the command's time is over, and the guest has not said that it ended")]
    Late,
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
    agent: Hello,
}

impl<R: Read, W: Write> Connection<R, W> {
    /// Greets the agent on a fresh connection.
    ///
    /// # Errors
    /// [`ClientError::Hello`].
    pub fn open(mut reader: R, mut writer: W) -> Result<Self, ClientError> {
        let agent = greet(&mut reader, &mut writer)?;
        Ok(Self {
            reader,
            writer,
            agent,
        })
    }

    /// What the agent speaks, as it said itself.
    #[must_use]
    pub fn agent(&self) -> Hello {
        self.agent
    }

    /// Sends `request` and waits for the reply; an error reply is an error here.
    ///
    /// # Errors
    /// [`ClientError::Frame`], [`ClientError::Agent`].
    pub fn call(&mut self, request: &Request) -> Result<Reply, ClientError> {
        match write_message(&mut self.writer, request) {
            Err(FrameError::BadLength { length, .. }) => {
                return Err(ClientError::RequestTooLarge { bytes: length });
            }
            other => other?,
        }
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

    /// Writes the guest's page cache to its disks, for at most `timeout`, and lists its processes.
    ///
    /// # Errors
    /// As [`Connection::call`]. That not everything was written is no error.
    pub fn sync(&mut self, timeout: Duration) -> Result<SyncReport, ClientError> {
        let timeout_ms = milliseconds(timeout);
        match self.call(&Request::Sync { timeout_ms })? {
            Reply::Synced(report) => Ok(report),
            other => unexpected(&other),
        }
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

    /// Gives the guest's kernel new randomness; see [`Request::Reseed`]. Returns what did not work
    /// besides.
    ///
    /// # Errors
    /// As [`Connection::call`]; the kernel's generator is then as it was.
    pub fn reseed(
        &mut self,
        seed: &[u8],
        restore_id: [u8; 16],
    ) -> Result<Vec<StepReport>, ClientError> {
        self.call_steps(&Request::Reseed {
            seed: seed.into(),
            restore_id: restore_id.into(),
        })
    }

    /// Gives the machine an identity of its own; says what became of each step.
    ///
    /// # Errors
    /// As [`Connection::call`]. A step that failed is no error here.
    pub fn set_identity(&mut self, identity: &Identity) -> Result<Vec<StepReport>, ClientError> {
        self.call_steps(&Request::SetIdentity(identity.clone()))
    }

    fn call_steps(&mut self, request: &Request) -> Result<Vec<StepReport>, ClientError> {
        match self.call(request)? {
            Reply::Ok => Ok(Vec::new()),
            Reply::Steps(steps) => Ok(steps
                .into_iter()
                .map(|step| StepReport {
                    step: harmless(&step.step),
                    outcome: step.outcome,
                    reason: harmless(&step.reason),
                })
                .collect()),
            other => unexpected(&other),
        }
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

    /// Tells what waits in `smolvm-branch-ready` to go on as the branch `index` of the name `name`; returns how many processes
    /// that were.
    ///
    /// # Errors
    /// As [`Connection::call`].
    pub fn release(&mut self, index: u32, name: &str) -> Result<u32, ClientError> {
        let name = name.to_owned();
        match self.call(&Request::Release { index, name })? {
            Reply::Released { count } => Ok(count),
            other => unexpected(&other),
        }
    }

    /// Waits until every process that has announced itself waits in `smolvm-branch-ready`, or has ended. That takes as long as
    /// it takes; the connection is of no further use.
    ///
    /// # Errors
    /// As [`Connection::call`].
    pub fn await_ready(mut self) -> Result<(), ClientError> {
        self.call_ok(&Request::AwaitReady)
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
        Reply::Error { kind, message } => Err(ClientError::Agent {
            kind,
            message: harmless(&message),
        }),
        Reply::NotStarted { code, message } => Err(ClientError::NotStarted {
            code,
            message: harmless(&message),
        }),
        other => Ok(other),
    }
}

fn unexpected<T>(reply: &Reply) -> Result<T, ClientError> {
    Err(ClientError::Unexpected {
        reply: harmless(&format!("{reply:?}")),
    })
}
