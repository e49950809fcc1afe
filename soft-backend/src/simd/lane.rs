//! Bit patterns of binary32 and binary64 lanes.

use crate::fpu::f80::Class;
use crate::fpu::num::Num;
use crate::fpu::round::Rounded;

/// Result of one lane: bits and MXCSR flags.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Lane {
    pub(super) bits: u64,
    pub(super) flags: u32,
}

const fn fraction<const W: u32>() -> u32 {
    if W == 32 { 23 } else { 52 }
}

const fn ones<const W: u32>() -> u64 {
    if W == 32 { 0xff } else { 0x7ff }
}

/// Kind of the value.
#[inline]
pub(super) fn kind<const W: u32>(bits: u64) -> Class {
    let exponent = bits >> fraction::<W>() & ones::<W>();
    let rest = bits & ((1 << fraction::<W>()) - 1);
    if exponent == 0 {
        if rest == 0 {
            Class::Zero
        } else {
            Class::Denormal
        }
    } else if exponent != ones::<W>() {
        Class::Normal
    } else if rest == 0 {
        Class::Infinity
    } else if rest >> (fraction::<W>() - 1) != 0 {
        Class::Quiet
    } else {
        Class::Signalling
    }
}

#[inline]
pub(super) fn denormal<const W: u32>(bits: u64) -> bool {
    kind::<W>(bits) == Class::Denormal
}

#[inline]
pub(super) fn is_nan<const W: u32>(bits: u64) -> bool {
    matches!(kind::<W>(bits), Class::Quiet | Class::Signalling)
}

#[inline]
pub(super) fn is_signalling<const W: u32>(bits: u64) -> bool {
    kind::<W>(bits) == Class::Signalling
}

/// The NaN made quiet.
#[inline]
pub(super) fn quiet<const W: u32>(bits: u64) -> u64 {
    bits | 1 << (fraction::<W>() - 1)
}

/// Number behind a finite, non-zero value.
#[inline]
pub(super) fn unpack<const W: u32>(bits: u64) -> Num {
    let bias = (ones::<W>() >> 1) as i32;
    let exponent = bits >> fraction::<W>() & ones::<W>();
    let rest = bits & ((1 << fraction::<W>()) - 1);
    let significand = if exponent == 0 {
        rest
    } else {
        rest | 1 << fraction::<W>()
    };
    let unit = exponent.max(1) as i32 - bias - fraction::<W>() as i32;
    Num::new(bits >> (W - 1) & 1 != 0, unit, u128::from(significand))
}

/// Bits of a rounded number. Meaningless, but harmless, when an unmasked overflow or underflow left
/// the exponent out of range.
#[inline]
pub(super) fn pack<const W: u32>(negative: bool, r: Rounded) -> u64 {
    let bias = (ones::<W>() >> 1) as i32;
    let magnitude = if r.infinite {
        ones::<W>() << fraction::<W>()
    } else if r.significand >> 63 != 0 {
        let exponent = (r.exponent + bias) as u64 & ones::<W>();
        exponent << fraction::<W>() | r.significand << 1 >> (64 - fraction::<W>())
    } else {
        r.significand >> (63 - fraction::<W>())
    };
    magnitude | u64::from(negative) << (W - 1)
}
