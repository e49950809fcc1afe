//! MUL, IMUL, DIV, IDIV.

use super::source;
use crate::cpu::flags::LazyFlags;
use crate::cpu::state::HIGH;
use crate::cpu::{Cpu, Flow, Step};
use crate::decode::op::Op;
use crate::int::Int;

/// Puts a double-width value into AX, or into rDX:rAX.
fn set_pair<T: Int>(cpu: &mut Cpu, low: T, high: T) {
    cpu.set(0, low);
    cpu.set(if T::BYTES == 1 { HIGH } else { 2 }, high);
}

pub(crate) fn mul<T: Int, const MEM: bool>(cpu: &mut Cpu, op: &Op) -> Step {
    let b = source::<T, MEM>(cpu, op)?;
    let p = u128::from(cpu.get::<T>(0).u64()) * u128::from(b.u64());
    let (low, high) = (T::cut(p as u64), T::cut((p >> T::BITS) as u64));
    set_pair(cpu, low, high);
    let over = high.u64() != 0;
    cpu.lazy.set_result(low, over, over);
    Ok(Flow::Next)
}

pub(crate) fn imul<T: Int, const MEM: bool>(cpu: &mut Cpu, op: &Op) -> Step {
    let b = source::<T, MEM>(cpu, op)?;
    let p = i128::from(cpu.get::<T>(0).sext() as i64) * i128::from(b.sext() as i64);
    let (low, high) = (T::cut(p as u64), T::cut((p >> T::BITS) as u64));
    set_pair(cpu, low, high);
    let over = i128::from(low.sext() as i64) != p;
    cpu.lazy.set_result(low, over, over);
    Ok(Flow::Next)
}

#[inline(always)]
fn product<T: Int>(f: &mut LazyFlags, a: T, b: T) -> T {
    let p = i128::from(a.sext() as i64) * i128::from(b.sext() as i64);
    let r = T::cut(p as u64);
    let over = i128::from(r.sext() as i64) != p;
    f.set_result(r, over, over);
    r
}

/// IMUL r, r/m.
pub(crate) fn imul2<T: Int, const MEM: bool>(cpu: &mut Cpu, op: &Op) -> Step {
    let b = source::<T, MEM>(cpu, op)?;
    let a = cpu.get::<T>(op.dst);
    let r = product(&mut cpu.lazy, a, b);
    cpu.set(op.dst, r);
    Ok(Flow::Next)
}

/// IMUL r, r/m, imm.
pub(crate) fn imul3<T: Int, const MEM: bool>(cpu: &mut Cpu, op: &Op) -> Step {
    let a = source::<T, MEM>(cpu, op)?;
    let r = product(&mut cpu.lazy, a, T::cut(op.imm as i64 as u64));
    cpu.set(op.dst, r);
    Ok(Flow::Next)
}

fn dividend<T: Int>(cpu: &Cpu) -> u128 {
    let low = cpu.get::<T>(0).u64();
    let high = cpu.get::<T>(if T::BYTES == 1 { HIGH } else { 2 }).u64();
    u128::from(high) << T::BITS | u128::from(low)
}

pub(crate) fn div<T: Int, const MEM: bool>(cpu: &mut Cpu, op: &Op) -> Step {
    let b = source::<T, MEM>(cpu, op)?.u64();
    let n = dividend::<T>(cpu);
    if b == 0 || n >> T::BITS >= u128::from(b) {
        return Err(cpu.de());
    }
    let (q, r) = match u64::try_from(n) {
        Ok(n) => (n / b, n % b),
        Err(_) => ((n / u128::from(b)) as u64, (n % u128::from(b)) as u64),
    };
    set_pair(cpu, T::cut(q), T::cut(r));
    Ok(Flow::Next)
}

pub(crate) fn idiv<T: Int, const MEM: bool>(cpu: &mut Cpu, op: &Op) -> Step {
    let b = i128::from(source::<T, MEM>(cpu, op)?.sext() as i64);
    let shift = 128 - 2 * T::BITS;
    let n = (dividend::<T>(cpu) << shift) as i128 >> shift;
    if b == 0 {
        return Err(cpu.de());
    }
    let (q, r) = match (i64::try_from(n), b as i64) {
        (Ok(n), b) if b != -1 => (i128::from(n / b), i128::from(n % b)),
        // The one overflow of 128-bit division cannot be represented in the quotient either.
        _ => match (n.checked_div(b), n.checked_rem(b)) {
            (Some(q), Some(r)) => (q, r),
            _ => return Err(cpu.de()),
        },
    };
    let q_cut = T::cut(q as u64);
    if i128::from(q_cut.sext() as i64) != q {
        return Err(cpu.de());
    }
    set_pair(cpu, q_cut, T::cut(r as u64));
    Ok(Flow::Next)
}
