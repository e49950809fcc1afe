//! What all sessions of an agent share, and the limit on how many there are.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

use agent_protocol::codec::Bytes;
use agent_protocol::message::{ErrorKind, Outcome, Reply, SessionStatus, Status};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::control::sync::Syncer;
use crate::exec::drain::Drainer;
use crate::session;

/// Connections served at one time, each by a thread.
pub const MAX_SESSIONS: usize = 256;
/// Ended detached commands whose outcome is remembered.
pub const MAX_ENDED: usize = 64;
/// Stack of a session's thread in bytes.
const SESSION_STACK_BYTES: usize = 512 << 10;
/// Open files that the agent allows itself, if it may.
const AGENT_OPEN_FILES: u64 = 65_536;

/// How an agent is set up.
pub struct Config {
    /// Whether this is the agent of a machine. Otherwise it refuses whatever changes the kernel it
    /// runs on: power, clock, identity, random pool, file system size.
    pub owns_machine: bool,
    /// The machine's log: output of detached commands and the agent's own messages.
    pub log: Box<dyn Write + Send>,
}

/// A running agent. Sessions run on threads of their own.
pub struct Agent {
    pub(crate) owns_machine: bool,
    pub(crate) drainer: Drainer,
    pub(crate) syncer: Syncer,
    /// Limit on open files that commands get: what the agent itself was started with.
    pub(crate) open_files: Rlimit,
    log: Mutex<Box<dyn Write + Send>>,
    running: AtomicUsize,
    next_session: AtomicU64,
    sessions: Mutex<BTreeMap<u64, SessionStatus>>,
}

impl Agent {
    /// Sets an agent up.
    ///
    /// # Errors
    /// When the thread for abandoned output cannot be started.
    pub fn new(config: Config) -> io::Result<Arc<Self>> {
        let open_files = getrlimit(Resource::Nofile);
        let wanted = AGENT_OPEN_FILES.min(open_files.maximum.unwrap_or(AGENT_OPEN_FILES));
        let raised = Rlimit {
            current: Some(wanted),
            maximum: open_files.maximum,
        };
        setrlimit(Resource::Nofile, raised)?;
        Ok(Arc::new(Self {
            owns_machine: config.owns_machine,
            drainer: Drainer::start()?,
            syncer: Syncer::default(),
            open_files,
            log: Mutex::new(config.log),
            running: AtomicUsize::new(0),
            next_session: AtomicU64::new(1),
            sessions: Mutex::new(BTreeMap::new()),
        }))
    }

    /// Serves one connected stream socket on a thread of its own.
    ///
    /// Above [`MAX_SESSIONS`] the connection is answered with [`ErrorKind::Busy`] and closed.
    pub fn accept(self: &Arc<Self>, connection: OwnedFd) {
        let before = self.running.fetch_add(1, Ordering::AcqRel);
        let agent = Arc::clone(self);
        let slot = Slot(Arc::clone(self));
        let serve = move || {
            let _slot = slot;
            if before >= MAX_SESSIONS {
                session::refuse(
                    connection,
                    &Reply::Error {
                        kind: ErrorKind::Busy,
                        message: format!("{MAX_SESSIONS} sessions are open in the guest"),
                    },
                );
            } else {
                session::serve(&agent, connection);
            }
        };
        let thread = thread::Builder::new()
            .name("session".into())
            .stack_size(SESSION_STACK_BYTES);
        if let Err(error) = thread.spawn(serve) {
            self.log(&format!("no thread for a session: {error}"));
        }
    }

    /// Writes a line to the machine's log. A log that fails is not the agent's end.
    pub fn log(&self, line: &str) {
        self.log_bytes(b"smolvm-agent", line.as_bytes());
    }

    pub(crate) fn log_bytes(&self, who: &[u8], line: &[u8]) {
        let mut text = Vec::with_capacity(who.len() + line.len() + 4);
        text.extend_from_slice(who);
        text.extend_from_slice(b": ");
        text.extend_from_slice(line);
        text.push(b'\n');
        let mut log = self.log.lock().unwrap_or_else(PoisonError::into_inner);
        // Nowhere else to report to.
        let _ = log.write_all(&text).and_then(|()| log.flush());
    }

    fn sessions(&self) -> MutexGuard<'_, BTreeMap<u64, SessionStatus>> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes a command that runs now and gives it its number.
    pub(crate) fn begin(&self, pid: u32, program: &[u8], detached: bool) -> u64 {
        let session = self.next_session.fetch_add(1, Ordering::Relaxed);
        let program = Bytes::from(&program[..program.len().min(256)]);
        let status = SessionStatus {
            session,
            pid,
            program,
            detached,
            outcome: None,
        };
        self.sessions().insert(session, status);
        session
    }

    /// Notes a command's end; detached ones are remembered for a while.
    pub(crate) fn end(&self, session: u64, outcome: Outcome) {
        let mut sessions = self.sessions();
        match sessions.get_mut(&session) {
            Some(status) if status.detached => status.outcome = Some(outcome),
            _ => {
                sessions.remove(&session);
            }
        }
        let ended: Vec<u64> = sessions
            .values()
            .filter(|status| status.outcome.is_some())
            .map(|status| status.session)
            .collect();
        for old in ended.iter().take(ended.len().saturating_sub(MAX_ENDED)) {
            sessions.remove(old);
        }
    }

    pub(crate) fn status(&self) -> Status {
        let uptime = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
        let seconds = u64::try_from(uptime.tv_sec).unwrap_or(0);
        let milliseconds = u64::try_from(uptime.tv_nsec).unwrap_or(0) / 1_000_000;
        Status {
            agent_version: env!("CARGO_PKG_VERSION").into(),
            uptime_ms: seconds * 1000 + milliseconds,
            sessions: self.sessions().values().cloned().collect(),
        }
    }
}

/// Counts a session until it is over, also when its thread panics or never starts.
struct Slot(Arc<Agent>);

impl Drop for Slot {
    fn drop(&mut self) {
        self.0.running.fetch_sub(1, Ordering::AcqRel);
    }
}
