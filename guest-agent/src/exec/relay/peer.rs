//! Where a command's output goes: to its client, to the machine's log, or nowhere.

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use agent_protocol::frame::{FrameBuffer, push_frame};
use agent_protocol::message::{ExecInput, ExecOutput, Outcome};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::OFlags;
use rustix::io::{Errno, read, write};

use super::timespec;
use crate::agent::Agent;

/// Bytes of frames towards the client above which no more output is read.
const OUTPUT_BUFFER_BYTES: usize = 256 << 10;
/// Longest line of a detached command in the log; longer ones are cut into several.
const LOG_LINE_BYTES: usize = 4096;

/// Who a command runs for when it starts.
#[derive(Debug)]
pub(crate) enum Peer {
    /// A client on this connection.
    Client(OwnedFd),
    /// Nobody: output goes to the machine's log.
    Log,
    /// A client that died before it was told of the start.
    Dead,
}

/// Why there is no client any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lost {
    /// It closed the connection or broke the protocol.
    Dead,
    /// The transport was reset under a connection that was in use: this is a restored copy of the
    /// machine, whose source still has the client.
    Reset,
}

#[derive(Debug)]
enum State {
    Client(OwnedFd),
    Log([Vec<u8>; 2]),
    Nobody,
}

/// The client's connection with what is still to be sent on it.
pub(super) struct Connection {
    state: State,
    dead: bool,
    name: String,
    frames: FrameBuffer,
    out: Vec<u8>,
    /// Bytes of `out` that have been sent.
    sent: usize,
}

impl Connection {
    pub(super) fn new(peer: Peer, name: String) -> Self {
        let mut dead = matches!(peer, Peer::Dead);
        let state = match peer {
            Peer::Client(fd) if set_nonblocking(&fd).is_ok() => State::Client(fd),
            Peer::Client(_) => {
                dead = true;
                State::Nobody
            }
            Peer::Log => State::Log(Default::default()),
            Peer::Dead => State::Nobody,
        };
        let frames = FrameBuffer::default();
        Self {
            state,
            dead,
            name,
            frames,
            out: Vec::new(),
            sent: 0,
        }
    }

    pub(super) fn is_dead(&self) -> bool {
        self.dead
    }

    pub(super) fn close(&mut self) {
        self.state = State::Nobody;
        self.out = Vec::new();
        self.sent = 0;
    }

    /// Whether output goes to the machine's log.
    pub(super) fn is_log(&self) -> bool {
        matches!(self.state, State::Log(_))
    }

    fn waiting(&self) -> usize {
        self.out.len() - self.sent
    }

    /// Whether there is room for more output.
    pub(super) fn has_room(&self, agent: &Agent) -> bool {
        match &self.state {
            State::Log(_) => agent.output_log.has_room(),
            _ => self.waiting() < OUTPUT_BUFFER_BYTES,
        }
    }

    /// Whether room may appear without any event here.
    pub(super) fn must_look_for_room(&self, agent: &Agent) -> bool {
        matches!(self.state, State::Log(_)) && !agent.output_log.has_room()
    }

    pub(super) fn poll_fd(&self) -> Option<PollFd<'_>> {
        let State::Client(fd) = &self.state else {
            return None;
        };
        let mut flags = PollFlags::IN;
        if self.waiting() > 0 {
            flags |= PollFlags::OUT;
        }
        Some(PollFd::new(fd, flags))
    }

    /// Queues a message for the client, if there is one.
    pub(super) fn send(&mut self, message: &ExecOutput) {
        if !matches!(self.state, State::Client(_)) {
            return;
        }
        if self.sent > OUTPUT_BUFFER_BYTES / 2 || self.sent == self.out.len() {
            self.out.drain(..self.sent);
            self.sent = 0;
        }
        // Messages are built from pieces far below the size of a frame.
        let _ = push_frame(message, &mut self.out);
    }

    /// Passes on what the command wrote to stream `at`.
    pub(super) fn output(
        &mut self,
        agent: &Agent,
        at: usize,
        data: &[u8],
        message: impl FnOnce() -> ExecOutput,
    ) {
        match &mut self.state {
            State::Nobody => {}
            State::Log(lines) => log_lines(agent, &self.name, &mut lines[at], data),
            State::Client(_) => {
                self.send(&message());
                // Most often there is room at once; a failure shows at the next exchange.
                let _ = self.flush();
            }
        }
    }

    /// Reads and writes what can be, without waiting.
    pub(super) fn exchange(&mut self, scratch: &mut [u8]) -> (Vec<ExecInput>, Option<Lost>) {
        let (messages, lost) = self.receive(scratch);
        if lost.is_some() {
            return (messages, lost);
        }
        let lost = match self.flush() {
            Ok(()) => None,
            // The write does not tell why; the read does, unless the client only stopped reading.
            Err(_) => Some(self.receive(scratch).1.unwrap_or(Lost::Dead)),
        };
        (messages, lost)
    }

    fn receive(&mut self, scratch: &mut [u8]) -> (Vec<ExecInput>, Option<Lost>) {
        let State::Client(fd) = &self.state else {
            return (Vec::new(), None);
        };
        let mut messages = Vec::new();
        match read(fd, &mut *scratch) {
            Ok(0) => return (messages, Some(Lost::Dead)),
            Ok(count) => self.frames.push(&scratch[..count]),
            Err(Errno::AGAIN | Errno::INTR) => return (messages, None),
            // A client that goes away is an end of file. After a transport reset vsock answers
            // ECONNRESET or ENOTCONN.
            Err(_) => return (messages, Some(Lost::Reset)),
        }
        loop {
            match self.frames.next_message() {
                Ok(Some(message)) => messages.push(message),
                Ok(None) => return (messages, None),
                // What a newer client has to say besides.
                Err(error) if error.is_unknown_kind() => {}
                Err(_) => return (messages, Some(Lost::Dead)),
            }
        }
    }

    fn flush(&mut self) -> Result<(), Errno> {
        let State::Client(fd) = &self.state else {
            return Ok(());
        };
        while self.sent < self.out.len() {
            match write(fd, &self.out[self.sent..]) {
                Ok(count) => self.sent += count,
                Err(Errno::AGAIN | Errno::INTR) => break,
                Err(errno) => return Err(errno),
            }
        }
        Ok(())
    }

    /// Writes to the log what has no end of line yet.
    pub(super) fn end_lines(&mut self, agent: &Agent) {
        if let State::Log(lines) = &mut self.state {
            for line in lines.iter_mut().filter(|line| !line.is_empty()) {
                line.push(b'\n');
                log_lines(agent, &self.name, line, b"");
            }
        }
    }

    /// Tells the client how the command ended and waits until it has closed, or `linger` is over:
    /// closing first could throw away what it has not read.
    pub(super) fn finish(&mut self, agent: &Agent, outcome: Outcome, linger: Duration) {
        self.end_lines(agent);
        self.send(&ExecOutput::Exit(outcome));
        let mut scratch = vec![0; 4096];
        let mut until = None;
        while let Some(fd) = self.poll_fd() {
            let now = Instant::now();
            if self.waiting() == 0 && until.is_none() {
                until = Some(now + linger);
            }
            if until.is_some_and(|until| now >= until) {
                return;
            }
            let timeout = until.map(|until| timespec(until - now));
            // Interrupted or not, the exchange below does not wait.
            let _ = poll(&mut [fd], timeout.as_ref());
            if self.exchange(&mut scratch).1.is_some() {
                return;
            }
        }
    }
}

fn set_nonblocking(fd: &OwnedFd) -> Result<(), Errno> {
    rustix::fs::fcntl_setfl(fd, rustix::fs::fcntl_getfl(fd)? | OFlags::NONBLOCK)
}

/// Writes whole lines to the log, all at once, and keeps the rest in `line`.
fn log_lines(agent: &Agent, name: &str, line: &mut Vec<u8>, data: &[u8]) {
    line.extend_from_slice(data);
    let mut text = Vec::with_capacity(line.len() * 2);
    let mut done = 0;
    loop {
        let rest = &line[done..];
        let part = &rest[..rest.len().min(LOG_LINE_BYTES)];
        let (shown, taken) = match part.iter().position(|&byte| byte == b'\n') {
            Some(end) => (&part[..end], end + 1),
            None if part.len() == LOG_LINE_BYTES => (part, part.len()),
            None => break,
        };
        text.extend_from_slice(name.as_bytes());
        text.extend_from_slice(b": ");
        text.extend_from_slice(shown);
        text.push(b'\n');
        done += taken;
    }
    line.drain(..done);
    if !text.is_empty() {
        agent.output_log.add(&text);
    }
}
