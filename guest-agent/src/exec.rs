//! Commands: who runs what where, and its streams.

pub(crate) mod drain;
mod environment;
pub(crate) mod numbers;
mod output;
pub(crate) mod output_log;
mod process;
mod relay;
mod request;
mod spawn;
mod user;

use std::fs::File;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use agent_protocol::frame::write_message;
use agent_protocol::message::{ExecRequest, Reply};

use crate::agent::Agent;
use crate::room::Place;
use agent_protocol::message::chain;
use relay::{Peer, Relay, STDIN_WINDOW_BYTES};
use spawn::{Spawned, StartError};

/// Runs the command of one connection to its end, in its place.
pub(crate) fn serve(agent: &Arc<Agent>, connection: OwnedFd, request: ExecRequest, place: Place) {
    let mut stream = File::from(connection);
    let spawned = match request::prepare(&request).and_then(|plan| spawn::spawn(agent, &plan)) {
        Ok(spawned) => spawned,
        Err(error) => {
            // A client that is gone needs no answer.
            let _ = write_message(&mut stream, &not_started(&error));
            return;
        }
    };
    let detached = request.detach;
    let session = agent.begin(spawned.process.pid(), &spawned.program, detached);
    let started = Reply::Started {
        session,
        pid: spawned.process.pid(),
        stdin_window: STDIN_WINDOW_BYTES,
    };
    let told = write_message(&mut stream, &started);
    let peer = match (detached, told) {
        (true, _) => {
            drop(stream);
            Peer::Log
        }
        (false, Ok(())) => Peer::Client(stream.into()),
        (false, Err(_)) => Peer::Dead,
    };
    run(agent, session, spawned, peer, &request);
    drop(place);
}

fn run(agent: &Arc<Agent>, session: u64, child: Spawned, peer: Peer, request: &ExecRequest) {
    let mut relay = Relay::new(agent, session, child, peer, request);
    let outcome = relay.run();
    agent.end(session, outcome);
    if request.detach {
        let code = outcome.exit_code();
        let line = format!("exec {session}: ended with code {code}\n");
        agent.output_log.add(line.as_bytes());
        agent.count();
        relay.outlive();
    }
}

fn not_started(error: &StartError) -> Reply {
    Reply::NotStarted {
        code: error.code(),
        message: chain(error),
    }
}
