//! The decimal adjustments of 32-bit code: DAA, DAS, AAA, AAS, AAM, AAD; and SALC.

use crate::cpu::flags::{AF, CF, OF, PF, SF, ZF};
use crate::cpu::state::HIGH;
use crate::cpu::{Cpu, Flow, Step};
use crate::decode::op::Op;

/// Sets SF, ZF, PF from `al` and the two given flags.
fn result(cpu: &mut Cpu, al: u8, keep: u64) {
    let mut f = keep;
    if al == 0 {
        f |= ZF;
    }
    if al & 0x80 != 0 {
        f |= SF;
    }
    if al.count_ones() & 1 == 0 {
        f |= PF;
    }
    cpu.lazy.set_bits(f);
}

/// DAA (`SUB` false) and DAS.
pub(crate) fn daa<const SUB: bool>(cpu: &mut Cpu, _: &Op) -> Step {
    let old = cpu.get::<u8>(0);
    let (cf, af) = (cpu.lazy.cf(), cpu.lazy.af());
    let step = |a: u8, n: u8| {
        if SUB {
            a.wrapping_sub(n)
        } else {
            a.wrapping_add(n)
        }
    };
    let mut al = old;
    let mut flags = 0;
    if old & 15 > 9 || af {
        al = step(al, 6);
        flags |= AF;
        let carried = if SUB { old < 6 } else { old > 0xf9 };
        if cf || carried {
            flags |= CF;
        }
    }
    if old > 0x99 || cf {
        al = step(al, 0x60);
        flags |= CF;
    } else if !SUB {
        flags &= !CF;
    }
    cpu.set(0, al);
    result(cpu, al, flags);
    Ok(Flow::Next)
}

/// AAA (`SUB` false) and AAS.
pub(crate) fn aaa<const SUB: bool>(cpu: &mut Cpu, _: &Op) -> Step {
    let ax = cpu.get::<u16>(0);
    let adjust = ax & 15 > 9 || cpu.lazy.af();
    let mut v = ax;
    if adjust {
        v = if SUB {
            v.wrapping_sub(6).wrapping_sub(0x100)
        } else {
            v.wrapping_add(0x106)
        };
    }
    cpu.set(0, v & 0xff0f);
    result(cpu, v as u8 & 15, if adjust { AF | CF } else { 0 });
    Ok(Flow::Next)
}

pub(crate) fn aam(cpu: &mut Cpu, op: &Op) -> Step {
    let base = op.imm as u8;
    if base == 0 {
        return Err(cpu.de());
    }
    let al = cpu.get::<u8>(0);
    cpu.set(HIGH, al / base);
    cpu.set(0, al % base);
    result(cpu, al % base, 0);
    Ok(Flow::Next)
}

pub(crate) fn aad(cpu: &mut Cpu, op: &Op) -> Step {
    let (al, ah) = (cpu.get::<u8>(0), cpu.get::<u8>(HIGH));
    let v = al.wrapping_add(ah.wrapping_mul(op.imm as u8));
    cpu.set(0, u16::from(v));
    result(cpu, v, 0);
    Ok(Flow::Next)
}

/// SALC (undocumented, 32-bit code): AL = CF ? FF : 0.
pub(crate) fn salc(cpu: &mut Cpu, _: &Op) -> Step {
    let v = if cpu.lazy.cf() { 0xff } else { 0u8 };
    cpu.set(0, v);
    Ok(Flow::Next)
}

/// INTO's condition lives with the flags.
pub(crate) fn overflow(cpu: &Cpu) -> bool {
    cpu.lazy.to_bits() & OF != 0
}
