//! Trees between this side's file system and the guest's.

use std::ffi::OsStr;
use std::io::{Read, Write};
use std::ops::ControlFlow;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use super::{ClientError, Connection, checked, unexpected};
use crate::frame::{FrameError, read_message, write_message};
use crate::message::{CopyIn, CopyReport, ErrorKind, Owner, Reply, Request};
use crate::tree::{
    Destination, Ownership, ReceiveError, RootName, SendError, receive_tree, send_tree,
};
use crate::words::harmless;

impl<R: Read + Send, W: Write> Connection<R, W> {
    /// Copies the tree at `source` here to `target` in the guest, see [`send_tree`] and [`Destination`]
    /// for what the two paths mean. What is made belongs to `owner`, or to whom it belongs here.
    ///
    /// `progress` is told the bytes sent since it was last called and may stop the copy.
    ///
    /// # Errors
    /// [`ClientError::Send`] for what fails here, [`ClientError::Agent`] for the guest's side. A
    /// report with problems is not an error: everything else was copied.
    pub fn copy_in(
        mut self,
        source: &Path,
        target: &[u8],
        owner: Option<Owner>,
        progress: &mut dyn FnMut(u64) -> ControlFlow<()>,
    ) -> Result<CopyReport, ClientError> {
        let request = CopyIn {
            target: target.into(),
            name: RootName::of_source(source).as_bytes().into(),
            owner,
        };
        write_message(&mut self.writer, &Request::CopyIn(request))?;
        let (reader, writer) = (&mut self.reader, &mut self.writer);
        let answered = AtomicBool::new(false);
        let mut stopped_here = false;
        let (reply, sent) = thread::scope(|scope| {
            // The agent answers early when it cannot go on; then sending more is pointless.
            let waiting = scope.spawn(|| {
                let reply: Result<Reply, FrameError> = read_message(reader);
                answered.store(true, Ordering::Release);
                reply
            });
            let sent = send_tree(source, writer, &mut |bytes| {
                if answered.load(Ordering::Acquire) {
                    return ControlFlow::Break(());
                }
                let next = progress(bytes);
                stopped_here = next.is_break();
                next
            });
            (waiting.join(), sent)
        });
        let reply = match reply {
            Ok(reply) => reply,
            Err(panic) => std::panic::resume_unwind(panic),
        };
        match (reply, sent) {
            // What failed here is the cause, the agent's answer only its echo.
            (_, Err(error @ (SendError::Source { .. } | SendError::Kind { .. }))) => {
                Err(error.into())
            }
            (_, Err(error @ SendError::Stopped)) if stopped_here => Err(error.into()),
            (Ok(reply), sent) => match checked(reply)? {
                Reply::Copied(report) => sent.map(|()| harmless_report(report)).map_err(Into::into),
                other => unexpected(&other),
            },
            (Err(error), _) => Err(error.into()),
        }
    }

    /// Copies the tree at `source` in the guest to `target` here. Entries belong to the caller, modes
    /// are masked with the umask, devices are left out. Where `target` is a directory the tree goes
    /// into it under the last name of `source`, whatever the guest says.
    ///
    /// `progress` is told the bytes written since it was last called, once per item, and may stop the
    /// copy.
    ///
    /// # Errors
    /// [`ClientError::Agent`] when the guest cannot read `source`, [`ClientError::Receive`] for
    /// what fails here.
    pub fn copy_out(
        mut self,
        source: &[u8],
        target: &Path,
        progress: &mut dyn FnMut(u64) -> ControlFlow<()>,
    ) -> Result<CopyReport, ClientError> {
        // Also what the path can say of itself is checked before anything is made.
        let root = RootName::of_source(Path::new(OsStr::from_bytes(source)));
        let to = Destination {
            target,
            root: RootName::new(root.as_bytes())?,
            ownership: Ownership::Mine,
        };
        match self.call(&Request::CopyOut {
            source: source.into(),
        })? {
            Reply::Ok => {}
            other => return unexpected(&other),
        }
        match receive_tree(&mut self.reader, to, progress) {
            Ok(report) => Ok(report),
            Err(ReceiveError::Aborted { message }) => Err(ClientError::Agent {
                kind: ErrorKind::Failed,
                message,
            }),
            Err(error) => Err(error.into()),
        }
    }
}

fn harmless_report(mut report: CopyReport) -> CopyReport {
    for problem in &mut report.problems {
        *problem = harmless(problem);
    }
    report
}
