//! Near branches, calls, returns, loops, software interrupts, BOUND.

use crate::cpu::{Cpu, Flow, R, Step, Trap, Trapped};
use crate::decode::op::Op;
use crate::int::Int;

/// Target of a direct branch: relative to the block's start, as wide as the operand size says.
#[inline(always)]
fn target<T: Int>(cpu: &Cpu, op: &Op) -> u64 {
    cpu.regs[16].wrapping_add(op.disp as u64) & T::MASK
}

/// The end of a block that does not end with a branch.
pub(crate) fn fall_through(cpu: &mut Cpu, op: &Op) -> Step {
    cpu.rip = cpu.ip(op);
    Ok(Flow::Link0)
}

pub(crate) fn jmp<T: Int>(cpu: &mut Cpu, op: &Op) -> Step {
    let t = target::<T>(cpu, op);
    cpu.branch(t)?;
    Ok(Flow::Link0)
}

/// Jcc with the condition in the type, so that each evaluates only what it needs.
pub(crate) fn jcc<T: Int, const CC: u8>(cpu: &mut Cpu, op: &Op) -> Step {
    if cpu.lazy.cond(CC) {
        let t = target::<T>(cpu, op);
        cpu.branch(t)?;
        Ok(Flow::Link1)
    } else {
        cpu.rip = cpu.next_ip(op);
        Ok(Flow::Link0)
    }
}

pub(crate) fn call<T: Int>(cpu: &mut Cpu, op: &Op) -> Step {
    let t = target::<T>(cpu, op);
    call_to::<T>(cpu, op, t)?;
    Ok(Flow::Link0)
}

#[inline(always)]
fn call_to<T: Int>(cpu: &mut Cpu, op: &Op, to: u64) -> R<()> {
    // The target is checked first, so that a fault leaves the stack as it was.
    cpu.branch(to)?;
    let next = cpu.next_ip(op);
    cpu.push(T::cut(next))
}

/// JMP r/m.
pub(crate) fn jmp_r<T: Int>(cpu: &mut Cpu, op: &Op) -> Step {
    let t = cpu.get::<T>(op.src).u64();
    cpu.branch(t)?;
    Ok(Flow::Jump)
}

pub(crate) fn jmp_m<T: Int>(cpu: &mut Cpu, op: &Op) -> Step {
    let at = cpu.ea::<T>(op, false)?;
    let t = cpu.read::<T>(at)?.u64();
    cpu.branch(t)?;
    Ok(Flow::Jump)
}

pub(crate) fn call_r<T: Int>(cpu: &mut Cpu, op: &Op) -> Step {
    let t = cpu.get::<T>(op.src).u64();
    call_to::<T>(cpu, op, t)?;
    Ok(Flow::Jump)
}

pub(crate) fn call_m<T: Int>(cpu: &mut Cpu, op: &Op) -> Step {
    let at = cpu.ea::<T>(op, false)?;
    let t = cpu.read::<T>(at)?.u64();
    call_to::<T>(cpu, op, t)?;
    Ok(Flow::Jump)
}

/// RET, RET imm16: the immediate is zero without one.
pub(crate) fn ret<T: Int>(cpu: &mut Cpu, op: &Op) -> Step {
    let t = cpu.peek::<T>(0)?.u64();
    cpu.branch(t)?;
    cpu.drop_stack(T::BYTES + u64::from(op.imm as u16));
    Ok(Flow::Jump)
}

/// LOOP, LOOPE, LOOPNE, JrCXZ: `A` is the counter's width, `T` the operand size; `aux` says which.
pub(crate) fn looping<A: Int, T: Int, const KIND: u8>(cpu: &mut Cpu, op: &Op) -> Step {
    let count = A::cut(cpu.get::<A>(1).u64().wrapping_sub(u64::from(KIND != 3)));
    let taken = match KIND {
        0 => count.u64() != 0,
        1 => count.u64() != 0 && cpu.lazy.zf(),
        2 => count.u64() != 0 && !cpu.lazy.zf(),
        _ => count.u64() == 0,
    };
    let flow = if taken {
        let t = target::<T>(cpu, op);
        cpu.branch(t)?;
        Flow::Link1
    } else {
        cpu.rip = cpu.next_ip(op);
        Flow::Link0
    };
    if KIND != 3 {
        cpu.set(1, count);
    }
    Ok(flow)
}

/// INT n; the vector is the immediate.
pub(crate) fn int(cpu: &mut Cpu, op: &Op) -> Step {
    cpu.trap = Trap::SoftInt {
        vector: op.imm as u8,
        next: cpu.next_ip(op),
    };
    Err(Trapped)
}

pub(crate) fn into(cpu: &mut Cpu, op: &Op) -> Step {
    if super::bcd::overflow(cpu) {
        int(cpu, op)
    } else {
        Ok(Flow::Next)
    }
}

pub(crate) fn ud(cpu: &mut Cpu, _: &Op) -> Step {
    Err(cpu.ud())
}

/// Raises #GP(0): an instruction that decodes but may not be used.
pub(crate) fn gp(cpu: &mut Cpu, _: &Op) -> Step {
    Err(cpu.gp(0))
}

pub(crate) fn bound<T: Int>(cpu: &mut Cpu, op: &Op) -> Step {
    let at = cpu.ea_general(op, 2 * T::BYTES, false)?;
    let low = cpu.read::<T>(at)?.sext() as i64;
    let high = cpu.read::<T>(at.wrapping_add(T::BYTES))?.sext() as i64;
    let v = cpu.get::<T>(op.dst).sext() as i64;
    if v < low || v > high {
        return Err(cpu.raise(5, None));
    }
    Ok(Flow::Next)
}
