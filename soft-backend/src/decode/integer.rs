//! The table of integer instructions.

use iced_x86::{Mnemonic as M, Register};

use super::operand::by_width;
use super::{Build, Choice};
use crate::cpu::Mode;
use crate::ops::alu::{self, Adc, Add, And, Binary, Dec, Inc, Neg, Not, Or, Sbb, Sub, Unary, Xor};
use crate::ops::bit::{self, COMPLEMENT, RESET, SET, TEST};
use crate::ops::rotate::{Rcl, Rcr, Rol, Ror};
use crate::ops::shift::{self, Double, Sar, Shift, Shl, Shld, Shr, Shrd};
use crate::ops::{bcd, convert, mov, mul_div, xchg};

/// The function for an integer instruction, if it is one.
pub(super) fn choose(b: &mut Build<'_>) -> Option<Choice> {
    let run = match b.ins.mnemonic() {
        M::Mov => return moves(b),
        M::Add => binary::<Add>(b),
        M::Or => binary::<Or>(b),
        M::Adc => binary::<Adc>(b),
        M::Sbb => binary::<Sbb>(b),
        M::And => binary::<And>(b),
        M::Sub => binary::<Sub>(b),
        M::Xor => binary::<Xor>(b),
        M::Cmp => compare::<Sub>(b),
        M::Test => compare::<And>(b),
        M::Inc => unary::<Inc>(b),
        M::Dec => unary::<Dec>(b),
        M::Neg => unary::<Neg>(b),
        M::Not => unary::<Not>(b),
        M::Lea => {
            b.dst(0);
            b.mem();
            by_width!(b.width(0), |T| mov::lea::<T>)
        }
        M::Movzx => extend::<false>(b),
        M::Movsx | M::Movsxd => extend::<true>(b),
        M::Shl | M::Sal => shifts::<Shl>(b),
        M::Shr => shifts::<Shr>(b),
        M::Sar => shifts::<Sar>(b),
        M::Rol => shifts::<Rol>(b),
        M::Ror => shifts::<Ror>(b),
        M::Rcl => shifts::<Rcl>(b),
        M::Rcr => shifts::<Rcr>(b),
        M::Shld => double::<Shld>(b),
        M::Shrd => double::<Shrd>(b),
        M::Mul | M::Imul | M::Div | M::Idiv => multiply(b),
        M::Bt => bits::<TEST>(b),
        M::Bts => bits::<SET>(b),
        M::Btr => bits::<RESET>(b),
        M::Btc => bits::<COMPLEMENT>(b),
        // Without BMI1 and ABM the prefix of TZCNT and LZCNT is ignored.
        M::Bsf | M::Tzcnt => scan::<false>(b),
        M::Bsr | M::Lzcnt => scan::<true>(b),
        M::Popcnt => {
            b.dst(0);
            let w = b.width(0);
            if b.mem_or_src(1) {
                by_width!(w, |T| bit::popcnt::<T, true>)
            } else {
                by_width!(w, |T| bit::popcnt::<T, false>)
            }
        }
        M::Crc32 => {
            b.dst(0);
            let w = b.width(1);
            if b.mem_or_src(1) {
                by_width!(w, |T| bit::crc32::<T, true>)
            } else {
                by_width!(w, |T| bit::crc32::<T, false>)
            }
        }
        M::Bswap => {
            b.dst(0);
            match b.width(0) {
                2 => mov::bswap16,
                4 => mov::bswap32,
                _ => mov::bswap64,
            }
        }
        M::Xchg => exchange(b),
        M::Xadd => {
            b.src(1);
            let w = b.width(1);
            match (b.mem_or_dst(0), b.ins.has_lock_prefix()) {
                (false, _) => by_width!(w, |T| xchg::xadd_r::<T>),
                (true, false) => by_width!(w, |T| xchg::xadd_m::<T, false>),
                (true, true) => by_width!(w, |T| xchg::xadd_m::<T, true>),
            }
        }
        M::Cmpxchg => {
            b.src(1);
            let w = b.width(1);
            match (b.mem_or_dst(0), b.ins.has_lock_prefix()) {
                (false, _) => by_width!(w, |T| xchg::cmpxchg_r::<T>),
                (true, false) => by_width!(w, |T| xchg::cmpxchg_m::<T, false>),
                (true, true) => by_width!(w, |T| xchg::cmpxchg_m::<T, true>),
            }
        }
        M::Cmpxchg8b => {
            b.mem();
            xchg::cmpxchg8b
        }
        M::Cmpxchg16b => {
            b.mem();
            xchg::cmpxchg16b
        }
        M::Cbw => convert::extend::<u16, u8>,
        M::Cwde => convert::extend::<u32, u16>,
        M::Cdqe => convert::extend::<u64, u32>,
        M::Cwd => convert::spread::<u16>,
        M::Cdq => convert::spread::<u32>,
        M::Cqo => convert::spread::<u64>,
        M::Clc => convert::clc,
        M::Stc => convert::stc,
        M::Cmc => convert::cmc,
        M::Cld => convert::cld,
        M::Std => convert::std,
        M::Lahf => mov::lahf,
        M::Sahf => mov::sahf,
        M::Daa => bcd::daa::<false>,
        M::Das => bcd::daa::<true>,
        M::Aaa => bcd::aaa::<false>,
        M::Aas => bcd::aaa::<true>,
        M::Aam | M::Aad => {
            b.imm(0);
            if b.ins.mnemonic() == M::Aam {
                bcd::aam
            } else {
                bcd::aad
            }
        }
        M::Salc => bcd::salc,
        M::Xlatb => {
            // iced gives AL as the index; the function adds it.
            b.mem();
            b.op.index = crate::cpu::state::ZERO;
            mov::xlat
        }
        _ => return conditional(b),
    };
    Some(Choice::next(run))
}

type Run = super::OpFn;

fn binary<B: Binary>(b: &mut Build<'_>) -> Run {
    let w = b.width(0);
    let lock = b.ins.has_lock_prefix();
    match (b.mem_or_dst(0), b.is_reg(1), b.is_mem(1)) {
        (true, true, _) => {
            b.src(1);
            if lock {
                by_width!(w, |T| alu::lock_mr::<T, B>)
            } else {
                by_width!(w, |T| alu::mr::<T, B>)
            }
        }
        (true, false, _) => {
            b.imm(1);
            if lock {
                by_width!(w, |T| alu::lock_mi::<T, B>)
            } else {
                by_width!(w, |T| alu::mi::<T, B>)
            }
        }
        (false, true, _) => {
            b.src(1);
            by_width!(w, |T| alu::rr::<T, B>)
        }
        (false, false, true) => {
            b.mem();
            by_width!(w, |T| alu::rm::<T, B>)
        }
        (false, false, false) => {
            b.imm(1);
            by_width!(w, |T| alu::ri::<T, B>)
        }
    }
}

fn compare<B: Binary>(b: &mut Build<'_>) -> Run {
    let w = b.width(0);
    match (b.mem_or_dst(0), b.is_reg(1), b.is_mem(1)) {
        (true, true, _) => {
            b.src(1);
            by_width!(w, |T| alu::cmp_mr::<T, B>)
        }
        (true, false, _) => {
            b.imm(1);
            by_width!(w, |T| alu::cmp_mi::<T, B>)
        }
        (false, true, _) => {
            b.src(1);
            by_width!(w, |T| alu::cmp_rr::<T, B>)
        }
        (false, false, true) => {
            b.mem();
            by_width!(w, |T| alu::cmp_rm::<T, B>)
        }
        (false, false, false) => {
            b.imm(1);
            by_width!(w, |T| alu::cmp_ri::<T, B>)
        }
    }
}

fn unary<U: Unary>(b: &mut Build<'_>) -> Run {
    let w = b.width(0);
    match (b.mem_or_dst(0), b.ins.has_lock_prefix()) {
        (false, _) => by_width!(w, |T| alu::r::<T, U>),
        (true, false) => by_width!(w, |T| alu::m::<T, U>),
        (true, true) => by_width!(w, |T| alu::lock_m::<T, U>),
    }
}

fn shifts<S: Shift>(b: &mut Build<'_>) -> Run {
    let w = b.width(0);
    let cl = b.is_reg(1);
    if !cl {
        b.imm(1);
    }
    match (b.mem_or_dst(0), cl) {
        (false, false) => by_width!(w, |T| shift::r_imm::<T, S>),
        (false, true) => by_width!(w, |T| shift::r_cl::<T, S>),
        (true, false) => by_width!(w, |T| shift::m_imm::<T, S>),
        (true, true) => by_width!(w, |T| shift::m_cl::<T, S>),
    }
}

fn double<D: Double>(b: &mut Build<'_>) -> Run {
    let w = b.width(1);
    b.src(1);
    let cl = b.is_reg(2);
    if !cl {
        b.imm(2);
    }
    match (b.mem_or_dst(0), cl) {
        (false, false) => by_width!(w, |T| shift::double_r::<T, D, false>),
        (false, true) => by_width!(w, |T| shift::double_r::<T, D, true>),
        (true, false) => by_width!(w, |T| shift::double_m::<T, D, false>),
        (true, true) => by_width!(w, |T| shift::double_m::<T, D, true>),
    }
}

fn multiply(b: &mut Build<'_>) -> Run {
    let m = b.ins.mnemonic();
    if b.ins.op_count() == 1 {
        let w = b.width(0);
        return match (m, b.mem_or_src(0)) {
            (M::Mul, false) => by_width!(w, |T| mul_div::mul::<T, false>),
            (M::Mul, true) => by_width!(w, |T| mul_div::mul::<T, true>),
            (M::Imul, false) => by_width!(w, |T| mul_div::imul::<T, false>),
            (M::Imul, true) => by_width!(w, |T| mul_div::imul::<T, true>),
            (M::Div, false) => by_width!(w, |T| mul_div::div::<T, false>),
            (M::Div, true) => by_width!(w, |T| mul_div::div::<T, true>),
            (_, false) => by_width!(w, |T| mul_div::idiv::<T, false>),
            (_, true) => by_width!(w, |T| mul_div::idiv::<T, true>),
        };
    }
    let w = b.width(0);
    b.dst(0);
    let mem = b.mem_or_src(1);
    if b.ins.op_count() == 2 {
        return if mem {
            by_width!(w, |T| mul_div::imul2::<T, true>)
        } else {
            by_width!(w, |T| mul_div::imul2::<T, false>)
        };
    }
    b.imm(2);
    if mem {
        by_width!(w, |T| mul_div::imul3::<T, true>)
    } else {
        by_width!(w, |T| mul_div::imul3::<T, false>)
    }
}

fn bits<const W: u8>(b: &mut Build<'_>) -> Run {
    let w = b.width(0);
    let lock = b.ins.has_lock_prefix();
    let reg = b.is_reg(1);
    if reg {
        b.src(1);
    } else {
        b.imm(1);
    }
    match (b.mem_or_dst(0), reg, lock) {
        (false, true, _) => by_width!(w, |T| bit::bt_r::<T, W, false>),
        (false, false, _) => by_width!(w, |T| bit::bt_r::<T, W, true>),
        (true, true, false) => by_width!(w, |T| bit::bt_m::<T, W, false, false>),
        (true, true, true) => by_width!(w, |T| bit::bt_m::<T, W, false, true>),
        (true, false, false) => by_width!(w, |T| bit::bt_m::<T, W, true, false>),
        (true, false, true) => by_width!(w, |T| bit::bt_m::<T, W, true, true>),
    }
}

fn scan<const BACK: bool>(b: &mut Build<'_>) -> Run {
    b.dst(0);
    let w = b.width(0);
    if b.mem_or_src(1) {
        by_width!(w, |T| bit::scan::<T, BACK, true>)
    } else {
        by_width!(w, |T| bit::scan::<T, BACK, false>)
    }
}

fn exchange(b: &mut Build<'_>) -> Run {
    // Either operand may be the memory one.
    let (mem, reg) = if b.is_mem(1) { (1, 0) } else { (0, 1) };
    b.src(reg);
    let w = b.width(reg);
    if b.mem_or_dst(mem) {
        by_width!(w, |T| xchg::xchg_m::<T>)
    } else {
        by_width!(w, |T| xchg::xchg_rr::<T>)
    }
}

fn extend<const SIGNED: bool>(b: &mut Build<'_>) -> Run {
    b.dst(0);
    let (d, s) = (b.width(0), b.width(1));
    let mem = b.mem_or_src(1);
    macro_rules! from {
        ($src:ty) => {
            match (SIGNED, mem) {
                (false, false) => by_width!(d, |T| mov::zx_rr::<T, $src>),
                (false, true) => by_width!(d, |T| mov::zx_rm::<T, $src>),
                (true, false) => by_width!(d, |T| mov::sx_rr::<T, $src>),
                (true, true) => by_width!(d, |T| mov::sx_rm::<T, $src>),
            }
        };
    }
    match s {
        1 => from!(u8),
        2 => from!(u16),
        _ => from!(u32),
    }
}

fn moves(b: &mut Build<'_>) -> Option<Choice> {
    let special = |r: Register| r.is_segment_register() || r.is_cr() || r.is_dr() || r.is_tr();
    let (r0, r1) = (b.ins.op0_register(), b.ins.op1_register());
    if r0.is_segment_register() {
        b.dst(0);
        let run: Run = if b.mem_or_src(1) {
            mov::to_seg_m
        } else {
            mov::to_seg_r
        };
        return Some(Choice::end(run));
    }
    if r1.is_segment_register() {
        b.src(1);
        let run = if b.is_mem(0) {
            b.mem();
            mov::from_seg_m as Run
        } else {
            b.dst(0);
            by_width!(b.width(0), |T| mov::from_seg_r::<T>)
        };
        return Some(Choice::next(run));
    }
    if special(r0) || special(r1) {
        return None;
    }
    let w = b.width(0);
    let run = match (b.mem_or_dst(0), b.is_reg(1), b.is_mem(1)) {
        (true, true, _) => {
            b.src(1);
            by_width!(w, |T| mov::mr::<T>)
        }
        (true, false, _) => {
            b.imm(1);
            by_width!(w, |T| mov::mi::<T>)
        }
        (false, true, _) => {
            b.src(1);
            by_width!(w, |T| mov::rr::<T>)
        }
        (false, false, true) => {
            b.mem();
            by_width!(w, |T| mov::rm::<T>)
        }
        (false, false, false) => {
            b.op.disp = b.ins.immediate(1) as i64;
            by_width!(w, |T| mov::ri::<T>)
        }
    };
    Some(Choice::next(run))
}

/// CMOVcc and SETcc.
fn conditional(b: &mut Build<'_>) -> Option<Choice> {
    let cc = b.ins.condition_code() as u8;
    if cc == 0 || b.ins.is_jcc_short_or_near() || b.ins.is_loopcc() {
        return None;
    }
    b.op.aux = cc - 1;
    if b.ins.op_count() == 1 {
        let run: Run = if b.mem_or_dst(0) {
            mov::set_m
        } else {
            mov::set_r
        };
        return Some(Choice::next(run));
    }
    if !b.ins.op0_register().is_gpr() {
        // FCMOVcc.
        return None;
    }
    b.dst(0);
    let w = b.width(0);
    let run = if b.mem_or_src(1) {
        by_width!(w, |T| mov::cmov_rm::<T>)
    } else {
        by_width!(w, |T| mov::cmov_rr::<T>)
    };
    debug_assert!(b.mode == Mode::Bits64 || w != 8);
    Some(Choice::next(run))
}
