//! A command in the guest: its streams, its terminal, its end.
//!
//! Stdin is sent only against credit, so the agent can always read the connection: a command that
//! reads nothing holds up neither signals nor its own output. Output is held back by not being
//! read: whoever stops reading events stops the command at its next full pipe. An agent that breaks
//! this rule holds up whoever sends stdin, never a signal.

use std::io::{ErrorKind, Read, Write};
use std::sync::{Arc, Weak};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use super::input::Input;
use super::{ClientError, Connection, HangUp, unexpected};
use crate::codec::Bytes;
use crate::frame::{FrameError, MAX_DATA_BYTES, read_message};
use crate::message::{ExecOutput, ExecRequest, Outcome, Reply, Request, TtySize};

/// Pause before a source that had nothing is asked again.
const SOURCE_PAUSE: Duration = Duration::from_millis(10);

/// What a running command says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ExecEvent {
    /// Bytes of stdout, or of the terminal.
    Stdout(Bytes),
    /// Bytes of stderr.
    Stderr(Bytes),
    /// It ended; nothing follows.
    Exit(Outcome),
}

/// A command that runs. Dropping all of it ends the command's process group, unless it was started
/// detached.
#[derive(Debug)]
pub struct ExecSession<R, W> {
    /// Number by which [`Status`](crate::message::Status) names it.
    pub session: u64,
    /// Its process id in the guest.
    pub pid: u32,
    /// Where its output and its end come from.
    pub reader: ExecReader<R, W>,
    /// Where its input goes.
    pub writer: ExecWriter<W>,
}

impl<R: Read, W: Write> Connection<R, W> {
    /// Starts a command.
    ///
    /// # Errors
    /// [`ClientError::NotStarted`] with code 126 or 127, [`ClientError::Agent`],
    /// [`ClientError::Late`], [`ClientError::Frame`].
    pub fn exec(mut self, request: ExecRequest) -> Result<ExecSession<R, W>, ClientError> {
        match self.call(&Request::Exec(request)).map_err(or_late)? {
            Reply::Started {
                session,
                pid,
                stdin_window,
            } => {
                let input = Input::new(self.writer, stdin_window.into());
                let reader = ExecReader {
                    reader: self.reader,
                    input: Arc::clone(&input),
                };
                Ok(ExecSession {
                    session,
                    pid,
                    reader,
                    writer: ExecWriter { input },
                })
            }
            other => unexpected(&other),
        }
    }
}

/// A connection whose [`Deadline`](super::Deadline) has passed.
fn or_late(error: ClientError) -> ClientError {
    match error {
        ClientError::Frame(FrameError::Io(io)) if io.kind() == ErrorKind::TimedOut => {
            ClientError::Late
        }
        other => other,
    }
}

impl<R: Read, W: Write + HangUp + Send + 'static> ExecSession<R, W> {
    /// Runs the command to its end: `stdin` is fed by a thread of its own (nothing is sent when
    /// `None`), output goes to `stdout` and `stderr`. A `stdin` that fails ends the command.
    ///
    /// The thread that reads `stdin` is left behind when the command ends first; it ends with its
    /// next read.
    ///
    /// # Errors
    /// [`ClientError::Frame`], [`ClientError::Late`], [`ClientError::Input`],
    /// [`ClientError::Output`]; the command is then ended.
    pub fn run<I: Read + Send + 'static>(
        self,
        stdin: Option<I>,
        stdout: &mut dyn Write,
        stderr: &mut dyn Write,
    ) -> Result<Outcome, ClientError> {
        if let Some(stdin) = stdin {
            drop(self.writer.feed_from(stdin));
        }
        let mut reader = self.reader;
        loop {
            match reader.next_event()? {
                ExecEvent::Stdout(data) => write_out(stdout, &data)?,
                ExecEvent::Stderr(data) => write_out(stderr, &data)?,
                ExecEvent::Exit(outcome) => return Ok(outcome),
            }
        }
    }
}

fn write_out(to: &mut dyn Write, data: &[u8]) -> Result<(), ClientError> {
    to.write_all(data)
        .and_then(|()| to.flush())
        .map_err(ClientError::Output)
}

/// The input side of a command; clones share it.
#[derive(Debug)]
pub struct ExecWriter<W> {
    input: Arc<Input<W>>,
}

impl<W> Clone for ExecWriter<W> {
    fn clone(&self) -> Self {
        self.input.add_end();
        Self {
            input: Arc::clone(&self.input),
        }
    }
}

impl<W> Drop for ExecWriter<W> {
    fn drop(&mut self) {
        self.input.drop_end();
    }
}

impl<W: Write + HangUp + Send + 'static> ExecWriter<W> {
    /// Sends all of `data` to stdin; blocks while the command does not read it. Somebody must be
    /// reading events meanwhile, since they carry the credit.
    ///
    /// # Errors
    /// [`ClientError::Ended`] when the command or the connection ends first.
    pub fn write_stdin(&self, data: &[u8]) -> Result<(), ClientError> {
        self.input.stdin(data)
    }

    /// Ends stdin, behind what was written. On a terminal this is the end-of-file character. Does not
    /// wait.
    ///
    /// # Errors
    /// [`ClientError::Ended`].
    pub fn end_stdin(&self) -> Result<(), ClientError> {
        self.input.end_stdin()
    }

    /// Tells the command's terminal its new size. Does not wait.
    ///
    /// # Errors
    /// [`ClientError::Ended`].
    pub fn resize(&self, size: TtySize) -> Result<(), ClientError> {
        self.input.resize(size)
    }

    /// Sends Linux signal `number` to the command's process group. Does not wait.
    ///
    /// # Errors
    /// [`ClientError::Ended`]; [`ClientError::NotTaken`] when the guest has not taken many before.
    pub fn signal(&self, number: i32) -> Result<(), ClientError> {
        self.input.signal(number)
    }

    /// Starts a thread that sends `source` to stdin and then ends stdin. A source that has nothing right
    /// now ([`ErrorKind::WouldBlock`]) is asked again. One that fails was not read to its end, which the
    /// command must not take for the end: it is ended, and so is the session, with
    /// [`ClientError::Input`].
    ///
    /// The thread does not keep the connection open: it ends at its next read once everything else
    /// of the session is dropped.
    pub fn feed_from<I: Read + Send + 'static>(
        &self,
        source: I,
    ) -> JoinHandle<Result<(), ClientError>> {
        let input = Arc::downgrade(&self.input);
        thread::spawn(move || feed(source, &input))
    }
}

fn feed<W: Write + HangUp + Send + 'static>(
    mut source: impl Read,
    input: &Weak<Input<W>>,
) -> Result<(), ClientError> {
    let mut buffer = vec![0; MAX_DATA_BYTES];
    loop {
        let read = source.read(&mut buffer);
        let input = input.upgrade().ok_or(ClientError::Ended)?;
        match read {
            Ok(0) => return input.end_stdin(),
            Ok(count) => input.stdin(&buffer[..count])?,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                if input.has_ended() {
                    return Err(ClientError::Ended);
                }
                drop(input);
                thread::sleep(SOURCE_PAUSE);
            }
            Err(error) => return input.fail(error),
        }
    }
}

/// The output side of a command.
#[derive(Debug)]
pub struct ExecReader<R, W> {
    reader: R,
    input: Arc<Input<W>>,
}

impl<R: Read, W> ExecReader<R, W> {
    /// Waits for the next event. After [`ExecEvent::Exit`] or an error nothing follows.
    ///
    /// # Errors
    /// [`ClientError::Frame`] when the connection ends before the command did, [`ClientError::Late`]
    /// when its time is over, [`ClientError::Input`] when a source of stdin failed.
    pub fn next_event(&mut self) -> Result<ExecEvent, ClientError> {
        loop {
            match read_message::<ExecOutput>(&mut self.reader) {
                Ok(ExecOutput::Stdout(data)) => return Ok(ExecEvent::Stdout(data)),
                Ok(ExecOutput::Stderr(data)) => return Ok(ExecEvent::Stderr(data)),
                Ok(ExecOutput::StdinCredit { bytes }) => self.input.add_credit(bytes),
                Ok(ExecOutput::Exit(outcome)) => {
                    self.input.end();
                    return Ok(ExecEvent::Exit(outcome));
                }
                // What a newer agent has to say besides.
                Err(error) if error.is_unknown_kind() => {}
                Err(error) => {
                    self.input.end();
                    // Ours, if we ended the connection.
                    let own = self.input.take_failure().map(ClientError::Input);
                    return Err(own.unwrap_or_else(|| or_late(error.into())));
                }
            }
        }
    }
}

impl<R, W> Drop for ExecReader<R, W> {
    fn drop(&mut self) {
        // Nobody hands out credit any more: writers must not wait for it.
        self.input.end();
        self.input.drop_end();
    }
}

#[cfg(test)]
mod tests;
