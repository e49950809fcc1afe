//! The output of detached commands, on its way to whoever reads the machine's log.
//!
//! It goes over a connection, as the output of commands in front does: the serial line would cost the
//! guest's own time for each byte. While nobody reads, the newest of it is kept.

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;

use agent_protocol::codec::Bytes;
use agent_protocol::frame::{MAX_DATA_BYTES, write_message};
use agent_protocol::message::{LogOutput, Reply};
use rustix::net::{Shutdown, shutdown};

/// Output kept at one time. Above that, commands wait for a reader that is there, and without one the
/// oldest lines are dropped.
const BUFFER_BYTES: usize = 1 << 20;

/// Collects lines for the reader of the log.
pub(crate) struct OutputLog {
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// Whole lines.
    lines: VecDeque<u8>,
    /// Bytes dropped before `lines`.
    lost: u64,
    reader: Option<Arc<File>>,
}

impl OutputLog {
    /// Starts the thread that writes to the reader. It ends with the process.
    pub(crate) fn start() -> io::Result<Self> {
        let shared = Arc::<Shared>::default();
        let theirs = Arc::clone(&shared);
        thread::Builder::new()
            .name("log".into())
            .stack_size(256 << 10)
            .spawn(move || theirs.pass_on())?;
        Ok(Self { shared })
    }

    /// Whether a command may write more now.
    pub(crate) fn has_room(&self) -> bool {
        let state = self.shared.lock();
        state.reader.is_none() || state.lines.len() < BUFFER_BYTES
    }

    /// Adds whole lines, each with its end.
    pub(crate) fn add(&self, lines: &[u8]) {
        let mut state = self.shared.lock();
        state.lines.extend(lines);
        if state.reader.is_none() {
            state.forget_oldest();
        }
        drop(state);
        self.shared.changed.notify_one();
    }

    /// Makes `stream` the reader in place of the one before.
    pub(crate) fn read_by(&self, stream: File) {
        let reader = Some(Arc::new(stream));
        let before = std::mem::replace(&mut self.shared.lock().reader, reader);
        if let Some(before) = before {
            // Whoever writes to it now must come back; one that is gone already needs nothing.
            let _ = shutdown(&*before, Shutdown::Both);
        }
        self.shared.changed.notify_one();
    }
}

impl State {
    fn forget_oldest(&mut self) {
        let Some(over) = self.lines.len().checked_sub(BUFFER_BYTES) else {
            return;
        };
        let rest = self.lines.iter().skip(over).position(|&byte| byte == b'\n');
        let gone = rest.map_or(self.lines.len(), |at| over + at + 1);
        self.lines.drain(..gone);
        self.lost += gone as u64;
    }

    /// The next thing to send.
    fn next(&self) -> Option<LogOutput> {
        if self.lost > 0 {
            return Some(LogOutput::Lost { bytes: self.lost });
        }
        if self.lines.is_empty() {
            return None;
        }
        let (front, back) = self.lines.as_slices();
        let mut piece = front[..front.len().min(MAX_DATA_BYTES)].to_vec();
        piece.extend_from_slice(&back[..back.len().min(MAX_DATA_BYTES - piece.len())]);
        // Lines are far shorter than a piece.
        let end = piece.iter().rposition(|&byte| byte == b'\n');
        piece.truncate(end.map_or(piece.len(), |at| at + 1));
        Some(LogOutput::Lines(Bytes(piece)))
    }

    /// Forgets what has been sent.
    fn sent(&mut self, what: &LogOutput) {
        match what {
            LogOutput::Lines(bytes) => drop(self.lines.drain(..bytes.len())),
            LogOutput::Lost { bytes } => self.lost -= bytes,
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn pass_on(&self) {
        let mut greeted: Option<Arc<File>> = None;
        let mut state = self.lock();
        loop {
            let Some(reader) = state.reader.clone() else {
                state = self.wait(state);
                continue;
            };
            let is_new = greeted
                .as_ref()
                .is_none_or(|old| !Arc::ptr_eq(old, &reader));
            let next = if is_new { None } else { state.next() };
            if !is_new && next.is_none() {
                state = self.wait(state);
                continue;
            }
            // While the lock is free nothing is dropped: there is a reader.
            drop(state);
            let written = match &next {
                None => write_message(&mut &*reader, &Reply::Ok),
                Some(output) => write_message(&mut &*reader, output),
            };
            state = self.lock();
            let is_same = state
                .reader
                .as_ref()
                .is_some_and(|now| Arc::ptr_eq(now, &reader));
            match written {
                Ok(()) => {
                    if let Some(output) = &next {
                        state.sent(output);
                    }
                    greeted = Some(reader);
                }
                // It is gone: what it has not read is for the next one.
                Err(_) if is_same => {
                    state.reader = None;
                    state.forget_oldest();
                }
                Err(_) => {}
            }
        }
    }

    fn wait<'a>(&self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        self.changed
            .wait(state)
            .unwrap_or_else(PoisonError::into_inner)
    }
}
