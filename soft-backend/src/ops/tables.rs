//! LGDT, LIDT, SGDT, SIDT, LLDT, LTR, SLDT, STR, LMSW, SMSW, LAR, LSL, VERR, VERW, ARPL.

use super::source;
use crate::cpu::state::{cr0, cr4};
use crate::cpu::{Cpu, Flow, R, Step};
use crate::decode::op::Op;
use crate::int::Int;
use crate::segments::{DescTable, Segment, attr};

/// #GP outside level 0 where CR4.UMIP forbids reading system registers.
fn umip(cpu: &mut Cpu) -> R<()> {
    if cpu.cr4 & cr4::UMIP != 0 && cpu.cpl != 0 {
        Err(cpu.gp(0))
    } else {
        Ok(())
    }
}

/// SGDT (`IDT` false) and SIDT.
pub(crate) fn store<const IDT: bool>(cpu: &mut Cpu, op: &Op) -> Step {
    umip(cpu)?;
    let t = if IDT { cpu.idtr } else { cpu.gdtr };
    let size = if cpu.code64() { 8 } else { 4 };
    let at = cpu.ea_general(op, 2 + size, true)?;
    cpu.probe_write(at, 2 + size)?;
    cpu.write(at, t.limit)?;
    if size == 8 {
        cpu.write(at + 2, t.base)?
    } else {
        cpu.write(at + 2, t.base as u32)?
    }
    Ok(Flow::Next)
}

/// LGDT and LIDT; `aux` is 1 for a 16-bit operand size (24-bit base).
pub(crate) fn load<const IDT: bool>(cpu: &mut Cpu, op: &Op) -> Step {
    cpu.need_cpl0()?;
    let wide = cpu.code64();
    let at = cpu.ea_general(op, if wide { 10 } else { 6 }, false)?;
    let limit = cpu.read::<u16>(at)?;
    let base = if wide {
        cpu.read::<u64>(at + 2)?
    } else {
        u64::from(cpu.read::<u32>(at + 2)?)
    };
    let base = if op.aux == 1 && !wide {
        base & 0xff_ffff
    } else {
        base
    };
    if wide && !crate::cpu::state::canonical(base) {
        return Err(cpu.gp(0));
    }
    let t = DescTable { base, limit };
    if IDT {
        cpu.idtr = t;
    } else {
        cpu.gdtr = t;
    }
    Ok(Flow::Next)
}

/// SLDT (0), STR (1), SMSW (2).
fn word(cpu: &mut Cpu, what: u8) -> R<u64> {
    umip(cpu)?;
    if what != 2 && !cpu.protected() {
        return Err(cpu.ud());
    }
    Ok(match what {
        0 => u64::from(cpu.ldtr.selector),
        1 => u64::from(cpu.tr.selector),
        _ => cpu.cr0,
    })
}

pub(crate) fn word_r<T: Int>(cpu: &mut Cpu, op: &Op) -> Step {
    let v = word(cpu, op.aux)?;
    cpu.set(op.dst, T::cut(v));
    Ok(Flow::Next)
}

pub(crate) fn word_m(cpu: &mut Cpu, op: &Op) -> Step {
    let v = word(cpu, op.aux)?;
    let at = cpu.ea::<u16>(op, true)?;
    cpu.write(at, v as u16)?;
    Ok(Flow::Next)
}

/// LMSW can set PE but not clear it.
pub(crate) fn lmsw<const MEM: bool>(cpu: &mut Cpu, op: &Op) -> Step {
    cpu.need_cpl0()?;
    let v = u64::from(source::<u16, MEM>(cpu, op)?);
    let low = cr0::PE | cr0::MP | cr0::EM | cr0::TS;
    let new = cpu.cr0 & !(low & !cr0::PE) | v & low;
    cpu.set_cr0(new)?;
    cpu.rip = cpu.next_ip(op);
    Ok(Flow::Check)
}

/// Reads a system descriptor for LLDT and LTR: 16 bytes in long mode.
fn system_segment(cpu: &mut Cpu, selector: u16) -> R<Segment> {
    let code = Some(u32::from(selector & !3));
    if selector & 4 != 0 {
        return Err(cpu.raise(13, code));
    }
    let d = cpu.need_descriptor(selector, 13)?;
    let mut s = Segment::from_descriptor(selector, d);
    if cpu.long_mode() {
        let off = u64::from(selector & !7);
        if off + 15 > u64::from(cpu.gdtr.limit) {
            return Err(cpu.raise(13, code));
        }
        let high = cpu.read_system::<u32>(cpu.gdtr.base.wrapping_add(off + 8))?;
        s.base |= u64::from(high) << 32;
    }
    Ok(s)
}

pub(crate) fn lldt<const MEM: bool>(cpu: &mut Cpu, op: &Op) -> Step {
    if !cpu.protected() {
        return Err(cpu.ud());
    }
    cpu.need_cpl0()?;
    let sel = source::<u16, MEM>(cpu, op)?;
    if sel & !3 == 0 {
        cpu.ldtr = Segment::null(sel);
        return Ok(Flow::Next);
    }
    let s = system_segment(cpu, sel)?;
    let code = Some(u32::from(sel & !3));
    if s.system_type() != Some(2) {
        return Err(cpu.raise(13, code));
    }
    if !s.present() {
        return Err(cpu.raise(11, code));
    }
    cpu.ldtr = s;
    Ok(Flow::Next)
}

pub(crate) fn ltr<const MEM: bool>(cpu: &mut Cpu, op: &Op) -> Step {
    if !cpu.protected() {
        return Err(cpu.ud());
    }
    cpu.need_cpl0()?;
    let sel = source::<u16, MEM>(cpu, op)?;
    if sel & !3 == 0 {
        return Err(cpu.gp(0));
    }
    let s = system_segment(cpu, sel)?;
    let code = Some(u32::from(sel & !3));
    let available =
        matches!(s.system_type(), Some(9)) || s.system_type() == Some(1) && !cpu.long_mode();
    if !available {
        return Err(cpu.raise(13, code));
    }
    if !s.present() {
        return Err(cpu.raise(11, code));
    }
    // Busy, in the table and in the register.
    let at = cpu.gdtr.base.wrapping_add(u64::from(sel & !7) + 5);
    cpu.write_system(at, s.attr as u8 | 2)?;
    cpu.tr = Segment {
        attr: s.attr | 2,
        ..s
    };
    Ok(Flow::Next)
}

/// Whether LAR, LSL, VERR, VERW may see a descriptor.
fn visible(cpu: &Cpu, s: &Segment, sel: u16) -> bool {
    let conforming = s.is_code() && s.attr & attr::CONFORMING != 0;
    conforming || s.dpl() >= cpu.cpl.max((sel & 3) as u8)
}

/// The selector that LAR, LSL, VERR and VERW look at, and its descriptor if there is one.
fn inspected<const MEM: bool>(cpu: &mut Cpu, op: &Op) -> R<(u16, Option<u64>)> {
    if !cpu.protected() {
        return Err(cpu.ud());
    }
    let sel = source::<u16, MEM>(cpu, op)?;
    let d = if sel & !3 == 0 {
        None
    } else {
        cpu.descriptor(sel)?
    };
    Ok((sel, d))
}

/// LAR (`LIMIT` false) and LSL.
pub(crate) fn lar_lsl<T: Int, const LIMIT: bool, const MEM: bool>(cpu: &mut Cpu, op: &Op) -> Step {
    let (sel, d) = inspected::<MEM>(cpu, op)?;
    let found = d.and_then(|d| {
        let s = Segment::from_descriptor(sel, d);
        let kind_ok = match s.system_type() {
            None => true,
            Some(t) if cpu.long_mode() => matches!(t, 2 | 9 | 11) || (!LIMIT && t == 12),
            Some(t) => matches!(t, 1 | 2 | 3 | 9 | 11) || (!LIMIT && matches!(t, 4 | 5 | 12)),
        };
        if !kind_ok || !visible(cpu, &s, sel) {
            return None;
        }
        Some(if LIMIT {
            u64::from(s.limit)
        } else {
            d >> 32 & 0x00ff_ff00
        })
    });
    if let Some(v) = found {
        cpu.set(op.dst, T::cut(v));
    }
    cpu.lazy.put_zf(found.is_some());
    Ok(Flow::Next)
}

/// VERR (`WRITE` false) and VERW.
pub(crate) fn verify<const WRITE: bool, const MEM: bool>(cpu: &mut Cpu, op: &Op) -> Step {
    let (sel, d) = inspected::<MEM>(cpu, op)?;
    let ok = d.is_some_and(|d| {
        let s = Segment::from_descriptor(sel, d);
        let kind = if WRITE {
            s.is_data() && s.attr & attr::WRITABLE != 0
        } else {
            s.is_data() || s.is_code() && s.attr & attr::READABLE != 0
        };
        kind && visible(cpu, &s, sel)
    });
    cpu.lazy.put_zf(ok);
    Ok(Flow::Next)
}

/// ARPL (32-bit code): raises the RPL of the destination to that of the source.
pub(crate) fn arpl<const MEM: bool>(cpu: &mut Cpu, op: &Op) -> Step {
    if !cpu.protected() {
        return Err(cpu.ud());
    }
    let src = cpu.get::<u16>(op.src) & 3;
    let raise = |v: u16| if v & 3 < src { v & !3 | src } else { v };
    let old = if MEM {
        let at = cpu.ea::<u16>(op, true)?;
        cpu.modify::<u16>(at, |_, v| raise(v))?
    } else {
        let v = cpu.get::<u16>(op.dst);
        cpu.set(op.dst, raise(v));
        v
    };
    cpu.lazy.put_zf(old & 3 < src);
    Ok(Flow::Next)
}
