//! What the first request of a connection makes of it.

use std::sync::Arc;
use std::thread;

use agent_protocol::message::{ErrorKind, Reply, Request};

use crate::agent::Agent;
use crate::door::{self, Visitor};
use crate::room::{Place, Room};
use crate::{copy, exec};

/// Stack of a session's thread in bytes.
const STACK_BYTES: usize = 512 << 10;

/// Begins what a client asks for. Never waits for it.
pub(crate) fn begin(agent: &Arc<Agent>, visitor: Visitor, request: Request) {
    match request {
        Request::Exec(request) => {
            let room = if request.detach {
                &agent.rooms.detached
            } else {
                &agent.rooms.commands
            };
            on_thread(agent, visitor, room, move |agent, visitor, place| {
                exec::serve(agent, visitor.stream.into(), request, place);
            });
        }
        Request::CopyIn(request) => {
            on_thread(
                agent,
                visitor,
                &agent.rooms.copies,
                move |_, visitor, _place| {
                    copy::serve_in(visitor, &request);
                },
            );
        }
        Request::CopyOut { source } => {
            on_thread(
                agent,
                visitor,
                &agent.rooms.copies,
                move |_, visitor, _place| {
                    copy::serve_out(visitor.stream, &source);
                },
            );
        }
        Request::Log => agent.output_log.read_by(visitor.stream),
        Request::AwaitReady => agent.waiting.watch(visitor),
        request => door::call(agent, visitor, request),
    }
}

/// Serves a session on a thread of its own, or tells the client that there is no room for it.
fn on_thread(
    agent: &Arc<Agent>,
    visitor: Visitor,
    room: &Room,
    serve: impl FnOnce(&Arc<Agent>, Visitor, Place) + Send + 'static,
) {
    let busy = |visitor: &Visitor, message: String| {
        let kind = ErrorKind::Busy;
        // A client that is gone needs no answer.
        let _ = door::answer(&visitor.stream, &Reply::Error { kind, message });
    };
    let place = match room.take() {
        Ok(place) => place,
        Err(message) => return busy(&visitor, message),
    };
    // A descriptor that is left here when the thread cannot be started.
    let spare = visitor.stream.try_clone();
    let theirs = Arc::clone(agent);
    let thread = thread::Builder::new()
        .name("session".into())
        .stack_size(STACK_BYTES);
    agent.count();
    let serve = move || {
        serve(&theirs, visitor, place);
        theirs.count();
    };
    if let Err(error) = thread.spawn(serve)
        && let Ok(stream) = spare
    {
        let message = format!("the guest has no room for another session: {error}");
        let kind = ErrorKind::Busy;
        // A client that is gone needs no answer.
        let _ = door::answer(&stream, &Reply::Error { kind, message });
    }
}
