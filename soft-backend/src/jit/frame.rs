//! What translated code and the run loop share of a vCPU, and where things lie relative to it.

use std::mem::offset_of;

use crate::cpu::Cpu;
use crate::cpu::flags::{AF, ARITH, OF};
use crate::cpu::state::{cr0, cr4};
#[cfg(doc)]
use crate::decode::op::Op;
use crate::segments::Segment;

/// Lies in the [`Cpu`]; a register of translated code holds its address.
#[derive(Default)]
#[repr(C)]
pub(crate) struct Frame {
    /// The arithmetic flags while translated code runs: in the high byte what LAHF gives; in the low byte 1 for
    /// OF, or [`NO_AF`] for neither OF nor AF, whatever the high byte says.
    pub(super) flags: u64,
    /// Instructions that may be begun still.
    pub(super) budget: u64,
    /// Linear address of the page whose code runs.
    pub(super) page: u64,
    /// Of the code that was looked up.
    pub(super) next_page: u64,
    pub(super) next_entry: u64,
    pub(super) temp: u64,
    /// First entry of the TLB's table for data, and of that for code.
    pub(super) data_table: u64,
    pub(super) code_table: u64,
    /// The table of translated code by host address.
    pub(super) jumps: u64,
    /// SSE instructions may run.
    pub(super) sse: u64,
    /// Floating-point instructions may run: under an MXCSR that masks all exceptions, rounds to nearest and keeps
    /// denormals.
    pub(super) float: u64,
    /// The MXCSR that they run under, with what they raised.
    pub(super) mxcsr: u32,
    /// Address of the byte that is not zero when a device has written to code.
    pub(super) stale: u64,
    /// The count of instructions at which the budget is used up.
    pub(super) end: u64,
    /// What an exit is about: a [`Slow`]'s address, a block, an offset in the page.
    pub(super) about: u64,
}

/// An MXCSR under which programs of the host run.
const MXCSR_PLAIN: u32 = 0x1f80;
/// Its sticky flags.
const MXCSR_FLAGS: u32 = 0x3f;

/// In [`Frame::flags`]: AF and OF are zero.
pub(super) const NO_AF: u64 = 0x80;

/// How an instruction is left to the interpreter.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct Slow {
    /// Address of the block's [`Op`]: it lives as long as the translation.
    pub(super) op: usize,
    pub(super) block: u32,
    /// The operation's number in its block.
    pub(super) index: u16,
    /// Offset of the block in its page.
    pub(super) offset: u16,
    /// Instructions of the block.
    pub(super) count: u16,
    /// The instruction reads or writes arithmetic flags.
    pub(super) flags: bool,
}

const BASE: i32 = offset_of!(Cpu, jit) as i32;

/// Distances from the frame.
pub(super) mod place {
    use super::*;

    pub(crate) const FLAGS: i32 = offset_of!(Frame, flags) as i32;
    pub(crate) const BUDGET: i32 = offset_of!(Frame, budget) as i32;
    pub(crate) const PAGE: i32 = offset_of!(Frame, page) as i32;
    pub(crate) const NEXT_PAGE: i32 = offset_of!(Frame, next_page) as i32;
    pub(crate) const NEXT_ENTRY: i32 = offset_of!(Frame, next_entry) as i32;
    pub(crate) const TEMP: i32 = offset_of!(Frame, temp) as i32;
    pub(crate) const DATA_TABLE: i32 = offset_of!(Frame, data_table) as i32;
    pub(crate) const CODE_TABLE: i32 = offset_of!(Frame, code_table) as i32;
    pub(crate) const JUMPS: i32 = offset_of!(Frame, jumps) as i32;
    pub(crate) const SSE: i32 = offset_of!(Frame, sse) as i32;
    pub(crate) const FLOAT: i32 = offset_of!(Frame, float) as i32;
    pub(crate) const MXCSR: i32 = offset_of!(Frame, mxcsr) as i32;
    pub(crate) const STALE: i32 = offset_of!(Frame, stale) as i32;
    pub(crate) const ABOUT: i32 = offset_of!(Frame, about) as i32;
    /// From the frame to the vCPU.
    pub(crate) const CPU: i32 = -BASE;

    /// A guest's general register.
    pub(crate) fn gpr(n: u8) -> i32 {
        offset_of!(Cpu, regs) as i32 + 8 * i32::from(n & 15) - BASE
    }

    /// A guest's XMM register.
    pub(crate) fn xmm(n: u8) -> i32 {
        offset_of!(Cpu, fp.xmm) as i32 + 16 * i32::from(n & 15) - BASE
    }

    /// The base of a segment.
    pub(crate) fn segment_base(n: usize) -> i32 {
        let segment = n * size_of::<Segment>() + offset_of!(Segment, base);
        (offset_of!(Cpu, seg) + segment) as i32 - BASE
    }
}

impl Cpu {
    /// The page whose code ran last, as a linear address.
    pub(crate) fn translated_page(&self) -> u64 {
        self.jit.page
    }

    /// The interpreter's flags from those of translated code.
    #[inline(always)]
    pub(super) fn flags_from_frame(&mut self) {
        let word = self.jit.flags;
        let mut bits = word >> 8 & (ARITH & 0xff);
        if word & NO_AF != 0 {
            bits &= !AF;
        } else if word & 1 != 0 {
            bits |= OF;
        }
        self.lazy.set_bits(bits);
    }

    /// The other way.
    #[inline(always)]
    pub(super) fn flags_to_frame(&mut self) {
        let bits = self.lazy.to_bits();
        self.jit.flags = (bits & 0xff) << 8 | u64::from(bits & OF != 0);
    }

    /// What floating-point instructions of translated code raised.
    #[inline(always)]
    pub(super) fn mxcsr_from_frame(&mut self) {
        if self.jit.float != 0 {
            self.fp.mxcsr = self.jit.mxcsr;
        }
    }

    /// What may have changed outside translated code.
    #[inline(always)]
    pub(super) fn refresh_frame(&mut self) {
        let (data, code) = self.tlb.tables(self.table);
        (self.jit.data_table, self.jit.code_table) = (data as u64, code as u64);
        let sse = self.cr0 & (cr0::EM | cr0::TS) == 0 && self.cr4 & cr4::OSFXSR != 0;
        self.jit.sse = sse.into();
        let plain = self.fp.mxcsr & !MXCSR_FLAGS == MXCSR_PLAIN;
        self.jit.float = plain.into();
        self.jit.mxcsr = if plain { self.fp.mxcsr } else { MXCSR_PLAIN };
        self.jit.stale = self.ram.ram.stale_code_flag().as_ptr() as u64;
    }
}
