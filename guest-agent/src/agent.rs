//! What all sessions of an agent share.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use agent_protocol::codec::Bytes;
use agent_protocol::message::{Outcome, SessionStatus, Status};
use agent_protocol::words::harmless;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::control::disk::DiskThread;
use crate::control::sync::Syncer;
use crate::door::Door;
use crate::exec::drain::Drainer;
use crate::exec::numbers::Numbers;
use crate::exec::output_log::OutputLog;
use crate::ready::Waiting;
use crate::room::{MAX_COMMANDS, MAX_COPIES, MAX_DETACHED, Room};

/// Ended detached commands whose outcome is remembered.
pub const MAX_ENDED: usize = 64;
/// Open files that the agent allows itself, if it may.
const AGENT_OPEN_FILES: u64 = 65_536;

/// How an agent is set up.
pub struct Config {
    /// Whether this is the agent of a machine. Otherwise it refuses whatever changes the kernel it
    /// runs on: power, clock, identity, random pool, file system size.
    pub owns_machine: bool,
    /// The console, for the agent's own messages.
    pub log: Box<dyn Write + Send>,
    /// Where the number of the last exec is kept, should this not be the first agent of the machine: an
    /// empty file for the first one, and the same file for each that follows. `None`: numbers start at 1.
    pub numbers: Option<File>,
}

/// Room for each kind of session that has a thread of its own.
pub(crate) struct Rooms {
    pub(crate) commands: Room,
    pub(crate) detached: Room,
    pub(crate) copies: Room,
}

/// A running agent.
pub struct Agent {
    pub(crate) owns_machine: bool,
    pub(crate) drainer: Drainer,
    pub(crate) syncer: Syncer,
    pub(crate) disk: DiskThread,
    pub(crate) output_log: OutputLog,
    pub(crate) door: Door,
    pub(crate) waiting: Waiting,
    pub(crate) rooms: Rooms,
    /// Limit on open files that commands get: what the agent itself was started with.
    pub(crate) open_files: Rlimit,
    log: Mutex<Box<dyn Write + Send>>,
    numbers: Numbers,
    sessions: Mutex<BTreeMap<u64, SessionStatus>>,
    /// Commands and copies that were begun or have ended.
    counted: AtomicU64,
}

impl Agent {
    /// Sets an agent up.
    ///
    /// # Errors
    /// When one of its threads cannot be started.
    pub fn new(config: Config) -> io::Result<Arc<Self>> {
        let open_files = getrlimit(Resource::Nofile);
        let wanted = AGENT_OPEN_FILES.min(open_files.maximum.unwrap_or(AGENT_OPEN_FILES));
        let raised = Rlimit {
            current: Some(wanted),
            maximum: open_files.maximum,
        };
        setrlimit(Resource::Nofile, raised)?;
        let agent = Arc::new(Self {
            owns_machine: config.owns_machine,
            drainer: Drainer::start()?,
            syncer: Syncer::start()?,
            disk: DiskThread::start()?,
            output_log: OutputLog::start()?,
            door: Door::new()?,
            waiting: Waiting::start()?,
            rooms: Rooms {
                commands: Room::new(MAX_COMMANDS, "commands in front"),
                detached: Room::new(MAX_DETACHED, "detached commands"),
                copies: Room::new(MAX_COPIES, "copies"),
            },
            open_files,
            log: Mutex::new(config.log),
            numbers: Numbers::after(config.numbers)?,
            sessions: Mutex::new(BTreeMap::new()),
            counted: AtomicU64::new(0),
        });
        Door::open(&agent)?;
        Ok(agent)
    }

    /// Serves one connected stream socket. Does not wait for it.
    pub fn accept(&self, connection: OwnedFd) {
        self.door.enter(connection);
    }

    /// Hears at this socket, of [`ready::listen`](crate::ready::listen), what processes of the guest say that wait for a branch.
    pub fn hear_waiting(&self, listener: UnixListener) {
        self.waiting.listen(listener);
    }

    /// Writes a line to the console. A console that fails is not the agent's end.
    pub fn log(&self, line: &str) {
        let text = format!("smolvm-agent: {}\n", harmless(line));
        let mut log = self.log.lock().unwrap_or_else(PoisonError::into_inner);
        // Nowhere else to report to.
        let _ = log.write_all(text.as_bytes()).and_then(|()| log.flush());
    }

    /// Notes that a command or a copy was begun or has ended.
    pub(crate) fn count(&self) {
        self.counted.fetch_add(1, Ordering::Relaxed);
    }

    /// How many commands and copies were begun or have ended.
    pub(crate) fn counted(&self) -> u64 {
        self.counted.load(Ordering::Relaxed)
    }

    fn sessions(&self) -> MutexGuard<'_, BTreeMap<u64, SessionStatus>> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes a command that runs now and gives it its number.
    pub(crate) fn begin(&self, pid: u32, program: &[u8], detached: bool) -> u64 {
        let (session, kept) = self.numbers.next();
        if let Err(error) = kept {
            self.log(&format!("numbers may come twice after my end: {error}"));
        }
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
        let (waiting, announced) = self.waiting.count();
        Status {
            waiting,
            announced,
            agent_version: env!("CARGO_PKG_VERSION").into(),
            uptime_ms: seconds * 1000 + milliseconds,
            sessions: self.sessions().values().cloned().collect(),
        }
    }
}
