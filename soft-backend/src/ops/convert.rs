//! CBW, CWDE, CDQE, CWD, CDQ, CQO, and the flag instructions that touch one flag.

use crate::cpu::flags::DF;
use crate::cpu::{Cpu, Flow, Step};
use crate::decode::op::Op;
use crate::int::Int;

/// Sign-extends the lower half of rAX (`H`) into rAX (`T`).
pub(crate) fn extend<T: Int, H: Int>(cpu: &mut Cpu, _: &Op) -> Step {
    let v = cpu.get::<H>(0).sext();
    cpu.set(0, T::cut(v));
    Ok(Flow::Next)
}

/// Fills rDX with the sign of rAX.
pub(crate) fn spread<T: Int>(cpu: &mut Cpu, _: &Op) -> Step {
    let v = (cpu.get::<T>(0).sext() as i64 >> 63) as u64;
    cpu.set(2, T::cut(v));
    Ok(Flow::Next)
}

pub(crate) fn clc(cpu: &mut Cpu, _: &Op) -> Step {
    cpu.lazy.put_cf(false);
    Ok(Flow::Next)
}

pub(crate) fn stc(cpu: &mut Cpu, _: &Op) -> Step {
    cpu.lazy.put_cf(true);
    Ok(Flow::Next)
}

pub(crate) fn cmc(cpu: &mut Cpu, _: &Op) -> Step {
    let c = cpu.lazy.cf();
    cpu.lazy.put_cf(!c);
    Ok(Flow::Next)
}

pub(crate) fn cld(cpu: &mut Cpu, _: &Op) -> Step {
    cpu.sysflags &= !DF;
    Ok(Flow::Next)
}

pub(crate) fn std(cpu: &mut Cpu, _: &Op) -> Step {
    cpu.sysflags |= DF;
    Ok(Flow::Next)
}

/// MFENCE: device threads share the memory, so the guest's store has to be out before its next load.
pub(crate) fn mfence(_: &mut Cpu, _: &Op) -> Step {
    std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
    Ok(Flow::Next)
}

/// NOP, PAUSE's body, prefetches, LFENCE and SFENCE (loads and stores are in order each).
pub(crate) fn nop(_: &mut Cpu, _: &Op) -> Step {
    Ok(Flow::Next)
}

/// CLFLUSH: touches the address as a load does.
pub(crate) fn clflush(cpu: &mut Cpu, op: &Op) -> Step {
    let at = cpu.ea::<u8>(op, false)?;
    cpu.run_for(at, 1, crate::mmu::Access::Read)?;
    Ok(Flow::Next)
}
