//! Arithmetic on unpacked, finite, non-zero numbers: the engine under x87 and SSE.
//!
//! The sum, product, quotient and root keep every bit that rounding needs: bits that fall off the
//! end are collected ("jammed") into bit 0. Operands of these four hold at most 64 significant bits.

/// `(-1)^negative * significand / 2^127 * 2^exponent`, with bit 127 of the significand set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Num {
    /// Sign.
    pub negative: bool,
    /// Exponent of the leading bit.
    pub exponent: i32,
    /// Significand, normalised.
    pub significand: u128,
}

/// Shifts right; ones that fall off the end set bit 0.
#[inline]
#[must_use]
pub fn shift_right_jam(value: u128, count: u32) -> u128 {
    match count {
        0 => value,
        1..=127 => (value >> count) | u128::from(value << (128 - count) != 0),
        _ => u128::from(value != 0),
    }
}

impl Num {
    /// From a non-zero integer significand whose bit 0 weighs `2^exponent`.
    #[must_use]
    pub fn new(negative: bool, exponent: i32, significand: u128) -> Self {
        let shift = significand.leading_zeros();
        Self {
            negative,
            exponent: exponent + 127 - shift as i32,
            significand: significand << (shift & 127),
        }
    }

    #[inline]
    fn high(self) -> u64 {
        (self.significand >> 64) as u64
    }

    /// Sum; `None` is an exact zero.
    #[must_use]
    pub fn plus(self, other: Self) -> Option<Self> {
        let key = |n: Self| (n.exponent, n.significand);
        let (a, b) = if key(self) >= key(other) {
            (self, other)
        } else {
            (other, self)
        };
        let big = a.significand >> 1;
        let distance = (i64::from(a.exponent) - i64::from(b.exponent)).min(200) as u32;
        let small = shift_right_jam(b.significand >> 1, distance);
        let sum = if a.negative == b.negative {
            big + small
        } else {
            big - small
        };
        if sum == 0 {
            return None;
        }
        let shift = sum.leading_zeros();
        Some(Self {
            negative: a.negative,
            exponent: a.exponent + 1 - shift as i32,
            significand: sum << shift,
        })
    }

    /// Product.
    #[must_use]
    pub fn times(self, other: Self) -> Self {
        let product = u128::from(self.high()) * u128::from(other.high());
        let carry = product >> 127 != 0;
        Self {
            negative: self.negative != other.negative,
            exponent: self.exponent + other.exponent + i32::from(carry),
            significand: if carry { product } else { product << 1 },
        }
    }

    /// Quotient.
    #[must_use]
    pub fn over(self, other: Self) -> Self {
        let (a, b) = (self.high(), other.high());
        let below = a < b;
        let numerator = u128::from(a) << if below { 64 } else { 63 };
        let divisor = u128::from(b);
        let (quotient, rest) = (numerator / divisor, (numerator % divisor) << 1);
        let guard = u128::from(rest >= divisor) << 63;
        let sticky = u128::from(rest != 0 && rest != divisor);
        Self {
            negative: self.negative != other.negative,
            exponent: self.exponent - other.exponent - i32::from(below),
            significand: quotient << 64 | guard | sticky,
        }
    }

    /// Square root of the magnitude.
    #[must_use]
    pub fn root(self) -> Self {
        let odd = self.exponent & 1;
        let radicand = u128::from(self.high()) << (63 + odd);
        let root = radicand.isqrt();
        let rest = radicand - root * root;
        Self {
            negative: false,
            exponent: (self.exponent - odd) / 2,
            significand: root << 64 | u128::from(rest > root) << 63 | u128::from(rest != 0),
        }
    }

    /// Compares magnitudes.
    #[must_use]
    pub fn cmp_magnitude(self, other: Self) -> core::cmp::Ordering {
        (self.exponent, self.significand).cmp(&(other.exponent, other.significand))
    }
}
