//! The arithmetic flags, kept lazily.
//!
//! Instead of six bits, the last result and a word of side information are stored: two writes per
//! instruction, and each flag is a few operations when somebody asks.
//!
//! `result` is the sign-extended result: ZF is "all zero", SF its top bit, PF the parity of its low
//! byte. `aux` holds CF in bit 63, "CF xor OF" in bit 62, AF in bit 3, and corrections for states
//! that no result has (POPF may set ZF and SF together): bit 0 flips SF, bits 8–15 are xored into
//! the byte whose parity PF is.

use crate::int::Int;

/// Carry flag.
pub(crate) const CF: u64 = 1;
/// Parity flag.
pub(crate) const PF: u64 = 1 << 2;
/// Auxiliary carry flag.
pub(crate) const AF: u64 = 1 << 4;
/// Zero flag.
pub(crate) const ZF: u64 = 1 << 6;
/// Sign flag.
pub(crate) const SF: u64 = 1 << 7;
/// Trap flag.
pub(crate) const TF: u64 = 1 << 8;
/// Interrupt enable flag.
pub(crate) const IF: u64 = 1 << 9;
/// Direction flag.
pub(crate) const DF: u64 = 1 << 10;
/// Overflow flag.
pub(crate) const OF: u64 = 1 << 11;
/// I/O privilege level (two bits).
pub(crate) const IOPL: u64 = 3 << 12;
/// Nested task.
pub(crate) const NT: u64 = 1 << 14;
/// Resume flag.
pub(crate) const RF: u64 = 1 << 16;
/// Virtual-8086 mode.
pub(crate) const VM: u64 = 1 << 17;
/// Alignment check, and the SMAP override.
pub(crate) const AC: u64 = 1 << 18;
/// CPUID is present if this bit can be changed.
pub(crate) const ID: u64 = 1 << 21;
/// The six flags that are kept lazily.
pub(crate) const ARITH: u64 = CF | PF | AF | ZF | SF | OF;

/// The lazily kept arithmetic flags.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct LazyFlags {
    result: u64,
    aux: u64,
}

impl LazyFlags {
    /// After AND, OR, XOR, TEST: CF, OF and AF are clear.
    #[inline(always)]
    pub(crate) fn set_logic<T: Int>(&mut self, r: T) {
        self.result = r.sext();
        self.aux = 0;
    }

    #[inline(always)]
    fn aux_of<T: Int>(carries: u64) -> u64 {
        (carries & 8) | (carries >> (T::BITS - 2)) << 62
    }

    /// After `r = a + b` or `a + b + carry`.
    #[inline(always)]
    pub(crate) fn set_add<T: Int>(&mut self, a: T, b: T, r: T) {
        let (a, b, s) = (a.u64(), b.u64(), r.u64());
        self.result = r.sext();
        self.aux = Self::aux_of::<T>(((a & b) | ((a | b) & !s)) & T::MASK);
    }

    /// After `r = a - b` or `a - b - borrow`.
    #[inline(always)]
    pub(crate) fn set_sub<T: Int>(&mut self, a: T, b: T, r: T) {
        let (a, b, s) = (a.u64(), b.u64(), r.u64());
        self.result = r.sext();
        self.aux = Self::aux_of::<T>(((!a & b) | ((!a ^ b) & s)) & T::MASK);
    }

    /// After INC: as an addition of one, but CF stays.
    #[inline(always)]
    pub(crate) fn set_inc<T: Int>(&mut self, a: T, r: T) {
        let cf = self.cf();
        self.set_add(a, T::cut(1), r);
        self.put_cf(cf);
    }

    /// After DEC: as a subtraction of one, but CF stays.
    #[inline(always)]
    pub(crate) fn set_dec<T: Int>(&mut self, a: T, r: T) {
        let cf = self.cf();
        self.set_sub(a, T::cut(1), r);
        self.put_cf(cf);
    }

    /// Result flags from `r`, CF and OF given, AF clear: shifts and multiplications.
    #[inline(always)]
    pub(crate) fn set_result<T: Int>(&mut self, r: T, cf: bool, of: bool) {
        self.result = r.sext();
        self.aux = (cf as u64) << 63 | ((cf ^ of) as u64) << 62;
    }

    /// Changes CF only.
    #[inline(always)]
    pub(crate) fn put_cf(&mut self, cf: bool) {
        let of = self.of();
        self.put_cf_of(cf, of);
    }

    /// Changes CF and OF only: rotates.
    #[inline(always)]
    pub(crate) fn put_cf_of(&mut self, cf: bool, of: bool) {
        self.aux = (self.aux & !(3 << 62)) | (cf as u64) << 63 | ((cf ^ of) as u64) << 62;
    }

    /// Changes ZF only.
    pub(crate) fn put_zf(&mut self, zf: bool) {
        let f = self.to_bits() & !ZF;
        self.set_bits(if zf { f | ZF } else { f });
    }

    #[inline(always)]
    pub(crate) fn cf(&self) -> bool {
        self.aux >> 63 != 0
    }
    #[inline(always)]
    pub(crate) fn of(&self) -> bool {
        (self.aux ^ self.aux << 1) >> 63 != 0
    }
    #[inline(always)]
    pub(crate) fn af(&self) -> bool {
        self.aux & 8 != 0
    }
    #[inline(always)]
    pub(crate) fn zf(&self) -> bool {
        self.result == 0
    }
    #[inline(always)]
    pub(crate) fn sf(&self) -> bool {
        (self.result >> 63 ^ self.aux & 1) != 0
    }
    #[inline(always)]
    pub(crate) fn pf(&self) -> bool {
        ((self.result ^ self.aux >> 8) as u8).count_ones() & 1 == 0
    }

    /// The flags in their places in RFLAGS; all other bits are zero.
    pub(crate) fn to_bits(self) -> u64 {
        let mut f = 0;
        for (on, bit) in [
            (self.cf(), CF),
            (self.pf(), PF),
            (self.af(), AF),
            (self.zf(), ZF),
            (self.sf(), SF),
            (self.of(), OF),
        ] {
            if on {
                f |= bit;
            }
        }
        f
    }

    /// Takes the six flags from an RFLAGS value; other bits are ignored.
    pub(crate) fn set_bits(&mut self, f: u64) {
        let cf = f & CF != 0;
        let of = f & OF != 0;
        self.result = u64::from(f & ZF == 0);
        // The low byte is 0 (even) or 1 (odd); the correction makes its parity what is wanted.
        let odd = self.result & 1 != 0;
        let want_odd = f & PF == 0;
        self.aux = (cf as u64) << 63
            | ((cf ^ of) as u64) << 62
            | u64::from(f & AF != 0) << 3
            | u64::from(f & SF != 0)
            | u64::from(odd != want_odd) << 8;
    }

    /// Evaluates a condition code (the low four bits of Jcc, SETcc, CMOVcc).
    #[inline(always)]
    pub(crate) fn cond(&self, code: u8) -> bool {
        let v = match (code >> 1) & 7 {
            0 => self.of(),
            1 => self.cf(),
            2 => self.zf(),
            3 => self.cf() || self.zf(),
            4 => self.sf(),
            5 => self.pf(),
            6 => self.sf() != self.of(),
            _ => self.zf() || self.sf() != self.of(),
        };
        v != (code & 1 != 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_combination_survives_set_and_get() {
        for i in 0..64u64 {
            let f = [CF, PF, AF, ZF, SF, OF]
                .iter()
                .enumerate()
                .fold(0, |f, (n, bit)| if i >> n & 1 != 0 { f | bit } else { f });
            let mut l = LazyFlags::default();
            l.set_bits(f);
            assert_eq!(l.to_bits(), f);
        }
    }

    #[test]
    fn additions_and_subtractions_of_all_bytes() {
        for a in 0..=255u8 {
            for b in 0..=255u8 {
                let mut l = LazyFlags::default();
                l.set_add(a, b, a.wrapping_add(b));
                assert_eq!(l.cf(), a.checked_add(b).is_none());
                assert_eq!(l.of(), (a as i8).checked_add(b as i8).is_none());
                assert_eq!(l.af(), (a & 15) + (b & 15) > 15);
                l.set_sub(a, b, a.wrapping_sub(b));
                assert_eq!(l.cf(), a < b);
                assert_eq!(l.of(), (a as i8).checked_sub(b as i8).is_none());
                assert_eq!(l.af(), a & 15 < b & 15);
                assert_eq!(l.zf(), a == b);
                assert_eq!(l.cond(12), (a as i8) < (b as i8));
                assert_eq!(l.cond(7), a > b);
            }
        }
    }
}
