//! From bytes to pre-decoded operations.
//!
//! `iced-x86` finds length, mnemonic and operands; the tables here choose the function. What no
//! table knows (AVX, instructions of later levels) becomes #UD, as on a processor without it.

mod branch;
mod fusion;
mod integer;
pub(crate) mod op;
mod operand;
mod other;
mod strings;
mod system;

use iced_x86::{Decoder, DecoderError, DecoderOptions, Instruction};

use crate::cpu::Mode;
pub(crate) use fusion::fuse;
use op::{Op, OpFn};

/// The longest instruction.
pub(crate) const MAX_LEN: usize = 15;

/// A decoded instruction.
pub(crate) struct Decoded {
    pub(crate) op: Op,
    /// Nothing may follow it in its block.
    pub(crate) ends: bool,
    pub(crate) what: What,
}

/// What matters to the maker of a block. It is not told by the operation's function: a small one may have several
/// addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum What {
    /// Nothing in particular.
    Plain,
    /// It does nothing.
    Nothing,
    /// STI.
    Sti,
    /// The guest's processor does not know it: #UD.
    Unknown,
}

/// Why bytes gave no instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DecodeError {
    /// More bytes are needed.
    Short,
    /// It would be longer than 15 bytes: #GP.
    TooLong,
}

/// Choice of a table: the function, and whether it ends the block.
#[derive(Clone, Copy)]
pub(crate) struct Choice {
    run: OpFn,
    ends: bool,
    what: What,
}

impl Choice {
    /// Goes on to the next operation.
    pub(crate) fn next(run: OpFn) -> Self {
        Choice {
            run,
            ends: false,
            what: What::Plain,
        }
    }
    /// Ends the block.
    pub(crate) fn end(run: OpFn) -> Self {
        Choice {
            run,
            ends: true,
            what: What::Plain,
        }
    }
    /// Does nothing.
    pub(crate) fn nothing() -> Self {
        Choice {
            what: What::Nothing,
            ..Choice::next(crate::ops::convert::nop)
        }
    }
    /// STI.
    pub(crate) fn sti() -> Self {
        Choice {
            what: What::Sti,
            ..Choice::end(crate::ops::system::sti_ends)
        }
    }
    /// What no table knows.
    fn unknown() -> Self {
        Choice {
            what: What::Unknown,
            ..Choice::end(crate::ops::control::ud)
        }
    }
}

/// What a table works on: the instruction and the operation in the making.
pub(crate) struct Build<'a> {
    pub(crate) ins: &'a Instruction,
    /// The instruction's bytes, and perhaps more.
    pub(crate) bytes: &'a [u8],
    pub(crate) mode: Mode,
    pub(crate) op: Op,
}

/// Decodes the instruction at the start of `bytes`, which lies `off` bytes into its block.
pub(crate) fn decode(bytes: &[u8], mode: Mode, off: u16) -> Result<Decoded, DecodeError> {
    let bits = match mode {
        Mode::Bits16 => 16,
        Mode::Bits32 => 32,
        Mode::Bits64 => 64,
    };
    let bytes = &bytes[..bytes.len().min(MAX_LEN)];
    let mut d = Decoder::with_ip(bits, bytes, u64::from(off), DecoderOptions::NONE);
    let mut ins = Instruction::default();
    d.decode_out(&mut ins);
    let op = Op {
        run: crate::ops::control::ud,
        disp: 0,
        imm: 0,
        dst: 0,
        src: 0,
        base: crate::cpu::state::ZERO,
        index: crate::cpu::state::ZERO,
        scale: 0,
        mem: op::MEM_FLAT,
        len: ins.len() as u8,
        aux: 0,
        off,
        tag: 0,
    };
    if ins.is_invalid() {
        if d.last_error() == DecoderError::NoMoreBytes {
            let full = bytes.len() == MAX_LEN;
            return Err(if full {
                DecodeError::TooLong
            } else {
                DecodeError::Short
            });
        }
        return Ok(Decoded {
            op,
            ends: true,
            what: What::Unknown,
        });
    }
    let mut b = Build {
        ins: &ins,
        bytes,
        mode,
        op,
    };
    let choice = integer::choose(&mut b)
        .or_else(|| branch::choose(&mut b))
        .or_else(|| strings::choose(&mut b))
        .or_else(|| system::choose(&mut b))
        .or_else(|| other::choose(&mut b))
        .unwrap_or(Choice::unknown());
    b.op.run = choice.run;
    Ok(Decoded {
        op: b.op,
        ends: choice.ends,
        what: choice.what,
    })
}

/// The operation that ends a block without a branch: goes on `off` bytes after the block's start.
pub(crate) fn fall_through(off: u16) -> Op {
    Op {
        run: crate::ops::control::fall_through,
        disp: 0,
        imm: 0,
        dst: 0,
        src: 0,
        base: 0,
        index: 0,
        scale: 0,
        mem: 0,
        len: 0,
        aux: 0,
        off,
        tag: 0,
    }
}
