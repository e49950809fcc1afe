//! One vCPU runs at a time: whoever holds the baton owns the machine's CPUs and code cache.

use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use crate::router::Router;

/// Tickets of a fair lock.
#[derive(Default)]
struct Tickets {
    next: u64,
    serving: u64,
}

/// A fair lock that tells its holder when somebody waits.
pub(super) struct Baton<T> {
    tickets: Mutex<Tickets>,
    turn: Condvar,
    waiting: AtomicUsize,
    urgent: AtomicUsize,
    router: Arc<Router>,
    value: Mutex<T>,
}

/// The baton, held.
pub(super) struct Held<'a, T> {
    baton: &'a Baton<T>,
    value: Option<MutexGuard<'a, T>>,
}

impl<T> Baton<T> {
    pub(super) fn new(value: T, router: Arc<Router>) -> Self {
        Baton {
            tickets: Mutex::default(),
            turn: Condvar::new(),
            waiting: AtomicUsize::new(0),
            urgent: AtomicUsize::new(0),
            router,
            value: Mutex::new(value),
        }
    }

    /// Waits for the turn. The holder goes on until its time slice ends.
    pub(super) fn take(&self) -> Held<'_, T> {
        self.wait(false)
    }

    /// Waits for the turn and asks the holder to stop now.
    pub(super) fn take_now(&self) -> Held<'_, T> {
        self.wait(true)
    }

    fn wait(&self, urgent: bool) -> Held<'_, T> {
        let mut t = self.tickets.lock().unwrap_or_else(PoisonError::into_inner);
        let mine = t.next;
        t.next += 1;
        self.waiting.fetch_add(1, Ordering::SeqCst);
        if urgent {
            self.urgent.fetch_add(1, Ordering::SeqCst);
            self.router.call_from_anywhere();
        }
        while t.serving != mine {
            t = self.turn.wait(t).unwrap_or_else(PoisonError::into_inner);
        }
        self.waiting.fetch_sub(1, Ordering::SeqCst);
        if urgent {
            self.urgent.fetch_sub(1, Ordering::SeqCst);
        }
        drop(t);
        // Free by the tickets' order, so this does not block.
        let value = self.value.lock().unwrap_or_else(PoisonError::into_inner);
        Held {
            baton: self,
            value: Some(value),
        }
    }

    /// Whether somebody waits who wants the turn now.
    pub(super) fn urgent(&self) -> bool {
        self.urgent.load(Ordering::SeqCst) > 0
    }

    /// How many wait.
    pub(super) fn waiting(&self) -> &AtomicUsize {
        &self.waiting
    }
}

impl<T> Drop for Held<'_, T> {
    fn drop(&mut self) {
        self.value = None;
        let mut t = self
            .baton
            .tickets
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        t.serving += 1;
        drop(t);
        self.baton.turn.notify_all();
    }
}

impl<T> Deref for Held<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        match &self.value {
            Some(v) => v,
            None => unreachable!("the guard is only given up in drop"),
        }
    }
}

impl<T> DerefMut for Held<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        match &mut self.value {
            Some(v) => v,
            None => unreachable!("the guard is only given up in drop"),
        }
    }
}
