//! Trees in and out of the guest.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, BufReader, Cursor, Read};
use std::ops::ControlFlow;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use agent_protocol::frame::write_message;
use agent_protocol::message::chain;
use agent_protocol::message::{CopyIn, ErrorKind, Reply};
use agent_protocol::tree::{Destination, Ownership, ReceiveError, receive_tree, send_tree};

use crate::door::Visitor;

/// Bytes read from the connection at a time.
const BUFFER_BYTES: usize = 128 << 10;

/// Makes what the client sends.
pub(crate) fn serve_in(visitor: Visitor, request: &CopyIn) {
    let Visitor { stream, frames, .. } = visitor;
    // The tree follows the request at once: some of it has been read.
    let begun = Cursor::new(frames.into_rest());
    let mut reader = begun.chain(BufReader::with_capacity(BUFFER_BYTES, &stream));
    let target = absolute(&request.target);
    let received = request
        .root_name()
        .map_err(|_| ReceiveError::Invalid {
            what: "the name of the tree",
        })
        .and_then(|root| {
            let to = Destination {
                target: &target,
                root,
                ownership: request.owner.map_or(Ownership::Keep, Ownership::Set),
            };
            receive_tree(&mut reader, to, &mut |_| ControlFlow::Continue(()))
        });
    let reply = match received {
        Ok(report) => Reply::Copied(report),
        Err(ReceiveError::Stream(_)) => return, // nobody is left to tell
        Err(error) => {
            let kind = match error {
                ReceiveError::Aborted { .. } | ReceiveError::Invalid { .. } => ErrorKind::Invalid,
                _ => ErrorKind::Failed,
            };
            Reply::Error {
                kind,
                message: chain(&error),
            }
        }
    };
    if write_message(&mut &stream, &reply).is_ok() {
        // The client may still be sending: closing now would throw the answer away with a reset.
        discard(reader);
    }
}

/// Sends what the client asks for.
pub(crate) fn serve_out(mut stream: File, source: &[u8]) {
    if write_message(&mut stream, &Reply::Ok).is_ok() {
        // Every failure but that of the connection is part of the stream.
        let _ = send_tree(&absolute(source), &mut stream, &mut |_| {
            ControlFlow::Continue(())
        });
    }
}

/// Paths that do not begin with a slash start at the root directory.
fn absolute(path: &[u8]) -> PathBuf {
    // `join` with an empty path adds a slash at the end only.
    Path::new("/").join(OsStr::from_bytes(path))
}

fn discard(mut reader: impl Read) {
    // Ends with the connection, however it ends.
    let _ = io::copy(&mut reader, &mut io::sink());
}
