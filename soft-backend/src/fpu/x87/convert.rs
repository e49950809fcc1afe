//! Conversions between register values and the memory formats.

use super::stack::unpack;
use super::{IE, PE};
use crate::fpu::f80::{Class, F80};
use crate::fpu::num::Num;
use crate::fpu::round::{Format, Policy, Rounding, round, to_integer};

/// A stored value with its flags.
#[derive(Debug, Clone, Copy)]
pub(super) struct Stored {
    pub(super) bits: u64,
    pub(super) flags: u16,
    pub(super) up: bool,
}

impl Stored {
    fn exact(bits: u64, flags: u16) -> Self {
        Self {
            bits,
            flags,
            up: false,
        }
    }
}

/// Exact value of a normalised number with at most 64 significant bits.
fn exact(n: Num) -> F80 {
    F80 {
        sig: (n.significand >> 64) as u64,
        se: (n.exponent + 16383) as u16 | u16::from(n.negative) << 15,
    }
}

/// Widens an IEEE format with `fraction` fraction bits; tells whether it was denormal. Signalling NaNs
/// stay signalling.
fn widen(bits: u64, fraction: u32, exponent_bits: u32) -> (F80, bool) {
    let negative = bits >> (fraction + exponent_bits) & 1 != 0;
    let ones = (1u64 << exponent_bits) - 1;
    let exponent = bits >> fraction & ones;
    let sig = bits & ((1 << fraction) - 1);
    let bias = (ones >> 1) as i32;
    if exponent == ones {
        let sig = 1 << 63 | sig << (63 - fraction);
        (F80 { sig, se: 0x7fff }.with_sign(negative), false)
    } else if exponent != 0 {
        let sig = 1 << 63 | sig << (63 - fraction);
        let se = (exponent as i32 - bias + 16383) as u16;
        (F80 { sig, se }.with_sign(negative), false)
    } else if sig == 0 {
        (F80::zero(negative), false)
    } else {
        let n = Num::new(negative, 1 - bias - fraction as i32, u128::from(sig));
        (exact(n), true)
    }
}

/// Widens a binary32.
pub(super) fn from_f32(bits: u32) -> (F80, bool) {
    widen(u64::from(bits), 23, 8)
}

/// Widens a binary64.
pub(super) fn from_f64(bits: u64) -> (F80, bool) {
    widen(bits, 52, 11)
}

/// An integer as a register value.
pub(super) fn from_integer(value: i64) -> F80 {
    if value == 0 {
        F80::ZERO
    } else {
        exact(Num::new(value < 0, 0, u128::from(value.unsigned_abs())))
    }
}

/// Narrows to an IEEE format of `fraction` + 1 significant bits.
pub(super) fn narrow(value: F80, fraction: u32, format: Format, policy: Policy) -> Stored {
    let exponent_bits = if fraction == 23 { 8 } else { 11 };
    let top = fraction + exponent_bits;
    let sign = u64::from(value.negative()) << top;
    let infinity = ((1u64 << exponent_bits) - 1) << fraction;
    match value.class() {
        Class::Unsupported => Stored::exact(1 << top | infinity | 1 << (fraction - 1), IE),
        Class::Quiet | Class::Signalling => {
            let payload = value.quieted().sig << 1 >> (64 - fraction);
            let invalid = value.class() == Class::Signalling;
            Stored::exact(sign | infinity | payload, if invalid { IE } else { 0 })
        }
        Class::Infinity => Stored::exact(sign | infinity, 0),
        Class::Zero => Stored::exact(sign, 0),
        Class::Normal | Class::Denormal => {
            let r = round(unpack(value), format, policy);
            let bits = if r.infinite {
                infinity
            } else if r.significand >> 63 != 0 {
                let exponent = (r.exponent - format.emin + 1) as u64;
                exponent << fraction | r.significand << 1 >> (64 - fraction)
            } else {
                r.significand >> (63 - fraction)
            };
            Stored {
                bits: sign | bits,
                flags: r.flags,
                up: r.up,
            }
        }
    }
}

/// Converts to a two's complement integer of `bits` bits; the integer indefinite when it does not fit.
pub(super) fn integer(value: F80, bits: u32, rounding: Rounding) -> Stored {
    let indefinite = Stored::exact(1 << (bits - 1), IE);
    match value.class() {
        Class::Zero => return Stored::exact(0, 0),
        Class::Normal | Class::Denormal => {}
        _ => return indefinite,
    }
    let Some((magnitude, inexact, up)) = to_integer(unpack(value), rounding) else {
        return indefinite;
    };
    let limit = (1u64 << (bits - 1)) - u64::from(!value.negative());
    if magnitude > limit {
        return indefinite;
    }
    Stored {
        bits: if value.negative() {
            magnitude.wrapping_neg()
        } else {
            magnitude
        },
        flags: if inexact { PE } else { 0 },
        up,
    }
}

/// The packed-BCD indefinite.
pub(super) const BCD_INDEFINITE: u128 = 0xffff_c000_0000_0000_0000;

/// Packed BCD to a register value: 18 digits and a sign. Digits above 9 count with their weight.
pub(super) fn from_bcd(bits: u128) -> F80 {
    let magnitude = (0..18).rev().fold(0u64, |sum, digit| {
        sum.wrapping_mul(10)
            .wrapping_add((bits >> (4 * digit)) as u64 & 15)
    });
    from_integer(magnitude as i64).with_sign(bits >> 79 & 1 != 0)
}

/// A register value as packed BCD.
pub(super) fn to_bcd(value: F80, rounding: Rounding) -> (u128, u16, bool) {
    const LIMIT: u64 = 1_000_000_000_000_000_000;
    let sign = u128::from(value.negative()) << 79;
    let rounded = match value.class() {
        Class::Zero => Some((0, false, false)),
        Class::Normal | Class::Denormal => to_integer(unpack(value), rounding),
        _ => None,
    };
    match rounded {
        Some((magnitude, inexact, up)) if magnitude < LIMIT => {
            let mut rest = magnitude;
            let digits = (0..18).fold(0u128, |bcd, digit| {
                let value = u128::from(rest % 10) << (4 * digit);
                rest /= 10;
                bcd | value
            });
            (sign | digits, if inexact { PE } else { 0 }, up)
        }
        _ => (BCD_INDEFINITE, IE, false),
    }
}
