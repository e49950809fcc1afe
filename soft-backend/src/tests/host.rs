//! Runs one instruction on the host's CPU with given registers and memory.
#![allow(unsafe_code)] // executes generated code, in tests only

use std::sync::Mutex;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};

/// Memory that both CPUs have at the same address.
pub(super) const SCRATCH: u64 = 0x0200_0000;
/// Its size in bytes.
pub(super) const SCRATCH_BYTES: usize = 8192;
/// Where the code and the register block are.
const BLOCK: u64 = 0x0300_0000;
const CODE: u64 = BLOCK + 4096;

/// Registers in the order of encodings, then RFLAGS.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub(super) struct Regs {
    pub(super) gpr: [u64; 16],
    pub(super) flags: u64,
    saved_rsp: u64,
}

/// One at a time: the addresses are fixed and signal handlers are the process's.
static LOCK: Mutex<()> = Mutex::new(());
static SIGNAL: AtomicI32 = AtomicI32::new(0);
static RECOVERY: AtomicU64 = AtomicU64::new(0);

extern "C" fn on_signal(number: i32, _: *mut libc::siginfo_t, context: *mut libc::c_void) {
    SIGNAL.store(number, Ordering::SeqCst);
    // SAFETY: the kernel passes a ucontext to a SA_SIGINFO handler.
    unsafe {
        let context = &mut *context.cast::<libc::ucontext_t>();
        let regs = &mut context.uc_mcontext.gregs;
        regs[libc::REG_RIP as usize] = RECOVERY.load(Ordering::SeqCst) as i64;
        // TF, AC and DF may be set in the interrupted code.
        regs[libc::REG_EFL as usize] = 0x202;
    }
}

/// The harness: code, scratch memory and handlers.
pub(super) struct Host {
    _guard: std::sync::MutexGuard<'static, ()>,
}

fn map(at: u64, bytes: usize, prot: i32) {
    // SAFETY: a fixed mapping at an address that nothing uses (NOREPLACE).
    let got = unsafe {
        libc::mmap(
            at as *mut _,
            bytes,
            prot,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE,
            -1,
            0,
        )
    };
    assert!(
        got as u64 == at || std::io::Error::last_os_error().raw_os_error() == Some(libc::EEXIST),
        "the harness's memory cannot be mapped"
    );
}

impl Host {
    pub(super) fn new() -> Self {
        let guard = LOCK
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        map(SCRATCH, SCRATCH_BYTES, libc::PROT_READ | libc::PROT_WRITE);
        map(
            BLOCK,
            8192,
            libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC,
        );
        let stack = Box::leak(vec![0u8; 65536].into_boxed_slice());
        // SAFETY: plain calls with valid arguments; the alternate stack lives for ever.
        unsafe {
            let ss = libc::stack_t {
                ss_sp: stack.as_mut_ptr().cast(),
                ss_flags: 0,
                ss_size: 65536,
            };
            assert_eq!(libc::sigaltstack(&ss, std::ptr::null_mut()), 0);
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = on_signal as *const () as usize;
            action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_NODEFER;
            for s in [
                libc::SIGFPE,
                libc::SIGILL,
                libc::SIGSEGV,
                libc::SIGTRAP,
                libc::SIGBUS,
            ] {
                assert_eq!(libc::sigaction(s, &action, std::ptr::null_mut()), 0);
            }
        }
        Host { _guard: guard }
    }

    /// The scratch memory's contents.
    pub(super) fn scratch(&self) -> &'static mut [u8] {
        // SAFETY: mapped for ever, and the guard makes us its only user.
        unsafe { std::slice::from_raw_parts_mut(SCRATCH as *mut u8, SCRATCH_BYTES) }
    }

    /// Runs the instruction; `Err` is the signal it got.
    pub(super) fn run(&self, instruction: &[u8], regs: &Regs) -> Result<Regs, i32> {
        let (entry, recovery) = Self::emit(instruction);
        RECOVERY.store(recovery, Ordering::SeqCst);
        SIGNAL.store(0, Ordering::SeqCst);
        // SAFETY: the code saves and restores what the ABI asks for; faults end in its recovery.
        unsafe {
            (BLOCK as *mut Regs).write(*regs);
            let f: extern "C" fn() = std::mem::transmute(entry as *const ());
            f();
            match SIGNAL.load(Ordering::SeqCst) {
                0 => Ok((BLOCK as *const Regs).read()),
                s => Err(s),
            }
        }
    }

    /// Emits entry, instruction, exit and recovery; gives the entry's and the recovery's address.
    fn emit(instruction: &[u8]) -> (u64, u64) {
        let slot = |i: usize| (BLOCK as u32 + 8 * i as u32).to_le_bytes();
        let mut c: Vec<u8> = Vec::new();
        // push rbx, rbp, r12..r15; mov [saved], rsp
        c.extend([0x53, 0x55, 0x41, 0x54, 0x41, 0x55, 0x41, 0x56, 0x41, 0x57]);
        let absolute = |c: &mut Vec<u8>, rex_r: bool, opcode: u8, reg: u8, i: usize| {
            c.extend([
                0x48 | u8::from(rex_r) << 2,
                opcode,
                (reg & 7) << 3 | 4,
                0x25,
            ]);
            c.extend(slot(i));
        };
        absolute(&mut c, false, 0x89, 4, 17);
        // push [flags]; popfq
        c.extend([0xff, 0x34, 0x25]);
        c.extend(slot(16));
        c.push(0x9d);
        for r in (0..16u8).filter(|r| *r != 4).chain([4]) {
            absolute(&mut c, r > 7, 0x8b, r, r.into());
        }
        c.extend(instruction);
        for r in 0..16u8 {
            absolute(&mut c, r > 7, 0x89, r, r.into());
        }
        absolute(&mut c, false, 0x8b, 4, 17);
        // pushfq; pop [flags]
        c.extend([0x9c, 0x8f, 0x04, 0x25]);
        c.extend(slot(16));
        let recovery = CODE + c.len() as u64;
        absolute(&mut c, false, 0x8b, 4, 17);
        c.push(0xfc);
        c.extend([
            0x41, 0x5f, 0x41, 0x5e, 0x41, 0x5d, 0x41, 0x5c, 0x5d, 0x5b, 0xc3,
        ]);
        // SAFETY: the code page is ours and writable.
        unsafe { std::ptr::copy(c.as_ptr(), CODE as *mut u8, c.len()) };
        (CODE, recovery)
    }
}
