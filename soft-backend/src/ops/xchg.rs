//! XCHG, XADD, CMPXCHG, CMPXCHG8B, CMPXCHG16B.

use std::sync::atomic::{Ordering, fence};

use crate::cpu::flags::LazyFlags;
use crate::cpu::{Cpu, Flow, R, Step};
use crate::decode::op::Op;
use crate::int::Int;

pub(crate) fn xchg_rr<T: Int>(cpu: &mut Cpu, op: &Op) -> Step {
    let (a, b) = (cpu.get::<T>(op.dst), cpu.get::<T>(op.src));
    cpu.set(op.dst, b);
    cpu.set(op.src, a);
    Ok(Flow::Next)
}

/// Always locked.
pub(crate) fn xchg_m<T: Int>(cpu: &mut Cpu, op: &Op) -> Step {
    let at = cpu.ea::<T>(op, true)?;
    let new = cpu.get::<T>(op.src);
    let old = cpu.modify_locked::<T>(at, |_, _| new)?;
    cpu.set(op.src, old);
    Ok(Flow::Next)
}

fn add<T: Int>(f: &mut LazyFlags, a: T, b: T) -> T {
    let r = T::cut(a.u64().wrapping_add(b.u64()));
    f.set_add(a, b, r);
    r
}

pub(crate) fn xadd_r<T: Int>(cpu: &mut Cpu, op: &Op) -> Step {
    let (a, b) = (cpu.get::<T>(op.dst), cpu.get::<T>(op.src));
    let r = add(&mut cpu.lazy, a, b);
    cpu.set(op.src, a);
    cpu.set(op.dst, r);
    Ok(Flow::Next)
}

/// `LOCK` says whether the prefix is there.
pub(crate) fn xadd_m<T: Int, const LOCK: bool>(cpu: &mut Cpu, op: &Op) -> Step {
    let at = cpu.ea::<T>(op, true)?;
    let b = cpu.get::<T>(op.src);
    let old = if LOCK {
        cpu.modify_locked::<T>(at, |f, a| add(f, a, b))?
    } else {
        cpu.modify::<T>(at, |f, a| add(f, a, b))?
    };
    cpu.set(op.src, old);
    Ok(Flow::Next)
}

fn compare<T: Int>(f: &mut LazyFlags, acc: T, there: T) {
    f.set_sub(acc, there, T::cut(acc.u64().wrapping_sub(there.u64())));
}

pub(crate) fn cmpxchg_r<T: Int>(cpu: &mut Cpu, op: &Op) -> Step {
    let (acc, there) = (cpu.get::<T>(0), cpu.get::<T>(op.dst));
    compare(&mut cpu.lazy, acc, there);
    if acc == there {
        let new = cpu.get::<T>(op.src);
        cpu.set(op.dst, new);
    } else {
        cpu.set(0, there);
    }
    Ok(Flow::Next)
}

/// The destination is written in both cases, as hardware does.
pub(crate) fn cmpxchg_m<T: Int, const LOCK: bool>(cpu: &mut Cpu, op: &Op) -> Step {
    let at = cpu.ea::<T>(op, true)?;
    let (acc, new) = (cpu.get::<T>(0), cpu.get::<T>(op.src));
    let step = |f: &mut LazyFlags, there: T| {
        compare(f, acc, there);
        if acc == there { new } else { there }
    };
    let old = if LOCK {
        cpu.modify_locked::<T>(at, step)?
    } else {
        cpu.modify::<T>(at, step)?
    };
    if acc != old {
        cpu.set(0, old);
    }
    Ok(Flow::Next)
}

pub(crate) fn cmpxchg8b(cpu: &mut Cpu, op: &Op) -> Step {
    let at = cpu.ea::<u64>(op, true)?;
    let pair = |cpu: &Cpu, high: u8, low: u8| {
        u64::from(cpu.get::<u32>(high)) << 32 | u64::from(cpu.get::<u32>(low))
    };
    let (expect, new) = (pair(cpu, 2, 0), pair(cpu, 1, 3));
    let old = cpu.modify_locked::<u64>(at, |_, there| if there == expect { new } else { there })?;
    if old != expect {
        cpu.set(0, old as u32);
        cpu.set(2, (old >> 32) as u32);
    }
    cpu.lazy.put_zf(old == expect);
    Ok(Flow::Next)
}

/// Atomic where there is memory, also against device threads.
pub(crate) fn cmpxchg16b(cpu: &mut Cpu, op: &Op) -> Step {
    let at = cpu.ea_general(op, 16, true)?;
    if at & 15 != 0 {
        return Err(cpu.gp(0));
    }
    let pair = |low: u64, high: u64| u128::from(low) | u128::from(high) << 64;
    let old = pair(cpu.regs[0], cpu.regs[2]);
    let new = pair(cpu.regs[3], cpu.regs[1]);
    let done = match cpu.ram_for_write(at, 16)? {
        Some(p) => p.compare_exchange_wide(old, new),
        None => on_device(cpu, at, old, new)?,
    };
    if let Err(there) = done {
        cpu.regs[0] = there as u64;
        cpu.regs[2] = (there >> 64) as u64;
    }
    cpu.lazy.put_zf(done.is_ok());
    Ok(Flow::Next)
}

/// The same where there is no memory, in four accesses; the destination is written in both cases.
fn on_device(cpu: &mut Cpu, at: u64, old: u128, new: u128) -> R<Result<(), u128>> {
    // A locked instruction is a fence as well.
    fence(Ordering::SeqCst);
    let there = u128::from(cpu.read::<u64>(at)?) | u128::from(cpu.read::<u64>(at + 8)?) << 64;
    let equal = there == old;
    let stored = if equal { new } else { there };
    cpu.write(at, stored as u64)?;
    cpu.write(at + 8, (stored >> 64) as u64)?;
    fence(Ordering::SeqCst);
    Ok(if equal { Ok(()) } else { Err(there) })
}
