//! SHL, SHR, SAR, SHLD, SHRD.

use crate::cpu::flags::LazyFlags;
use crate::cpu::{Cpu, Flow, Step};
use crate::decode::op::Op;
use crate::int::Int;

/// A shift or rotate: flags and result for a count that is masked but may be zero.
pub(crate) trait Shift {
    fn run<T: Int>(f: &mut LazyFlags, a: T, count: u32) -> T;
}

/// Masks a count as the processor does.
#[inline(always)]
pub(crate) fn mask<T: Int>(count: u8) -> u32 {
    u32::from(count) & if T::BITS == 64 { 63 } else { 31 }
}

pub(crate) struct Shl;
impl Shift for Shl {
    #[inline(always)]
    fn run<T: Int>(f: &mut LazyFlags, a: T, n: u32) -> T {
        if n == 0 {
            return a;
        }
        let r = T::cut(a.u64() << n);
        let cf = n <= T::BITS && a.u64() >> (T::BITS - n) & 1 != 0;
        f.set_result(r, cf, cf ^ r.msb());
        r
    }
}

pub(crate) struct Shr;
impl Shift for Shr {
    #[inline(always)]
    fn run<T: Int>(f: &mut LazyFlags, a: T, n: u32) -> T {
        if n == 0 {
            return a;
        }
        let r = T::cut(a.u64() >> n);
        let cf = a.u64() >> (n - 1) & 1 != 0;
        // Defined for a count of one: the top bit of the operand.
        let of = r.u64() << 1 >> (T::BITS - 1) & 1 != 0;
        f.set_result(r, cf, of);
        r
    }
}

pub(crate) struct Sar;
impl Shift for Sar {
    #[inline(always)]
    fn run<T: Int>(f: &mut LazyFlags, a: T, n: u32) -> T {
        if n == 0 {
            return a;
        }
        let s = a.sext() as i64;
        let r = T::cut((s >> n) as u64);
        f.set_result(r, s >> (n - 1) & 1 != 0, false);
        r
    }
}

pub(crate) fn r_imm<T: Int, S: Shift>(cpu: &mut Cpu, op: &Op) -> Step {
    let a = cpu.get::<T>(op.dst);
    let r = S::run(&mut cpu.lazy, a, mask::<T>(op.imm as u8));
    cpu.set(op.dst, r);
    Ok(Flow::Next)
}

pub(crate) fn r_cl<T: Int, S: Shift>(cpu: &mut Cpu, op: &Op) -> Step {
    let a = cpu.get::<T>(op.dst);
    let n = mask::<T>(cpu.get::<u8>(1));
    let r = S::run(&mut cpu.lazy, a, n);
    cpu.set(op.dst, r);
    Ok(Flow::Next)
}

pub(crate) fn m_imm<T: Int, S: Shift>(cpu: &mut Cpu, op: &Op) -> Step {
    let at = cpu.ea::<T>(op, true)?;
    cpu.modify::<T>(at, |f, a| S::run(f, a, mask::<T>(op.imm as u8)))?;
    Ok(Flow::Next)
}

pub(crate) fn m_cl<T: Int, S: Shift>(cpu: &mut Cpu, op: &Op) -> Step {
    let at = cpu.ea::<T>(op, true)?;
    let n = mask::<T>(cpu.get::<u8>(1));
    cpu.modify::<T>(at, |f, a| S::run(f, a, n))?;
    Ok(Flow::Next)
}

/// A double shift of `a` with bits from `b`.
pub(crate) trait Double {
    fn run<T: Int>(f: &mut LazyFlags, a: T, b: T, n: u32) -> T;
}

pub(crate) struct Shld;
impl Double for Shld {
    #[inline(always)]
    fn run<T: Int>(f: &mut LazyFlags, a: T, b: T, n: u32) -> T {
        if n == 0 {
            return a;
        }
        // For 16-bit operands and counts above 16 (undefined), the bits wrap round as on hardware.
        let bits = T::BITS;
        let wide = u128::from(a.u64()) << bits | u128::from(b.u64());
        let wide = if bits == 16 {
            wide << 16 | u128::from(a.u64())
        } else {
            wide
        };
        let total = if bits == 16 { 48 } else { 2 * bits };
        let r = T::cut((wide << n >> (total - bits)) as u64);
        let cf = wide >> (total - n) & 1 != 0;
        f.set_result(r, cf, r.msb() != a.msb());
        r
    }
}

pub(crate) struct Shrd;
impl Double for Shrd {
    #[inline(always)]
    fn run<T: Int>(f: &mut LazyFlags, a: T, b: T, n: u32) -> T {
        if n == 0 {
            return a;
        }
        let bits = T::BITS;
        let wide = u128::from(b.u64()) << bits | u128::from(a.u64());
        let wide = if bits == 16 {
            u128::from(a.u64()) << 32 | wide
        } else {
            wide
        };
        let r = T::cut((wide >> n) as u64);
        let cf = wide >> (n - 1) & 1 != 0;
        // OF: the top bit changed in the last step.
        f.set_result(r, cf, (r.u64() << 1 ^ r.u64()) >> (bits - 1) & 1 != 0);
        r
    }
}

pub(crate) fn double_r<T: Int, D: Double, const CL: bool>(cpu: &mut Cpu, op: &Op) -> Step {
    let (a, b) = (cpu.get::<T>(op.dst), cpu.get::<T>(op.src));
    let n = mask::<T>(if CL { cpu.get::<u8>(1) } else { op.imm as u8 });
    let r = D::run(&mut cpu.lazy, a, b, n);
    cpu.set(op.dst, r);
    Ok(Flow::Next)
}

pub(crate) fn double_m<T: Int, D: Double, const CL: bool>(cpu: &mut Cpu, op: &Op) -> Step {
    let at = cpu.ea::<T>(op, true)?;
    let b = cpu.get::<T>(op.src);
    let n = mask::<T>(if CL { cpu.get::<u8>(1) } else { op.imm as u8 });
    cpu.modify::<T>(at, |f, a| D::run(f, a, b, n))?;
    Ok(Flow::Next)
}
