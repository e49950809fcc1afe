//! ROL, ROR, RCL, RCR: shifts in form, but only CF and OF change.

use super::shift::Shift;
use crate::cpu::flags::LazyFlags;
use crate::int::Int;

/// Rotates to the left by 0 to `T::BITS` bits.
#[inline(always)]
fn left<T: Int>(a: T, n: u32) -> T {
    let v = a.u64();
    if n == 0 || n == T::BITS {
        a
    } else {
        T::cut(v << n | v >> (T::BITS - n))
    }
}

pub(crate) struct Rol;
impl Shift for Rol {
    #[inline(always)]
    fn run<T: Int>(f: &mut LazyFlags, a: T, n: u32) -> T {
        if n == 0 {
            return a;
        }
        let r = left(a, n % T::BITS);
        let cf = r.u64() & 1 != 0;
        f.put_cf_of(cf, cf ^ r.msb());
        r
    }
}

pub(crate) struct Ror;
impl Shift for Ror {
    #[inline(always)]
    fn run<T: Int>(f: &mut LazyFlags, a: T, n: u32) -> T {
        if n == 0 {
            return a;
        }
        let r = left(a, T::BITS - n % T::BITS);
        f.put_cf_of(r.msb(), (r.u64() << 1 ^ r.u64()) >> (T::BITS - 1) & 1 != 0);
        r
    }
}

pub(crate) struct Rcl;
impl Shift for Rcl {
    #[inline(always)]
    fn run<T: Int>(f: &mut LazyFlags, a: T, n: u32) -> T {
        let k = n % (T::BITS + 1);
        if k == 0 {
            return a;
        }
        let width = T::BITS + 1;
        let v = u128::from(f.cf()) << T::BITS | u128::from(a.u64());
        let v = v << k | v >> (width - k);
        let r = T::cut(v as u64);
        let cf = v >> T::BITS & 1 != 0;
        f.put_cf_of(cf, cf ^ r.msb());
        r
    }
}

pub(crate) struct Rcr;
impl Shift for Rcr {
    #[inline(always)]
    fn run<T: Int>(f: &mut LazyFlags, a: T, n: u32) -> T {
        let k = n % (T::BITS + 1);
        if k == 0 {
            return a;
        }
        let width = T::BITS + 1;
        let v = u128::from(f.cf()) << T::BITS | u128::from(a.u64());
        let v = v >> k | v << (width - k);
        let r = T::cut(v as u64);
        let cf = v >> T::BITS & 1 != 0;
        f.put_cf_of(cf, (r.u64() << 1 ^ r.u64()) >> (T::BITS - 1) & 1 != 0);
        r
    }
}
