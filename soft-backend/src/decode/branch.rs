//! The table of branches, far transfers and stack instructions.

use iced_x86::{Code as C, Mnemonic as M, OpKind, Register};

use super::operand::by_width;
use super::{Build, Choice, OpFn as Run};
use crate::ops::{control, far, stack};

/// Width in bytes of the stack operand.
fn pushed(b: &Build<'_>) -> u32 {
    b.ins.stack_pointer_increment().unsigned_abs()
}

/// Width in bytes of a direct branch's target.
fn near_width(b: &Build<'_>) -> usize {
    match b.ins.op0_kind() {
        OpKind::NearBranch16 => 2,
        OpKind::NearBranch32 => 4,
        _ => 8,
    }
}

/// The function for a control or stack instruction, if it is one.
pub(super) fn choose(b: &mut Build<'_>) -> Option<Choice> {
    if b.ins.is_jcc_short_or_near() {
        return Some(jcc(b));
    }
    Some(match b.ins.mnemonic() {
        M::Jmp | M::Call => jump_or_call(b),
        M::Ret => {
            if b.ins.op_count() == 1 {
                b.imm(0);
            }
            Choice::end(match b.ins.code() {
                C::Retnw | C::Retnw_imm16 => control::ret::<u16>,
                C::Retnd | C::Retnd_imm16 => control::ret::<u32>,
                _ => control::ret::<u64>,
            })
        }
        M::Retf => {
            if b.ins.op_count() == 1 {
                b.imm(0);
            }
            Choice::end(match b.ins.code() {
                C::Retfw | C::Retfw_imm16 => far::retf::<u16>,
                C::Retfd | C::Retfd_imm16 => far::retf::<u32>,
                _ => far::retf::<u64>,
            })
        }
        M::Iret => Choice::end(far::iret::<u16>),
        M::Iretd => Choice::end(far::iret::<u32>),
        M::Iretq => Choice::end(far::iret::<u64>),
        M::Syscall => Choice::end(far::syscall),
        M::Sysret => Choice::end(far::sysret::<u32>),
        M::Sysretq => Choice::end(far::sysret::<u64>),
        M::Sysenter => Choice::end(far::sysenter),
        M::Sysexit => Choice::end(far::sysexit::<u32>),
        M::Sysexitq => Choice::end(far::sysexit::<u64>),
        M::Loop => looping::<0>(b),
        M::Loope => looping::<1>(b),
        M::Loopne => looping::<2>(b),
        M::Jcxz | M::Jecxz | M::Jrcxz => jcxz(b),
        M::Int => {
            b.imm(0);
            Choice::end(control::int)
        }
        M::Int3 => {
            b.op.imm = 3;
            Choice::end(control::int)
        }
        M::Int1 => {
            b.op.imm = 1;
            Choice::end(control::int)
        }
        M::Into => {
            b.op.imm = 4;
            Choice::next(control::into)
        }
        M::Ud0 | M::Ud1 | M::Ud2 => Choice::end(control::ud),
        M::Bound => {
            b.dst(0);
            b.mem();
            let run: Run = if b.width(0) == 2 {
                control::bound::<u16>
            } else {
                control::bound::<u32>
            };
            Choice::next(run)
        }
        M::Push => push(b),
        M::Pop => pop(b),
        M::Pusha => Choice::next(stack::pusha::<u16>),
        M::Pushad => Choice::next(stack::pusha::<u32>),
        M::Popa => Choice::next(stack::popa::<u16>),
        M::Popad => Choice::next(stack::popa::<u32>),
        M::Pushf => Choice::next(stack::pushf::<u16>),
        M::Pushfd => Choice::next(stack::pushf::<u32>),
        M::Pushfq => Choice::next(stack::pushf::<u64>),
        M::Popf => Choice::end(stack::popf_ends::<u16>),
        M::Popfd => Choice::end(stack::popf_ends::<u32>),
        M::Popfq => Choice::end(stack::popf_ends::<u64>),
        M::Enter => {
            b.imm(0);
            b.op.aux = b.ins.immediate(1) as u8;
            Choice::next(match b.ins.code() {
                C::Enterw_imm16_imm8 => stack::enter::<u16>,
                C::Enterd_imm16_imm8 => stack::enter::<u32>,
                _ => stack::enter::<u64>,
            })
        }
        M::Leave => Choice::next(match b.ins.code() {
            C::Leavew => stack::leave::<u16>,
            C::Leaved => stack::leave::<u32>,
            _ => stack::leave::<u64>,
        }),
        _ => return None,
    })
}

fn jcc(b: &mut Build<'_>) -> Choice {
    b.op.disp = b.ins.near_branch_target() as i64;
    let w = near_width(b);
    macro_rules! pick {
        ($($n:literal)*) => {
            match b.ins.condition_code() as u8 - 1 {
                $($n => by_width!(w, |T| control::jcc::<T, $n>),)*
                _ => by_width!(w, |T| control::jcc::<T, 15>),
            }
        };
    }
    Choice::end(pick!(0 1 2 3 4 5 6 7 8 9 10 11 12 13 14))
}

fn jump_or_call(b: &mut Build<'_>) -> Choice {
    let call = b.ins.mnemonic() == M::Call;
    if b.ins.op0_kind() == OpKind::FarBranch16 || b.ins.op0_kind() == OpKind::FarBranch32 {
        let wide = b.ins.op0_kind() == OpKind::FarBranch32;
        b.op.disp = i64::from(if wide {
            b.ins.far_branch32()
        } else {
            b.ins.far_branch16().into()
        });
        b.op.imm = i32::from(b.ins.far_branch_selector());
        return Choice::end(match (call, wide) {
            (false, _) => far::jmp_direct,
            (true, false) => far::call_direct::<u16>,
            (true, true) => far::call_direct::<u32>,
        });
    }
    if b.ins.is_jmp_far_indirect() || b.ins.is_call_far_indirect() {
        b.mem();
        // The memory operand holds the offset and a 16-bit selector.
        return Choice::end(match (call, b.ins.memory_size().size()) {
            (false, 4) => far::jmp_m::<u16>,
            (false, 6) => far::jmp_m::<u32>,
            (false, _) => far::jmp_m::<u64>,
            (true, 4) => far::call_m::<u16>,
            (true, 6) => far::call_m::<u32>,
            (true, _) => far::call_m::<u64>,
        });
    }
    if b.is_reg(0) || b.is_mem(0) {
        let w = b.width(0);
        return Choice::end(match (call, b.mem_or_src(0)) {
            (false, false) => by_width!(w, |T| control::jmp_r::<T>),
            (false, true) => by_width!(w, |T| control::jmp_m::<T>),
            (true, false) => by_width!(w, |T| control::call_r::<T>),
            (true, true) => by_width!(w, |T| control::call_m::<T>),
        });
    }
    b.op.disp = b.ins.near_branch_target() as i64;
    let w = near_width(b);
    Choice::end(if call {
        by_width!(w, |T| control::call::<T>)
    } else {
        by_width!(w, |T| control::jmp::<T>)
    })
}

fn looping<const KIND: u8>(b: &mut Build<'_>) -> Choice {
    b.op.disp = b.ins.near_branch_target() as i64;
    let t = near_width(b);
    let counter = match b.ins.code() {
        C::Loop_rel8_16_CX | C::Loop_rel8_32_CX => 2,
        C::Loope_rel8_16_CX | C::Loope_rel8_32_CX => 2,
        C::Loopne_rel8_16_CX | C::Loopne_rel8_32_CX => 2,
        C::Loop_rel8_16_RCX | C::Loop_rel8_64_RCX => 8,
        C::Loope_rel8_16_RCX | C::Loope_rel8_64_RCX => 8,
        C::Loopne_rel8_16_RCX | C::Loopne_rel8_64_RCX => 8,
        _ => 4,
    };
    counted::<KIND>(counter, t)
}

fn counted<const KIND: u8>(counter: usize, t: usize) -> Choice {
    Choice::end(match counter {
        2 => by_width!(t, |T| control::looping::<u16, T, KIND>),
        4 => by_width!(t, |T| control::looping::<u32, T, KIND>),
        _ => by_width!(t, |T| control::looping::<u64, T, KIND>),
    })
}

fn jcxz(b: &mut Build<'_>) -> Choice {
    b.op.disp = b.ins.near_branch_target() as i64;
    let counter = match b.ins.mnemonic() {
        M::Jcxz => 2,
        M::Jecxz => 4,
        _ => 8,
    };
    counted::<3>(counter, near_width(b))
}

fn push(b: &mut Build<'_>) -> Choice {
    let w = pushed(b);
    if b.is_mem(0) {
        b.mem();
        return Choice::next(by_width!(w, |T| stack::push_m::<T>));
    }
    if b.is_reg(0) {
        b.src(0);
        if b.ins.op0_register().is_segment_register() {
            return Choice::next(by_width!(w, |T| stack::push_seg::<T>));
        }
        return Choice::next(by_width!(w, |T| stack::push_r::<T>));
    }
    b.imm(0);
    Choice::next(by_width!(w, |T| stack::push_i::<T>))
}

fn pop(b: &mut Build<'_>) -> Choice {
    let w = pushed(b);
    if b.is_mem(0) {
        b.mem();
        return Choice::next(by_width!(w, |T| stack::pop_m::<T>));
    }
    b.dst(0);
    if b.ins.op0_register().is_segment_register() && b.ins.op0_register() != Register::None {
        return Choice::end(by_width!(w, |T| crate::ops::mov::pop_seg::<T>));
    }
    Choice::next(by_width!(w, |T| stack::pop_r::<T>))
}
