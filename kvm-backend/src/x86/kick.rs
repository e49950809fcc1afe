#![allow(unsafe_code)] // a signal handler, and the immediate_exit flag shared with the kernel

use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Mutex, Once, PoisonError};

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
}

// SAFETY: the pointer refers to memory shared with the kernel and is used atomically only, while the
// vCPU that owns it is alive (`unbind` clears it); a pthread_t may be used from any thread.
unsafe impl Send for Target {}

impl Kicker {
    /// Directs kicks at `vcpu` on the calling thread, until [`unbind`](Self::unbind).
    pub(super) fn bind(&self, vcpu: &mut VcpuFd) {
        install_handler();
        let flag: *mut u8 = &raw mut vcpu.get_kvm_run().immediate_exit;
        // SAFETY: pthread_self has no preconditions.
        let thread = unsafe { libc::pthread_self() };
        *self.lock() = Some(Target {
            immediate_exit: flag.cast(),
            thread,
        });
        if self.kicked.load(Ordering::SeqCst) {
            self.kick();
        }
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
            unsafe { libc::pthread_kill(target.thread, libc::SIGRTMIN()) };
        }
    }
}

extern "C" fn ignore_signal(_: libc::c_int) {}

/// Gives the kick signal a handler that does nothing, without `SA_RESTART`: `KVM_RUN` is interrupted.
fn install_handler() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: a zeroed sigaction is valid; the handler is async-signal-safe, it does nothing.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = ignore_signal as *const () as usize;
            libc::sigemptyset(&raw mut action.sa_mask);
            libc::sigaction(libc::SIGRTMIN(), &raw const action, std::ptr::null_mut());
        }
    });
}
