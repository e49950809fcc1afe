//! The way of the VMM's messages about a capture to whoever makes it.

use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::channel::messages::{CaptureEvent, CaptureNumber};

/// Numbers the captures of a machine's run, and brings messages only to the one that they are about.
#[derive(Default)]
pub(super) struct CaptureRouter(Mutex<Routes>);

#[derive(Default)]
struct Routes {
    last: CaptureNumber,
    /// Where messages about the capture `last` go, while it is made.
    current: Option<Sender<CaptureEvent>>,
}

impl CaptureRouter {
    fn routes(&self) -> MutexGuard<'_, Routes> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The route of the next capture; there is only one at a time.
    pub(super) fn open(&self) -> CaptureRoute<'_> {
        let (sender, events) = channel();
        let mut routes = self.routes();
        let number = routes.last.next();
        *routes = Routes {
            last: number,
            current: Some(sender),
        };
        CaptureRoute {
            router: self,
            number,
            events,
        }
    }

    /// Brings a message to the capture that it is about; dropped if that one is over.
    pub(super) fn forward(&self, number: CaptureNumber, event: CaptureEvent) {
        let routes = self.routes();
        let current = routes.current.as_ref();
        let taken = current
            .filter(|_| routes.last == number)
            .is_some_and(|route| route.send(event).is_ok());
        if !taken {
            tracing::debug!(?number, "a message about a capture that is over");
        }
    }

    /// Nothing comes any more: the VMM has ended.
    pub(super) fn close(&self) {
        self.routes().current = None;
    }
}

/// What the VMM says about one capture, until it is dropped.
pub(super) struct CaptureRoute<'a> {
    router: &'a CaptureRouter,
    number: CaptureNumber,
    events: Receiver<CaptureEvent>,
}

impl CaptureRoute<'_> {
    /// The capture's number.
    pub(super) fn number(&self) -> CaptureNumber {
        self.number
    }

    /// Waits for the next message.
    pub(super) fn next(&self, patience: Duration) -> Result<CaptureEvent, RecvTimeoutError> {
        self.events.recv_timeout(patience)
    }
}

impl Drop for CaptureRoute<'_> {
    fn drop(&mut self) {
        self.router.close();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::channel::messages::CapturedChunk;

    fn chunk(chunk: u64) -> CaptureEvent {
        let slot = Some(0);
        CaptureEvent::Chunks(vec![CapturedChunk { chunk, slot }])
    }

    /// All that came for the capture so far.
    fn taken(route: &CaptureRoute<'_>) -> Vec<CaptureEvent> {
        route.events.try_iter().collect()
    }

    #[test]
    fn a_late_chunk_is_not_taken_by_the_next_capture() {
        let router = CaptureRouter::default();
        let former = router.open();
        let late = former.number();
        router.forward(late, chunk(1));
        assert_eq!(taken(&former), [chunk(1)]);
        drop(former);
        // Between two captures.
        router.forward(late, chunk(2));
        let current = router.open();
        assert_ne!(current.number(), late);
        router.forward(late, chunk(3));
        router.forward(current.number(), chunk(4));
        router.forward(late, CaptureEvent::MemoryDone);
        router.forward(late, CaptureEvent::Ended);
        assert_eq!(taken(&current), [chunk(4)]);
    }

    #[test]
    fn a_capture_notices_the_end_of_the_vmm() {
        let router = CaptureRouter::default();
        let route = router.open();
        router.forward(route.number(), chunk(1));
        router.close();
        assert_eq!(route.next(Duration::ZERO), Ok(chunk(1)));
        assert_eq!(
            route.next(Duration::ZERO),
            Err(RecvTimeoutError::Disconnected)
        );
    }
}
