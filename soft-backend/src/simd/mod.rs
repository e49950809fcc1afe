//! MMX and SSE up to SSE4.2 as pure functions over [`FpState`].
//!
//! See [`crate::fpu`] for who does what. [`lookup`] describes one instruction form; the core fetches
//! the source value from where [`SimdHandler::src`] says, zero-extended to 128 bits, and calls the
//! function in [`SimdHandler::exec`].
//!
//! Register numbers come from the instruction's first operand (`dst`) and second operand (`src`);
//! a third operand is the immediate. Fixed operands (XMM0 of the variable blends) are read here.
//! Where a source is an MMX register, the value is [`FpState::mmx_read`]; where the destination of
//! [`Exec::Copy`] or [`Exec::Value`] is one, it is stored by [`FpState::mmx_write`].
//!
//! ```
//! use iced_x86::Code;
//! use soft_backend::fpu::FpState;
//! use soft_backend::simd::{self, Exec, Operand};
//!
//! // ADDSD XMM3, [memory]
//! let handler = simd::lookup(Code::Addsd_xmm_xmmm64, true).unwrap();
//! assert_eq!(handler.src, Operand::Mem { bytes: 8, aligned: false });
//! let Exec::Xmm(run) = handler.exec else { unreachable!() };
//!
//! let mut state = FpState::default();
//! state.xmm[3] = u128::from(1.5f64.to_bits());
//! run(&mut state, 3, u128::from(0.1f64.to_bits()), 0)?;
//! assert_eq!(state.xmm[3] as u64, (1.5f64 + 0.1).to_bits());
//! assert_eq!(state.mxcsr, 0x1fa0); // inexact
//! # Ok::<(), simd::SimdFault>(())
//! ```

use crate::fpu::FpState;

/// An unmasked SIMD floating-point exception. MXCSR says which; no destination was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("unmasked SIMD floating-point exception")]
pub struct SimdFault;

/// Where an operand lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operand {
    /// No such operand (or only an immediate).
    None,
    /// XMM register.
    Xmm,
    /// MMX register.
    Mmx,
    /// 32-bit general register; a write zero-extends to 64 bits.
    Gpr32,
    /// 64-bit general register.
    Gpr64,
    /// Memory.
    Mem {
        /// Bytes read or written: 1, 2, 4, 8 or 16.
        bytes: u8,
        /// A misaligned address is #GP(0).
        aligned: bool,
    },
}

/// Writes XMM register `dst` from `src` and the immediate.
pub type XmmFn = fn(&mut FpState, dst: usize, src: u128, imm: u8) -> Result<(), SimdFault>;
/// Writes MMX register `dst`.
pub type MmxFn = fn(&mut FpState, dst: usize, src: u128, imm: u8) -> Result<(), SimdFault>;
/// Computes what goes, truncated, into the general register, MMX register or memory destination.
pub type ValueFn = fn(&mut FpState, src: u128, imm: u8) -> Result<u128, SimdFault>;
/// Compares XMM register `dst` with `src`; gives the new OF, SF, ZF, AF, PF and CF.
pub type FlagsFn = fn(&mut FpState, dst: usize, src: u128) -> Result<u32, SimdFault>;
/// PCMPxSTRx: first operand, second operand, their lengths (RAX and RDX; ignored when implicit), immediate.
pub type StringFn = fn(a: u128, b: u128, len_a: i64, len_b: i64, imm: u8) -> StringResult;
/// MASKMOV: source register value, mask register value; gives the bytes and, per byte, whether to store it.
pub type MaskMoveFn = fn(value: u128, mask: u128) -> (u128, u16);

/// What PCMPxSTRx yields.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StringResult {
    /// For the `I` forms, the new ECX (zero-extended into RCX).
    pub index: u32,
    /// For the `M` forms, the new XMM0.
    pub mask: u128,
    /// CF, ZF, SF, OF as in RFLAGS; AF and PF are 0. All six are written.
    pub flags: u32,
}

/// How to execute.
#[derive(Debug, Clone, Copy)]
pub enum Exec {
    /// No function: destination = source, zero-extended to the destination's width (an XMM
    /// destination is written whole), truncated to it if narrower.
    Copy,
    /// XMM destination.
    Xmm(XmmFn),
    /// MMX destination.
    Mmx(MmxFn),
    /// General register, MMX or memory destination.
    Value(ValueFn),
    /// RFLAGS destination: the six arithmetic flags are replaced.
    Flags(FlagsFn),
    /// PCMPxSTRx.
    String {
        /// The function.
        run: StringFn,
        /// Lengths are RAX and RDX.
        explicit: bool,
        /// Lengths are all 64 bits of RAX and RDX; otherwise EAX and EDX, sign-extended.
        wide: bool,
        /// Result goes to ECX; otherwise to XMM0.
        index: bool,
    },
    /// MASKMOVQ (8 bytes) or MASKMOVDQU (16 bytes) to `[rDI]`, operands 1 and 2.
    MaskMove(MaskMoveFn),
    /// EMMS: call [`FpState::emms`].
    Emms,
}

/// One instruction form.
#[derive(Debug, Clone, Copy)]
pub struct SimdHandler {
    /// Destination (first operand).
    pub dst: Operand,
    /// Source (second operand). [`Operand::None`] for shifts by an immediate.
    pub src: Operand,
    /// Execution.
    pub exec: Exec,
    /// Touches MMX registers: #MF if [`FpState::x87_pending`].
    pub mmx: bool,
}

mod crc;
mod float;
mod host;
mod integer;
mod lane;
mod lanes;
mod scalar;
mod shuffle;
mod strings;
mod table;
mod table_float;
mod table_integer;
mod table_move;

pub use crc::crc32c;
pub use table::lookup;
