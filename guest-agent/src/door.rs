//! Connections that have not said what they want, and those between two control calls.
//!
//! One thread waits for all of them, however many there are and however slow their clients. A control
//! call is carried out by one of a few threads that are there from the start: whatever the guest's
//! commands use up (processes, memory, sessions), the machine can be set up, saved and stopped.

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use agent_protocol::frame::{FrameBuffer, FrameError, write_message};
use agent_protocol::hello::{HELLO_BYTES, Hello};
use agent_protocol::message::{ErrorKind, Reply, Request, chain};
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{RecvFlags, recv};
use rustix::time::Timespec;

use crate::agent::Agent;
use crate::control;
use crate::session;

/// Time in which a client must say hello and what it wants. A host with many clients may give each of
/// them little time.
const GREETING_TIME: Duration = Duration::from_secs(120);
/// How long an answer to a control call may wait for its client to read.
const ANSWER_TIME: Duration = Duration::from_secs(10);
/// Connections kept here at one time. Beyond that, those that have been silent longest go.
const MAX_WAITING: usize = 256;
/// Threads that carry out control calls.
const CONTROL_THREADS: usize = 4;
/// Bytes read from one connection before the next has its turn.
const PIECE_BYTES: usize = 64 << 10;

/// A connection before its first request, or between two control calls.
pub(crate) struct Visitor {
    pub(crate) stream: File,
    pub(crate) frames: FrameBuffer,
    greeted: bool,
    /// When it must have said what it wants; `None` once it has.
    until: Option<Instant>,
}

/// Where connections come in.
pub(crate) struct Door {
    shared: Arc<Shared>,
}

struct Shared {
    coming: Mutex<Vec<Visitor>>,
    wake: OwnedFd,
    calls: Mutex<VecDeque<(Visitor, Request)>>,
    called: Condvar,
}

impl Door {
    /// A door without anybody behind it yet.
    pub(crate) fn new() -> io::Result<Self> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        Ok(Self {
            shared: Arc::new(Shared {
                coming: Mutex::default(),
                wake: eventfd(0, flags)?,
                calls: Mutex::default(),
                called: Condvar::new(),
            }),
        })
    }

    /// Starts the threads behind the door. They end with the process.
    pub(crate) fn open(agent: &Arc<Agent>) -> io::Result<()> {
        let spawn = |name: &str, work: fn(&Arc<Agent>)| {
            let agent = Arc::clone(agent);
            let thread = thread::Builder::new()
                .name(name.into())
                .stack_size(512 << 10);
            thread.spawn(move || work(&agent)).map(|_| ())
        };
        spawn("door", attend)?;
        (0..CONTROL_THREADS).try_for_each(|_| spawn("control", carry_out_calls))
    }

    /// Lets a fresh connection in.
    pub(crate) fn enter(&self, connection: OwnedFd) {
        self.shared.push(Visitor {
            stream: connection.into(),
            frames: FrameBuffer::default(),
            greeted: false,
            until: Some(Instant::now() + GREETING_TIME),
        });
    }
}

impl Shared {
    fn push(&self, visitor: Visitor) {
        let mut coming = self.coming.lock().unwrap_or_else(PoisonError::into_inner);
        coming.push(visitor);
        drop(coming);
        // A full counter wakes the thread as well.
        #[allow(clippy::host_endian_bytes)] // eventfd takes a host integer
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }

    fn call(&self, visitor: Visitor, request: Request) {
        let mut calls = self.calls.lock().unwrap_or_else(PoisonError::into_inner);
        calls.push_back((visitor, request));
        drop(calls);
        self.called.notify_one();
    }

    fn next_call(&self) -> (Visitor, Request) {
        let mut calls = self.calls.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if let Some(call) = calls.pop_front() {
                return call;
            }
            calls = self
                .called
                .wait(calls)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// What became of a visitor that was looked at.
enum Next {
    Stay(Visitor),
    Gone,
}

fn attend(agent: &Arc<Agent>) {
    let shared = &agent.door.shared;
    let mut visitors: Vec<Visitor> = Vec::new();
    let mut scratch = vec![0; PIECE_BYTES];
    loop {
        let ready = wait(shared, &visitors);
        let now = Instant::now();
        let mut stay = Vec::with_capacity(visitors.len());
        for (visitor, ready) in visitors.into_iter().zip(ready) {
            let late = visitor.until.is_some_and(|until| now >= until);
            let next = match (ready, late) {
                (true, _) => hear(agent, visitor, &mut scratch),
                (false, true) => Next::Gone,
                (false, false) => Next::Stay(visitor),
            };
            if let Next::Stay(visitor) = next {
                stay.push(visitor);
            }
        }
        visitors = stay;
        let mut counter = [0; 8];
        // Only clears the wake-up.
        let _ = rustix::io::read(&shared.wake, &mut counter);
        let mut coming = shared.coming.lock().unwrap_or_else(PoisonError::into_inner);
        visitors.append(&mut coming);
        drop(coming);
        let too_many = visitors.len().saturating_sub(MAX_WAITING);
        visitors.drain(..too_many);
    }
}

/// Which visitors have something to say, once one has, or is late, or another comes in.
fn wait(shared: &Shared, visitors: &[Visitor]) -> Vec<bool> {
    let mut polled = vec![PollFd::new(&shared.wake, PollFlags::IN)];
    polled.extend(
        visitors
            .iter()
            .map(|visitor| PollFd::new(&visitor.stream, PollFlags::IN)),
    );
    let until = visitors.iter().filter_map(|visitor| visitor.until).min();
    let timeout = until.map(|until| {
        let left = until.saturating_duration_since(Instant::now());
        Timespec {
            tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: left.subsec_nanos().into(),
        }
    });
    match poll(&mut polled, timeout.as_ref()) {
        Ok(_) => polled[1..]
            .iter()
            .map(|fd| !fd.revents().is_empty())
            .collect(),
        // Interrupted, or out of memory for a moment: nothing is known to be ready.
        Err(_) => vec![false; visitors.len()],
    }
}

/// Reads what a visitor says and does what it wants.
fn hear(agent: &Arc<Agent>, mut visitor: Visitor, scratch: &mut [u8]) -> Next {
    match recv(&visitor.stream, &mut *scratch, RecvFlags::DONTWAIT) {
        // It left, or this is a restored copy, whose connections are gone.
        Ok((0, _)) => return Next::Gone,
        Ok((count, _)) => visitor.frames.push(&scratch[..count]),
        Err(Errno::AGAIN | Errno::INTR) => return Next::Stay(visitor),
        Err(_) => return Next::Gone,
    }
    understand(agent, visitor)
}

fn understand(agent: &Arc<Agent>, mut visitor: Visitor) -> Next {
    if !visitor.greeted {
        let Some(bytes) = visitor.frames.take_raw::<HELLO_BYTES>() else {
            return Next::Stay(visitor);
        };
        if let Err(error) = greet(&visitor.stream, bytes) {
            agent.log(&format!("a client says no hello: {error}"));
            return Next::Gone;
        }
        visitor.greeted = true;
    }
    loop {
        match visitor.frames.next_message::<Request>() {
            Ok(None) => return Next::Stay(visitor),
            Ok(Some(request)) => {
                visitor.until = None;
                session::begin(agent, visitor, request);
                return Next::Gone;
            }
            Err(error) if error.is_unknown_kind() => {
                let reply = Reply::Error {
                    kind: ErrorKind::Unsupported,
                    message: "this agent does not know that request".into(),
                };
                if answer(&visitor.stream, &reply).is_err() {
                    return Next::Gone;
                }
            }
            Err(error) => {
                let error = chain(&error);
                agent.log(&format!("a client did not say what it wants: {error}"));
                return Next::Gone;
            }
        }
    }
}

/// Answers a hello. Ours is sent also when no version fits, so that the client can say which versions
/// the agent speaks.
fn greet(stream: &File, bytes: [u8; HELLO_BYTES]) -> Result<(), String> {
    let theirs = Hello::decode(bytes).map_err(|error| error.to_string())?;
    let sent = io::Write::write_all(&mut &*stream, &Hello::OURS.encode());
    sent.map_err(|error| error.to_string())?;
    theirs.agree().map_err(|error| error.to_string())?;
    Ok(())
}

/// Sends the answer to a control call; a client that does not read is given up.
pub(crate) fn answer(stream: &File, reply: &Reply) -> Result<(), FrameError> {
    let limited = set_socket_timeout(stream, Timeout::Send, Some(ANSWER_TIME));
    limited.map_err(|errno| FrameError::Io(errno.into()))?;
    write_message(&mut &*stream, reply)
}

/// Has a control call carried out.
pub(crate) fn call(agent: &Agent, visitor: Visitor, request: Request) {
    agent.door.shared.call(visitor, request);
}

fn carry_out_calls(agent: &Arc<Agent>) {
    loop {
        let (visitor, request) = agent.door.shared.next_call();
        let (reply, after) = control::answer(agent, request);
        let told = answer(&visitor.stream, &reply);
        // An end of the machine that was asked for happens also when its client is gone.
        after.run(agent);
        if told.is_ok() {
            agent.door.shared.push(visitor);
        }
    }
}
