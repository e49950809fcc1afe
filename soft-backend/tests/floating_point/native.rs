//! Runs one instruction on the host CPU with a chosen floating-point state.
#![allow(unsafe_code)] // the host CPU is the oracle: generated code and a signal handler

use super::context::Context;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

const SLOT: usize = 16;

// push rbx; push rbp; mov r8, rdi; fxrstor64 [r8]; mov rax, [r8+512]; mov rcx, [r8+520];
// mov rdx, [r8+528]; lea rsi, [r8+576]; mov rdi, rsi; push qword [r8+552]; popfq
const HEAD: &[u8] = &[
    0x53, 0x55, 0x49, 0x89, 0xf8, 0x49, 0x0f, 0xae, 0x08, 0x49, 0x8b, 0x80, 0, 2, 0, 0, 0x49, 0x8b,
    0x88, 8, 2, 0, 0, 0x49, 0x8b, 0x90, 16, 2, 0, 0, 0x49, 0x8d, 0xb0, 0x40, 2, 0, 0, 0x48, 0x89,
    0xf7, 0x41, 0xff, 0xb0, 0x28, 2, 0, 0, 0x9d,
];
// pushfq; pop qword [r8+544]; mov [r8+512], rax; mov [r8+520], rcx; mov [r8+528], rdx;
// fxsave64 [r8]; fninit; ldmxcsr [r8+560]; pop rbp; pop rbx; ret
const TAIL: &[u8] = &[
    0x9c, 0x41, 0x8f, 0x80, 0x20, 2, 0, 0, 0x49, 0x89, 0x80, 0, 2, 0, 0, 0x49, 0x89, 0x88, 8, 2, 0,
    0, 0x49, 0x89, 0x90, 16, 2, 0, 0, 0x49, 0x0f, 0xae, 0x00, 0xdb, 0xe3, 0x41, 0x0f, 0xae, 0x90,
    0x30, 2, 0, 0, 0x5d, 0x5b, 0xc3,
];

static RESUME: AtomicU64 = AtomicU64::new(0);
static FAULTED: AtomicBool = AtomicBool::new(false);
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

extern "C" fn on_fault(signal: libc::c_int, _: *mut libc::siginfo_t, context: *mut libc::c_void) {
    FAULTED.store(true, Ordering::SeqCst);
    let context = context.cast::<libc::ucontext_t>();
    // SAFETY: the kernel hands a valid ucontext to an SA_SIGINFO handler.
    unsafe {
        let resume = RESUME.load(Ordering::SeqCst);
        let rip = &mut (*context).uc_mcontext.gregs[libc::REG_RIP as usize];
        if resume.wrapping_sub(*rip as u64) <= SLOT as u64 {
            *rip = resume as libc::greg_t;
        } else {
            // Not the instruction under test.
            libc::signal(signal, libc::SIG_DFL);
        }
    }
}

/// An executable page with the stub.
pub(crate) struct Native {
    page: *mut u8,
}

impl Native {
    pub(crate) fn new() -> Self {
        // SAFETY: an anonymous mapping of its own; the handler is async-signal-safe.
        let page = unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = on_fault as *const () as usize;
            action.sa_flags = libc::SA_SIGINFO;
            for signal in [libc::SIGFPE, libc::SIGSEGV] {
                let previous = std::ptr::null_mut();
                assert_eq!(libc::sigaction(signal, &raw const action, previous), 0);
            }
            libc::mmap(
                std::ptr::null_mut(),
                4096,
                libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        assert_ne!(page, libc::MAP_FAILED);
        let page = page.cast::<u8>();
        // SAFETY: head, slot and tail fit in the page.
        unsafe {
            std::ptr::copy_nonoverlapping(HEAD.as_ptr(), page, HEAD.len());
            std::ptr::write_bytes(page.add(HEAD.len()), 0x90, SLOT);
            std::ptr::copy_nonoverlapping(TAIL.as_ptr(), page.add(HEAD.len() + SLOT), TAIL.len());
        }
        Self { page }
    }

    /// Executes `code` in `context`; true if it raised SIGFPE or SIGSEGV.
    pub(crate) fn run(&self, code: &[u8], context: &mut Context) -> bool {
        assert!(code.len() <= SLOT);
        let mut slot = [0x90; SLOT];
        slot[..code.len()].copy_from_slice(code);
        let _guard = ONE_AT_A_TIME.lock().unwrap();
        FAULTED.store(false, Ordering::SeqCst);
        RESUME.store(
            self.page as u64 + (HEAD.len() + SLOT) as u64,
            Ordering::SeqCst,
        );
        // SAFETY: the page holds the stub; it saves what the ABI wants saved, touches only the
        // context, and a fault resumes at its tail.
        unsafe {
            std::ptr::copy_nonoverlapping(slot.as_ptr(), self.page.add(HEAD.len()), SLOT);
            let stub: extern "C" fn(*mut Context) =
                std::mem::transmute::<*mut u8, extern "C" fn(*mut Context)>(self.page);
            stub(std::ptr::from_mut(context));
        }
        FAULTED.load(Ordering::SeqCst)
    }
}

impl Drop for Native {
    fn drop(&mut self) {
        // SAFETY: the mapping made in `new`.
        unsafe { libc::munmap(self.page.cast(), 4096) };
    }
}
