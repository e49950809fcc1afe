//! The 80-bit extended format as it lies in a register.

/// An 80-bit extended number: explicit-integer significand, then sign and 15-bit exponent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct F80 {
    /// Significand; bit 63 is the explicit integer bit.
    pub sig: u64,
    /// Bit 15: sign. Bits 14..0: exponent, biased by 16383.
    pub se: u16,
}

/// What a bit pattern means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    /// Plus or minus zero.
    Zero,
    /// Denormal or pseudo-denormal.
    Denormal,
    /// Normal finite number.
    Normal,
    /// Infinity.
    Infinity,
    /// Quiet NaN.
    Quiet,
    /// Signalling NaN.
    Signalling,
    /// Unnormal, pseudo-infinity or pseudo-NaN: an invalid operand.
    Unsupported,
}

impl F80 {
    /// Plus zero.
    pub const ZERO: Self = Self { sig: 0, se: 0 };
    /// Plus one.
    pub const ONE: Self = Self {
        sig: 1 << 63,
        se: 0x3fff,
    };
    /// The QNaN "real indefinite", the masked answer to an invalid operation.
    pub const INDEFINITE: Self = Self {
        sig: 3 << 62,
        se: 0xffff,
    };

    /// Infinity of the given sign.
    #[must_use]
    pub fn infinity(negative: bool) -> Self {
        Self {
            sig: 1 << 63,
            se: 0x7fff | (u16::from(negative) << 15),
        }
    }

    /// Zero of the given sign.
    #[must_use]
    pub fn zero(negative: bool) -> Self {
        Self {
            sig: 0,
            se: u16::from(negative) << 15,
        }
    }

    /// From the low 80 bits.
    #[must_use]
    pub fn from_bits(bits: u128) -> Self {
        Self {
            sig: bits as u64,
            se: (bits >> 64) as u16,
        }
    }

    /// The 80 bits, zero-extended.
    #[must_use]
    pub fn to_bits(self) -> u128 {
        u128::from(self.sig) | (u128::from(self.se) << 64)
    }

    /// Sign bit.
    #[inline]
    #[must_use]
    pub fn negative(self) -> bool {
        self.se >> 15 != 0
    }

    /// Biased exponent.
    #[inline]
    #[must_use]
    pub fn exponent(self) -> u16 {
        self.se & 0x7fff
    }

    /// The same magnitude with the given sign.
    #[must_use]
    pub fn with_sign(self, negative: bool) -> Self {
        Self {
            sig: self.sig,
            se: self.exponent() | (u16::from(negative) << 15),
        }
    }

    /// Kind of the bit pattern.
    #[inline]
    #[must_use]
    pub fn class(self) -> Class {
        let integer = self.sig >> 63 != 0;
        match self.exponent() {
            0 if self.sig == 0 => Class::Zero,
            0 => Class::Denormal,
            0x7fff if !integer => Class::Unsupported,
            0x7fff if self.sig << 1 == 0 => Class::Infinity,
            0x7fff if self.sig << 1 >> 63 != 0 => Class::Quiet,
            0x7fff => Class::Signalling,
            _ if integer => Class::Normal,
            _ => Class::Unsupported,
        }
    }

    /// Whether this is a NaN of either kind.
    #[must_use]
    pub fn is_nan(self) -> bool {
        matches!(self.class(), Class::Quiet | Class::Signalling)
    }

    /// The NaN made quiet.
    #[must_use]
    pub fn quieted(self) -> Self {
        Self {
            sig: self.sig | 1 << 62,
            se: self.se,
        }
    }
}
