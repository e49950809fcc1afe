//! The pre-decoded form of an instruction: a function and its operands in 32 bytes.

use crate::cpu::{Cpu, Step};

/// What runs one operation.
pub(crate) type OpFn = fn(&mut Cpu, &Op) -> Step;

/// Memory operand needs nothing but base + index + displacement (64-bit mode, no FS or GS).
pub(crate) const MEM_FLAT: u8 = 0;
/// Mask of the segment register's number.
pub(crate) const MEM_SEG: u8 = 7;
/// Segment base, rights and limit apply.
pub(crate) const MEM_LIMIT: u8 = 1 << 3;
/// Mask of the address size: 0 is 64 bits.
pub(crate) const MEM_SIZE: u8 = 3 << 4;
/// 32-bit addresses.
pub(crate) const MEM_32: u8 = 1 << 4;
/// 16-bit addresses.
pub(crate) const MEM_16: u8 = 2 << 4;
/// Set with FS and GS in 64-bit mode, so that `mem` is not [`MEM_FLAT`].
pub(crate) const MEM_BASED: u8 = 1 << 6;

/// One operation. Register numbers index [`Cpu::regs`].
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Op {
    pub(crate) run: OpFn,
    /// Displacement of the memory operand; branch target relative to the block's start; or a
    /// 64-bit immediate.
    pub(crate) disp: i64,
    pub(crate) imm: i32,
    pub(crate) dst: u8,
    pub(crate) src: u8,
    pub(crate) base: u8,
    pub(crate) index: u8,
    /// Shift of the index register.
    pub(crate) scale: u8,
    /// Kind of memory operand.
    pub(crate) mem: u8,
    /// Length of the instruction in bytes.
    pub(crate) len: u8,
    /// Anything small that the function wants.
    pub(crate) aux: u8,
    /// Offset of the instruction from the block's start.
    pub(crate) off: u16,
    /// Anything that the function wants, such as an index into a handler table.
    pub(crate) tag: u16,
}

const _: () = assert!(size_of::<Op>() == 32);

impl Cpu {
    /// The address of the instruction.
    #[inline(always)]
    pub(crate) fn ip(&self, op: &Op) -> u64 {
        self.regs[16].wrapping_add(u64::from(op.off)) & self.ip_mask()
    }

    /// The address of the instruction after it.
    #[inline(always)]
    pub(crate) fn next_ip(&self, op: &Op) -> u64 {
        self.regs[16]
            .wrapping_add(u64::from(op.off))
            .wrapping_add(u64::from(op.len))
            & self.ip_mask()
    }
}
