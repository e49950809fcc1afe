//! [`Num`] arithmetic on all 128 bits, for series: each operation errs by less than 2^-125.

use super::num::Num;

/// High 128 bits of the 256-bit product, with the rest jammed into bit 0.
fn high_product(a: u128, b: u128) -> u128 {
    const LOW: u128 = u64::MAX as u128;
    let (ah, al, bh, bl) = (a >> 64, a & LOW, b >> 64, b & LOW);
    let (low, left, right) = (al * bl, ah * bl, al * bh);
    let middle = (low >> 64) + (left & LOW) + (right & LOW);
    let high = ah * bh + (left >> 64) + (right >> 64) + (middle >> 64);
    let rest = low << 64 != 0 || middle << 64 != 0;
    high | u128::from(rest)
}

impl Num {
    /// One.
    pub const ONE: Self = Self {
        negative: false,
        exponent: 0,
        significand: 1 << 127,
    };

    /// Product of all bits.
    #[must_use]
    pub fn times_wide(self, other: Self) -> Self {
        let product = high_product(self.significand, other.significand);
        let shift = product.leading_zeros();
        Self {
            negative: self.negative != other.negative,
            exponent: self.exponent + other.exponent + 1 - shift as i32,
            significand: product << shift,
        }
    }

    /// Quotient to 128 bits, bit by bit.
    #[must_use]
    pub fn over_wide(self, other: Self) -> Self {
        let below = self.significand < other.significand;
        let mut rest = if below {
            self.significand
        } else {
            self.significand - other.significand
        };
        let mut quotient = u128::from(!below);
        let steps = if below { 128 } else { 127 };
        for _ in 0..steps {
            let carry = rest >> 127 != 0;
            rest <<= 1;
            quotient <<= 1;
            if carry || rest >= other.significand {
                rest = rest.wrapping_sub(other.significand);
                quotient |= 1;
            }
        }
        Self {
            negative: self.negative != other.negative,
            exponent: self.exponent - other.exponent - i32::from(below),
            significand: quotient | u128::from(rest != 0),
        }
    }

    /// Quotient by a small positive integer.
    #[must_use]
    pub fn over_small(self, divisor: u32) -> Self {
        let divisor = u128::from(divisor);
        let (quotient, rest) = (self.significand / divisor, self.significand % divisor);
        let shift = quotient.leading_zeros();
        // The remainder gives the bits that the shift makes room for.
        let more = (rest << shift) / divisor;
        Self {
            exponent: self.exponent - shift as i32,
            significand: quotient << shift | more | u128::from(rest != 0),
            ..self
        }
    }

    /// The negated number.
    #[must_use]
    pub fn negated(self) -> Self {
        Self {
            negative: !self.negative,
            ..self
        }
    }

    /// The number times 2^`power`.
    #[must_use]
    pub fn scaled(self, power: i32) -> Self {
        Self {
            exponent: self.exponent + power,
            ..self
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn products_and_quotients_are_inverse() {
        let a = Num::new(false, 3, 0x1234_5678_9abc_def0_1122_3344_5566_7788);
        let b = Num::new(true, -9, 0xfedc_ba98_7654_3210_0f1e_2d3c_4b5a_6978);
        let back = a.times_wide(b).over_wide(b);
        assert_eq!((back.negative, back.exponent), (a.negative, a.exponent));
        assert!(back.significand.abs_diff(a.significand) < 8);
        let third = a.over_small(3);
        let whole = third.times_wide(Num::new(false, 0, 3));
        assert!(whole.significand.abs_diff(a.significand) < 8);
    }
}
