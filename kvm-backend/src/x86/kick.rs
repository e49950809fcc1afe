#![allow(unsafe_code)] // a signal handler, and the immediate_exit flag shared with the kernel

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Mutex, PoisonError};

use kvm_ioctls::VcpuFd;
use vmm_core::hypervisor::VcpuKick;

/// Makes a vCPU leave `KVM_RUN`: `immediate_exit` for a run that has not begun, a signal for one that
/// has (Documentation/virt/kvm/api.rst, section 5, `immediate_exit`).
#[derive(Default)]
pub(super) struct Kicker {
    kicked: AtomicBool,
    target: Mutex<Option<Target>>,
}

struct Target {
    immediate_exit: *const AtomicU8,
    thread: libc::pthread_t,
    signal: libc::c_int,
}

// SAFETY: the pointer refers to memory shared with the kernel and is used atomically only, while the
// vCPU that owns it is alive (`unbind` clears it); a pthread_t may be used from any thread.
unsafe impl Send for Target {}

impl Kicker {
    /// Directs kicks at `vcpu` on the calling thread, until [`unbind`](Self::unbind). The signal reaches that thread from then on, even
    /// where the program has blocked it.
    ///
    /// # Errors
    /// The program uses all real-time signals itself.
    pub(super) fn bind(&self, vcpu: &mut VcpuFd) -> io::Result<()> {
        let signal = kick_signal()?;
        unblock(signal)?;
        let flag: *mut u8 = &raw mut vcpu.get_kvm_run().immediate_exit;
        // SAFETY: pthread_self has no preconditions.
        let thread = unsafe { libc::pthread_self() };
        *self.lock() = Some(Target {
            immediate_exit: flag.cast(),
            thread,
            signal,
        });
        if self.kicked.load(Ordering::SeqCst) {
            self.kick();
        }
        Ok(())
    }

    /// Ends what [`bind`](Self::bind) began; called before the vCPU is dropped, on its thread.
    pub(super) fn unbind(&self) {
        *self.lock() = None;
    }

    /// Whether there was a kick since the last call; makes the vCPU runnable again.
    pub(super) fn consume(&self) -> bool {
        self.set_immediate_exit(false);
        self.kicked.swap(false, Ordering::SeqCst)
    }

    /// Sets or clears the flag that keeps `KVM_RUN` from entering the guest.
    pub(super) fn set_immediate_exit(&self, value: bool) {
        if let Some(target) = &*self.lock() {
            // SAFETY: the vCPU is alive while there is a target.
            unsafe { &*target.immediate_exit }.store(value.into(), Ordering::SeqCst);
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Option<Target>> {
        self.target.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl VcpuKick for Kicker {
    fn kick(&self) {
        self.kicked.store(true, Ordering::SeqCst);
        if let Some(target) = &*self.lock() {
            // SAFETY: the vCPU is alive while there is a target.
            unsafe { &*target.immediate_exit }.store(1, Ordering::SeqCst);
            // SAFETY: the thread is alive while there is a target: it unbinds before it ends. The
            // signal has a handler that does nothing.
            unsafe { libc::pthread_kill(target.thread, target.signal) };
        }
    }
}

extern "C" fn ignore_signal(_: libc::c_int) {}

/// The signal that kicks vCPUs of this process. The first call chooses it; it stays ours.
fn kick_signal() -> io::Result<libc::c_int> {
    static CHOSEN: Mutex<Option<libc::c_int>> = Mutex::new(None);
    let mut chosen = CHOSEN.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(signal) = *chosen {
        return Ok(signal);
    }
    let signal = take_signal()?;
    *chosen = Some(signal);
    Ok(signal)
}

/// Gives the first real-time signal for which the program has no use a handler that does nothing. One that it handles or ignores is left
/// as it is.
fn take_signal() -> io::Result<libc::c_int> {
    for signal in libc::SIGRTMIN()..=libc::SIGRTMAX() {
        let former = set_action(signal, &our_action())?;
        if former.sa_sigaction == libc::SIG_DFL {
            return Ok(signal);
        }
        // Looked at and taken in one step, so that of two libraries that do this one has it.
        set_action(signal, &former)?;
    }
    let what = "all real-time signals are used by the program: none is left to interrupt vCPUs";
    Err(io::Error::new(io::ErrorKind::ResourceBusy, what))
}

/// A handler that does nothing, without `SA_RESTART`: `KVM_RUN` is interrupted.
fn our_action() -> libc::sigaction {
    // SAFETY: a zeroed sigaction is valid.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = ignore_signal as *const () as usize;
    action
}

/// Replaces what is done about a signal; what was done before.
fn set_action(signal: libc::c_int, action: &libc::sigaction) -> io::Result<libc::sigaction> {
    // SAFETY: a zeroed sigaction is valid.
    let mut former: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: both are valid; the handler is one that was in use, or ours, which does nothing and so is async-signal-safe.
    match unsafe { libc::sigaction(signal, action, &raw mut former) } {
        0 => Ok(former),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Lets a signal reach the calling thread.
fn unblock(signal: libc::c_int) -> io::Result<()> {
    // SAFETY: a zeroed set is valid memory for one; it is emptied before use.
    let mut set: libc::sigset_t = unsafe { std::mem::zeroed() };
    // SAFETY: the set is valid, the signal one that exists.
    let error = unsafe {
        libc::sigemptyset(&raw mut set);
        libc::sigaddset(&raw mut set, signal);
        libc::pthread_sigmask(libc::SIG_UNBLOCK, &raw const set, std::ptr::null_mut())
    };
    match error {
        0 => Ok(()),
        error => Err(io::Error::from_raw_os_error(error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    extern "C" fn of_the_program(_: libc::c_int) {}

    #[test]
    fn a_signal_that_the_program_handles_is_left_alone() {
        let handled = libc::SIGRTMIN();
        let mut action = our_action();
        action.sa_sigaction = of_the_program as *const () as usize;
        let before = set_action(handled, &action).unwrap();
        let taken = take_signal().unwrap();
        assert!(taken > handled);
        let there = set_action(handled, &before).unwrap();
        assert_eq!(there.sa_sigaction, action.sa_sigaction);

        // Where all are handled or ignored, none is taken.
        let all: Vec<_> = (handled..=libc::SIGRTMAX())
            .map(|signal| (signal, set_action(signal, &action).unwrap()))
            .collect();
        let refused = take_signal().unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::ResourceBusy);
        for (signal, before) in all {
            let there = set_action(signal, &before).unwrap();
            assert_eq!(there.sa_sigaction, action.sa_sigaction, "{signal}");
        }
    }
}
