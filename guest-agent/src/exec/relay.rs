//! Moves bytes between a command and its client until the command ends.
//!
//! One thread and one `poll` per command. The connection is always read: stdin comes only against
//! credit, so it always fits [`STDIN_WINDOW_BYTES`]. Output is read only while the buffer towards
//! the client has room, which holds a command back whose client is slow.

mod peer;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use agent_protocol::codec::Bytes;
use agent_protocol::frame::MAX_DATA_BYTES;
use agent_protocol::message::{ExecInput, ExecOutput, ExecRequest, Outcome};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::{Errno, write};
use rustix::process::Signal;
use rustix::time::Timespec;

use super::output::{Output, Piece};
use super::process::Process;
use super::spawn::{self, Spawned};
use crate::agent::Agent;
pub(crate) use peer::Peer;
use peer::{Connection, Lost};

/// Bytes of stdin that a client may have on the way.
pub(crate) const STDIN_WINDOW_BYTES: u32 = 256 << 10;
/// Credit is given back in steps of at least this, or when nothing is left to write.
const CREDIT_STEP_BYTES: u32 = 64 << 10;
/// Between SIGTERM and SIGKILL.
const KILL_GRACE: Duration = Duration::from_secs(2);
/// Between SIGKILL and telling a client whose time is over that it is, though the command has not ended:
/// the kernel may be waiting for a disk in it, for ever.
const GIVE_UP: Duration = Duration::from_secs(2);
/// How often to look whether a group that was told to end has ended.
const GROUP_POLL: Duration = Duration::from_millis(20);
/// How often to look whether the log has room again.
const ROOM_POLL: Duration = Duration::from_millis(20);
/// Time given to a client to close after it was told of the end.
const LINGER: Duration = Duration::from_secs(1);
/// End of file typed on a terminal.
const END_OF_FILE: u8 = 4;

/// How far the process group is from being ended by us.
#[derive(Debug, Clone, Copy)]
enum Ending {
    No,
    Asked { kill_at: Instant },
    Killed { give_up_at: Instant },
}

/// What can be done without waiting.
#[derive(Debug, Default)]
struct Ready {
    peer: bool,
    stdin: bool,
    outputs: [bool; 2],
    ended: bool,
}

/// A running command and its client.
pub(crate) struct Relay<'a> {
    agent: &'a Arc<Agent>,
    process: Process,
    tty: bool,
    peer: Connection,
    stdin: Option<std::os::fd::OwnedFd>,
    /// Whether the client may send stdin.
    takes_stdin: bool,
    /// Stdin that the command has not taken.
    input: VecDeque<u8>,
    input_ended: bool,
    last_input: u8,
    credit_owed: u32,
    /// Stdout and stderr.
    outputs: [Option<Output>; 2],
    scratch: Vec<u8>,
    deadline: Option<Instant>,
    timed_out: bool,
    ending: Ending,
    /// The client is told that the time is over, the command or not.
    given_up: bool,
    outcome: Option<Outcome>,
}

impl<'a> Relay<'a> {
    pub(crate) fn new(
        agent: &'a Arc<Agent>,
        session: u64,
        child: Spawned,
        peer: Peer,
        request: &ExecRequest,
    ) -> Self {
        let timeout = request.timeout_ms.map(Duration::from_millis);
        let takes_stdin = request.stdin && !request.detach;
        let keep_stdin = takes_stdin || child.tty;
        // On a terminal that nobody types on, a reader finds the end at once.
        let typed = (child.tty && !takes_stdin).then_some(END_OF_FILE);
        let mut relay = Self {
            agent,
            process: child.process,
            tty: child.tty,
            peer: Connection::new(peer, format!("exec {session}")),
            stdin: child.stdin.filter(|_| keep_stdin),
            takes_stdin,
            input: typed.into_iter().collect(),
            input_ended: false,
            last_input: b'\n',
            credit_owed: 0,
            outputs: [
                Some(Output::new(child.stdout, child.tty)),
                child.stderr.map(|fd| Output::new(fd, false)),
            ],
            scratch: vec![0; MAX_DATA_BYTES],
            deadline: timeout.and_then(|timeout| Instant::now().checked_add(timeout)),
            timed_out: false,
            ending: Ending::No,
            given_up: false,
            outcome: None,
        };
        if relay.peer.is_dead() {
            relay.end_group();
        }
        relay
    }

    /// Runs until the command has ended and its client knows.
    pub(crate) fn run(&mut self) -> Outcome {
        loop {
            self.keep_times();
            self.release_outputs();
            if let Some(outcome) = self.finished() {
                self.peer.finish(self.agent, outcome, LINGER);
                if self.outcome.is_none() {
                    self.peer.close();
                    self.process.await_end();
                }
                return outcome;
            }
            self.step();
        }
    }

    /// Goes on passing to the log what the command's processes write that it left behind, until the last
    /// of them is gone or has closed its output. Its own end has been told.
    pub(crate) fn outlive(mut self) {
        self.outputs.iter_mut().flatten().for_each(Output::go_on);
        while self.outputs.iter().any(Option::is_some) {
            self.step();
        }
        self.peer.end_lines(self.agent);
    }

    /// Waits, and does what can be done then.
    fn step(&mut self) {
        let ready = self.wait();
        if ready.peer {
            self.serve_peer();
        }
        if ready.stdin {
            self.write_stdin();
        }
        for at in 0..2 {
            if ready.outputs[at] || self.must_read(at) {
                self.read_output(at);
            }
        }
        if ready.ended && self.outcome.is_none() {
            self.reap();
            if self.outcome.is_none() {
                // Whoever traces the command has its end first, and takes the time it takes.
                std::thread::sleep(GROUP_POLL);
            }
        }
    }

    /// How the command ended, once all of it is over that its client waits for.
    fn finished(&self) -> Option<Outcome> {
        let group_is_done = match self.ending {
            Ending::No | Ending::Killed { .. } => true,
            Ending::Asked { .. } => !self.process.group_is_alive(),
        };
        let read = self.outputs.iter().flatten().all(Output::is_done);
        let outcome = match self.timed_out {
            true if self.given_up || self.outcome.is_some() => Some(Outcome::TimedOut),
            _ => self.outcome,
        };
        outcome.filter(|_| group_is_done && read)
    }

    fn reap(&mut self) {
        self.outcome = self.process.reap();
        if self.outcome.is_some() {
            self.command_ended();
        }
    }

    fn command_ended(&mut self) {
        self.stdin = None;
        for output in self.outputs.iter_mut().flatten() {
            output.command_ended();
        }
    }

    fn keep_times(&mut self) {
        let now = Instant::now();
        if self.outcome.is_none() && self.deadline.is_some_and(|deadline| now >= deadline) {
            self.deadline = None;
            self.timed_out = true;
            self.end_group();
        }
        if let Ending::Asked { kill_at } = self.ending
            && now >= kill_at
        {
            self.process.signal(Signal::KILL);
            self.ending = Ending::Killed {
                give_up_at: now + GIVE_UP,
            };
        }
        if self.may_be_given_up()
            && let Ending::Killed { give_up_at } = self.ending
            && now >= give_up_at
        {
            self.given_up = true;
            self.command_ended();
        }
    }

    /// Whether a client waits whose time is over, and the command does not end.
    fn may_be_given_up(&self) -> bool {
        self.timed_out && self.outcome.is_none() && !self.given_up
    }

    /// SIGTERM now, SIGKILL after [`KILL_GRACE`].
    fn end_group(&mut self) {
        if self.outcome.is_some() || !matches!(self.ending, Ending::No) {
            return;
        }
        if self.tty {
            // Interactive shells pass over SIGTERM, not over a terminal that is hung up.
            self.process.signal(Signal::HUP);
        }
        self.process.signal(Signal::TERM);
        self.process.signal(Signal::CONT);
        self.ending = Ending::Asked {
            kill_at: Instant::now() + KILL_GRACE,
        };
    }

    /// Hands streams on which nothing of interest comes any more to the drain. The log has them all to
    /// their ends.
    fn release_outputs(&mut self) {
        if self.peer.is_log() {
            return;
        }
        for slot in &mut self.outputs {
            if let Some(output) = slot.take_if(|output| output.is_done()) {
                self.agent.drainer.adopt(output.into_fd());
            }
        }
    }

    /// Whether to read an output though nothing is known to be in it.
    fn must_read(&self, at: usize) -> bool {
        let due = self.outputs[at].as_ref().and_then(Output::read_at);
        due.is_some_and(|due| Instant::now() >= due) && self.peer.has_room(self.agent)
    }

    fn wake_at(&self) -> Option<Instant> {
        let mut times: Vec<Instant> = Vec::with_capacity(6);
        if self.peer.must_look_for_room(self.agent) {
            times.push(Instant::now() + ROOM_POLL);
        }
        if self.outcome.is_none() {
            times.extend(self.deadline);
        }
        match self.ending {
            Ending::Asked { kill_at } => {
                times.push(kill_at);
                if self.outcome.is_some() {
                    times.push(Instant::now() + GROUP_POLL);
                }
            }
            Ending::Killed { give_up_at } if self.may_be_given_up() => times.push(give_up_at),
            _ => {}
        }
        if self.peer.has_room(self.agent) {
            times.extend(self.outputs.iter().flatten().filter_map(Output::read_at));
        }
        times.into_iter().min()
    }

    fn wait(&self) -> Ready {
        let mut polled: Vec<PollFd<'_>> = Vec::with_capacity(5);
        let peer = add(&mut polled, self.peer.poll_fd());
        let stdin = self
            .stdin
            .as_ref()
            .filter(|_| !self.input.is_empty() || self.input_ended);
        let stdin = add(&mut polled, stdin.map(|fd| PollFd::new(fd, PollFlags::OUT)));
        let room = self.peer.has_room(self.agent);
        let outputs = [0, 1].map(|at| {
            let output = self.outputs[at].as_ref();
            let output = output.filter(|output| room && !output.is_done());
            add(
                &mut polled,
                output.map(|output| PollFd::new(output.fd(), PollFlags::IN)),
            )
        });
        let running = self.outcome.is_none();
        let ended = add(
            &mut polled,
            running.then(|| PollFd::from_borrowed_fd(self.process.ended(), PollFlags::IN)),
        );
        let timeout = self
            .wake_at()
            .map(|at| timespec(at.saturating_duration_since(Instant::now())));
        if poll(&mut polled, timeout.as_ref()).is_err() {
            return Ready::default(); // interrupted
        }
        let is = |at: Option<usize>| at.is_some_and(|at| !polled[at].revents().is_empty());
        Ready {
            peer: is(peer),
            stdin: is(stdin),
            outputs: outputs.map(is),
            ended: is(ended),
        }
    }

    fn serve_peer(&mut self) {
        let (messages, lost) = self.peer.exchange(&mut self.scratch);
        for message in messages {
            if self.client_says(message).is_err() {
                self.lose_peer(Lost::Dead);
                return;
            }
        }
        if let Some(lost) = lost {
            self.lose_peer(lost);
        }
    }

    fn lose_peer(&mut self, lost: Lost) {
        self.peer.close();
        // Whoever reads stdin gets what has arrived and then its end; a terminal stays open.
        self.input_ended = !self.tty;
        match lost {
            Lost::Dead => self.end_group(),
            // The machine was restored elsewhere: the command goes on.
            Lost::Reset => {}
        }
    }

    /// `Err` when the client breaks the protocol.
    fn client_says(&mut self, message: ExecInput) -> Result<(), ()> {
        match message {
            ExecInput::Stdin(data) => {
                if self.input.len() + data.len() > STDIN_WINDOW_BYTES as usize || self.input_ended {
                    return Err(());
                }
                if self.stdin.is_some() && self.takes_stdin {
                    self.last_input = data.last().copied().unwrap_or(self.last_input);
                    self.input.extend(data.iter());
                    self.write_stdin();
                }
            }
            ExecInput::StdinEnd if self.tty && !self.takes_stdin => {}
            ExecInput::StdinEnd if self.tty => {
                // In the middle of a line the first one only sends the line.
                let times = if self.last_input == b'\n' { 1 } else { 2 };
                self.input.extend(std::iter::repeat_n(END_OF_FILE, times));
                self.write_stdin();
            }
            ExecInput::StdinEnd => {
                self.input_ended = true;
                self.write_stdin();
            }
            ExecInput::Resize(size) => {
                if let Some(master) = self.outputs[0].as_ref().filter(|_| self.tty) {
                    // A terminal that cannot be resized still works.
                    let _ = spawn::resize(master.fd(), size);
                }
            }
            ExecInput::Signal { number } => {
                if self.outcome.is_none() {
                    self.process.signal_number(number);
                }
            }
        }
        Ok(())
    }

    fn write_stdin(&mut self) {
        while let Some(stdin) = &self.stdin {
            let (front, _) = self.input.as_slices();
            if front.is_empty() {
                if self.input_ended {
                    self.stdin = None;
                }
                break;
            }
            match write(stdin, front) {
                Ok(count) => {
                    self.input.drain(..count);
                    // What was typed for the client is no credit of its own.
                    if self.takes_stdin {
                        self.credit_owed += u32::try_from(count).unwrap_or(0);
                    }
                }
                Err(Errno::AGAIN | Errno::INTR) => break,
                Err(_) => {
                    // The command closed its stdin. No credit: the client sends no more.
                    self.stdin = None;
                    self.input.clear();
                    return;
                }
            }
        }
        if self.credit_owed >= CREDIT_STEP_BYTES || (self.input.is_empty() && self.credit_owed > 0)
        {
            let bytes = std::mem::take(&mut self.credit_owed);
            self.peer.send(&ExecOutput::StdinCredit { bytes });
        }
    }

    fn read_output(&mut self, at: usize) {
        let Some(output) = &mut self.outputs[at] else {
            return;
        };
        match output.read(&mut self.scratch) {
            Piece::Nothing => {}
            Piece::End => self.outputs[at] = None,
            Piece::Data(count) => {
                let data = &self.scratch[..count];
                self.peer.output(self.agent, at, data, || {
                    let data = Bytes::from(data);
                    if at == 0 {
                        ExecOutput::Stdout(data)
                    } else {
                        ExecOutput::Stderr(data)
                    }
                });
            }
        }
    }
}

/// Appends `fd`, if there is one, and says where.
fn add<'f>(polled: &mut Vec<PollFd<'f>>, fd: Option<PollFd<'f>>) -> Option<usize> {
    polled.push(fd?);
    Some(polled.len() - 1)
}

fn timespec(duration: Duration) -> Timespec {
    Timespec {
        tv_sec: i64::try_from(duration.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: duration.subsec_nanos().into(),
    }
}
