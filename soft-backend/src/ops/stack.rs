//! PUSH, POP, PUSHA, POPA, PUSHF, POPF, ENTER, LEAVE.

use crate::cpu::flags::{AC, ARITH, DF, ID, IF, IOPL, NT, RF, TF, VM};
use crate::cpu::state::RSP;
use crate::cpu::{Cpu, Flow, Step};
use crate::decode::op::Op;
use crate::int::Int;

pub(crate) fn push_r<T: Int>(cpu: &mut Cpu, op: &Op) -> Step {
    let v = cpu.get::<T>(op.src);
    cpu.push(v)?;
    Ok(Flow::Next)
}

pub(crate) fn push_i<T: Int>(cpu: &mut Cpu, op: &Op) -> Step {
    cpu.push(T::cut(op.imm as i64 as u64))?;
    Ok(Flow::Next)
}

pub(crate) fn push_m<T: Int>(cpu: &mut Cpu, op: &Op) -> Step {
    let at = cpu.ea::<T>(op, false)?;
    let v = cpu.read::<T>(at)?;
    cpu.push(v)?;
    Ok(Flow::Next)
}

pub(crate) fn push_seg<T: Int>(cpu: &mut Cpu, op: &Op) -> Step {
    let v = cpu.seg[op.src as usize].selector;
    cpu.push(T::cut(u64::from(v)))?;
    Ok(Flow::Next)
}

/// The stack pointer moves first, so that POP rSP gets the popped value.
pub(crate) fn pop_r<T: Int>(cpu: &mut Cpu, op: &Op) -> Step {
    let v = cpu.pop::<T>()?;
    cpu.set(op.dst, v);
    Ok(Flow::Next)
}

/// The address is computed with the moved stack pointer; a fault moves it back.
pub(crate) fn pop_m<T: Int>(cpu: &mut Cpu, op: &Op) -> Step {
    let before = cpu.regs[RSP];
    let v = cpu.pop::<T>()?;
    let done = match cpu.ea::<T>(op, true) {
        Ok(at) => cpu.write(at, v),
        Err(t) => Err(t),
    };
    if let Err(t) = done {
        cpu.regs[RSP] = before;
        return Err(t);
    }
    Ok(Flow::Next)
}

pub(crate) fn pusha<T: Int>(cpu: &mut Cpu, _: &Op) -> Step {
    let sp = cpu.regs[RSP];
    for r in 0..8u8 {
        let v = if r as usize == RSP {
            T::cut(sp)
        } else {
            cpu.get::<T>(r)
        };
        if let Err(t) = cpu.push(v) {
            cpu.regs[RSP] = sp;
            return Err(t);
        }
    }
    Ok(Flow::Next)
}

pub(crate) fn popa<T: Int>(cpu: &mut Cpu, _: &Op) -> Step {
    let mut v = [0u64; 8];
    for (i, slot) in v.iter_mut().enumerate() {
        *slot = cpu.peek::<T>(i as u64 * T::BYTES)?.u64();
    }
    for (i, v) in v.into_iter().enumerate() {
        let r = 7 - i as u8;
        if r as usize != RSP {
            cpu.set(r, T::cut(v));
        }
    }
    cpu.drop_stack(8 * T::BYTES);
    Ok(Flow::Next)
}

pub(crate) fn pushf<T: Int>(cpu: &mut Cpu, _: &Op) -> Step {
    let f = cpu.rflags() & !(RF | VM);
    cpu.push(T::cut(f))?;
    Ok(Flow::Next)
}

impl Cpu {
    /// The RFLAGS that POPF or IRET at the current privilege make of `new`, in width `T`.
    pub(crate) fn popped_flags<T: Int>(&self, new: u64, rf: bool) -> u64 {
        let mut may = ARITH | TF | DF | NT | AC | ID;
        if rf {
            may |= RF;
        }
        if self.cpl == 0 || !self.protected() {
            may |= IOPL;
        }
        if self.cpl <= self.iopl() || !self.protected() {
            may |= IF;
        }
        may &= T::MASK;
        let old = self.rflags();
        old & !may & !(if rf { 0 } else { RF }) | new & may
    }
}

/// POPF ends its block: what it changed may matter to the run loop.
pub(crate) fn popf_ends<T: Int>(cpu: &mut Cpu, op: &Op) -> Step {
    let new = cpu.pop::<T>()?.u64();
    let f = cpu.popped_flags::<T>(new, false);
    let quiet = (cpu.sysflags ^ f) & (IF | TF | AC) == 0;
    cpu.set_rflags(f);
    cpu.rip = cpu.next_ip(op);
    Ok(if quiet { Flow::Link0 } else { Flow::Check })
}

/// ENTER: `imm` is the frame size, `aux` the nesting level.
pub(crate) fn enter<T: Int>(cpu: &mut Cpu, op: &Op) -> Step {
    let (sp, bp) = (cpu.regs[RSP], cpu.regs[5]);
    let r = enter_body::<T>(cpu, op);
    if r.is_err() {
        cpu.regs[RSP] = sp;
        cpu.regs[5] = bp;
    }
    r
}

fn enter_body<T: Int>(cpu: &mut Cpu, op: &Op) -> Step {
    let level = u64::from(op.aux & 31);
    let size = u64::from(op.imm as u16);
    let bp = cpu.get::<T>(5);
    cpu.push(bp)?;
    let frame = cpu.regs[RSP];
    for i in 1..level {
        let at = cpu.regs[5].wrapping_sub(i * T::BYTES);
        let at = cpu.stack_linear(at, T::BYTES, false)?;
        let v = cpu.read::<T>(at)?;
        cpu.push(v)?;
    }
    if level > 0 {
        cpu.push(T::cut(frame))?;
    }
    let sp = cpu.regs[RSP].wrapping_sub(size);
    // The new top must be writable.
    let top = cpu.stack_linear(sp, T::BYTES, true)?;
    cpu.probe_write(top, T::BYTES)?;
    let m = cpu.stack_mask();
    cpu.set_sp(sp);
    if m == 0xffff {
        cpu.set(5, frame as u16)
    } else {
        cpu.set(5, T::cut(frame))
    }
    Ok(Flow::Next)
}

pub(crate) fn leave<T: Int>(cpu: &mut Cpu, _: &Op) -> Step {
    let bp = cpu.regs[5];
    let at = cpu.stack_linear(bp, T::BYTES, false)?;
    let v = cpu.read::<T>(at)?;
    cpu.set_sp(bp.wrapping_add(T::BYTES));
    cpu.set(5, v);
    Ok(Flow::Next)
}
