//! Pairs of instructions that run as one operation: a comparison and the conditional jump after it.

use super::op::{Op, OpFn};
use crate::cpu::{Cpu, Step};
use crate::int::Int;
use crate::ops::alu::{self, And, Sub};
use crate::ops::control;

/// A comparison, then the jump. Operands of the first are in `dst`, `src` and `imm`, of the second
/// in `disp`, `off` and `len`. Neither touches memory.
fn pair<T: Int, const KIND: u8, const CC: u8>(cpu: &mut Cpu, op: &Op) -> Step {
    match KIND {
        0 => alu::cmp_rr::<T, Sub>(cpu, op)?,
        1 => alu::cmp_ri::<T, Sub>(cpu, op)?,
        2 => alu::cmp_rr::<T, And>(cpu, op)?,
        _ => alu::cmp_ri::<T, And>(cpu, op)?,
    };
    control::jcc::<u64, CC>(cpu, op)
}

/// The condition of a 64-bit Jcc, found by its function.
fn condition(run: OpFn) -> Option<u8> {
    macro_rules! find {
        ($($n:literal)*) => {
            [$((control::jcc::<u64, $n> as OpFn, $n)),*]
        };
    }
    let all = find!(0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15);
    all.into_iter()
        .find(|(f, _)| std::ptr::fn_addr_eq(*f, run))
        .map(|(_, n)| n)
}

/// The fused function for a comparison and a condition.
fn fused(run: OpFn, cc: u8) -> Option<OpFn> {
    macro_rules! with_condition {
        ($t:ty, $k:literal, $($n:literal)*) => {
            match cc {
                $($n => pair::<$t, $k, $n> as OpFn,)*
                _ => pair::<$t, $k, 15> as OpFn,
            }
        };
    }
    macro_rules! try_kind {
        ($t:ty, $k:literal, $f:expr) => {
            if std::ptr::fn_addr_eq($f as OpFn, run) {
                return Some(with_condition!($t, $k, 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14));
            }
        };
    }
    macro_rules! try_width {
        ($t:ty) => {
            try_kind!($t, 0, alu::cmp_rr::<$t, Sub>);
            try_kind!($t, 1, alu::cmp_ri::<$t, Sub>);
            try_kind!($t, 2, alu::cmp_rr::<$t, And>);
            try_kind!($t, 3, alu::cmp_ri::<$t, And>);
        };
    }
    try_width!(u8);
    try_width!(u32);
    try_width!(u64);
    None
}

/// Fuses the last two operations of a block if they are such a pair: the fused one takes the place
/// of the first, and the second is never reached. True if it did.
pub(crate) fn fuse(ops: &mut [Op]) -> bool {
    let [.., first, second] = ops else {
        return false;
    };
    let Some(run) = condition(second.run).and_then(|cc| fused(first.run, cc)) else {
        return false;
    };
    *first = Op {
        run,
        disp: second.disp,
        off: second.off,
        len: second.len,
        ..*first
    };
    true
}
