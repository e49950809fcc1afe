//! PID 1's life: reap, obey, keep the agent alive.
#![allow(unsafe_code)] // forks while single-threaded

use std::convert::Infallible;
use std::fs::File;
use std::time::{Duration, Instant};

use rustix::fs::MemfdFlags;
use rustix::process::{WaitOptions, WaitStatus, wait};

use super::{InitError, console, serve};
use crate::control::power::{End, end_machine};
use crate::sys::process::{Fork, fork};
use crate::sys::signal::SignalSet;

/// Between SIGTERM and SIGKILL when PID 1 is told to end the machine.
const GRACE: Duration = Duration::from_secs(5);
/// An agent that lived for less than this before it ended is started again after as long, so that a
/// broken one does not spin. One that was killed (`kill -9 -1`) is back at once.
const RESTART_AFTER: Duration = Duration::from_secs(1);

/// Signals that mean the end of the machine: as sysvinit, busybox and systemd use them.
fn end_for(signal: i32) -> Option<End> {
    let first_realtime = libc::SIGRTMIN();
    match signal {
        libc::SIGTERM | libc::SIGUSR2 | libc::SIGPWR => Some(End::PowerOff),
        libc::SIGINT => Some(End::Reboot),
        _ if signal == first_realtime + 4 => Some(End::PowerOff),
        _ if signal == first_realtime + 5 => Some(End::Reboot),
        _ => None,
    }
}

/// Starts the agent and serves as PID 1 for ever.
pub(super) fn run() -> Result<Infallible, InitError> {
    let first_realtime = libc::SIGRTMIN();
    let signals = SignalSet::block(&[
        libc::SIGCHLD,
        libc::SIGTERM,
        libc::SIGINT,
        libc::SIGUSR1,
        libc::SIGUSR2,
        libc::SIGPWR,
        libc::SIGHUP,
        first_realtime + 4,
        first_realtime + 5,
    ])
    .map_err(InitError::system("block signals"))?;
    // Ctrl-Alt-Del comes as SIGINT instead of an immediate reboot.
    if let Err(error) = rustix::system::reboot(rustix::system::RebootCommand::CadOff) {
        console::say(&format!("Ctrl-Alt-Del reboots at once: {error}"));
    }
    let mut agent = Keeper {
        signals: &signals,
        numbers: numbers(),
        pid: None,
        start_at: Some(Instant::now()),
        started_at: Instant::now(),
    };
    loop {
        agent.start_if_due();
        let taken = signals.take(agent.wait());
        reap(&mut agent);
        if let Some(end) = taken.and_then(end_for) {
            console::say(end.announcement());
            if let Err(error) = end_machine(end, GRACE) {
                console::say(&format!("the kernel does not end the machine: {error}"));
            }
        }
    }
}

/// What each agent takes over from the one before: the number of its last exec.
fn numbers() -> Option<File> {
    let file = rustix::fs::memfd_create("smolvm-numbers", MemfdFlags::CLOEXEC);
    file.inspect_err(|error| console::say(&format!("numbers may come twice: {error}")))
        .ok()
        .map(File::from)
}

/// The one child that matters.
struct Keeper<'a> {
    signals: &'a SignalSet,
    numbers: Option<File>,
    pid: Option<i32>,
    start_at: Option<Instant>,
    /// When it was last started.
    started_at: Instant,
}

impl Keeper<'_> {
    fn wait(&self) -> Option<Duration> {
        self.start_at
            .map(|at| at.saturating_duration_since(Instant::now()))
    }

    fn start_if_due(&mut self) {
        if self.start_at.is_none_or(|at| Instant::now() < at) {
            return;
        }
        // SAFETY: PID 1 never starts a thread.
        match unsafe { fork() } {
            Ok(Fork::Child) => {
                self.signals.unblock();
                let numbers = self.numbers.as_ref();
                let numbers = numbers.and_then(|file| file.try_clone().ok());
                std::process::exit(serve::run(numbers));
            }
            Ok(Fork::Parent(pid)) => {
                (self.pid, self.start_at) = (Some(pid), None);
                self.started_at = Instant::now();
            }
            Err(error) => {
                console::say(&format!("cannot start the agent: {error}"));
                self.start_at = Some(Instant::now() + RESTART_AFTER);
            }
        }
    }

    fn ended(&mut self, status: WaitStatus) {
        let how = match (status.exit_status(), status.terminating_signal()) {
            (Some(code), _) => format!("with code {code}"),
            (_, Some(signal)) => format!("by signal {signal}"),
            _ => "somehow".into(),
        };
        console::say(&format!("the agent ended {how}, it is started again"));
        let now = Instant::now();
        let pause = match now - self.started_at < RESTART_AFTER {
            true => RESTART_AFTER,
            false => Duration::ZERO,
        };
        (self.pid, self.start_at) = (None, Some(now + pause));
    }
}

/// Takes every process that has ended.
fn reap(agent: &mut Keeper<'_>) {
    while let Ok(Some((pid, status))) = wait(WaitOptions::NOHANG) {
        if agent.pid == Some(pid.as_raw_nonzero().get()) {
            agent.ended(status);
        }
    }
}
