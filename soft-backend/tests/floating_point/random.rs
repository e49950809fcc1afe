//! Deterministic operands: mostly special values, some noise.

/// xorshift64*.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        (self.next() >> 16) % limit
    }

    pub(crate) fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len() as u64) as usize]
    }

    /// A significand of `bits` bits: sparse, dense or near a boundary.
    fn fraction(&mut self, bits: u32) -> u64 {
        let mask = !0 >> (64 - bits);
        let value = match self.below(7) {
            0 => 0,
            1 => mask,
            2 => 1 << self.below(bits.into()),
            3 => mask << self.below(bits.into()),
            4 => self.next() & (mask << self.below(bits.into())),
            5 => self.next() >> self.below(64),
            _ => self.next(),
        };
        let value = if self.one_in(8) {
            value.wrapping_add(1)
        } else {
            value
        };
        value & mask
    }

    fn exponent(&mut self, bits: u32, fraction: u32) -> u64 {
        let ones = (1u64 << bits) - 1;
        let bias = ones >> 1;
        match self.below(12) {
            0 => 0,
            1 => ones,
            2 => self.pick(&[1, 2, ones - 1, ones - 2]),
            3 => self.below(ones + 1),
            4 => self.below(70),
            5 => ones.saturating_sub(self.below(70)),
            6 => bias / 2 + self.below(40),
            7 => bias * 3 / 2 - self.below(40),
            8 => bias + self.below(70),
            9 => bias + u64::from(fraction) - 4 + self.below(8),
            10 => bias - 10 + self.below(20),
            _ => bias - self.below(u64::from(fraction) + 10).min(bias),
        }
    }

    pub(crate) fn f32(&mut self) -> u32 {
        let (e, f, sign) = (self.exponent(8, 23), self.fraction(23), self.next() & 1);
        (sign << 31 | e << 23 | f) as u32
    }

    pub(crate) fn f64(&mut self) -> u64 {
        let (e, f, sign) = (self.exponent(11, 52), self.fraction(52), self.next() & 1);
        sign << 63 | e << 52 | f
    }

    /// An 80-bit pattern, now and then an unsupported one.
    pub(crate) fn f80(&mut self) -> u128 {
        let (e, f, sign) = (self.exponent(15, 63), self.fraction(63), self.next() & 1);
        let integer = if e == 0 {
            self.one_in(4)
        } else {
            !self.one_in(24)
        };
        u128::from(f | u64::from(integer) << 63) | u128::from(e | sign << 15) << 64
    }

    fn int(&mut self) -> u64 {
        match self.below(6) {
            0 => self.next(),
            1 => self.below(300),
            2 => self.below(300).wrapping_neg(),
            3 => self.pick(&[
                0x7f,
                0x80,
                0x7fff,
                0x8000,
                0x7fff_ffff,
                0x8000_0000,
                1 << 63,
            ]),
            4 => self.next() >> self.below(64),
            _ => {
                let (a, b) = (
                    self.pick(&[0u8, 1, 0x7f, 0x80, 0xff]),
                    self.pick(&[0u8, 0xff, 0x80, 7]),
                );
                u64::from_le_bytes([a, b, a, b, a, a, b, b])
            }
        }
    }

    /// 128 bits that look like floats or integers.
    pub(crate) fn vector(&mut self) -> u128 {
        match self.below(8) {
            0..3 => {
                let lanes: [u32; 4] = std::array::from_fn(|_| self.f32());
                lanes.iter().rev().fold(0, |v, &l| v << 32 | u128::from(l))
            }
            3..6 => u128::from(self.f64()) << 64 | u128::from(self.f64()),
            6 => u128::from(self.int()) << 64 | u128::from(self.int()),
            _ => u128::from(self.next()) << 64 | u128::from(self.next()),
        }
    }

    pub(crate) fn integer(&mut self) -> u64 {
        self.int()
    }
}
