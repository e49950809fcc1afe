//! One connection: the hello, the first request, and what it makes of the connection.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use agent_protocol::frame::{FrameError, read_message, write_message};
use agent_protocol::hello::welcome;
use agent_protocol::message::{Reply, Request, chain};
use rustix::net::sockopt::{Timeout, set_socket_timeout};

use crate::agent::Agent;
use crate::{control, copy, exec};

/// Time in which a client must say hello and what it wants.
const GREETING_TIME: Duration = Duration::from_secs(10);

/// Serves a connection to its end.
pub(crate) fn serve(agent: &Arc<Agent>, connection: OwnedFd) {
    // A stream socket is read and written like a file.
    let mut stream = File::from(connection);
    let first = match greeting(&mut stream) {
        Ok(first) => first,
        // Gone again: nobody to tell.
        Err(FrameError::Closed) => return,
        Err(error) => {
            return agent.log(&format!(
                "a client did not say what it wants: {}",
                chain(&error)
            ));
        }
    };
    match first {
        Request::Exec(request) => exec::serve(agent, stream.into(), request),
        Request::CopyIn(request) => copy::serve_in(stream, &request),
        Request::CopyOut { source } => copy::serve_out(stream, &source),
        request => control_calls(agent, &mut stream, request),
    }
}

/// Answers the hello and then only `reply`.
pub(crate) fn refuse(connection: OwnedFd, reply: &Reply) {
    let mut stream = File::from(connection);
    if greeting(&mut stream).is_ok() {
        // A client that is gone needs no answer.
        let _ = write_message(&mut stream, reply);
    }
}

fn greeting(stream: &mut File) -> Result<Request, FrameError> {
    let io = |errno: rustix::io::Errno| FrameError::Io(errno.into());
    set_socket_timeout(&*stream, Timeout::Recv, Some(GREETING_TIME)).map_err(io)?;
    let (mut reader, mut writer) = (&*stream, &*stream);
    welcome(&mut reader, &mut writer).map_err(|e| FrameError::Io(std::io::Error::other(e)))?;
    let first = read_message(&mut reader)?;
    set_socket_timeout(&*stream, Timeout::Recv, None).map_err(io)?;
    Ok(first)
}

fn control_calls(agent: &Arc<Agent>, stream: &mut File, first: Request) {
    let mut request = first;
    loop {
        let (reply, after) = control::answer(agent, request);
        if write_message(stream, &reply).is_err() {
            // The client left; an end of the machine that it asked for still happens.
            return after.run(agent);
        }
        after.run(agent);
        request = match read_message(stream) {
            Ok(next) => next,
            // It left, or this is a restored copy, whose connections are gone.
            Err(FrameError::Closed | FrameError::Io(_)) => return,
            Err(error) => {
                return agent.log(&format!("a client sent no valid call: {}", chain(&error)));
            }
        };
    }
}
