//! Floating-point state and the x87 half of the software CPU.
//!
//! Everything here, and in [`crate::simd`], is a pure transformer of [`FpState`]: no memory, no
//! address arithmetic, no control registers. The instruction core does the rest.
//!
//! # What the core does
//!
//! 1. At decode time it looks the instruction up: [`x87::lookup`] for the x87 opcodes and
//!    [`crate::simd::lookup`] for MMX and SSE up to SSE4.2. The answer says where each operand
//!    lives, how many bytes of memory are touched, whether they must be aligned, and holds a plain
//!    function pointer, so that a threaded interpreter resolves everything once.
//! 2. Before each execution it checks CR0 and CR4 (#UD, #NM), then, if the handler says `waiting`
//!    (x87) or `mmx` (SIMD), [`FpState::x87_pending`]: true means #MF instead of executing.
//! 3. It loads memory operands (zero-extended into the parameter), calls the function, stores the
//!    result. A function that produces a value for memory and also changes state (`FSTP` pops) is
//!    called only once the write is known to succeed: translate for writing first, or keep a clone
//!    of [`FpState::x87`] and put it back if the write faults.
//! 4. For an x87 instruction that is not `control` it records the last-instruction pointers with
//!    [`FpState::set_last_instruction`] after the call.
//! 5. `Err(`[`crate::simd::SimdFault`]`)` is #XM (or #UD if CR4.OSXMMEXCPT is clear). No destination has been
//!    written; the MXCSR flags have.
//!
//! x87 functions never fail: an unmasked exception becomes pending (FSW.ES) and is delivered by the
//! next waiting instruction through step 2.
//!
//! # Who owns which instruction
//!
//! The core: fences, `PREFETCHh`, `CRC32`, `MOVNTI`, `FXSAVE`/`FXRSTOR`
//! ([`FpState::fxsave`], [`FpState::fxrstor`]), `LDMXCSR`/`STMXCSR` ([`FpState::set_mxcsr`]),
//! since they only move memory or general registers. Everything else that CPUID calls FPU, MMX, SSE,
//! SSE2, SSE3, SSSE3, SSE4.1 or SSE4.2 is found by a lookup here; a test walks all of them.
//! `MASKMOVQ`/`MASKMOVDQU` are found by the lookup as a byte mask and the bytes to store.
//!
//! # Model
//!
//! The x87 is the 80-bit one of the Intel SDM volume 1 chapter 8; SSE follows chapters 10 to 12.
//! Results are equal on every host: they are computed in integers, or by the host's IEEE arithmetic
//! where it provably gives the same bits and no new flag ([`crate::simd`]). Where the manuals leave a
//! choice, it is that of AMD processors; RCPPS and RSQRTPS give correctly rounded values instead of
//! a maker's approximation.
//!
//! # What is not here
//!
//! YMM registers, AES, PCLMULQDQ, SHA and the XSAVE area beyond its FXSAVE part.

pub mod f80;
pub mod image;
pub mod num;
pub mod round;
pub mod wide;
pub mod x87;

use f80::F80;

/// MXCSR bits that may be set: flags, DAZ, masks, rounding, FTZ. Also the `MXCSR_MASK` of FXSAVE.
pub const MXCSR_MASK: u32 = 0xffff;
/// MXCSR after reset: all exceptions masked, round to nearest.
pub const MXCSR_DEFAULT: u32 = 0x1f80;

/// The x87 register file and its control words.
///
/// MMX registers are the significands of the physical registers `regs` (not relative to `top`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct X87 {
    /// Physical registers R0..R7.
    pub regs: [F80; 8],
    /// Index of the physical register that is ST(0), 0..=7.
    pub top: u8,
    /// Bit i set: physical register i is in use (the abridged tag word of FXSAVE).
    pub in_use: u8,
    /// Control word, as FLDCW stores it.
    pub fcw: u16,
    /// Status word with the TOP field zero.
    pub fsw: u16,
    /// Last opcode, 11 bits.
    pub fop: u16,
    /// Last instruction pointer.
    pub fip: u64,
    /// Last data pointer.
    pub fdp: u64,
    /// Last instruction segment selector.
    pub fcs: u16,
    /// Last data segment selector.
    pub fds: u16,
}

impl Default for X87 {
    /// The state after FNINIT with zeroed registers.
    fn default() -> Self {
        Self {
            regs: [F80::ZERO; 8],
            top: 0,
            in_use: 0,
            fcw: 0x037f,
            fsw: 0,
            fop: 0,
            fip: 0,
            fdp: 0,
            fcs: 0,
            fds: 0,
        }
    }
}

/// All of x87, MMX and SSE.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FpState {
    /// XMM0..XMM15.
    pub xmm: [u128; 16],
    /// SSE control and status; change it with [`FpState::set_mxcsr`].
    pub mxcsr: u32,
    /// The x87 part, whose significands are the MMX registers.
    pub x87: X87,
}

impl Default for FpState {
    /// State after reset of the processor, as an operating system sees it after FNINIT.
    fn default() -> Self {
        Self {
            xmm: [0; 16],
            mxcsr: MXCSR_DEFAULT,
            x87: X87::default(),
        }
    }
}

/// A value with reserved bits set was to be loaded into MXCSR: #GP(0).
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("MXCSR value {0:#x} has reserved bits set")]
pub struct ReservedMxcsr(pub u32);

impl FpState {
    /// Loads MXCSR (LDMXCSR).
    ///
    /// # Errors
    /// A reserved bit is set; nothing is changed.
    pub fn set_mxcsr(&mut self, value: u32) -> Result<(), ReservedMxcsr> {
        if value & !MXCSR_MASK != 0 {
            return Err(ReservedMxcsr(value));
        }
        self.mxcsr = value;
        Ok(())
    }

    /// Whether an unmasked x87 exception is pending: waiting x87 and MMX instructions raise #MF.
    #[inline]
    #[must_use]
    pub fn x87_pending(&self) -> bool {
        self.x87.fsw & x87::ES != 0
    }

    /// Records the pointers of a non-control x87 instruction that was executed, and its opcode if it has left
    /// an unmasked exception: current processors keep that of no other (Intel SDM volume 1, 8.1.9.1).
    ///
    /// `fop` is the low three bits of the first opcode byte followed by the ModRM byte; `data` is
    /// `None` without a memory operand.
    #[inline]
    pub fn set_last_instruction(&mut self, fop: u16, rip: u64, data: Option<u64>) {
        if self.x87_pending() {
            self.x87.fop = fop & 0x7ff;
        }
        self.x87.fip = rip;
        if let Some(address) = data {
            self.x87.fdp = address;
        }
    }

    /// Value of MMX register `index` for an MMX instruction: switches the x87 to MMX use (TOP is 0,
    /// all registers are in use).
    #[inline]
    pub fn mmx_read(&mut self, index: usize) -> u64 {
        self.enter_mmx();
        self.x87.regs[index & 7].sig
    }

    /// Writes MMX register `index`: exponent becomes all ones, the x87 switches to MMX use.
    #[inline]
    pub fn mmx_write(&mut self, index: usize, value: u64) {
        self.enter_mmx();
        self.x87.regs[index & 7] = F80 {
            sig: value,
            se: 0xffff,
        };
    }

    /// What every MMX instruction but EMMS does: TOP is 0 and all registers are in use.
    #[inline]
    pub fn enter_mmx(&mut self) {
        self.x87.top = 0;
        self.x87.in_use = 0xff;
    }

    /// EMMS: marks all registers as empty. TOP becomes 0, as after any MMX instruction.
    #[inline]
    pub fn emms(&mut self) {
        self.x87.in_use = 0;
        self.x87.top = 0;
    }
}
