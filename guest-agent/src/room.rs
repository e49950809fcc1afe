//! Limits on what clients can have at one time.
//!
//! Each kind of session has a limit of its own, so that commands cannot take the place of copies, nor
//! either of them that of control calls.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Commands in front of a client at one time, each with a thread and a connection. The VMM's vsock
/// device has 512 connections.
pub(crate) const MAX_COMMANDS: usize = 256;
/// Detached commands at one time, each with a thread.
pub(crate) const MAX_DETACHED: usize = 1024;
/// Copies at one time, each with a thread and a connection.
pub(crate) const MAX_COPIES: usize = 64;

/// Room for so many sessions of a kind.
#[derive(Debug)]
pub(crate) struct Room {
    used: Arc<AtomicUsize>,
    limit: usize,
    kind: &'static str,
}

/// A place that is given back when dropped.
#[derive(Debug)]
pub(crate) struct Place(Arc<AtomicUsize>);

impl Room {
    pub(crate) fn new(limit: usize, kind: &'static str) -> Self {
        Self {
            used: Arc::default(),
            limit,
            kind,
        }
    }

    /// Takes a place.
    ///
    /// # Errors
    /// What to tell the client when all are taken.
    pub(crate) fn take(&self) -> Result<Place, String> {
        let place = Place(Arc::clone(&self.used));
        if place.0.fetch_add(1, Ordering::AcqRel) < self.limit {
            return Ok(place);
        }
        Err(format!(
            "{} {} at a time are possible",
            self.limit, self.kind
        ))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_given_back() {
        let room = Room::new(2, "things");
        let (first, second) = (room.take().expect("room"), room.take().expect("room"));
        assert_eq!(room.take().unwrap_err(), "2 things at a time are possible");
        drop(first);
        assert!(room.take().is_ok());
        drop(second);
    }
}
