//! MOV, MOVZX, MOVSX, LEA, CMOVcc, SETcc, BSWAP, XLAT, LAHF, SAHF, segment moves, far loads.

use crate::cpu::flags;
use crate::cpu::state::HIGH;
use crate::cpu::{Cpu, Flow, Mode, Step};
use crate::decode::op::Op;
use crate::int::Int;
use crate::segments::{CS, SS};

pub(crate) fn rr<T: Int>(cpu: &mut Cpu, op: &Op) -> Step {
    let v = cpu.get::<T>(op.src);
    cpu.set(op.dst, v);
    Ok(Flow::Next)
}

/// The immediate is in `disp`, all 64 bits of it.
pub(crate) fn ri<T: Int>(cpu: &mut Cpu, op: &Op) -> Step {
    cpu.set(op.dst, T::cut(op.disp as u64));
    Ok(Flow::Next)
}

pub(crate) fn rm<T: Int>(cpu: &mut Cpu, op: &Op) -> Step {
    let at = cpu.ea::<T>(op, false)?;
    let v = cpu.read::<T>(at)?;
    cpu.set(op.dst, v);
    Ok(Flow::Next)
}

pub(crate) fn mr<T: Int>(cpu: &mut Cpu, op: &Op) -> Step {
    let at = cpu.ea::<T>(op, true)?;
    let v = cpu.get::<T>(op.src);
    cpu.write(at, v)?;
    Ok(Flow::Next)
}

pub(crate) fn mi<T: Int>(cpu: &mut Cpu, op: &Op) -> Step {
    let at = cpu.ea::<T>(op, true)?;
    cpu.write(at, T::cut(op.imm as i64 as u64))?;
    Ok(Flow::Next)
}

pub(crate) fn zx_rr<D: Int, S: Int>(cpu: &mut Cpu, op: &Op) -> Step {
    let v = cpu.get::<S>(op.src);
    cpu.set(op.dst, D::cut(v.u64()));
    Ok(Flow::Next)
}

pub(crate) fn zx_rm<D: Int, S: Int>(cpu: &mut Cpu, op: &Op) -> Step {
    let at = cpu.ea::<S>(op, false)?;
    let v = cpu.read::<S>(at)?;
    cpu.set(op.dst, D::cut(v.u64()));
    Ok(Flow::Next)
}

pub(crate) fn sx_rr<D: Int, S: Int>(cpu: &mut Cpu, op: &Op) -> Step {
    let v = cpu.get::<S>(op.src);
    cpu.set(op.dst, D::cut(v.sext()));
    Ok(Flow::Next)
}

pub(crate) fn sx_rm<D: Int, S: Int>(cpu: &mut Cpu, op: &Op) -> Step {
    let at = cpu.ea::<S>(op, false)?;
    let v = cpu.read::<S>(at)?;
    cpu.set(op.dst, D::cut(v.sext()));
    Ok(Flow::Next)
}

pub(crate) fn lea<T: Int>(cpu: &mut Cpu, op: &Op) -> Step {
    let v = cpu.offset(op);
    cpu.set(op.dst, T::cut(v));
    Ok(Flow::Next)
}

/// A 32-bit destination is zero-extended also when the condition is false.
pub(crate) fn cmov_rr<T: Int>(cpu: &mut Cpu, op: &Op) -> Step {
    let v = if cpu.lazy.cond(op.aux) {
        cpu.get::<T>(op.src)
    } else {
        cpu.get::<T>(op.dst)
    };
    cpu.set(op.dst, v);
    Ok(Flow::Next)
}

/// The load happens, and faults, whatever the condition.
pub(crate) fn cmov_rm<T: Int>(cpu: &mut Cpu, op: &Op) -> Step {
    let at = cpu.ea::<T>(op, false)?;
    let m = cpu.read::<T>(at)?;
    let v = if cpu.lazy.cond(op.aux) {
        m
    } else {
        cpu.get::<T>(op.dst)
    };
    cpu.set(op.dst, v);
    Ok(Flow::Next)
}

pub(crate) fn set_r(cpu: &mut Cpu, op: &Op) -> Step {
    let v = u8::from(cpu.lazy.cond(op.aux));
    cpu.set(op.dst, v);
    Ok(Flow::Next)
}

pub(crate) fn set_m(cpu: &mut Cpu, op: &Op) -> Step {
    let at = cpu.ea::<u8>(op, true)?;
    let v = u8::from(cpu.lazy.cond(op.aux));
    cpu.write(at, v)?;
    Ok(Flow::Next)
}

pub(crate) fn bswap32(cpu: &mut Cpu, op: &Op) -> Step {
    let v = cpu.get::<u32>(op.dst);
    cpu.set(op.dst, v.swap_bytes());
    Ok(Flow::Next)
}

pub(crate) fn bswap64(cpu: &mut Cpu, op: &Op) -> Step {
    let v = cpu.get::<u64>(op.dst);
    cpu.set(op.dst, v.swap_bytes());
    Ok(Flow::Next)
}

/// Undefined by the architecture; processors clear the register.
pub(crate) fn bswap16(cpu: &mut Cpu, op: &Op) -> Step {
    cpu.set(op.dst, 0u16);
    Ok(Flow::Next)
}

/// XLAT: base is rBX, the index AL is added here.
pub(crate) fn xlat(cpu: &mut Cpu, op: &Op) -> Step {
    let al = u64::from(cpu.get::<u8>(0));
    let with_index = Op {
        disp: op.disp.wrapping_add(al as i64),
        ..*op
    };
    let at = cpu.ea_general(&with_index, 1, false)?;
    let v = cpu.read::<u8>(at)?;
    cpu.set(0, v);
    Ok(Flow::Next)
}

pub(crate) fn lahf(cpu: &mut Cpu, _: &Op) -> Step {
    let f = cpu.lazy.to_bits() as u8 & 0xd5 | 2;
    cpu.set(HIGH, f);
    Ok(Flow::Next)
}

pub(crate) fn sahf(cpu: &mut Cpu, _: &Op) -> Step {
    let of = cpu.lazy.to_bits() & flags::OF;
    let ah = u64::from(cpu.get::<u8>(HIGH));
    cpu.lazy.set_bits(ah & (flags::ARITH & 0xff) | of);
    Ok(Flow::Next)
}

/// MOV r, Sreg: `src` is the segment register.
pub(crate) fn from_seg_r<T: Int>(cpu: &mut Cpu, op: &Op) -> Step {
    let v = cpu.seg[op.src as usize].selector;
    cpu.set(op.dst, T::cut(u64::from(v)));
    Ok(Flow::Next)
}

pub(crate) fn from_seg_m(cpu: &mut Cpu, op: &Op) -> Step {
    let at = cpu.ea::<u16>(op, true)?;
    let v = cpu.seg[op.src as usize].selector;
    cpu.write(at, v)?;
    Ok(Flow::Next)
}

fn load(cpu: &mut Cpu, op: &Op, selector: u16) -> Step {
    let reg = op.dst as usize;
    if reg == CS {
        return Err(cpu.ud());
    }
    cpu.load_segment(reg, selector)?;
    cpu.rip = cpu.next_ip(op);
    if reg == SS {
        cpu.shadow = true;
        cpu.debug.hold(true);
    }
    // Outside 64-bit mode, decoded blocks may depend on nothing of a data segment but SS's width,
    // which the code context holds.
    Ok(if reg == SS || cpu.mode != Mode::Bits64 {
        Flow::Check
    } else {
        Flow::Jump
    })
}

pub(crate) fn to_seg_r(cpu: &mut Cpu, op: &Op) -> Step {
    let v = cpu.get::<u16>(op.src);
    load(cpu, op, v)
}

pub(crate) fn to_seg_m(cpu: &mut Cpu, op: &Op) -> Step {
    let at = cpu.ea::<u16>(op, false)?;
    let v = cpu.read::<u16>(at)?;
    load(cpu, op, v)
}

/// POP Sreg with operand size `T`.
pub(crate) fn pop_seg<T: Int>(cpu: &mut Cpu, op: &Op) -> Step {
    let v = cpu.peek::<T>(0)?.u64() as u16;
    let flow = load(cpu, op, v)?;
    cpu.drop_stack(T::BYTES);
    Ok(flow)
}

/// LES, LDS, LSS, LFS, LGS: `src` is the segment register.
pub(crate) fn load_far<T: Int>(cpu: &mut Cpu, op: &Op) -> Step {
    let at = cpu.ea_general(op, T::BYTES + 2, false)?;
    let offset = cpu.read::<T>(at)?;
    let selector = cpu.read::<u16>(at.wrapping_add(T::BYTES))?;
    let flow = load(cpu, &Op { dst: op.src, ..*op }, selector)?;
    // Stack segment and pointer change together: nothing has to wait.
    cpu.shadow = false;
    cpu.debug.hold(false);
    cpu.set(op.dst, offset);
    Ok(flow)
}
