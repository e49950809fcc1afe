//! Operand widths: the four unsigned integers that integer instructions work on.

/// An operand width. Arithmetic is done in `u64` and truncated; this trait names the conversions.
pub(crate) trait Int: Copy + Eq + 'static {
    /// Width in bits.
    const BITS: u32;
    /// Width in bytes.
    const BYTES: u64;
    /// All bits of the width, zero-extended.
    const MASK: u64;
    /// Zero-extends.
    fn u64(self) -> u64;
    /// Sign-extends.
    fn sext(self) -> u64;
    /// Truncates.
    fn cut(v: u64) -> Self;
    /// The highest bit.
    #[inline(always)]
    fn msb(self) -> bool {
        self.u64() >> (Self::BITS - 1) & 1 != 0
    }
}

macro_rules! int {
    ($($t:ty, $s:ty);*) => {$(
        impl Int for $t {
            const BITS: u32 = <$t>::BITS;
            const BYTES: u64 = (<$t>::BITS / 8) as u64;
            const MASK: u64 = <$t>::MAX as u64;
            #[inline(always)]
            fn u64(self) -> u64 {
                self as u64
            }
            #[inline(always)]
            fn sext(self) -> u64 {
                self as $s as i64 as u64
            }
            #[inline(always)]
            fn cut(v: u64) -> Self {
                v as $t
            }
        }
    )*};
}

int!(u8, i8; u16, i16; u32, i32; u64, i64);
