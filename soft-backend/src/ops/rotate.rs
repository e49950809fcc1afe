//! ROL, ROR, RCL, RCR: shifts in form, but only CF and OF change.

use super::shift::Shift;
use crate::cpu::flags::LazyFlags;
use crate::int::Int;

pub(crate) struct Rol;
impl Shift for Rol {
    #[inline(always)]
    fn run<T: Int>(f: &mut LazyFlags, a: T, n: u32) -> T {
        if n == 0 {
            return a;
        }
        let k = n % T::BITS;
        let v = a.u64();
        let r = T::cut(if k == 0 {
            v
        } else {
            v << k | v >> (T::BITS - k)
        });
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
        let k = n % T::BITS;
        let v = a.u64();
        let r = T::cut(if k == 0 {
            v
        } else {
            v >> k | v << (T::BITS - k)
        });
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
