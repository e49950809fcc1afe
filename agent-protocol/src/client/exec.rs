//! A command in the guest: its streams, its terminal, its end.
//!
//! Stdin is sent only against credit, so the agent can always read the connection: a command that
//! reads nothing holds up neither signals nor its own output. Output is held back by not being
//! read: whoever stops reading events stops the command at its next full pipe.

use std::io::{ErrorKind, Read, Write};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::{self, JoinHandle};

use super::{ClientError, Connection, unexpected};
use crate::codec::Bytes;
use crate::frame::{MAX_DATA_BYTES, read_message, write_message};
use crate::message::{ExecInput, ExecOutput, ExecRequest, Outcome, Reply, Request, TtySize};

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
    /// [`ClientError::Frame`].
    pub fn exec(mut self, request: ExecRequest) -> Result<ExecSession<R, W>, ClientError> {
        match self.call(&Request::Exec(request))? {
            Reply::Started {
                session,
                pid,
                stdin_window,
            } => {
                let shared = Arc::new(Shared {
                    writer: Mutex::new(self.writer),
                    credit: Mutex::new(Credit {
                        bytes: stdin_window.into(),
                        ended: false,
                    }),
                    changed: Condvar::new(),
                });
                let reader = ExecReader {
                    reader: self.reader,
                    shared: Arc::clone(&shared),
                };
                Ok(ExecSession {
                    session,
                    pid,
                    reader,
                    writer: ExecWriter { shared },
                })
            }
            other => unexpected(&other),
        }
    }
}

impl<R: Read, W: Write + Send + 'static> ExecSession<R, W> {
    /// Runs the command to its end: `stdin` is fed by a thread of its own (nothing is sent when
    /// `None`), output goes to `stdout` and `stderr`.
    ///
    /// The thread that reads `stdin` is left behind when the command ends first; it ends with its
    /// next read.
    ///
    /// # Errors
    /// [`ClientError::Frame`], [`ClientError::Output`]; the command is then ended.
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

#[derive(Debug)]
struct Shared<W> {
    writer: Mutex<W>,
    credit: Mutex<Credit>,
    changed: Condvar,
}

#[derive(Debug)]
struct Credit {
    bytes: u64,
    ended: bool,
}

impl<W> Shared<W> {
    fn credit(&self) -> MutexGuard<'_, Credit> {
        self.credit.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn end(&self) {
        self.credit().ended = true;
        self.changed.notify_all();
    }
}

impl<W: Write> Shared<W> {
    fn send(&self, message: &ExecInput) -> Result<(), ClientError> {
        let mut writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(write_message(&mut *writer, message)?)
    }

    /// Waits until at least one byte may be sent and takes at most `want`.
    fn take_credit(&self, want: usize) -> Result<usize, ClientError> {
        let mut credit = self.credit();
        while credit.bytes == 0 && !credit.ended {
            credit = self
                .changed
                .wait(credit)
                .unwrap_or_else(PoisonError::into_inner);
        }
        if credit.ended {
            return Err(ClientError::Ended);
        }
        let granted = usize::try_from(credit.bytes).unwrap_or(usize::MAX);
        let taken = want.min(granted).min(MAX_DATA_BYTES);
        credit.bytes -= taken as u64;
        Ok(taken)
    }

    fn stdin(&self, mut data: &[u8]) -> Result<(), ClientError> {
        while !data.is_empty() {
            let count = self.take_credit(data.len())?;
            let (head, tail) = data.split_at(count);
            self.send(&ExecInput::Stdin(head.into()))?;
            data = tail;
        }
        Ok(())
    }
}

/// The input side of a command; clones share it.
#[derive(Debug)]
pub struct ExecWriter<W> {
    shared: Arc<Shared<W>>,
}

impl<W> Clone for ExecWriter<W> {
    fn clone(&self) -> Self {
        Self {
            shared: Arc::clone(&self.shared),
        }
    }
}

impl<W: Write> ExecWriter<W> {
    /// Sends all of `data` to stdin; blocks while the command does not read it. Somebody must be
    /// reading events meanwhile, since they carry the credit.
    ///
    /// # Errors
    /// [`ClientError::Ended`] when the command ends first, [`ClientError::Frame`].
    pub fn write_stdin(&self, data: &[u8]) -> Result<(), ClientError> {
        self.shared.stdin(data)
    }

    /// Ends stdin. On a terminal this is the end-of-file character.
    ///
    /// # Errors
    /// [`ClientError::Frame`].
    pub fn end_stdin(&self) -> Result<(), ClientError> {
        self.shared.send(&ExecInput::StdinEnd)
    }

    /// Tells the command's terminal its new size.
    ///
    /// # Errors
    /// [`ClientError::Frame`].
    pub fn resize(&self, size: TtySize) -> Result<(), ClientError> {
        self.shared.send(&ExecInput::Resize(size))
    }

    /// Sends Linux signal `number` to the command's process group.
    ///
    /// # Errors
    /// [`ClientError::Frame`].
    pub fn signal(&self, number: i32) -> Result<(), ClientError> {
        self.shared.send(&ExecInput::Signal { number })
    }
}

impl<W: Write + Send + 'static> ExecWriter<W> {
    /// Starts a thread that sends `source` to stdin and then ends stdin.
    ///
    /// The thread does not keep the connection open: it ends at its next read once everything else
    /// of the session is dropped.
    pub fn feed_from<I: Read + Send + 'static>(
        &self,
        source: I,
    ) -> JoinHandle<Result<(), ClientError>> {
        let shared = Arc::downgrade(&self.shared);
        thread::spawn(move || feed(source, &shared))
    }
}

fn feed<W: Write>(mut source: impl Read, shared: &Weak<Shared<W>>) -> Result<(), ClientError> {
    let mut buffer = vec![0; MAX_DATA_BYTES];
    loop {
        let count = match source.read(&mut buffer) {
            Ok(count) => count,
            Err(e) if e.kind() == ErrorKind::Interrupted => continue,
            Err(e) => {
                // The command must not wait for what will never come.
                shared
                    .upgrade()
                    .ok_or(ClientError::Ended)?
                    .send(&ExecInput::StdinEnd)?;
                return Err(ClientError::Input(e));
            }
        };
        let shared = shared.upgrade().ok_or(ClientError::Ended)?;
        if count == 0 {
            return shared.send(&ExecInput::StdinEnd);
        }
        shared.stdin(&buffer[..count])?;
    }
}

/// The output side of a command.
#[derive(Debug)]
pub struct ExecReader<R, W> {
    reader: R,
    shared: Arc<Shared<W>>,
}

impl<R: Read, W> ExecReader<R, W> {
    /// Waits for the next event. After [`ExecEvent::Exit`] or an error nothing follows.
    ///
    /// # Errors
    /// [`ClientError::Frame`] when the connection ends before the command did.
    pub fn next_event(&mut self) -> Result<ExecEvent, ClientError> {
        loop {
            match read_message::<ExecOutput>(&mut self.reader) {
                Ok(ExecOutput::Stdout(data)) => return Ok(ExecEvent::Stdout(data)),
                Ok(ExecOutput::Stderr(data)) => return Ok(ExecEvent::Stderr(data)),
                Ok(ExecOutput::StdinCredit { bytes }) => {
                    let mut credit = self.shared.credit();
                    credit.bytes = credit.bytes.saturating_add(bytes.into());
                    drop(credit);
                    self.shared.changed.notify_all();
                }
                Ok(ExecOutput::Exit(outcome)) => {
                    self.shared.end();
                    return Ok(ExecEvent::Exit(outcome));
                }
                Err(error) => {
                    self.shared.end();
                    return Err(error.into());
                }
            }
        }
    }
}

impl<R, W> Drop for ExecReader<R, W> {
    fn drop(&mut self) {
        // Nobody hands out credit any more: writers must not wait for it.
        self.shared.end();
    }
}
