//! Answering commands on the control socket.

use std::io;
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use super::agent::AgentError;
use super::checkpoint::{Branched, branch, checkpoint, compact_packs, pause, tidy_paused};
use super::shared::Shared;
use super::undo::{UndoError, undo};
use crate::backend;
use crate::channel::control::{Control, ControlReply, LiveStatus};
use crate::channel::messages::ToVmm;
use crate::channel::{self, ChannelError};
use crate::error_chain::{chain, host_hint};

/// How long the agent may take to begin a power-off.
const POWER_OFF_TIMEOUT: Duration = Duration::from_secs(3);
/// How long processes in the guest get to end by themselves.
const PROCESS_GRACE: Duration = Duration::from_secs(2);
/// How long a command may take to say what it wants, or to take the answer.
const CLIENT_PATIENCE: Duration = Duration::from_secs(5);
/// How long the agent may take to answer before a status says that it does not.
const PING_PATIENCE: Duration = Duration::from_millis(1500);
/// How long a status may wait for the end of a machine to be recorded.
const END_PATIENCE: Duration = Duration::from_millis(500);

/// Answers commands until the process ends.
pub(super) fn spawn(listener: UnixListener, shared: &Arc<Shared>) -> io::Result<()> {
    let shared = shared.clone();
    std::thread::Builder::new()
        .name("control".to_owned())
        .spawn(move || accept(&listener, &shared))
        .map(drop)
}

fn accept(listener: &UnixListener, shared: &Arc<Shared>) {
    for connection in listener.incoming() {
        let connection = match connection {
            Ok(connection) => connection,
            Err(error) => {
                tracing::warn!(%error, "a command could not connect");
                std::thread::sleep(Duration::from_millis(20));
                continue;
            }
        };
        let (shared, guard) = (shared.clone(), shared.begin_command());
        let spawned = std::thread::Builder::new()
            .name("command".to_owned())
            .spawn(move || {
                answer(&connection, &shared);
                drop(guard);
            });
        if let Err(error) = spawned {
            tracing::warn!(%error, "a command could not be answered");
        }
    }
}

fn answer(connection: &UnixStream, shared: &Arc<Shared>) {
    // Whoever says nothing, or takes no answer, is not waited for.
    let bounded = connection
        .set_read_timeout(Some(CLIENT_PATIENCE))
        .and_then(|()| connection.set_write_timeout(Some(CLIENT_PATIENCE)));
    if let Err(error) = bounded {
        tracing::warn!(%error, "a command could not be answered");
        return;
    }
    let request = match channel::receive::<Control>(connection) {
        Ok(received) => received.message,
        Err(error) => {
            tracing::debug!(%error, "a connection without a command");
            return;
        }
    };
    match request {
        Control::Status { ping } => {
            let status = ControlReply::Status(status(shared, ping));
            reply(connection, &status, &[]);
        }
        Control::Agent if !shared.is_open() => reply(connection, &ControlReply::NotYet, &[]),
        Control::Agent => match connect_agent(shared) {
            Ok(stream) => reply(connection, &ControlReply::Agent, &[stream.as_fd()]),
            Err(error) => fail(connection, chain(&error)),
        },
        Control::Stop { timeout_ms } => {
            let forced = stop(shared, Duration::from_millis(timeout_ms));
            reply(connection, &ControlReply::Stopped { forced }, &[]);
        }
        Control::Checkpoint(request) => {
            let saving = shared.begin_save();
            match checkpoint(shared, &request, &report_to(connection)) {
                Ok(done) => {
                    reply(connection, &ControlReply::Saved(done), &[]);
                    drop(saving);
                    // Whoever asked need not wait for what follows, and may be gone.
                    drop(connection.shutdown(Shutdown::Both));
                    compact_packs(shared);
                }
                Err(error) => {
                    let (message, hint) = (chain(&error), error.hint());
                    reply(connection, &ControlReply::Failed { message, hint }, &[]);
                }
            }
        }
        Control::Pause => {
            let _saving = shared.begin_save();
            match pause(shared, &report_to(connection)) {
                Ok((done, left)) => {
                    reply(connection, &ControlReply::Paused(done), &[]);
                    tidy_paused(shared, left);
                }
                Err(error) => {
                    let (message, hint) = (chain(&error), error.hint());
                    reply(connection, &ControlReply::Failed { message, hint }, &[]);
                }
            }
        }
        Control::SetUp => {
            shared.set_up_again();
            reply(connection, &ControlReply::Done, &[]);
        }
        Control::Undo(request) => {
            let _saving = shared.begin_save();
            let report = report_to(connection);
            let undone = undo(shared, &request, &report, &mut |answer| {
                reply(connection, &ControlReply::Undone(answer), &[]);
                // Whoever asked need not wait for what follows, and may be gone.
                drop(connection.shutdown(Shutdown::Both));
            });
            match undone {
                Ok(()) => {}
                Err(error @ UndoError::NotKept(_)) => fail(connection, chain(&error)),
                Err(error @ UndoError::NotReached(_)) => {
                    let message = chain(&error);
                    reply(connection, &ControlReply::NotReached { message }, &[]);
                }
            }
        }
        Control::Branch(request) => {
            let _saving = shared.begin_save();
            match branch(shared, &request, &report_to(connection)) {
                Ok(Branched { done, descriptors }) => {
                    let descriptors: Vec<_> = descriptors.iter().map(AsFd::as_fd).collect();
                    let done = ControlReply::Branched(Box::new(done));
                    reply(connection, &done, &descriptors);
                }
                Err(error) => {
                    let message = chain(&error);
                    let hint = host_hint(&error);
                    reply(connection, &ControlReply::Failed { message, hint }, &[]);
                }
            }
        }
        Control::Settle => {
            drop(shared.capture.lock());
            reply(connection, &ControlReply::Done, &[]);
        }
        Control::AutosaveSet => {
            shared.change(|live| live.autosaves_set += 1);
            reply(connection, &ControlReply::Done, &[]);
        }
        Control::ConsoleInput(bytes) => match shared.tell_vmm(&ToVmm::ConsoleInput(bytes), &[]) {
            Ok(()) => reply(connection, &ControlReply::Done, &[]),
            Err(error) => fail(connection, chain(&error)),
        },
    }
}

/// Brings progress to whoever asked for long work; false when nobody waits any more.
fn report_to(connection: &UnixStream) -> impl Fn(&str, u64, Option<u64>) -> bool + '_ {
    move |phase, done_bytes, total_bytes| {
        let phase = phase.to_owned();
        let message = ControlReply::Progress {
            phase,
            done_bytes,
            total_bytes,
        };
        // A client that is stopped misses some, but only one that is gone gives the work up.
        let told = channel::send_within(connection, &message, &[], Duration::ZERO);
        matches!(told, Ok(()) | Err(ChannelError::Busy))
    }
}

fn reply(connection: &UnixStream, message: &ControlReply, descriptors: &[BorrowedFd<'_>]) {
    if let Err(error) = channel::send(connection, message, descriptors) {
        tracing::debug!(%error, "nobody waits for the answer");
    }
}

fn fail(connection: &UnixStream, message: String) {
    let hint = None;
    reply(connection, &ControlReply::Failed { message, hint }, &[]);
}

fn status(shared: &Arc<Shared>, ping: bool) -> LiveStatus {
    let answers = ping && shared.is_ready() && answers(shared);
    // The end is told once it is recorded.
    if shared.has_ended() {
        shared.wait(END_PATIENCE, |live| live.finished);
    }
    LiveStatus {
        ready: shared.is_ready(),
        answers,
        ended: shared.has_ended(),
        trouble: shared.trouble(),
        pending: shared.pending(),
        backend: shared.backend.clone(),
        translates: backend::translates(&shared.backend, shared.interpret),
        vcpus: shared.vcpus,
        vmm_pid: shared.vmm_pid,
        started_unix: shared.started_unix,
        out_of_memory: shared.out_of_memory(),
        full: shared.full(),
        kept: shared.kept(),
        autosave: shared.last_autosave(),
    }
}

/// Whether the agent answers now.
fn answers(shared: &Arc<Shared>) -> bool {
    let Some(ping) = shared.begin_ping() else {
        return false;
    };
    let (answer, answered) = mpsc::channel();
    let for_ping = shared.clone();
    let spawned = std::thread::Builder::new()
        .name("ping".to_owned())
        .spawn(move || {
            let ended = || for_ping.has_ended();
            let connected = for_ping.dialer.connect(PING_PATIENCE, ended);
            // Nobody waits for an answer that comes late.
            let _ = answer.send(connected.is_ok());
            drop(ping);
        });
    spawned.is_ok() && answered.recv_timeout(PING_PATIENCE).unwrap_or(false)
}

fn connect_agent(shared: &Shared) -> Result<UnixStream, AgentError> {
    if shared.has_ended() {
        return Err(AgentError::Ended);
    }
    shared.dialer.dial()
}

/// Ends the machine; returns whether it had to be forced. Whatever the guest and its VMM do, this takes little longer
/// than `timeout`.
pub(super) fn stop(shared: &Arc<Shared>, timeout: Duration) -> bool {
    let deadline = Instant::now() + timeout;
    let (answer, answered) = mpsc::channel();
    if !timeout.is_zero() {
        let shared = shared.clone();
        let asking = std::thread::Builder::new()
            .name("power-off".to_owned())
            .spawn(move || {
                let asked = ask_for_power_off(&shared, timeout);
                if let Err(error) = &asked {
                    tracing::info!(error = %chain(error), "the guest does not switch itself off");
                }
                // Nobody waits for an answer that comes late.
                let _ = answer.send(asked.is_ok());
            });
        if let Err(error) = asking {
            tracing::error!(%error, "the guest is not asked to switch itself off");
        }
    }
    let left = || deadline.saturating_duration_since(Instant::now());
    let asked = answered.recv_timeout(left()).unwrap_or(false);
    let by_itself = (asked && shared.wait_end(left())) || shared.has_ended();
    if !by_itself {
        shared.quit_vmm();
    }
    shared.wait_finished();
    !by_itself
}

fn ask_for_power_off(shared: &Shared, timeout: Duration) -> Result<(), AgentError> {
    let patience = timeout.min(POWER_OFF_TIMEOUT);
    let grace = PROCESS_GRACE.min(timeout / 2);
    let mut agent = shared.dialer.connect(patience, || shared.has_ended())?;
    agent.call("power-off", patience, |agent| agent.power_off(grace))
}
