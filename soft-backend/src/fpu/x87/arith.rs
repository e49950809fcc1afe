//! Addition, subtraction, multiplication, division, square root and NaN rules.

use super::convert::{from_f32, from_f64, from_integer};
use super::stack::{Answer, unpack};
use super::{DE, IE, ZE};
use crate::fpu::f80::{Class, F80};
use crate::fpu::round::Rounding;
use crate::fpu::{FpState, X87};

pub(super) const ADD: u8 = 0;
pub(super) const MUL: u8 = 1;
pub(super) const SUB: u8 = 4;
pub(super) const SUBR: u8 = 5;
pub(super) const DIV: u8 = 6;
pub(super) const DIVR: u8 = 7;

pub(super) const M32: u8 = 0;
pub(super) const M64: u8 = 1;
pub(super) const I16: u8 = 2;
pub(super) const I32: u8 = 3;

/// Result for NaN and unsupported operands; `None` if there are none.
pub(super) fn nan_answer(a: F80, b: F80) -> Option<Answer> {
    let (ca, cb) = (a.class(), b.class());
    if ca == Class::Unsupported || cb == Class::Unsupported {
        return Some(Answer::invalid());
    }
    let (na, nb) = (a.is_nan(), b.is_nan());
    if !na && !nb {
        return None;
    }
    let signalling = ca == Class::Signalling || cb == Class::Signalling;
    let flags = if signalling { IE } else { 0 };
    let value = if !nb {
        a
    } else if !na {
        b
    } else if ca != cb {
        if ca == Class::Quiet { a } else { b }
    } else if a.sig != b.sig {
        if a.sig > b.sig { a } else { b }
    } else if a.se < b.se {
        a
    } else {
        b
    };
    Some(Answer::exact(value.quieted(), flags))
}

/// Result for a NaN or unsupported operand of a one-operand instruction.
pub(super) fn nan_answer1(a: F80) -> Option<Answer> {
    match a.class() {
        Class::Unsupported => Some(Answer::invalid()),
        Class::Quiet => Some(Answer::exact(a, 0)),
        Class::Signalling => Some(Answer::exact(a.quieted(), IE)),
        _ => None,
    }
}

/// DE if one of the operands is denormal.
#[inline]
pub(super) fn denormal_flag(a: Class, b: Class) -> u16 {
    if a == Class::Denormal || b == Class::Denormal {
        DE
    } else {
        0
    }
}

fn add(x: &X87, a: F80, b: F80, flags: u16) -> Answer {
    let (ca, cb) = (a.class(), b.class());
    match (ca, cb) {
        (Class::Infinity, Class::Infinity) if a.negative() != b.negative() => Answer::invalid(),
        (Class::Infinity, _) => Answer::exact(a, flags),
        (_, Class::Infinity) => Answer::exact(b, flags),
        (Class::Zero, Class::Zero) => {
            let negative = if a.negative() == b.negative() {
                a.negative()
            } else {
                x.rounding() == Rounding::Down
            };
            Answer::exact(F80::zero(negative), flags)
        }
        (Class::Zero, _) => x.rounded(unpack(b), x.precision(), flags),
        (_, Class::Zero) => x.rounded(unpack(a), x.precision(), flags),
        _ => match unpack(a).plus(unpack(b)) {
            Some(n) => x.rounded(n, x.precision(), flags),
            None => Answer::exact(F80::zero(x.rounding() == Rounding::Down), flags),
        },
    }
}

fn mul(x: &X87, a: F80, b: F80, flags: u16) -> Answer {
    let negative = a.negative() != b.negative();
    match (a.class(), b.class()) {
        (Class::Infinity, Class::Zero) | (Class::Zero, Class::Infinity) => Answer::invalid(),
        (Class::Infinity, _) | (_, Class::Infinity) => {
            Answer::exact(F80::infinity(negative), flags)
        }
        (Class::Zero, _) | (_, Class::Zero) => Answer::exact(F80::zero(negative), flags),
        _ => x.rounded(unpack(a).times(unpack(b)), x.precision(), flags),
    }
}

fn div(x: &X87, a: F80, b: F80, flags: u16) -> Answer {
    let negative = a.negative() != b.negative();
    match (a.class(), b.class()) {
        (Class::Infinity, Class::Infinity) | (Class::Zero, Class::Zero) => Answer::invalid(),
        (Class::Infinity, _) => Answer::exact(F80::infinity(negative), flags),
        (_, Class::Infinity) | (Class::Zero, _) => Answer::exact(F80::zero(negative), flags),
        (_, Class::Zero) => Answer::exact(F80::infinity(negative), ZE),
        _ => x.rounded(unpack(a).over(unpack(b)), x.precision(), flags),
    }
}

/// `destination OP source`; `denormal` tells that the source was denormal in memory.
#[inline]
fn binary<const OP: u8>(x: &X87, dst: F80, src: F80, denormal: bool) -> Answer {
    if let Some(answer) = nan_answer(dst, src) {
        return answer;
    }
    let flags = denormal_flag(dst.class(), src.class()) | if denormal { DE } else { 0 };
    let negated = |v: F80| v.with_sign(!v.negative());
    match OP {
        ADD => add(x, dst, src, flags),
        SUB => add(x, dst, negated(src), flags),
        SUBR => add(x, src, negated(dst), flags),
        MUL => mul(x, dst, src, flags),
        DIV => div(x, dst, src, flags),
        _ => div(x, src, dst, flags),
    }
}

fn register<const OP: u8>(s: &mut FpState, dst: u8, src: u8) -> bool {
    let x = &mut s.x87;
    if x.is_empty(dst) || x.is_empty(src) {
        let masked = x.stack_fault(false);
        if masked {
            x.put(dst, F80::INDEFINITE);
        }
        return masked;
    }
    x.clear_c1();
    let answer = binary::<OP>(x, x.get(dst), x.get(src), false);
    let ok = x.deliver(&answer);
    if ok {
        x.put(dst, answer.value);
    }
    ok
}

/// `ST(0) OP= ST(i)`.
pub(super) fn st0_sti<const OP: u8>(s: &mut FpState, i: u8) {
    register::<OP>(s, 0, i);
}

/// `ST(i) OP= ST(0)`.
pub(super) fn sti_st0<const OP: u8>(s: &mut FpState, i: u8) {
    register::<OP>(s, i, 0);
}

/// `ST(i) OP= ST(0)`, pop.
pub(super) fn sti_st0_pop<const OP: u8>(s: &mut FpState, i: u8) {
    if register::<OP>(s, i, 0) {
        s.x87.pop();
    }
}

/// Memory operand as a register value; tells whether it was denormal in its own format.
#[inline]
pub(super) fn operand<const SOURCE: u8>(value: u128) -> (F80, bool) {
    match SOURCE {
        M32 => from_f32(value as u32),
        M64 => from_f64(value as u64),
        I16 => (from_integer(i64::from(value as u16 as i16)), false),
        _ => (from_integer(i64::from(value as u32 as i32)), false),
    }
}

/// `ST(0) OP= memory`.
pub(super) fn memory<const OP: u8, const SOURCE: u8>(s: &mut FpState, value: u128) {
    let (source, denormal) = operand::<SOURCE>(value);
    unary(s, |x, top| binary::<OP>(x, top, source, denormal));
}

/// Runs a one-operand instruction on ST(0).
#[inline]
pub(super) fn unary(s: &mut FpState, compute: impl FnOnce(&X87, F80) -> Answer) {
    let x = &mut s.x87;
    if x.is_empty(0) {
        if x.stack_fault(false) {
            x.put(0, F80::INDEFINITE);
        }
        return;
    }
    x.clear_c1();
    let answer = compute(x, x.get(0));
    if x.deliver(&answer) {
        x.put(0, answer.value);
    }
}

/// FSQRT.
pub(super) fn fsqrt(s: &mut FpState, _: u8) {
    unary(s, |x, a| {
        if let Some(answer) = nan_answer1(a) {
            return answer;
        }
        match a.class() {
            Class::Zero => Answer::exact(a, 0),
            _ if a.negative() => Answer::invalid(),
            Class::Infinity => Answer::exact(a, 0),
            class => x.rounded(unpack(a).root(), x.precision(), denormal_flag(class, class)),
        }
    });
}
