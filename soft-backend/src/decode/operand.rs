//! Registers and memory operands in the form that operations use.

use iced_x86::{OpKind, Register};

use super::Build;
use super::op::{MEM_16, MEM_32, MEM_BASED, MEM_FLAT, MEM_LIMIT};
use crate::cpu::Mode;
use crate::cpu::state::{BLOCK_IP, HIGH, ZERO};
use crate::segments::{CS, DS, ES, FS, GS, SS};

/// The number of a general register in [`crate::cpu::Cpu::regs`], with the mark of AH to BH.
pub(crate) fn gpr(r: Register) -> u8 {
    let full = r.full_register() as u32 - Register::RAX as u32;
    let high = matches!(r, Register::AH | Register::CH | Register::DH | Register::BH);
    full as u8 | if high { HIGH } else { 0 }
}

/// The number of a segment register.
pub(crate) fn segment(r: Register) -> usize {
    match r {
        Register::ES => ES,
        Register::CS => CS,
        Register::SS => SS,
        Register::FS => FS,
        Register::GS => GS,
        _ => DS,
    }
}

/// Any register's number within its class.
fn number(r: Register) -> u8 {
    if r.is_gpr() {
        gpr(r)
    } else if r.is_segment_register() {
        segment(r) as u8
    } else {
        r.number() as u8
    }
}

impl Build<'_> {
    pub(crate) fn is_reg(&self, n: u32) -> bool {
        self.ins.op_kind(n) == OpKind::Register
    }

    pub(crate) fn is_mem(&self, n: u32) -> bool {
        self.ins.op_kind(n) == OpKind::Memory
    }

    /// Operand `n` is a register: its number goes to `dst`.
    pub(crate) fn dst(&mut self, n: u32) {
        self.op.dst = number(self.ins.op_register(n));
    }

    /// Operand `n` is a register: its number goes to `src`.
    pub(crate) fn src(&mut self, n: u32) {
        self.op.src = number(self.ins.op_register(n));
    }

    /// Operand `n` is an immediate of at most 32 bits (sign-extended).
    pub(crate) fn imm(&mut self, n: u32) {
        self.op.imm = self.ins.immediate(n) as i32;
    }

    /// Width in bytes of operand `n`, register or memory.
    pub(crate) fn width(&self, n: u32) -> usize {
        if self.is_reg(n) {
            self.ins.op_register(n).size()
        } else {
            self.ins.memory_size().size()
        }
    }

    /// The memory operand.
    pub(crate) fn mem(&mut self) {
        let ins = self.ins;
        let (base, index) = (ins.memory_base(), ins.memory_index());
        let wide = if base != Register::None {
            base.size()
        } else if index != Register::None {
            index.size()
        } else {
            ins.memory_displ_size() as usize
        };
        self.op.base = match base {
            Register::None => ZERO,
            Register::RIP | Register::EIP => BLOCK_IP,
            r => gpr(r),
        };
        self.op.index = if index == Register::None {
            ZERO
        } else {
            gpr(index)
        };
        self.op.scale = ins.memory_index_scale().trailing_zeros() as u8;
        self.op.disp = ins.memory_displacement64() as i64;
        self.kind(ins.memory_segment(), wide);
    }

    /// Sets the kind of memory operand for a segment and an address size in bytes.
    pub(crate) fn kind(&mut self, seg: Register, address_bytes: usize) {
        let seg = segment(seg);
        let size = match address_bytes {
            2 => MEM_16,
            4 => MEM_32,
            _ => 0,
        };
        self.op.mem = if self.mode == Mode::Bits64 {
            let based = if seg >= FS { seg as u8 | MEM_BASED } else { 0 };
            // Without a base, a segment number below FS says nothing in 64-bit mode.
            based | size | MEM_FLAT
        } else {
            seg as u8 | size | MEM_LIMIT
        };
    }

    /// Memory operand `n` if it is one; else register `n` to `src`. True for memory.
    pub(crate) fn mem_or_src(&mut self, n: u32) -> bool {
        if self.is_mem(n) {
            self.mem();
            true
        } else {
            self.src(n);
            false
        }
    }

    /// Memory operand `n` if it is one; else register `n` to `dst`. True for memory.
    pub(crate) fn mem_or_dst(&mut self, n: u32) -> bool {
        if self.is_mem(n) {
            self.mem();
            true
        } else {
            self.dst(n);
            false
        }
    }
}

/// Instantiates a function for a width in bytes: `by_width!(w, |T| path::<T, More>)`.
macro_rules! by_width {
    ($w:expr, |$t:ident| $f:expr) => {
        match $w {
            1 => {
                type $t = u8;
                $f as $crate::decode::op::OpFn
            }
            2 => {
                type $t = u16;
                $f as $crate::decode::op::OpFn
            }
            4 => {
                type $t = u32;
                $f as $crate::decode::op::OpFn
            }
            _ => {
                type $t = u64;
                $f as $crate::decode::op::OpFn
            }
        }
    };
}
pub(crate) use by_width;
