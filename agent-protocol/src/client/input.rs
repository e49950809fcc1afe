//! What goes to a running command.
//!
//! One thread writes to the connection, so that nobody else can be held up by a guest that does not
//! read: signals and sizes are only noted for it. It is started with the first input; a command that
//! gets none has no such thread.

use std::collections::VecDeque;
use std::io::{self, Write};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;

use super::{ClientError, HangUp};
use crate::codec::Bytes;
use crate::frame::{MAX_DATA_BYTES, write_message};
use crate::message::{ExecInput, TtySize};

/// Signals that may wait to be sent.
const MAX_WAITING_SIGNALS: usize = 16;

/// The input of one command, shared by all who send to it.
#[derive(Debug)]
pub(super) struct Input<W> {
    state: Mutex<State<W>>,
    changed: Condvar,
}

#[derive(Debug)]
struct State<W> {
    /// The connection, until the thread has it.
    writer: Option<W>,
    /// Readers and writers of the session that are left.
    ends: usize,
    /// Bytes of stdin that may be sent.
    credit: u64,
    /// The command has ended, or nobody reads its events any more: there will be no more credit.
    ended: bool,
    /// Nothing can be sent any more.
    closed: bool,
    signals: VecDeque<i32>,
    size: Option<TtySize>,
    stdin: Option<Bytes>,
    stdin_ended: bool,
    /// The connection is to be ended.
    hang_up: bool,
    /// Why: what was to be sent could not be read.
    failure: Option<io::Error>,
}

impl<W> State<W> {
    /// Signals first: they must not wait for data.
    fn next(&mut self) -> Option<ExecInput> {
        if let Some(number) = self.signals.pop_front() {
            return Some(ExecInput::Signal { number });
        }
        if let Some(size) = self.size.take() {
            return Some(ExecInput::Resize(size));
        }
        if let Some(data) = self.stdin.take() {
            return Some(ExecInput::Stdin(data));
        }
        std::mem::take(&mut self.stdin_ended).then_some(ExecInput::StdinEnd)
    }
}

impl<W> Input<W> {
    /// The input of a command that has just been started, with one end each for its reader and its
    /// writer.
    pub(super) fn new(writer: W, credit: u64) -> Arc<Self> {
        Arc::new(Self {
            state: Mutex::new(State {
                writer: Some(writer),
                ends: 2,
                credit,
                ended: false,
                closed: false,
                signals: VecDeque::new(),
                size: None,
                stdin: None,
                stdin_ended: false,
                hang_up: false,
                failure: None,
            }),
            changed: Condvar::new(),
        })
    }

    fn state(&self) -> MutexGuard<'_, State<W>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(&self, state: MutexGuard<'a, State<W>>) -> MutexGuard<'a, State<W>> {
        let state = self.changed.wait(state);
        state.unwrap_or_else(PoisonError::into_inner)
    }

    /// One more holder of this input.
    pub(super) fn add_end(&self) {
        self.state().ends += 1;
    }

    /// One holder less. The connection is closed after the last.
    pub(super) fn drop_end(&self) {
        self.state().ends -= 1;
        self.changed.notify_all();
    }

    pub(super) fn add_credit(&self, bytes: u32) {
        let mut state = self.state();
        state.credit = state.credit.saturating_add(bytes.into());
        drop(state);
        self.changed.notify_all();
    }

    /// There will be no more credit.
    pub(super) fn end(&self) {
        self.state().ended = true;
        self.changed.notify_all();
    }
}

impl<W> Input<W> {
    /// Whether nothing can come of more input.
    pub(super) fn has_ended(&self) -> bool {
        let state = self.state();
        state.ended || state.closed
    }

    /// Why this side has ended the connection, if it has. It can be taken once.
    pub(super) fn take_failure(&self) -> Option<io::Error> {
        self.state().failure.take()
    }
}

impl<W: Write + HangUp + Send + 'static> Input<W> {
    /// Notes something for the thread, which is started if there is none yet.
    fn note(
        self: &Arc<Self>,
        mut state: MutexGuard<'_, State<W>>,
        what: impl FnOnce(&mut State<W>),
    ) -> Result<(), ClientError> {
        if state.closed {
            return Err(ClientError::Ended);
        }
        what(&mut state);
        if let Some(writer) = state.writer.take() {
            let input = Arc::clone(self);
            let thread = thread::Builder::new().name("exec input".to_owned());
            if let Err(error) = thread.spawn(move || input.send_all(writer)) {
                state.closed = true;
                return Err(ClientError::Input(error));
            }
        }
        drop(state);
        self.changed.notify_all();
        Ok(())
    }

    fn send_all(&self, mut writer: W) {
        let mut state = self.state();
        loop {
            if state.hang_up {
                writer.hang_up();
                break;
            } else if let Some(message) = state.next() {
                drop(state);
                self.changed.notify_all();
                let sent = write_message(&mut writer, &message);
                state = self.state();
                if sent.is_err() {
                    break;
                }
            } else if state.ends == 0 {
                break;
            } else {
                state = self.wait(state);
            }
        }
        state.closed = true;
        drop(state);
        self.changed.notify_all();
    }

    pub(super) fn signal(self: &Arc<Self>, number: i32) -> Result<(), ClientError> {
        let state = self.state();
        if state.signals.len() >= MAX_WAITING_SIGNALS {
            return Err(ClientError::NotTaken);
        }
        self.note(state, |state| state.signals.push_back(number))
    }

    pub(super) fn resize(self: &Arc<Self>, size: TtySize) -> Result<(), ClientError> {
        self.note(self.state(), |state| state.size = Some(size))
    }

    pub(super) fn end_stdin(self: &Arc<Self>) -> Result<(), ClientError> {
        self.note(self.state(), |state| state.stdin_ended = true)
    }

    /// Ends the connection, and the command with it: the rest of its input cannot be read.
    pub(super) fn fail(self: &Arc<Self>, error: io::Error) -> Result<(), ClientError> {
        self.note(self.state(), |state| {
            state.hang_up = true;
            state.failure = Some(error);
        })
    }

    /// Sends all of `data` as there is credit for it.
    pub(super) fn stdin(self: &Arc<Self>, mut data: &[u8]) -> Result<(), ClientError> {
        while !data.is_empty() {
            let mut state = self.state();
            while !state.ended && !state.closed && (state.credit == 0 || state.stdin.is_some()) {
                state = self.wait(state);
            }
            if state.ended {
                return Err(ClientError::Ended);
            }
            let granted = usize::try_from(state.credit).unwrap_or(usize::MAX);
            let count = data.len().min(granted).min(MAX_DATA_BYTES);
            let (head, tail) = data.split_at(count);
            state.credit -= count as u64;
            self.note(state, |state| state.stdin = Some(head.into()))?;
            data = tail;
        }
        Ok(())
    }
}
