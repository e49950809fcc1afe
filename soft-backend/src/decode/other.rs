//! x87, MMX and SSE: found by their own lookups; and the state-moving instructions.

use iced_x86::{Mnemonic as M, OpKind, Register};

use super::operand::by_width;
use super::{Build, Choice, OpFn as Run};
use crate::cpu::Mode;
use crate::fpu::x87::st_index;
use crate::ops::{float, simd};

/// The function for a floating-point or vector instruction, if it is one.
pub(super) fn choose(b: &mut Build<'_>) -> Option<Choice> {
    let run: Run = match b.ins.mnemonic() {
        M::Wait => float::wait,
        M::Fxsave => memory(b, simd::fxsave::<false>),
        M::Fxsave64 => memory(b, simd::fxsave::<true>),
        M::Fxrstor => memory(b, simd::fxrstor::<false>),
        M::Fxrstor64 => memory(b, simd::fxrstor::<true>),
        M::Ldmxcsr => memory(b, simd::ldmxcsr),
        M::Stmxcsr => memory(b, simd::stmxcsr),
        M::Movnti => {
            b.src(1);
            b.mem();
            by_width!(b.width(1), |T| simd::movnti::<T>)
        }
        _ => return x87(b).or_else(|| vector(b)),
    };
    Some(Choice::next(run))
}

fn memory(b: &mut Build<'_>, run: Run) -> Run {
    b.mem();
    run
}

fn has_memory(b: &Build<'_>) -> bool {
    (0..b.ins.op_count()).any(|n| b.is_mem(n))
}

fn x87(b: &mut Build<'_>) -> Option<Choice> {
    b.op.tag = float::number(b.ins.code())?;
    if has_memory(b) {
        b.mem();
    }
    b.op.dst = st_index(b.ins);
    b.op.imm = fop(b.bytes).into();
    Some(Choice::next(float::run))
}

/// What FOP says of an x87 instruction: three bits of its opcode, then ModRM. No prefix looks like one of its
/// opcodes.
fn fop(bytes: &[u8]) -> u16 {
    let mut from_opcode = bytes.iter().skip_while(|b| !(0xd8..=0xdf).contains(*b));
    let mut next = || u16::from(from_opcode.next().copied().unwrap_or(0));
    (next() & 7) << 8 | next()
}

fn vector(b: &mut Build<'_>) -> Option<Choice> {
    let memory = has_memory(b);
    b.op.tag = simd::number(b.ins.code(), memory)?;
    if memory {
        b.mem();
    }
    if matches!(b.ins.mnemonic(), M::Maskmovq | M::Maskmovdqu) {
        mask_move(b);
        return Some(Choice::next(simd::run));
    }
    for n in 0..b.ins.op_count() {
        match b.ins.op_kind(n) {
            OpKind::Register if n == 0 => b.dst(0),
            OpKind::Register if n == 1 => b.src(1),
            OpKind::Immediate8 => b.imm(n),
            _ => {}
        }
    }
    Some(Choice::next(
        simd::plain_move(b.op.tag).unwrap_or(simd::run),
    ))
}

/// `[rDI]` is the implied first operand.
fn mask_move(b: &mut Build<'_>) {
    let bytes = match b.ins.op0_kind() {
        OpKind::MemorySegDI => 2,
        OpKind::MemorySegEDI => 4,
        _ => 8,
    };
    let seg = b.ins.memory_segment();
    b.kind(seg, bytes);
    b.op.base = 7;
    debug_assert!(b.mode != Mode::Bits64 || seg != Register::None);
    b.dst(1);
    b.src(2);
}
