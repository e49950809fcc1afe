//! Signals as PID 1 needs them.
#![allow(unsafe_code)] // signal sets and kill(-1)

use std::io;
use std::mem::MaybeUninit;
use std::time::Duration;

/// Sends `signal` to every process but PID 1 and the caller's own.
pub(crate) fn everyone(signal: i32) {
    // SAFETY: no memory is passed. An error means that there was nobody.
    unsafe {
        libc::kill(-1, signal);
    }
}

/// Gives every signal its default meaning, as a command expects it; for a forked child.
pub(crate) fn default_all() {
    const CLASSIC_SIGNALS: i32 = 31;
    for signal in 1..=CLASSIC_SIGNALS {
        // SAFETY: no handler is installed. SIGKILL and SIGSTOP refuse, which is right.
        unsafe {
            libc::signal(signal, libc::SIG_DFL);
        }
    }
}

/// Signals that wait to be taken instead of being delivered.
pub(crate) struct SignalSet {
    set: libc::sigset_t,
    before: libc::sigset_t,
}

impl SignalSet {
    /// Blocks `signals` in this thread.
    pub(crate) fn block(signals: &[i32]) -> io::Result<Self> {
        let mut set = MaybeUninit::<libc::sigset_t>::uninit();
        let mut before = MaybeUninit::<libc::sigset_t>::uninit();
        // SAFETY: sigemptyset makes a valid set of `set`, which the other calls then change or
        // read; pthread_sigmask fills `before`.
        unsafe {
            libc::sigemptyset(set.as_mut_ptr());
            for &signal in signals {
                libc::sigaddset(set.as_mut_ptr(), signal);
            }
            let error = libc::pthread_sigmask(libc::SIG_BLOCK, set.as_ptr(), before.as_mut_ptr());
            if error != 0 {
                return Err(io::Error::from_raw_os_error(error));
            }
            Ok(Self {
                set: set.assume_init(),
                before: before.assume_init(),
            })
        }
    }

    /// Puts back the mask from before, for a forked child.
    pub(crate) fn unblock(&self) {
        // SAFETY: `before` is a valid set.
        unsafe {
            libc::pthread_sigmask(
                libc::SIG_SETMASK,
                &raw const self.before,
                std::ptr::null_mut(),
            );
        }
    }

    /// Waits for one of the signals; `None` after `limit`, if there is one.
    pub(crate) fn take(&self, limit: Option<Duration>) -> Option<i32> {
        let limit = limit.map(|limit| libc::timespec {
            tv_sec: limit.as_secs().try_into().unwrap_or(libc::time_t::MAX),
            tv_nsec: limit.subsec_nanos().into(),
        });
        let limit = limit.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
        // SAFETY: the set is valid, no information is asked for, and `limit` is null or alive.
        let signal =
            unsafe { libc::sigtimedwait(&raw const self.set, std::ptr::null_mut(), limit) };
        (signal > 0).then_some(signal)
    }
}
