//! The functions behind the transcendental instructions, on numbers of 128 bits.
//!
//! Relative error is below 2^-115: the result rounded to 64 bits is the correctly rounded one but for
//! about one argument in 2^50.

use super::constants::{ATAN_SIXTEENTHS, HALF_PI_66, LN2, LOG2_E};
use crate::fpu::num::Num;

/// Bits below the leading one of a sum after which terms no longer matter.
const ENOUGH_BITS: i32 = 132;
/// Terms of any series before it has converged, with room to spare.
const MAX_TERMS: u32 = 80;

/// Adds terms until they vanish. `next` gives term `n` from term `n - 1`.
fn sum(first: Num, next: impl Fn(Num, u32) -> Num) -> Num {
    let (mut total, mut term) = (first, first);
    for n in 1..MAX_TERMS {
        term = next(term, n);
        total = total.plus(term).unwrap_or(total);
        if term.exponent < total.exponent - ENOUGH_BITS {
            break;
        }
    }
    total
}

/// `2^x - 1` for `|x| <= 1`.
pub(super) fn exp2_minus_1(x: Num) -> Num {
    let t = x.times_wide(LN2);
    sum(t, |term, n| term.times_wide(t).over_small(n + 1))
}

/// `x + x^3/3 + x^5/5 ...`, or with alternating signs: artanh and arctan of a small number.
fn odd_series(x: Num, alternating: bool) -> Num {
    let square = x.times_wide(x);
    let (mut total, mut power) = (x, x);
    for n in 1..MAX_TERMS {
        power = power.times_wide(square);
        if alternating {
            power = power.negated();
        }
        let term = power.over_small(2 * n + 1);
        total = total.plus(term).unwrap_or(total);
        if term.exponent < total.exponent - ENOUGH_BITS {
            break;
        }
    }
    total
}

/// `log2((1 + s) / (1 - s))`.
fn log2_of_ratio(s: Num) -> Num {
    odd_series(s, false).scaled(1).times_wide(LOG2_E)
}

/// `log2(x)` for positive `x`; `None` is zero.
pub(super) fn log2(x: Num) -> Option<Num> {
    // sqrt(2): keeps the mantissa around one.
    const SQRT_2: u128 = 0xb504_f333_f9de_6484_597d_89b3_754a_be9f;
    let whole = x.exponent + i32::from(x.significand > SQRT_2);
    let mantissa = Num {
        exponent: x.exponent - whole,
        ..x
    };
    let integer = (whole != 0).then(|| Num::new(whole < 0, 0, u128::from(whole.unsigned_abs())));
    let Some(difference) = mantissa.plus(Num::ONE.negated()) else {
        return integer;
    };
    let sum = mantissa.plus(Num::ONE)?;
    let fraction = log2_of_ratio(difference.over_wide(sum));
    match integer {
        Some(integer) => integer.plus(fraction),
        None => Some(fraction),
    }
}

/// `log2(1 + x)` for small `x`.
pub(super) fn log2_plus_1(x: Num) -> Option<Num> {
    let two = Num::ONE.scaled(1);
    if x.exponent >= -2 {
        return log2(x.plus(Num::ONE)?);
    }
    Some(log2_of_ratio(x.over_wide(x.plus(two)?)))
}

/// `atan(x)` for positive `x <= 1`.
pub(super) fn atan_small(x: Num) -> Num {
    // Nearest sixteenth.
    let shift = 127 - (x.exponent + 5);
    let half_sixteenths = if shift > 127 {
        0
    } else {
        (x.significand >> shift) as usize
    };
    let nearest = half_sixteenths.div_ceil(2).min(16);
    if nearest == 0 {
        return odd_series(x, true);
    }
    let c = Num::new(false, -4, nearest as u128);
    let base = ATAN_SIXTEENTHS[nearest - 1];
    let Some(difference) = x.plus(c.negated()) else {
        return base;
    };
    let rest = x
        .times_wide(c)
        .plus(Num::ONE)
        .map_or(difference, |scale| difference.over_wide(scale));
    base.plus(odd_series(rest, true)).unwrap_or(base)
}

/// An angle reduced to at most pi / 4 in magnitude (`None`: zero) and the quadrant it was in.
pub(super) struct Reduced {
    pub(super) angle: Option<Num>,
    pub(super) quadrant: u8,
}

/// Reduces by multiples of pi / 2, for `|x| < 2^63` with 64 significant bits.
///
/// The processors' pi has 66 bits (Intel SDM volume 1, 8.3.8), and so has this one: large arguments
/// give the processors' results, not the mathematical ones.
pub(super) fn reduce(x: Num) -> Reduced {
    if x.exponent < -1 {
        return Reduced {
            angle: Some(x),
            quadrant: 0,
        };
    }
    // In units of 2^-65 both the argument and pi / 2 are integers.
    let units = (x.significand >> 64) << (x.exponent + 2);
    let (turns, rest) = (units / HALF_PI_66, units % HALF_PI_66);
    let past_half = rest > HALF_PI_66 / 2;
    let (magnitude, turns) = if past_half {
        (HALF_PI_66 - rest, turns + 1)
    } else {
        (rest, turns)
    };
    let quadrant = (turns & 3) as u8;
    Reduced {
        angle: (magnitude != 0).then(|| Num::new(past_half != x.negative, -65, magnitude)),
        quadrant: if x.negative {
            quadrant.wrapping_neg() & 3
        } else {
            quadrant
        },
    }
}

/// Sine of a reduced angle.
pub(super) fn sin_small(x: Num) -> Num {
    let square = x.times_wide(x).negated();
    sum(x, |term, n| {
        term.times_wide(square).over_small((2 * n) * (2 * n + 1))
    })
}

/// Cosine of a reduced angle.
pub(super) fn cos_small(x: Num) -> Num {
    let square = x.times_wide(x).negated();
    sum(Num::ONE, |term, n| {
        term.times_wide(square).over_small((2 * n - 1) * (2 * n))
    })
}
