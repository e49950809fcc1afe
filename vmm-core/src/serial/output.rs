use std::io::{self, Write};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// Bytes that wait for the sink.
const BUFFER_BYTES: usize = 64 << 10;
/// How long a vCPU waits for room before a byte is lost.
const PATIENCE: Duration = Duration::from_millis(20);

/// What becomes of output that the sink does not keep up with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Overflow {
    /// It is lost, and the loss noted: a vCPU is hardly held up.
    Lost,
    /// The vCPU waits.
    Waits,
}

/// A thread that writes to a sink, behind a bounded buffer.
pub(super) struct Output {
    shared: Arc<Shared>,
    overflow: Overflow,
    writer: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    buffer: Vec<u8>,
    /// The writer holds bytes that are not in `buffer` any more.
    writing: bool,
    lost: u64,
    stopped: bool,
}

impl Output {
    pub(super) fn new(sink: Box<dyn Write + Send>, overflow: Overflow) -> io::Result<Self> {
        let shared = Arc::new(Shared::default());
        let theirs = shared.clone();
        let writer = std::thread::Builder::new()
            .name("serial0".to_owned())
            .spawn(move || theirs.write_out(sink))?;
        Ok(Self {
            shared,
            overflow,
            writer: Some(writer),
        })
    }

    pub(super) fn push(&self, byte: u8) {
        let mut state = self.shared.lock();
        let full = |s: &mut State| s.buffer.len() >= BUFFER_BYTES;
        if self.overflow == Overflow::Waits {
            let waited = self.shared.changed.wait_while(state, full);
            state = waited.unwrap_or_else(PoisonError::into_inner);
        }
        // Once bytes were lost, nobody waits any more until there is room again.
        if state.buffer.len() >= BUFFER_BYTES && state.lost == 0 {
            let waited = self
                .shared
                .changed
                .wait_timeout_while(state, PATIENCE, full);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        if state.buffer.len() >= BUFFER_BYTES {
            state.lost += 1;
            return;
        }
        let was_empty = state.buffer.is_empty();
        let lost = std::mem::take(&mut state.lost);
        if lost > 0 {
            let note = format!("\n[{lost} bytes of output lost]\n");
            state.buffer.extend_from_slice(note.as_bytes());
        }
        state.buffer.push(byte);
        drop(state);
        if was_empty {
            self.shared.changed.notify_all();
        }
    }

    pub(super) fn flush(&self) {
        let state = self.shared.lock();
        let pending = |s: &mut State| !s.buffer.is_empty() || s.writing;
        drop(self.shared.changed.wait_while(state, pending));
    }
}

impl Drop for Output {
    fn drop(&mut self) {
        self.shared.lock().stopped = true;
        self.shared.changed.notify_all();
        if let Some(writer) = self.writer.take()
            && writer.join().is_err()
        {
            tracing::error!("serial output thread panicked");
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn write_out(&self, mut sink: Box<dyn Write + Send>) {
        let mut broken = false;
        while let Some(bytes) = self.next() {
            let written = sink.write_all(&bytes).and_then(|()| sink.flush());
            if let Err(error) = written
                && !std::mem::replace(&mut broken, true)
            {
                tracing::warn!(%error, "serial output cannot be written");
            }
            self.lock().writing = false;
            self.changed.notify_all();
        }
    }

    fn next(&self) -> Option<Vec<u8>> {
        let state = self.lock();
        let idle = |s: &mut State| s.buffer.is_empty() && !s.stopped;
        let waited = self.changed.wait_while(state, idle);
        let mut state = waited.unwrap_or_else(PoisonError::into_inner);
        if state.buffer.is_empty() {
            return None;
        }
        state.writing = true;
        let bytes = std::mem::take(&mut state.buffer);
        drop(state);
        self.changed.notify_all();
        Some(bytes)
    }
}
