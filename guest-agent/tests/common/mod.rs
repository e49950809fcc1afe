//! An agent served in this process over socket pairs.
#![allow(dead_code)] // each test program uses a part

use std::io::{self, Write};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use agent_protocol::client::{Connection, ExecSession};
use agent_protocol::codec::Bytes;
use agent_protocol::message::{ExecRequest, Outcome};
use guest_agent::agent::{Agent, Config};

pub(crate) type Client = Connection<UnixStream, UnixStream>;
pub(crate) type Session = ExecSession<UnixStream, UnixStream>;

/// The log of an agent, kept in memory.
#[derive(Clone, Default)]
pub(crate) struct Log(Arc<Mutex<Vec<u8>>>);

impl Log {
    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.0.lock().expect("log")).into_owned()
    }
}

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().expect("log").extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

pub(crate) struct Machine {
    pub(crate) agent: Arc<Agent>,
    pub(crate) log: Log,
}

impl Machine {
    pub(crate) fn new() -> Self {
        let log = Log::default();
        let config = Config {
            owns_machine: false,
            log: Box::new(log.clone()),
            numbers: None,
        };
        Self {
            agent: Agent::new(config).expect("agent"),
            log,
        }
    }

    /// A socket whose other end the agent serves.
    pub(crate) fn dial(&self) -> UnixStream {
        let (ours, theirs) = UnixStream::pair().expect("socket pair");
        self.agent.accept(theirs.into());
        ours
    }

    pub(crate) fn connect(&self) -> Client {
        let stream = self.dial();
        Connection::open(stream.try_clone().expect("clone"), stream).expect("hello")
    }

    pub(crate) fn start(&self, request: ExecRequest) -> Session {
        self.connect().exec(request).expect("started")
    }

    /// Runs a shell script to its end; its outcome, stdout and stderr.
    pub(crate) fn sh(&self, script: &str) -> (Outcome, Vec<u8>, Vec<u8>) {
        finish(self.start(sh(script)))
    }
}

pub(crate) fn finish(session: Session) -> (Outcome, Vec<u8>, Vec<u8>) {
    let (mut out, mut err) = (Vec::new(), Vec::new());
    let outcome = session
        .run(None::<io::Empty>, &mut out, &mut err)
        .expect("runs to its end");
    (outcome, out, err)
}

pub(crate) fn command(argv: &[&str]) -> ExecRequest {
    ExecRequest {
        argv: argv.iter().map(|arg| Bytes::from(*arg)).collect(),
        directory: Some(Bytes::from("/")),
        ..ExecRequest::default()
    }
}

pub(crate) fn sh(script: &str) -> ExecRequest {
    command(&["/bin/sh", "-c", script])
}

/// Waits for something that another process does; fails after a long time.
pub(crate) fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let until = Instant::now() + Duration::from_secs(60);
    while !holds() {
        assert!(Instant::now() < until, "never: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Whether a process runs; a zombie does not.
pub(crate) fn runs(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = stat
        .rsplit(") ")
        .next()
        .and_then(|rest| rest.chars().next());
    state.is_some_and(|state| state != 'Z' && state != 'X')
}

/// Bytes that look random and are the same in each run.
pub(crate) struct Noise(u64);

impl Noise {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(2).wrapping_add(1))
    }

    pub(crate) fn bytes(&mut self, count: usize) -> Vec<u8> {
        let mut out = Vec::with_capacity(count + 8);
        while out.len() < count {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            out.extend_from_slice(&self.0.to_le_bytes());
        }
        out.truncate(count);
        out
    }
}
