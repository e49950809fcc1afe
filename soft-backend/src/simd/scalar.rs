//! One binary32 or binary64 operation under an MXCSR. `W` is 32 or 64; values are in the low bits.

use super::lane::{Lane, denormal, is_nan, is_signalling, kind, pack, quiet, unpack};
use crate::fpu::f80::Class;
use crate::fpu::num::Num;
use crate::fpu::round::{Format, Policy, Rounding, round, to_integer};
use core::cmp::Ordering;

/// Invalid operation.
pub(super) const IE: u32 = 1;
/// Denormal operand.
pub(super) const DE: u32 = 2;
/// Division by zero.
pub(super) const ZE: u32 = 4;
/// Inexact.
pub(super) const PE: u32 = 32;

const DAZ: u32 = 1 << 6;
const PM: u32 = 1 << 12;
const RC: u32 = 3 << 13;
const FTZ: u32 = 1 << 15;

/// The fields of MXCSR that steer arithmetic.
#[derive(Debug, Clone, Copy)]
pub(super) struct Mxcsr(pub(super) u32);

impl Mxcsr {
    pub(super) fn rounding(self) -> Rounding {
        Rounding::from_bits(self.0 >> 13)
    }

    fn policy(self) -> Policy {
        let unmasked = !(self.0 >> 7) & 0x3f;
        Policy {
            rounding: self.rounding(),
            unmasked: unmasked as u16,
            wrap: 0,
            flush_to_zero: self.0 & FTZ != 0,
        }
    }

    /// Whether a result that raises at most PE changes nothing: round to nearest, PE masked and
    /// already set. Then the host's own IEEE arithmetic gives the same bits on every host.
    #[inline]
    fn is_settled(self) -> bool {
        self.0 & (RC | PM | PE) == PM | PE
    }

    fn denormals_are_zero(self) -> bool {
        self.0 & DAZ != 0
    }

    /// Applies DAZ to an operand.
    #[inline]
    pub(super) fn input<const W: u32>(self, bits: u64) -> u64 {
        if self.denormals_are_zero() && denormal::<W>(bits) {
            bits & 1 << (W - 1)
        } else {
            bits
        }
    }
}

/// Rounds a number to `W` bits.
pub(super) fn rounded<const W: u32>(n: Num, mxcsr: Mxcsr, flags: u32) -> Lane {
    let format = if W == 32 { Format::F32 } else { Format::F64 };
    let r = round(n, format, mxcsr.policy());
    Lane {
        bits: pack::<W>(n.negative, r),
        flags: flags | u32::from(r.flags),
    }
}

fn indefinite<const W: u32>() -> Lane {
    Lane {
        bits: if W == 32 { 0xffc0_0000 } else { 0xfff8 << 48 },
        flags: IE,
    }
}

fn zero<const W: u32>(negative: bool) -> u64 {
    u64::from(negative) << (W - 1)
}

fn infinity<const W: u32>(negative: bool) -> u64 {
    let magnitude: u64 = if W == 32 { 0x7f80_0000 } else { 0x7ff << 52 };
    zero::<W>(negative) | magnitude
}

fn negative<const W: u32>(bits: u64) -> bool {
    bits >> (W - 1) & 1 != 0
}

/// NaN result of a two-operand instruction: the first operand if it is a NaN, else the second.
fn nan_result<const W: u32>(a: u64, b: u64) -> Option<Lane> {
    let (na, nb) = (is_nan::<W>(a), is_nan::<W>(b));
    (na || nb).then(|| Lane {
        bits: quiet::<W>(if na { a } else { b }),
        flags: if is_signalling::<W>(a) || is_signalling::<W>(b) {
            IE
        } else {
            0
        },
    })
}

fn denormal_flag<const W: u32>(a: u64, b: u64) -> u32 {
    if denormal::<W>(a) || denormal::<W>(b) {
        DE
    } else {
        0
    }
}

/// Two-operand arithmetic.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Op {
    /// Addition.
    Add,
    /// Subtraction.
    Sub,
    /// Multiplication.
    Mul,
    /// Division.
    Div,
}

/// Whether a value is a normal number, or a zero.
#[inline]
fn is_tame<const W: u32>(bits: u64) -> bool {
    let (fraction, ones) = if W == 32 { (23, 0xff) } else { (52, 0x7ff) };
    let exponent = bits >> fraction & ones;
    exponent.wrapping_sub(1) < ones - 1 || bits << (65 - W) == 0
}

/// Whether a result is normal and not the smallest normal, so that no underflow or overflow hides
/// behind the rounding.
#[inline]
fn is_clear<const W: u32>(bits: u64) -> bool {
    let (fraction, ones) = if W == 32 { (23, 0xff) } else { (52, 0x7ff) };
    let exponent = bits >> fraction & ones;
    exponent.wrapping_sub(2) < ones - 2
}

/// The host's result if it is certain to be the guest's, flags included.
#[inline]
fn native<const W: u32>(op: Op, a: u64, b: u64) -> Option<u64> {
    let bits = if W == 32 {
        let (x, y) = (f32::from_bits(a as u32), f32::from_bits(b as u32));
        let z = match op {
            Op::Add => x + y,
            Op::Sub => x - y,
            Op::Mul => x * y,
            Op::Div => x / y,
        };
        u64::from(z.to_bits())
    } else {
        let (x, y) = (f64::from_bits(a), f64::from_bits(b));
        let z = match op {
            Op::Add => x + y,
            Op::Sub => x - y,
            Op::Mul => x * y,
            Op::Div => x / y,
        };
        z.to_bits()
    };
    let zero = |v: u64| v << (65 - W) == 0;
    let exact_zero = zero(bits)
        && match op {
            Op::Add | Op::Sub => true,
            Op::Mul => zero(a) || zero(b),
            Op::Div => zero(a),
        };
    (is_tame::<W>(a) && is_tame::<W>(b) && (is_clear::<W>(bits) || exact_zero)).then_some(bits)
}

/// Addition, subtraction, multiplication, division.
#[inline]
pub(super) fn arithmetic<const W: u32>(op: Op, a: u64, b: u64, mxcsr: Mxcsr) -> Lane {
    if mxcsr.is_settled()
        && let Some(bits) = native::<W>(op, a, b)
    {
        return Lane { bits, flags: 0 };
    }
    arithmetic_in_integers::<W>(op, a, b, mxcsr)
}

fn arithmetic_in_integers<const W: u32>(op: Op, a: u64, b: u64, mxcsr: Mxcsr) -> Lane {
    let (a, b) = (mxcsr.input::<W>(a), mxcsr.input::<W>(b));
    if let Some(lane) = nan_result::<W>(a, b) {
        return lane;
    }
    let flags = denormal_flag::<W>(a, b);
    match op {
        Op::Add => add::<W>(a, b, mxcsr, flags),
        Op::Sub => add::<W>(a, b ^ 1 << (W - 1), mxcsr, flags),
        Op::Mul => mul::<W>(a, b, mxcsr, flags),
        Op::Div => div::<W>(a, b, mxcsr, flags),
    }
}

fn add<const W: u32>(a: u64, b: u64, mxcsr: Mxcsr, flags: u32) -> Lane {
    let (na, nb) = (negative::<W>(a), negative::<W>(b));
    let down = mxcsr.rounding() == Rounding::Down;
    let exact = |bits| Lane { bits, flags };
    match (kind::<W>(a), kind::<W>(b)) {
        (Class::Infinity, Class::Infinity) if na != nb => indefinite::<W>(),
        (Class::Infinity, _) => exact(a),
        (_, Class::Infinity) => exact(b),
        (Class::Zero, Class::Zero) => exact(zero::<W>(if na == nb { na } else { down })),
        (Class::Zero, _) => rounded::<W>(unpack::<W>(b), mxcsr, flags),
        (_, Class::Zero) => rounded::<W>(unpack::<W>(a), mxcsr, flags),
        _ => match unpack::<W>(a).plus(unpack::<W>(b)) {
            Some(n) => rounded::<W>(n, mxcsr, flags),
            None => exact(zero::<W>(down)),
        },
    }
}

fn mul<const W: u32>(a: u64, b: u64, mxcsr: Mxcsr, flags: u32) -> Lane {
    let sign = negative::<W>(a) != negative::<W>(b);
    let exact = |bits| Lane { bits, flags };
    match (kind::<W>(a), kind::<W>(b)) {
        (Class::Infinity, Class::Zero) | (Class::Zero, Class::Infinity) => indefinite::<W>(),
        (Class::Infinity, _) | (_, Class::Infinity) => exact(infinity::<W>(sign)),
        (Class::Zero, _) | (_, Class::Zero) => exact(zero::<W>(sign)),
        _ => rounded::<W>(unpack::<W>(a).times(unpack::<W>(b)), mxcsr, flags),
    }
}

fn div<const W: u32>(a: u64, b: u64, mxcsr: Mxcsr, flags: u32) -> Lane {
    let sign = negative::<W>(a) != negative::<W>(b);
    let exact = |bits| Lane { bits, flags };
    match (kind::<W>(a), kind::<W>(b)) {
        (Class::Infinity, Class::Infinity) | (Class::Zero, Class::Zero) => indefinite::<W>(),
        (Class::Infinity, _) => exact(infinity::<W>(sign)),
        (_, Class::Infinity) | (Class::Zero, _) => exact(zero::<W>(sign)),
        (_, Class::Zero) => Lane {
            bits: infinity::<W>(sign),
            flags: ZE,
        },
        _ => rounded::<W>(unpack::<W>(a).over(unpack::<W>(b)), mxcsr, flags),
    }
}

/// Square root.
#[inline]
pub(super) fn sqrt<const W: u32>(a: u64, mxcsr: Mxcsr) -> Lane {
    if mxcsr.is_settled() && is_tame::<W>(a) && !negative::<W>(a) {
        let bits = if W == 32 {
            u64::from(f32::from_bits(a as u32).sqrt().to_bits())
        } else {
            f64::from_bits(a).sqrt().to_bits()
        };
        return Lane { bits, flags: 0 };
    }
    let a = mxcsr.input::<W>(a);
    if let Some(lane) = nan_result::<W>(a, 0) {
        return lane;
    }
    let flags = denormal_flag::<W>(a, 0);
    match kind::<W>(a) {
        Class::Zero => Lane { bits: a, flags: 0 },
        _ if negative::<W>(a) => indefinite::<W>(),
        Class::Infinity => Lane { bits: a, flags: 0 },
        _ => rounded::<W>(unpack::<W>(a).root(), mxcsr, flags),
    }
}

/// Order of two values; `None` if one is a NaN.
pub(super) fn order<const W: u32>(a: u64, b: u64) -> Option<Ordering> {
    if W == 32 {
        f32::from_bits(a as u32).partial_cmp(&f32::from_bits(b as u32))
    } else {
        f64::from_bits(a).partial_cmp(&f64::from_bits(b))
    }
}

/// Compares; `quiet` says that quiet NaNs raise nothing.
#[inline]
pub(super) fn compare<const W: u32>(
    a: u64,
    b: u64,
    mxcsr: Mxcsr,
    quiet: bool,
) -> (Option<Ordering>, u32) {
    let (a, b) = (mxcsr.input::<W>(a), mxcsr.input::<W>(b));
    let order = order::<W>(a, b);
    let flags = if order.is_some() {
        denormal_flag::<W>(a, b)
    } else if !quiet || is_signalling::<W>(a) || is_signalling::<W>(b) {
        IE
    } else {
        0
    };
    (order, flags)
}

/// CMPxx with one of the eight predicates; all ones or zero.
pub(super) fn compare_mask<const W: u32>(a: u64, b: u64, predicate: u8, mxcsr: Mxcsr) -> Lane {
    let quiet = !matches!(predicate & 3, 1 | 2);
    let (order, flags) = compare::<W>(a, b, mxcsr, quiet);
    let holds = match predicate & 3 {
        0 => order == Some(Ordering::Equal),
        1 => order == Some(Ordering::Less),
        2 => matches!(order, Some(Ordering::Less | Ordering::Equal)),
        _ => order.is_none(),
    };
    let set = holds != (predicate & 4 != 0);
    Lane {
        bits: if set { !0 >> (64 - W) } else { 0 },
        flags,
    }
}

/// MIN and MAX: the second operand unless the first is strictly beyond it.
pub(super) fn extreme<const W: u32>(a: u64, b: u64, max: bool, mxcsr: Mxcsr) -> Lane {
    let (order, flags) = compare::<W>(a, b, mxcsr, false);
    let wanted = if max {
        Ordering::Greater
    } else {
        Ordering::Less
    };
    let bits = if order == Some(wanted) { a } else { b };
    Lane {
        bits: mxcsr.input::<W>(bits),
        flags,
    }
}

/// To a signed integer of `bits` bits, in the low bits.
#[inline]
pub(super) fn to_int<const W: u32>(a: u64, bits: u32, rounding: Rounding, mxcsr: Mxcsr) -> Lane {
    if rounding == Rounding::Zero
        && mxcsr.is_settled()
        && let Some(value) = truncated::<W>(a, bits)
    {
        return Lane {
            bits: value as u64 & (!0 >> (64 - bits)),
            flags: 0,
        };
    }
    to_int_in_integers::<W>(a, bits, rounding, mxcsr)
}

/// The host's truncation of a value well inside the range of `bits` bits.
#[inline]
fn truncated<const W: u32>(a: u64, bits: u32) -> Option<i64> {
    let value = if W == 32 {
        f64::from(f32::from_bits(a as u32))
    } else {
        f64::from_bits(a)
    };
    let limit = if bits == 32 { 2.0e9 } else { 9.0e18 };
    (value.abs() < limit).then_some(value as i64)
}

fn to_int_in_integers<const W: u32>(a: u64, bits: u32, rounding: Rounding, mxcsr: Mxcsr) -> Lane {
    let a = mxcsr.input::<W>(a);
    let invalid = Lane {
        bits: 1 << (bits - 1),
        flags: IE,
    };
    match kind::<W>(a) {
        Class::Zero => return Lane { bits: 0, flags: 0 },
        Class::Normal | Class::Denormal => {}
        _ => return invalid,
    }
    let Some((magnitude, inexact, _)) = to_integer(unpack::<W>(a), rounding) else {
        return invalid;
    };
    let sign = negative::<W>(a);
    if magnitude > (1u64 << (bits - 1)) - u64::from(!sign) {
        return invalid;
    }
    let value = if sign {
        magnitude.wrapping_neg()
    } else {
        magnitude
    };
    Lane {
        bits: value & (!0 >> (64 - bits)),
        flags: if inexact { PE } else { 0 },
    }
}

/// From a signed integer.
#[inline]
pub(super) fn from_int<const W: u32>(value: i64, mxcsr: Mxcsr) -> Lane {
    if mxcsr.is_settled() {
        let bits = if W == 32 {
            u64::from((value as f32).to_bits())
        } else {
            (value as f64).to_bits()
        };
        return Lane { bits, flags: 0 };
    }
    from_int_in_integers::<W>(value, mxcsr)
}

fn from_int_in_integers<const W: u32>(value: i64, mxcsr: Mxcsr) -> Lane {
    if value == 0 {
        return Lane { bits: 0, flags: 0 };
    }
    let n = Num::new(value < 0, 0, u128::from(value.unsigned_abs()));
    rounded::<W>(n, mxcsr, 0)
}

/// Between binary32 and binary64.
#[inline]
pub(super) fn resize<const FROM: u32, const TO: u32>(a: u64, mxcsr: Mxcsr) -> Lane {
    if mxcsr.is_settled() && is_tame::<FROM>(a) {
        let bits = if FROM == 32 {
            f64::from(f32::from_bits(a as u32)).to_bits()
        } else {
            u64::from((f64::from_bits(a) as f32).to_bits())
        };
        if is_clear::<TO>(bits) || a << (65 - FROM) == 0 {
            return Lane { bits, flags: 0 };
        }
    }
    resize_in_integers::<FROM, TO>(a, mxcsr)
}

fn resize_in_integers<const FROM: u32, const TO: u32>(a: u64, mxcsr: Mxcsr) -> Lane {
    let a = mxcsr.input::<FROM>(a);
    let sign = negative::<FROM>(a);
    match kind::<FROM>(a) {
        Class::Zero => Lane {
            bits: zero::<TO>(sign),
            flags: 0,
        },
        Class::Infinity => Lane {
            bits: infinity::<TO>(sign),
            flags: 0,
        },
        Class::Normal | Class::Denormal => {
            let flags = denormal_flag::<FROM>(a, 0);
            rounded::<TO>(unpack::<FROM>(a), mxcsr, flags)
        }
        _ => {
            let payload = if FROM == 32 {
                (a & 0x7f_ffff) << 29
            } else {
                a << 12 >> 41
            };
            Lane {
                bits: quiet::<TO>(infinity::<TO>(sign) | payload),
                flags: if is_signalling::<FROM>(a) { IE } else { 0 },
            }
        }
    }
}

/// ROUNDxx: to an integral value. Immediate bit 3 suppresses PE, bit 2 takes MXCSR's rounding.
pub(super) fn round_integral<const W: u32>(a: u64, imm: u8, mxcsr: Mxcsr) -> Lane {
    let a = mxcsr.input::<W>(a);
    let rounding = if imm & 4 != 0 {
        mxcsr.rounding()
    } else {
        Rounding::from_bits(imm.into())
    };
    match kind::<W>(a) {
        Class::Zero | Class::Infinity => Lane { bits: a, flags: 0 },
        Class::Normal | Class::Denormal => {
            let n = unpack::<W>(a);
            let Some((magnitude, inexact, _)) = to_integer(n, rounding) else {
                return Lane { bits: a, flags: 0 };
            };
            let flags = if inexact && imm & 8 == 0 { PE } else { 0 };
            let bits = if magnitude == 0 {
                0
            } else {
                rounded::<W>(Num::new(false, 0, magnitude.into()), mxcsr, 0).bits
            };
            Lane {
                bits: bits | zero::<W>(n.negative),
                flags,
            }
        }
        _ => Lane {
            bits: quiet::<W>(a),
            flags: if is_signalling::<W>(a) { IE } else { 0 },
        },
    }
}
