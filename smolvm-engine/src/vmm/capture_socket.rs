//! A capture's socket, as the VMM has it.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};

use crate::channel::capture::{CaptureEvent, CaptureRequest};
use crate::channel::{self, ChannelError};

/// How a capture is over.
#[derive(Debug)]
pub(super) enum Over {
    /// The point is published; the map of the disk's new base.
    Published(Option<OwnedFd>),
    /// The supervisor gave it up, or is gone.
    GivenUp,
}

/// The VMM's end of a capture's socket. When it is dropped, the supervisor sees that the capture is over.
pub(super) struct CaptureSocket {
    socket: UnixStream,
    requests: Receiver<(CaptureRequest, Vec<OwnedFd>)>,
    /// The supervisor has said its last, and that was not that all is well.
    given_up: Arc<AtomicBool>,
}

impl CaptureSocket {
    /// Reads `socket` on a thread of its own, which calls `nudge` when the supervisor has said its last.
    pub(super) fn new(
        socket: UnixStream,
        nudge: impl FnOnce() + Send + 'static,
    ) -> io::Result<Self> {
        let (sender, requests) = channel();
        let reader = socket.try_clone()?;
        let given_up = Arc::<AtomicBool>::default();
        let theirs = Arc::clone(&given_up);
        std::thread::Builder::new()
            .name("capture".to_owned())
            .spawn(move || {
                let published = read(&reader, sender);
                theirs.store(!published, Ordering::Release);
                nudge();
            })?;
        Ok(Self {
            socket,
            requests,
            given_up,
        })
    }

    pub(super) fn send(&self, event: CaptureEvent) -> Result<(), ChannelError> {
        self.send_with(event, &[])
    }

    pub(super) fn send_with(
        &self,
        event: CaptureEvent,
        descriptors: &[BorrowedFd<'_>],
    ) -> Result<(), ChannelError> {
        channel::send(&self.socket, &event, descriptors)
    }

    /// Tells the supervisor that the capture has yet to begin.
    ///
    /// # Errors
    /// It gave the capture up, or is gone.
    pub(super) fn still_waiting(&self) -> Result<(), ChannelError> {
        if self.is_given_up() {
            return Err(ChannelError::Closed);
        }
        self.send(CaptureEvent::Waiting)
    }

    /// Whether the supervisor gave the capture up, or is gone. Takes nothing of what it said before.
    pub(super) fn is_given_up(&self) -> bool {
        self.given_up.load(Ordering::Acquire)
    }

    /// Slots of the window that are free again, if any are.
    pub(super) fn freed_slots(&self) -> Result<Vec<u32>, ChannelError> {
        match self.requests.try_recv() {
            Ok((CaptureRequest::FreeSlots(slots), _)) => Ok(slots),
            Err(TryRecvError::Empty) => Ok(Vec::new()),
            Ok((CaptureRequest::Published, _)) | Err(TryRecvError::Disconnected) => {
                Err(ChannelError::Closed)
            }
        }
    }

    /// Waits for slots of the window that are free again.
    pub(super) fn wait_free_slots(&self) -> Result<Vec<u32>, ChannelError> {
        match self.requests.recv() {
            Ok((CaptureRequest::FreeSlots(slots), _)) => Ok(slots),
            // Nothing can be published yet.
            Ok((CaptureRequest::Published, _)) | Err(_) => Err(ChannelError::Closed),
        }
    }

    /// How the capture is over, if it is. All memory was sent before.
    pub(super) fn over(&self) -> Option<Over> {
        loop {
            match self.requests.try_recv() {
                // Those of the last chunks.
                Ok((CaptureRequest::FreeSlots(_), _)) => {}
                Ok((CaptureRequest::Published, descriptors)) => {
                    return Some(Over::Published(descriptors.into_iter().next()));
                }
                Err(TryRecvError::Empty) => return None,
                Err(TryRecvError::Disconnected) => return Some(Over::GivenUp),
            }
        }
    }

    /// Waits until the capture is over.
    pub(super) fn wait_over(&self) -> Over {
        loop {
            match self.requests.recv() {
                Ok((CaptureRequest::FreeSlots(_), _)) => {}
                Ok((CaptureRequest::Published, descriptors)) => {
                    return Over::Published(descriptors.into_iter().next());
                }
                Err(_) => return Over::GivenUp,
            }
        }
    }
}

impl Drop for CaptureSocket {
    fn drop(&mut self) {
        // The reading thread has a copy: without this neither it nor the supervisor would see an end.
        if let Err(error) = self.socket.shutdown(std::net::Shutdown::Both) {
            tracing::debug!(%error, "the supervisor has closed the capture's socket");
        }
    }
}

/// Hands requests over until the supervisor has said its last; whether that was that the point is published.
fn read(socket: &UnixStream, requests: Sender<(CaptureRequest, Vec<OwnedFd>)>) -> bool {
    while let Ok(received) = channel::receive::<CaptureRequest>(socket) {
        let last = received.message == CaptureRequest::Published;
        if requests
            .send((received.message, received.descriptors))
            .is_err()
            || last
        {
            return last;
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair() -> (CaptureSocket, UnixStream, Receiver<()>) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let (nudge, nudged) = channel();
        let socket = CaptureSocket::new(ours, move || nudge.send(()).unwrap_or_default()).unwrap();
        (socket, theirs, nudged)
    }

    #[test]
    fn a_supervisor_that_closes_gives_the_capture_up() {
        let (socket, theirs, nudged) = pair();
        channel::send(&theirs, &CaptureRequest::FreeSlots(vec![3]), &[]).unwrap();
        assert_eq!(socket.wait_free_slots().unwrap(), [3]);
        assert!(!socket.is_given_up());
        theirs.shutdown(std::net::Shutdown::Write).unwrap();
        nudged.recv().unwrap();
        assert!(socket.is_given_up());
        assert!(matches!(
            socket.wait_free_slots(),
            Err(ChannelError::Closed)
        ));
        assert!(matches!(socket.freed_slots(), Err(ChannelError::Closed)));
        assert!(matches!(socket.over(), Some(Over::GivenUp)));
        assert!(matches!(socket.wait_over(), Over::GivenUp));
    }

    #[test]
    fn slots_of_the_last_chunks_do_not_end_a_capture() {
        let (socket, theirs, nudged) = pair();
        channel::send(&theirs, &CaptureRequest::FreeSlots(vec![1]), &[]).unwrap();
        assert!(socket.over().is_none());
        channel::send(&theirs, &CaptureRequest::Published, &[]).unwrap();
        nudged.recv().unwrap();
        assert!(!socket.is_given_up());
        assert!(matches!(socket.over(), Some(Over::Published(None))));
    }

    #[test]
    fn the_supervisor_sees_that_a_capture_is_over() {
        let (socket, theirs, nudged) = pair();
        socket.send(CaptureEvent::Rebased).unwrap();
        drop(socket);
        let last = channel::receive::<CaptureEvent>(&theirs).unwrap().message;
        assert_eq!(last, CaptureEvent::Rebased);
        let after = channel::receive::<CaptureEvent>(&theirs);
        assert!(matches!(after, Err(ChannelError::Closed)));
        nudged.recv().unwrap();
    }
}
