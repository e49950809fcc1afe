//! The x87 instructions D8 to DF.
//!
//! [`lookup`] gives the operand shape and the function of one instruction; see [`crate::fpu`] for
//! the calling rules. `i` is the register index from [`st_index`].

mod arith;
mod compare;
mod constants;
mod control;
mod convert;
mod env;
mod partial;
mod series;
mod stack;
mod table;
mod transcendental;
mod transfer;

use super::FpState;
use iced_x86::{Instruction, OpKind, Register};

pub use env::{ENV16_BYTES, ENV32_BYTES, EnvFormat};
pub use table::lookup;

/// Invalid operation.
pub const IE: u16 = 1;
/// Denormal operand.
pub const DE: u16 = 1 << 1;
/// Division by zero.
pub const ZE: u16 = 1 << 2;
/// Overflow.
pub const OE: u16 = 1 << 3;
/// Underflow.
pub const UE: u16 = 1 << 4;
/// Inexact result.
pub const PE: u16 = 1 << 5;
/// Stack fault (with IE; C1 tells overflow from underflow).
pub const SF: u16 = 1 << 6;
/// Exception summary: an unmasked exception is pending.
pub const ES: u16 = 1 << 7;
/// Condition code 0.
pub const C0: u16 = 1 << 8;
/// Condition code 1.
pub const C1: u16 = 1 << 9;
/// Condition code 2.
pub const C2: u16 = 1 << 10;
/// Condition code 3.
pub const C3: u16 = 1 << 14;
/// Busy, a copy of ES.
pub const BUSY: u16 = 1 << 15;

/// Works on registers only.
pub type RegFn = fn(&mut FpState, i: u8);
/// Takes the memory operand's bytes.
pub type LoadFn = fn(&mut FpState, value: u128);
/// Yields the bytes to store; `None`: an unmasked exception suppressed the store.
pub type StoreFn = fn(&mut FpState) -> Option<u128>;
/// Yields the new OF, SF, ZF, AF, PF, CF.
pub type FlagsFn = fn(&mut FpState, i: u8) -> u32;
/// Moves if the condition holds in the given RFLAGS.
pub type CondMoveFn = fn(&mut FpState, i: u8, rflags: u64);

/// How to execute.
#[derive(Debug, Clone, Copy)]
pub enum Exec {
    /// Registers only.
    Reg(RegFn),
    /// Reads memory.
    Load {
        /// Bytes read: 2, 4, 8 or 10.
        bytes: u8,
        /// The function.
        run: LoadFn,
    },
    /// Writes memory.
    Store {
        /// Bytes written: 2, 4, 8 or 10.
        bytes: u8,
        /// The function.
        run: StoreFn,
    },
    /// FCOMI family.
    Flags(FlagsFn),
    /// FCMOVcc.
    CondMove(CondMoveFn),
    /// FNSTSW AX: AX = [`FpState::status_word`].
    StatusToAx,
    /// FNSTENV: write [`FpState::store_env`], then call [`FpState::mask_all`].
    StoreEnv {
        /// Operand-size attribute is 16 bits (14 bytes), else 28 bytes.
        small: bool,
    },
    /// FLDENV: read, then [`FpState::load_env`].
    LoadEnv {
        /// 14 bytes, else 28.
        small: bool,
    },
    /// FNSAVE: write [`FpState::save`] (94 or 108 bytes), then call [`FpState::fninit`].
    Save {
        /// 94 bytes, else 108.
        small: bool,
    },
    /// FRSTOR: read, then [`FpState::restore`].
    Restore {
        /// 94 bytes, else 108.
        small: bool,
    },
}

/// One instruction form.
#[derive(Debug, Clone, Copy)]
pub struct X87Handler {
    /// Execution.
    pub exec: Exec,
    /// Delivers a pending exception (#MF) first.
    pub waiting: bool,
    /// Does not update the last-instruction pointers.
    pub control: bool,
}

/// The `i` of `ST(i)` of an instruction, 0 if it names none.
#[must_use]
pub fn st_index(instruction: &Instruction) -> u8 {
    (0..instruction.op_count())
        .filter(|&n| instruction.op_kind(n) == OpKind::Register)
        .map(|n| instruction.op_register(n))
        .filter(|register| register.is_st())
        .map(|register| (register as u32 - Register::ST0 as u32) as u8)
        .max()
        .unwrap_or(0)
}
