//! F2XM1, FYL2X, FYL2XP1, FPATAN, FSIN, FCOS, FSINCOS, FPTAN.
//!
//! Results are rounded as the control word says, to 64 bits whatever the precision control, and are
//! always marked inexact, as processors do, unless a zero or an infinity decides them.

use super::arith::{denormal_flag, nan_answer, nan_answer1, unary};
use super::constants::{HALF_PI, PI, QUARTER_PI, THREE_QUARTERS_PI};
use super::series::{
    Reduced, atan_small, cos_small, exp2_minus_1, log2, log2_plus_1, reduce, sin_small,
};
use super::stack::{Answer, unpack};
use super::{C1, C2, IE, PE, UE, ZE};
use crate::fpu::f80::{Class, F80};
use crate::fpu::num::Num;
use crate::fpu::{FpState, X87};
use core::cmp::Ordering;

/// Exponent from which the trigonometric instructions refuse an operand.
const LIMIT_EXPONENT: i32 = 63;

fn is_finite(class: Class) -> bool {
    matches!(class, Class::Zero | Class::Normal | Class::Denormal)
}

fn signed(n: Num, negative: bool) -> Num {
    Num { negative, ..n }
}

/// Rounds a result that counts as inexact even if it happens not to be.
fn inexact(x: &X87, n: Num, flags: u16) -> Answer {
    let answer = x.rounded(n, 64, flags | PE);
    let tiny = if answer.value.exponent() == 0 { UE } else { 0 };
    Answer {
        flags: answer.flags | tiny,
        ..answer
    }
}

/// F2XM1. Arguments outside -1 to 1 are undefined; they stay as they are, marked inexact.
pub(super) fn f2xm1(s: &mut FpState, _: u8) {
    unary(s, |x, v| {
        if let Some(answer) = nan_answer1(v) {
            return answer;
        }
        let class = v.class();
        if class == Class::Infinity {
            let minus_one = F80::ONE.with_sign(true);
            return Answer::exact(if v.negative() { minus_one } else { v }, 0);
        }
        if class == Class::Zero {
            return Answer::exact(v, 0);
        }
        let n = unpack(v);
        let flags = denormal_flag(class, class);
        match n.cmp_magnitude(Num::ONE) {
            Ordering::Less => inexact(x, exp2_minus_1(n), flags),
            Ordering::Equal if n.negative => inexact(x, Num::ONE.negated().scaled(-1), flags),
            _ => Answer::exact(v, flags | PE),
        }
    });
}

/// Runs an instruction on ST(1) and ST(0) whose answer replaces ST(1) before a pop.
fn binary(s: &mut FpState, compute: impl FnOnce(&X87, F80, F80) -> Answer) {
    let x = &mut s.x87;
    if x.is_empty(0) || x.is_empty(1) {
        if x.stack_fault(false) {
            x.put(1, F80::INDEFINITE);
            x.pop();
        }
        return;
    }
    x.clear_c1();
    let (a, b) = (x.get(1), x.get(0));
    let answer = nan_answer(a, b).unwrap_or_else(|| compute(x, a, b));
    if x.deliver(&answer) {
        x.put(1, answer.value);
        x.pop();
    }
}

/// `y * logarithm`, where the logarithm is a number, a zero or an infinity.
fn times_logarithm(x: &X87, y: F80, log: Logarithm, flags: u16) -> Answer {
    let class = y.class();
    match log {
        Logarithm::Zero { negative } => {
            if class == Class::Infinity {
                Answer::invalid()
            } else {
                Answer::exact(F80::zero(y.negative() != negative), flags)
            }
        }
        Logarithm::Infinite { negative } => {
            if class == Class::Zero {
                Answer::invalid()
            } else {
                Answer::exact(F80::infinity(y.negative() != negative), flags)
            }
        }
        Logarithm::Finite(n) => match class {
            Class::Zero => Answer::exact(F80::zero(y.negative() != n.negative), flags),
            Class::Infinity => Answer::exact(F80::infinity(y.negative() != n.negative), flags),
            _ => inexact(x, unpack(y).times_wide(n), flags),
        },
    }
}

enum Logarithm {
    Zero { negative: bool },
    Infinite { negative: bool },
    Finite(Num),
}

/// FYL2X: ST(1) * log2(ST(0)).
pub(super) fn fyl2x(s: &mut FpState, _: u8) {
    binary(s, |x, y, v| {
        let class = v.class();
        let flags = denormal_flag(y.class(), class);
        if class == Class::Zero {
            return match y.class() {
                Class::Zero => Answer::invalid(),
                Class::Infinity => Answer::exact(F80::infinity(!y.negative()), flags),
                _ => Answer::exact(F80::infinity(!y.negative()), ZE),
            };
        }
        if v.negative() {
            return Answer::invalid();
        }
        let log = if class == Class::Infinity {
            Logarithm::Infinite { negative: false }
        } else {
            log2(unpack(v)).map_or(Logarithm::Zero { negative: false }, Logarithm::Finite)
        };
        times_logarithm(x, y, log, flags)
    });
}

/// FYL2XP1: ST(1) * log2(ST(0) + 1). Arguments up to -1 are undefined; they are the result, marked
/// inexact.
pub(super) fn fyl2xp1(s: &mut FpState, _: u8) {
    binary(s, |x, y, v| {
        let class = v.class();
        let flags = denormal_flag(y.class(), class);
        let log = match class {
            Class::Zero => Logarithm::Zero {
                negative: v.negative(),
            },
            Class::Infinity if v.negative() => return Answer::invalid(),
            Class::Infinity => Logarithm::Infinite { negative: false },
            _ => {
                let n = unpack(v);
                let below = n.negative && n.cmp_magnitude(Num::ONE) != Ordering::Less;
                if below && !matches!(y.class(), Class::Zero | Class::Infinity) {
                    return Answer::exact(v, flags | PE);
                }
                if below {
                    Logarithm::Finite(n)
                } else {
                    log2_plus_1(n).map_or(Logarithm::Zero { negative: false }, Logarithm::Finite)
                }
            }
        };
        times_logarithm(x, y, log, flags)
    });
}

/// Angle of the vector (x, y) for finite, non-zero components, without the sign of y.
fn angle(y: Num, x: Num) -> Num {
    let (ay, ax) = (signed(y, false), signed(x, false));
    let first = match ay.cmp_magnitude(ax) {
        Ordering::Equal => QUARTER_PI,
        Ordering::Less => atan_small(ay.over_wide(ax)),
        Ordering::Greater => {
            let rest = atan_small(ax.over_wide(ay));
            HALF_PI.plus(rest.negated()).unwrap_or(HALF_PI)
        }
    };
    if x.negative {
        PI.plus(first.negated()).unwrap_or(PI)
    } else {
        first
    }
}

/// FPATAN: the angle of the vector (ST(0), ST(1)).
pub(super) fn fpatan(s: &mut FpState, _: u8) {
    binary(s, |x, y, v| {
        let (cy, cx) = (y.class(), v.class());
        let flags = denormal_flag(cy, cx);
        let constant = |n: Num| inexact(x, signed(n, y.negative()), flags);
        match (cy, cx) {
            (Class::Infinity, Class::Infinity) => constant(if v.negative() {
                THREE_QUARTERS_PI
            } else {
                QUARTER_PI
            }),
            (Class::Infinity, _) => constant(HALF_PI),
            (Class::Zero, _) | (_, Class::Infinity) if v.negative() => constant(PI),
            (Class::Zero, _) | (_, Class::Infinity) => {
                Answer::exact(F80::zero(y.negative()), flags)
            }
            (_, Class::Zero) => constant(HALF_PI),
            _ => constant(angle(unpack(y), unpack(v))),
        }
    });
}

/// Sine and cosine of a reduced angle, moved to its quadrant. A sine of `None` is an exact zero.
fn sine_cosine(r: &Reduced) -> (Option<Num>, Option<Num>) {
    let sine = r.angle.map(sin_small);
    let cosine = Some(r.angle.map_or(Num::ONE, cos_small));
    match r.quadrant {
        0 => (sine, cosine),
        1 => (cosine, sine.map(Num::negated)),
        2 => (sine.map(Num::negated), cosine.map(Num::negated)),
        _ => (cosine.map(Num::negated), sine),
    }
}

/// What a trigonometric instruction makes of an operand.
enum Trig {
    /// Too large: C2 is set, nothing else happens.
    OutOfRange,
    /// NaN, infinity: one answer for all results.
    Special(Answer),
    /// Zero, with its sign.
    Zero(bool),
    /// A number, and the flags so far.
    Number(Num, u16),
}

fn classify(v: F80) -> Trig {
    if let Some(answer) = nan_answer1(v) {
        return Trig::Special(answer);
    }
    let class = v.class();
    if !is_finite(class) {
        return Trig::Special(Answer::invalid());
    }
    if class == Class::Zero {
        return Trig::Zero(v.negative());
    }
    let n = unpack(v);
    if n.exponent >= LIMIT_EXPONENT {
        Trig::OutOfRange
    } else {
        Trig::Number(n, denormal_flag(class, class))
    }
}

fn rounded_or_zero(x: &X87, n: Option<Num>, flags: u16) -> Answer {
    match n {
        Some(n) => inexact(x, n, flags),
        None => Answer::exact(F80::ZERO, flags),
    }
}

fn sine(x: &X87, v: F80) -> Option<Answer> {
    Some(match classify(v) {
        Trig::OutOfRange => return None,
        Trig::Special(answer) => answer,
        Trig::Zero(negative) => Answer::exact(F80::zero(negative), 0),
        Trig::Number(n, flags) => rounded_or_zero(x, sine_cosine(&reduce(n)).0, flags),
    })
}

fn cosine(x: &X87, v: F80) -> Option<Answer> {
    Some(match classify(v) {
        Trig::OutOfRange => return None,
        Trig::Special(answer) => answer,
        Trig::Zero(_) => Answer::exact(F80::ONE, 0),
        Trig::Number(n, flags) => rounded_or_zero(x, sine_cosine(&reduce(n)).1, flags),
    })
}

fn tangent(x: &X87, v: F80) -> Option<Answer> {
    Some(match classify(v) {
        Trig::OutOfRange => return None,
        Trig::Special(answer) => answer,
        Trig::Zero(negative) => Answer::exact(F80::zero(negative), 0),
        Trig::Number(n, flags) => match sine_cosine(&reduce(n)) {
            (Some(sine), Some(cosine)) => inexact(x, sine.over_wide(cosine), flags),
            (None, _) => Answer::exact(F80::ZERO, flags),
            (_, None) => Answer::exact(F80::infinity(false), flags),
        },
    })
}

/// FSIN, FCOS.
fn in_place(s: &mut FpState, compute: fn(&X87, F80) -> Option<Answer>) {
    let x = &mut s.x87;
    x.set_condition(C1 | C2, 0);
    if x.is_empty(0) {
        if x.stack_fault(false) {
            x.put(0, F80::INDEFINITE);
        }
        return;
    }
    let Some(answer) = compute(x, x.get(0)) else {
        x.fsw |= C2;
        return;
    };
    if x.deliver(&answer) {
        x.put(0, answer.value);
    }
}

/// FSIN.
pub(super) fn fsin(s: &mut FpState, _: u8) {
    in_place(s, sine);
}

/// FCOS.
pub(super) fn fcos(s: &mut FpState, _: u8) {
    in_place(s, cosine);
}

/// FSINCOS and FPTAN: one result replaces ST(0), another is pushed.
fn and_push(s: &mut FpState, compute: impl FnOnce(&X87, F80) -> Option<(Answer, Answer)>) {
    let x = &mut s.x87;
    x.set_condition(C1 | C2, 0);
    if !x.has_one_and_room() {
        return;
    }
    let Some((replaced, pushed)) = compute(x, x.get(0)) else {
        x.fsw |= C2;
        return;
    };
    let flags = replaced.flags | pushed.flags;
    let both = Answer {
        flags,
        up: pushed.up,
        ..replaced
    };
    if x.deliver(&both) {
        x.put(0, replaced.value);
        x.push(pushed.value);
    }
}

/// FSINCOS.
pub(super) fn fsincos(s: &mut FpState, _: u8) {
    and_push(s, |x, v| sine(x, v).zip(cosine(x, v)));
}

/// FPTAN: pushes 1, or the NaN.
pub(super) fn fptan(s: &mut FpState, _: u8) {
    and_push(s, |x, v| {
        tangent(x, v).map(|answer| {
            let pushed = if answer.flags & IE != 0 || answer.value.is_nan() {
                answer
            } else {
                Answer::exact(F80::ONE, 0)
            };
            (
                answer,
                Answer {
                    up: answer.up,
                    ..pushed
                },
            )
        })
    });
}
