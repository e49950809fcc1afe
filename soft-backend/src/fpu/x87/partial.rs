//! FPREM, FPREM1, FSCALE, FXTRACT, FRNDINT, FABS, FCHS.

use super::arith::{denormal_flag, nan_answer, nan_answer1, unary};
use super::convert::{from_integer, integer};
use super::stack::{Answer, unpack};
use super::{C0, C1, C2, C3, PE, ZE};
use crate::fpu::f80::{Class, F80};
use crate::fpu::num::Num;
use crate::fpu::round::Rounding;
use crate::fpu::round::to_integer;
use crate::fpu::{FpState, X87};

/// FABS.
pub(super) fn fabs(s: &mut FpState, _: u8) {
    unary(s, |_, v| Answer::exact(v.with_sign(false), 0));
}

/// FCHS.
pub(super) fn fchs(s: &mut FpState, _: u8) {
    unary(s, |_, v| Answer::exact(v.with_sign(!v.negative()), 0));
}

/// FRNDINT.
pub(super) fn frndint(s: &mut FpState, _: u8) {
    unary(s, |x, v| {
        if let Some(answer) = nan_answer1(v) {
            return answer;
        }
        let class = v.class();
        if matches!(class, Class::Infinity | Class::Zero) {
            return Answer::exact(v, 0);
        }
        let flags = denormal_flag(class, class);
        match to_integer(unpack(v), x.rounding()) {
            Some((magnitude, inexact, up)) => Answer {
                value: unsigned(magnitude).with_sign(v.negative()),
                flags: flags | if inexact { PE } else { 0 },
                up,
            },
            None => Answer::exact(v, flags),
        }
    });
}

fn unsigned(magnitude: u64) -> F80 {
    if magnitude == 0 {
        return F80::ZERO;
    }
    let n = Num::new(false, 0, u128::from(magnitude));
    F80 {
        sig: (n.significand >> 64) as u64,
        se: (n.exponent + 16383) as u16,
    }
}

fn scaled(x: &X87, a: F80, b: F80) -> Answer {
    if let Some(answer) = nan_answer(a, b) {
        return answer;
    }
    let (ca, cb) = (a.class(), b.class());
    let flags = denormal_flag(ca, cb);
    match (ca, cb) {
        (Class::Zero, Class::Infinity) if !b.negative() => Answer::invalid(),
        (Class::Infinity, Class::Infinity) if b.negative() => Answer::invalid(),
        (_, Class::Infinity) if b.negative() => Answer::exact(F80::zero(a.negative()), flags),
        (_, Class::Infinity) => Answer::exact(F80::infinity(a.negative()), flags),
        (Class::Zero | Class::Infinity, _) => Answer::exact(a, flags),
        (_, Class::Zero) => x.rounded(unpack(a), 64, flags),
        _ => {
            // Beyond +-2^16 any number overflows or underflows, even when wrapped.
            let limit = 1 << 16;
            let whole = integer(b, 32, Rounding::Zero);
            let by = if whole.flags & super::IE != 0 {
                if b.negative() { -limit } else { limit }
            } else {
                (whole.bits as i64).clamp(-limit, limit)
            };
            let mut n = unpack(a);
            n.exponent += by as i32;
            x.rounded(n, 64, flags)
        }
    }
}

/// FSCALE.
pub(super) fn fscale(s: &mut FpState, _: u8) {
    let x = &mut s.x87;
    if x.is_empty(0) || x.is_empty(1) {
        if x.stack_fault(false) {
            x.put(0, F80::INDEFINITE);
        }
        return;
    }
    x.clear_c1();
    let answer = scaled(x, x.get(0), x.get(1));
    if x.deliver(&answer) {
        x.put(0, answer.value);
    }
}

/// FXTRACT.
pub(super) fn fxtract(s: &mut FpState, _: u8) {
    let x = &mut s.x87;
    if !x.has_one_and_room() {
        return;
    }
    x.clear_c1();
    let v = x.get(0);
    let (exponent, significand, flags) = match v.class() {
        Class::Zero => (F80::infinity(true), v, ZE),
        Class::Infinity => (F80::infinity(false), v, 0),
        class @ (Class::Normal | Class::Denormal) => {
            let n = unpack(v);
            let significand = F80 {
                sig: (n.significand >> 64) as u64,
                se: 0x3fff,
            };
            (
                from_integer(i64::from(n.exponent)),
                significand.with_sign(v.negative()),
                denormal_flag(class, class),
            )
        }
        _ => {
            let answer = nan_answer1(v).unwrap_or_else(Answer::invalid);
            (answer.value, answer.value, answer.flags)
        }
    };
    if x.raise(flags) {
        x.put(0, exponent);
        x.push(significand);
    }
}

/// Remainder of one step: the new value (`None`: zero), low quotient bits, whether the reduction is
/// incomplete.
struct Step {
    rest: Option<Num>,
    quotient: u64,
    partial: bool,
}

/// Long division of `a` by `b` over `steps + 1` quotient bits: gives rest (in units of b's last place,
/// scaled back up by `scale`) and quotient.
fn divide(a: u64, b: u64, steps: u32) -> (u64, u64) {
    let (mut rest, mut quotient) = (u128::from(a), 0u64);
    let b = u128::from(b);
    for step in 0..=steps {
        if step > 0 {
            rest <<= 1;
        }
        quotient <<= 1;
        if rest >= b {
            rest -= b;
            quotient |= 1;
        }
    }
    (rest as u64, quotient)
}

fn remainder_step(a: Num, b: Num, nearest: bool) -> Step {
    let distance = a.exponent - b.exponent;
    let (sa, sb) = ((a.significand >> 64) as u64, (b.significand >> 64) as u64);
    if distance < -1 || (distance < 0 && !nearest) {
        return Step {
            rest: Some(a),
            quotient: 0,
            partial: false,
        };
    }
    if distance >= 64 {
        // Between 32 and 63 quotient bits are resolved, so that the rest of the distance is a
        // multiple of 32.
        let bits = (distance as u32 & 31) | 32;
        let (rest, _) = divide(sa, sb, bits);
        let unit = b.exponent - 63 + distance - bits as i32;
        return Step {
            rest: (rest != 0).then(|| Num::new(a.negative, unit, u128::from(rest))),
            quotient: 0,
            partial: true,
        };
    }
    let (rest, quotient) = if distance < 0 {
        (u128::from(sa), 0)
    } else {
        let (rest, quotient) = divide(sa, sb, distance as u32);
        (u128::from(rest) << 1, quotient)
    };
    // From here on in half units of the divisor's last place.
    let unit = b.exponent - 64;
    let divisor = u128::from(sb) << 1;
    let round_up = nearest && (rest * 2 > divisor || (rest * 2 == divisor && quotient & 1 == 1));
    let (magnitude, negative, quotient) = if round_up {
        (divisor - rest, !a.negative, quotient.wrapping_add(1))
    } else {
        (rest, a.negative, quotient)
    };
    Step {
        rest: (magnitude != 0).then(|| Num::new(negative, unit, magnitude)),
        quotient,
        partial: false,
    }
}

fn quotient_codes(step: &Step) -> u16 {
    let bit = |n: u32, code: u16| if step.quotient >> n & 1 != 0 { code } else { 0 };
    if step.partial {
        C2
    } else {
        bit(2, C0) | bit(1, C3) | bit(0, C1)
    }
}

/// FPREM (truncating) and FPREM1 (to nearest).
pub(super) fn fprem<const NEAREST: bool>(s: &mut FpState, _: u8) {
    let x = &mut s.x87;
    if x.is_empty(0) || x.is_empty(1) {
        x.set_condition(C2, 0);
        if x.stack_fault(false) {
            x.put(0, F80::INDEFINITE);
        }
        return;
    }
    let (a, b) = (x.get(0), x.get(1));
    x.set_condition(C1 | C2, 0);
    let (ca, cb) = (a.class(), b.class());
    let flags = denormal_flag(ca, cb);
    let keep = x.fsw & (C0 | C3);
    let (answer, codes) = if let Some(answer) = nan_answer(a, b) {
        (answer, keep)
    } else if ca == Class::Infinity || cb == Class::Zero {
        (Answer::invalid(), keep)
    } else if ca == Class::Zero {
        (Answer::exact(a, flags), 0)
    } else if cb == Class::Infinity {
        // The dividend itself, but normalised, and tiny if it is.
        (x.rounded(unpack(a), 64, flags), 0)
    } else {
        let step = remainder_step(unpack(a), unpack(b), NEAREST);
        let answer = match step.rest {
            Some(n) => x.rounded(n, 64, flags),
            None => Answer::exact(F80::zero(a.negative()), flags),
        };
        (answer, quotient_codes(&step))
    };
    if x.deliver(&answer) {
        x.put(0, answer.value);
        x.set_condition(C0 | C1 | C2 | C3, codes);
    }
}
