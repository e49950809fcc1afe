//! Answering commands on the control socket.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use super::agent::AgentError;
use super::checkpoint::checkpoint;
use super::shared::Shared;
use super::undo::undo;
use crate::channel;
use crate::channel::control::{Control, ControlReply, LiveStatus};
use crate::channel::messages::ToVmm;
use crate::error_chain::{chain, full_hint};

/// How long the agent may take to begin a power-off.
const POWER_OFF_TIMEOUT: Duration = Duration::from_secs(3);
/// How long processes in the guest get to end by themselves.
const PROCESS_GRACE: Duration = Duration::from_secs(2);

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
    let request = match channel::receive::<Control>(connection) {
        Ok(received) => received.message,
        Err(error) => {
            tracing::debug!(%error, "a connection without a command");
            return;
        }
    };
    match request {
        Control::Status => reply(connection, &ControlReply::Status(status(shared)), &[]),
        Control::Agent => match connect_agent(shared) {
            Ok(stream) => reply(connection, &ControlReply::Agent, &[stream.as_fd()]),
            Err(error) => fail(connection, chain(&error)),
        },
        Control::Stop { timeout_ms } => {
            let forced = stop(shared, Duration::from_millis(timeout_ms));
            reply(connection, &ControlReply::Stopped { forced }, &[]);
        }
        Control::Checkpoint(request) => {
            match checkpoint(shared, &request, &report_to(connection)) {
                Ok(done) => reply(connection, &ControlReply::Saved(done), &[]),
                Err(error) => {
                    let hint = full_hint(&error).map(|hint| {
                        format!(
                            "{hint}, or choose another with --store and -o; the machine runs on"
                        )
                    });
                    let message = chain(&error);
                    reply(connection, &ControlReply::Failed { message, hint }, &[]);
                }
            }
        }
        Control::Undo(request) => match undo(shared, &request, &report_to(connection)) {
            Ok(answer) => reply(connection, &ControlReply::Undone(answer), &[]),
            Err(error) => fail(connection, chain(&error)),
        },
        Control::ConsoleInput(bytes) => {
            let socket = shared
                .vmm_socket
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            match channel::send(&socket, &ToVmm::ConsoleInput(bytes), &[]) {
                Ok(()) => reply(connection, &ControlReply::Done, &[]),
                Err(error) => fail(connection, chain(&error)),
            }
        }
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
        channel::send(connection, &message, &[]).is_ok()
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

fn status(shared: &Shared) -> LiveStatus {
    LiveStatus {
        ready: shared.is_ready(),
        silent: shared.silent(),
        backend: shared.backend.clone(),
        vcpus: shared.vcpus,
        vmm_pid: shared.vmm_pid,
        started_unix: shared.started_unix,
        out_of_memory: shared.out_of_memory(),
    }
}

fn connect_agent(shared: &Shared) -> Result<UnixStream, AgentError> {
    if shared.has_ended() {
        return Err(AgentError::Ended);
    }
    shared.dialer.dial()
}

/// Ends the machine; returns whether it had to be forced.
fn stop(shared: &Shared, timeout: Duration) -> bool {
    let asked = ask_for_power_off(shared, timeout);
    if let Err(error) = &asked {
        tracing::info!(error = %chain(error), "the guest does not switch itself off");
    }
    let by_itself = asked.is_ok() && shared.wait_end(timeout);
    if !by_itself {
        shared.quit_vmm();
    }
    shared.wait_finished();
    !by_itself
}

fn ask_for_power_off(shared: &Shared, timeout: Duration) -> Result<(), AgentError> {
    let patience = timeout.min(POWER_OFF_TIMEOUT);
    let mut agent = shared
        .dialer
        .connect(patience, patience, || shared.has_ended())?;
    agent
        .power_off(PROCESS_GRACE.min(timeout / 2))
        .map_err(|source| AgentError::of_call("power-off", patience, source))
}
