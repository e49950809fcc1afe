//! Rounding of unpacked numbers to a format, with the exceptions of IEEE 754 as x86 has them.

use super::num::{Num, shift_right_jam};

/// Rounding control, in the encoding of FCW and MXCSR.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rounding {
    /// To nearest, ties to even.
    Nearest,
    /// Towards minus infinity.
    Down,
    /// Towards plus infinity.
    Up,
    /// Towards zero.
    Zero,
}

impl Rounding {
    /// From the two-bit field.
    #[inline]
    #[must_use]
    pub fn from_bits(bits: u32) -> Self {
        match bits & 3 {
            0 => Self::Nearest,
            1 => Self::Down,
            2 => Self::Up,
            _ => Self::Zero,
        }
    }

    /// Whether a number of this sign is rounded away from zero, given the last kept bit and the
    /// discarded bits aligned to the top.
    #[inline]
    #[must_use]
    pub fn increments(self, negative: bool, odd: bool, discarded: u128) -> bool {
        const HALF: u128 = 1 << 127;
        match self {
            Self::Nearest => discarded > HALF || (discarded == HALF && odd),
            Self::Down => negative && discarded != 0,
            Self::Up => !negative && discarded != 0,
            Self::Zero => false,
        }
    }

    /// Whether an overflow of this sign becomes infinity rather than the largest finite number.
    #[must_use]
    pub fn overflows_to_infinity(self, negative: bool) -> bool {
        match self {
            Self::Nearest => true,
            Self::Down => negative,
            Self::Up => !negative,
            Self::Zero => false,
        }
    }
}

/// A binary format.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Format {
    /// Significant bits, at most 64.
    pub precision: u32,
    /// Exponent of the smallest normal number.
    pub emin: i32,
    /// Exponent of the largest number.
    pub emax: i32,
}

impl Format {
    /// binary32.
    pub const F32: Self = Self {
        precision: 24,
        emin: -126,
        emax: 127,
    };
    /// binary64.
    pub const F64: Self = Self {
        precision: 53,
        emin: -1022,
        emax: 1023,
    };

    /// Extended range with the given precision.
    #[must_use]
    pub const fn extended(precision: u32) -> Self {
        Self {
            precision,
            emin: -16382,
            emax: 16383,
        }
    }
}

/// What overflow and underflow do.
#[derive(Debug, Clone, Copy)]
pub struct Policy {
    /// Rounding mode.
    pub rounding: Rounding,
    /// Exceptions that are not masked, as status flags.
    pub unmasked: u16,
    /// Added to (underflow) or subtracted from (overflow) the exponent when the exception is unmasked.
    pub wrap: i32,
    /// Tiny results become zero.
    pub flush_to_zero: bool,
}

/// Overflow flag.
pub const OE: u16 = 8;
/// Underflow flag.
pub const UE: u16 = 16;
/// Inexact flag.
pub const PE: u16 = 32;

/// A rounded number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rounded {
    /// Exponent of bit 63 of the significand.
    pub exponent: i32,
    /// Significand; bit 63 is clear for denormals (then `exponent` is the format's `emin`) and zero.
    pub significand: u64,
    /// The result is infinite.
    pub infinite: bool,
    /// OE, UE and PE.
    pub flags: u16,
    /// The magnitude was rounded up.
    pub up: bool,
}

struct Cut {
    significand: u64,
    carry: bool,
    inexact: bool,
    up: bool,
}

/// Keeps the top `precision` bits.
#[inline]
fn cut(significand: u128, precision: u32, rounding: Rounding, negative: bool) -> Cut {
    let unit = 1u64 << (64 - precision);
    let high = (significand >> 64) as u64;
    let kept = high & !(unit - 1);
    let discarded = significand << precision;
    let up = rounding.increments(negative, kept & unit != 0, discarded);
    let (sum, carry) = kept.overflowing_add(if up { unit } else { 0 });
    Cut {
        significand: if carry { 1 << 63 } else { sum },
        carry,
        inexact: discarded != 0,
        up,
    }
}

/// Rounds `n` to `format`.
#[inline]
#[must_use]
pub fn round(n: Num, format: Format, policy: Policy) -> Rounded {
    let c = cut(n.significand, format.precision, policy.rounding, n.negative);
    let exponent = n.exponent + i32::from(c.carry);
    let plain = Rounded {
        exponent,
        significand: c.significand,
        infinite: false,
        flags: if c.inexact { PE } else { 0 },
        up: c.up,
    };
    if exponent > format.emax {
        overflow(n.negative, plain, format, policy)
    } else if exponent < format.emin {
        underflow(n, plain, format, policy)
    } else {
        plain
    }
}

fn overflow(negative: bool, plain: Rounded, format: Format, policy: Policy) -> Rounded {
    if policy.unmasked & OE != 0 {
        let exponent = plain.exponent - policy.wrap;
        if exponent <= format.emax || policy.wrap == 0 {
            return Rounded {
                exponent,
                flags: plain.flags | OE,
                ..plain
            };
        }
    }
    // Beyond the reach of the wrapped exponent: infinity, whatever the rounding.
    let infinite = policy.unmasked & OE != 0 || policy.rounding.overflows_to_infinity(negative);
    Rounded {
        exponent: format.emax,
        significand: if infinite {
            1 << 63
        } else {
            !0 << (64 - format.precision)
        },
        infinite,
        flags: OE | PE,
        up: infinite,
    }
}

fn underflow(n: Num, plain: Rounded, format: Format, policy: Policy) -> Rounded {
    if policy.unmasked & UE != 0 {
        let exponent = plain.exponent + policy.wrap;
        if exponent >= format.emin || policy.wrap == 0 {
            return Rounded {
                exponent,
                flags: plain.flags | UE,
                ..plain
            };
        }
    }
    if policy.flush_to_zero || policy.unmasked & UE != 0 {
        return Rounded {
            exponent: format.emin,
            significand: 0,
            infinite: false,
            flags: UE | PE,
            up: false,
        };
    }
    let shifted = shift_right_jam(n.significand, (format.emin - n.exponent) as u32);
    let c = cut(shifted, format.precision, policy.rounding, n.negative);
    Rounded {
        exponent: format.emin,
        significand: c.significand,
        infinite: false,
        flags: if c.inexact { UE | PE } else { 0 },
        up: c.up,
    }
}

/// Rounds to an integer magnitude; `None` if it does not fit in 64 bits. Tells whether it was
/// inexact and whether the magnitude was rounded up.
#[must_use]
pub fn to_integer(n: Num, rounding: Rounding) -> Option<(u64, bool, bool)> {
    if n.exponent > 63 {
        return None;
    }
    let (whole, discarded) = if n.exponent < -1 {
        (0, 1)
    } else {
        let bits = (n.exponent + 1) as u32;
        let whole = if bits == 0 {
            0
        } else {
            (n.significand >> (128 - bits)) as u64
        };
        (whole, n.significand << bits)
    };
    let up = rounding.increments(n.negative, whole & 1 != 0, discarded);
    let value = whole.checked_add(u64::from(up))?;
    Some((value, discarded != 0, up))
}
