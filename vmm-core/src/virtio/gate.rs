use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use super::waker::Waker;

/// Between a device's workers and those who wake, halt and end them.
///
/// Whoever touches queues or device state holds a [`Ticket`]; [`Gate::pause`] refuses new tickets and
/// waits until none is out.
#[derive(Debug)]
pub(super) struct Gate {
    state: Mutex<GateState>,
    work: Condvar,
    idle: Condvar,
    waker: Option<Waker>,
}

#[derive(Debug)]
struct GateState {
    /// One bit per queue that a worker should look at.
    pending: u32,
    /// How many callers hold the gate shut.
    paused: u32,
    /// Tickets out.
    active: u32,
    stopped: bool,
}

/// The right to take and finish descriptor chains; the device does not come to rest while one is
/// held.
#[derive(Debug)]
pub struct Ticket<'a>(&'a Gate);

impl Drop for Ticket<'_> {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.active -= 1;
        if state.active == 0 && state.paused > 0 {
            self.0.idle.notify_all();
        }
    }
}

impl Gate {
    /// A gate that is shut once; `waker` is for a worker that polls.
    pub(super) fn new_paused(waker: Option<Waker>) -> Self {
        Self {
            state: Mutex::new(GateState {
                pending: 0,
                paused: 1,
                active: 0,
                stopped: false,
            }),
            work: Condvar::new(),
            idle: Condvar::new(),
            waker,
        }
    }

    fn lock(&self) -> MutexGuard<'_, GateState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn waker(&self) -> Option<&Waker> {
        self.waker.as_ref()
    }

    /// Wakes one worker to look at `queue`.
    pub(super) fn kick(&self, queue: usize) {
        let mut state = self.lock();
        state.pending |= 1 << (queue % 32);
        let open = state.paused == 0;
        drop(state);
        if open {
            self.work.notify_one();
            self.wake();
        }
    }

    /// Waits until there is work, and takes it. `None`: the worker ends.
    pub(super) fn wait_work(&self) -> Option<u32> {
        let mut state = self.lock();
        loop {
            if state.stopped {
                return None;
            }
            if state.paused == 0 && state.pending != 0 {
                return Some(std::mem::take(&mut state.pending));
            }
            state = self
                .work
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// A ticket, unless the gate is shut or the device stopped.
    pub(super) fn try_begin(&self) -> Option<Ticket<'_>> {
        let mut state = self.lock();
        (state.paused == 0 && !state.stopped).then(|| {
            state.active += 1;
            Ticket(self)
        })
    }

    /// A ticket, once the gate is open. `None`: the device was stopped.
    pub(super) fn begin(&self) -> Option<Ticket<'_>> {
        let mut state = self.lock();
        while state.paused > 0 && !state.stopped {
            state = self
                .work
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
        (!state.stopped).then(|| {
            state.active += 1;
            Ticket(self)
        })
    }

    /// Shuts the gate and waits until no ticket is out. Calls nest.
    pub(super) fn pause(&self) {
        let mut state = self.lock();
        state.paused += 1;
        while state.active > 0 {
            state = self
                .idle
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Takes one [`pause`](Self::pause) back; all queues are looked at again.
    pub(super) fn resume(&self) {
        let mut state = self.lock();
        state.paused = state.paused.saturating_sub(1);
        if state.paused > 0 {
            return;
        }
        state.pending = u32::MAX;
        drop(state);
        self.work.notify_all();
        self.wake();
    }

    /// Ends the workers.
    pub(super) fn stop(&self) {
        self.lock().stopped = true;
        self.work.notify_all();
        self.wake();
    }

    fn wake(&self) {
        if let Some(waker) = &self.waker {
            waker.wake();
        }
    }
}
