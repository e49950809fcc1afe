//! Trees in and out of the guest.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, BufReader, Read};
use std::ops::ControlFlow;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use agent_protocol::frame::write_message;
use agent_protocol::message::chain;
use agent_protocol::message::{CopyIn, ErrorKind, Reply};
use agent_protocol::tree::{Ownership, ReceiveError, receive_tree, send_tree};

/// Bytes read from the connection at a time.
const BUFFER_BYTES: usize = 128 << 10;

/// Makes what the client sends.
pub(crate) fn serve_in(stream: File, request: &CopyIn) {
    let ownership = request.owner.map_or(Ownership::Keep, Ownership::Set);
    let target = absolute(&request.target);
    let mut reader = BufReader::with_capacity(BUFFER_BYTES, &stream);
    let reply = match receive_tree(&mut reader, &target, ownership, &mut |_| ()) {
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
