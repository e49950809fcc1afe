//! Far jumps, calls and returns, IRET, SYSCALL, SYSRET, SYSENTER, SYSEXIT.

use crate::cpu::flags::{IF, NT, RF, TF, VM};
use crate::cpu::state::{RSP, canonical, efer};
use crate::cpu::{Cpu, Flow, Mode, R, Step};
use crate::decode::op::Op;
use crate::int::Int;
use crate::segments::{CS, DS, ES, FS, GS, SS, Segment, attr};

/// Target of a far transfer: selector in the immediate, offset in `disp`.
pub(crate) fn jmp_direct(cpu: &mut Cpu, op: &Op) -> Step {
    jump(cpu, op.imm as u16, op.disp as u64)
}

pub(crate) fn call_direct<T: Int>(cpu: &mut Cpu, op: &Op) -> Step {
    let next = cpu.next_ip(op);
    call::<T>(cpu, op.imm as u16, op.disp as u64, next)
}

fn pointer<T: Int>(cpu: &mut Cpu, op: &Op) -> R<(u16, u64)> {
    let at = cpu.ea_general(op, T::BYTES + 2, false)?;
    let offset = cpu.read::<T>(at)?.u64();
    let selector = cpu.read::<u16>(at.wrapping_add(T::BYTES))?;
    Ok((selector, offset))
}

pub(crate) fn jmp_m<T: Int>(cpu: &mut Cpu, op: &Op) -> Step {
    let (selector, offset) = pointer::<T>(cpu, op)?;
    jump(cpu, selector, offset)
}

pub(crate) fn call_m<T: Int>(cpu: &mut Cpu, op: &Op) -> Step {
    let (selector, offset) = pointer::<T>(cpu, op)?;
    let next = cpu.next_ip(op);
    call::<T>(cpu, selector, offset, next)
}

fn set_real_cs(cpu: &mut Cpu, selector: u16, offset: u64) -> Step {
    let old = cpu.seg[CS];
    cpu.seg[CS] = Segment {
        selector,
        base: u64::from(selector) << 4,
        ..old
    };
    cpu.rip = offset;
    cpu.update_mode();
    Ok(Flow::Check)
}

/// A code segment that may be entered without change of privilege.
fn same_level(cpu: &mut Cpu, selector: u16) -> R<(Segment, u64)> {
    let code = u32::from(selector & !3);
    if selector & !3 == 0 {
        return Err(cpu.gp(0));
    }
    let (cs, raw) = cpu.code_segment(selector)?;
    let rpl = (selector & 3) as u8;
    let conforming = cs.attr & attr::CONFORMING != 0;
    let rights = if conforming {
        cs.dpl() <= cpu.cpl
    } else {
        cs.dpl() == cpu.cpl && rpl <= cpu.cpl
    };
    let both = cpu.long_mode() && cs.attr & attr::L != 0 && cs.big();
    if !cs.is_code() || !rights || both {
        return Err(cpu.gp(code));
    }
    if !cs.present() {
        return Err(cpu.raise(11, Some(code)));
    }
    Ok((cs, raw))
}

fn jump(cpu: &mut Cpu, selector: u16, offset: u64) -> Step {
    if !cpu.protected() {
        return set_real_cs(cpu, selector, offset);
    }
    if let Some((cs, target)) = gate_same_level(cpu, selector)? {
        return enter(cpu, cs, target);
    }
    enter(cpu, selector, offset)
}

/// If the selector names a call gate: its target. Only gates without change of privilege work.
fn gate_same_level(cpu: &mut Cpu, selector: u16) -> R<Option<(u16, u64)>> {
    if selector & !3 == 0 {
        return Ok(None);
    }
    let d = cpu.need_descriptor(selector, 13)?;
    let s = Segment::from_descriptor(selector, d);
    let code = u32::from(selector & !3);
    let Some(kind) = s.system_type() else {
        return Ok(None);
    };
    if !matches!(kind, 4 | 12) || (kind == 4 && cpu.long_mode()) {
        return Err(cpu.gp(code));
    }
    if s.dpl() < cpu.cpl.max((selector & 3) as u8) {
        return Err(cpu.gp(code));
    }
    if !s.present() {
        return Err(cpu.raise(11, Some(code)));
    }
    let mut target = d & 0xffff | if kind == 12 { d >> 32 & 0xffff_0000 } else { 0 };
    if cpu.long_mode() {
        let high = cpu.read_system::<u32>(cpu.gdtr.base + u64::from(selector & !7) + 8)?;
        target |= u64::from(high) << 32;
    }
    Ok(Some(((d >> 16) as u16, target)))
}

fn enter(cpu: &mut Cpu, selector: u16, offset: u64) -> Step {
    let (cs, raw) = same_level(cpu, selector)?;
    cpu.check_ip(&cs, offset)?;
    cpu.touch_descriptor(selector, raw)?;
    let cpl = cpu.cpl;
    cpu.rip = offset;
    cpu.set_cs(cs, cpl);
    Ok(Flow::Check)
}

fn call<T: Int>(cpu: &mut Cpu, selector: u16, offset: u64, next: u64) -> Step {
    let old = cpu.seg[CS].selector;
    let sp = cpu.regs[RSP];
    let body = |cpu: &mut Cpu| {
        cpu.push(T::cut(u64::from(old)))?;
        cpu.push(T::cut(next))?;
        jump(cpu, selector, offset)
    };
    let r = body(cpu);
    if r.is_err() {
        cpu.regs[RSP] = sp;
    }
    r
}

/// RETF, RETF imm16.
pub(crate) fn retf<T: Int>(cpu: &mut Cpu, op: &Op) -> Step {
    let ip = cpu.peek::<T>(0)?.u64();
    let selector = cpu.peek::<T>(T::BYTES)?.u64() as u16;
    let extra = u64::from(op.imm as u16);
    if !cpu.protected() {
        cpu.drop_stack(2 * T::BYTES + extra);
        return set_real_cs(cpu, selector, ip);
    }
    let above = 2 * T::BYTES + extra;
    far_return::<T>(cpu, selector, ip, above)
}

/// The common end of RETF and IRET: loads CS:IP and, towards an outer level, SS:SP from `above`.
fn far_return<T: Int>(cpu: &mut Cpu, selector: u16, ip: u64, above: u64) -> Step {
    let code = u32::from(selector & !3);
    if selector & !3 == 0 {
        return Err(cpu.gp(0));
    }
    let rpl = (selector & 3) as u8;
    let (cs, raw) = cpu.code_segment(selector)?;
    let conforming = cs.attr & attr::CONFORMING != 0;
    let rights = if conforming {
        cs.dpl() <= rpl
    } else {
        cs.dpl() == rpl
    };
    if rpl < cpu.cpl || !cs.is_code() || !rights {
        return Err(cpu.gp(code));
    }
    if !cs.present() {
        return Err(cpu.raise(11, Some(code)));
    }
    cpu.check_ip(&cs, ip)?;
    cpu.touch_descriptor(selector, raw)?;
    if rpl == cpu.cpl {
        cpu.drop_stack(above);
        cpu.rip = ip;
        cpu.set_cs(cs, rpl);
        return Ok(Flow::Check);
    }
    let sp = cpu.peek::<T>(above)?.u64();
    let ss = cpu.peek::<T>(above + T::BYTES)?.u64() as u16;
    outer::<T>(cpu, cs, rpl, ip, ss, sp)
}

/// Switches to an outer level (or, for a 64-bit IRET, reloads the stack at the same one).
fn outer<T: Int>(cpu: &mut Cpu, cs: Segment, cpl: u8, ip: u64, ss: u16, sp: u64) -> Step {
    let (old_cs, old_ss, old_cpl) = (cpu.seg[CS], cpu.seg[SS], cpu.cpl);
    cpu.set_cs(cs, cpl);
    if let Err(t) = cpu.load_segment(SS, ss) {
        cpu.seg[SS] = old_ss;
        cpu.set_cs(old_cs, old_cpl);
        return Err(t);
    }
    cpu.rip = ip;
    if T::BYTES == 8 {
        cpu.regs[RSP] = sp;
    } else {
        cpu.set_sp(sp);
    }
    if cpl > old_cpl {
        for r in [DS, ES, FS, GS] {
            let s = cpu.seg[r];
            let conforming = s.is_code() && s.attr & attr::CONFORMING != 0;
            if !s.is_null() && !conforming && s.dpl() < cpl {
                cpu.seg[r] = Segment::null(0);
            }
        }
    }
    cpu.update_mode();
    Ok(Flow::Check)
}

pub(crate) fn iret<T: Int>(cpu: &mut Cpu, _: &Op) -> Step {
    cpu.nmi_masked = false;
    let ip = cpu.peek::<T>(0)?.u64();
    let selector = cpu.peek::<T>(T::BYTES)?.u64() as u16;
    let flags = cpu.peek::<T>(2 * T::BYTES)?.u64();
    if !cpu.protected() {
        let f = cpu.popped_flags::<T>(flags, true);
        cpu.drop_stack(3 * T::BYTES);
        cpu.set_rflags(f);
        return set_real_cs(cpu, selector, ip);
    }
    // Task returns and virtual-8086 mode are not part of the machine.
    if cpu.flag(NT) || (flags & VM != 0 && T::BYTES >= 4 && cpu.cpl == 0 && !cpu.long_mode()) {
        return Err(cpu.gp(0));
    }
    // Flags are checked against the privilege that IRET runs with.
    let f = cpu.popped_flags::<T>(flags, true);
    if cpu.code64() && selector & !3 != 0 {
        iret64::<T>(cpu, selector, ip)?;
    } else {
        far_return::<T>(cpu, selector, ip, 3 * T::BYTES)?;
    }
    cpu.set_rflags(f);
    Ok(Flow::Check)
}

/// In 64-bit mode the stack is always popped.
fn iret64<T: Int>(cpu: &mut Cpu, selector: u16, ip: u64) -> Step {
    let code = u32::from(selector & !3);
    let rpl = (selector & 3) as u8;
    let (cs, raw) = cpu.code_segment(selector)?;
    let conforming = cs.attr & attr::CONFORMING != 0;
    let rights = if conforming {
        cs.dpl() <= rpl
    } else {
        cs.dpl() == rpl
    };
    let both = cs.attr & attr::L != 0 && cs.big();
    if rpl < cpu.cpl || !cs.is_code() || !rights || both {
        return Err(cpu.gp(code));
    }
    if !cs.present() {
        return Err(cpu.raise(11, Some(code)));
    }
    cpu.check_ip(&cs, ip)?;
    let sp = cpu.peek::<T>(3 * T::BYTES)?.u64();
    let ss = cpu.peek::<T>(4 * T::BYTES)?.u64() as u16;
    cpu.touch_descriptor(selector, raw)?;
    outer::<T>(cpu, cs, rpl, ip, ss, sp)
}

/// The flat segments that SYSCALL and its relatives load.
fn flat(selector: u16, code: bool, long: bool, cpl: u8) -> Segment {
    let kind = if code {
        attr::CODE | attr::READABLE
    } else {
        attr::WRITABLE
    };
    let width = if code && long { attr::L } else { attr::DB };
    Segment {
        selector: selector & !3 | u16::from(cpl),
        attr: attr::P | attr::S | attr::ACCESSED | attr::G | kind | width | u16::from(cpl) << 5,
        limit: u32::MAX,
        base: 0,
    }
}

pub(crate) fn syscall(cpu: &mut Cpu, op: &Op) -> Step {
    if cpu.efer & efer::SCE == 0 || !cpu.long_mode() {
        return Err(cpu.ud());
    }
    let wide = cpu.code64();
    let selector = (cpu.msr.star >> 32) as u16;
    cpu.regs[1] = cpu.next_ip(op);
    let flags = cpu.rflags() & !RF;
    cpu.regs[11] = flags;
    cpu.rip = if wide { cpu.msr.lstar } else { cpu.msr.cstar };
    cpu.seg[SS] = flat(selector.wrapping_add(8), false, false, 0);
    cpu.set_cs(flat(selector, true, true, 0), 0);
    load_flags(cpu, flags & !cpu.msr.sfmask);
    Ok(Flow::Jump)
}

/// The end of SYSCALL and SYSRET.
fn load_flags(cpu: &mut Cpu, flags: u64) {
    let stepped = cpu.flag(TF);
    cpu.set_rflags(flags);
    cpu.step_by_loaded_flag(stepped);
}

/// SYSRET; `T` is u64 with REX.W.
pub(crate) fn sysret<T: Int>(cpu: &mut Cpu, _: &Op) -> Step {
    if cpu.efer & efer::SCE == 0 || !cpu.code64() {
        return Err(cpu.ud());
    }
    cpu.need_cpl0()?;
    let base = (cpu.msr.star >> 48) as u16;
    let long = T::BYTES == 8;
    let target = if long {
        cpu.regs[1]
    } else {
        cpu.regs[1] & 0xffff_ffff
    };
    if !canonical(target) {
        return Err(cpu.gp(0));
    }
    let flags = cpu.regs[11];
    let selector = if long { base.wrapping_add(16) } else { base };
    cpu.seg[SS] = flat(base.wrapping_add(8), false, false, 3);
    cpu.rip = target;
    cpu.set_cs(flat(selector, true, long, 3), 3);
    load_flags(cpu, flags & !(RF | VM));
    Ok(Flow::Check)
}

pub(crate) fn sysenter(cpu: &mut Cpu, _: &Op) -> Step {
    let cs = cpu.msr.sysenter_cs as u16;
    if !cpu.protected() || cs & !3 == 0 {
        return Err(cpu.gp(0));
    }
    let long = cpu.long_mode();
    cpu.sysflags &= !(IF | RF);
    let m = if long { u64::MAX } else { 0xffff_ffff };
    cpu.regs[RSP] = cpu.msr.sysenter_esp & m;
    cpu.rip = cpu.msr.sysenter_eip & m;
    cpu.seg[SS] = flat(cs.wrapping_add(8), false, false, 0);
    cpu.set_cs(flat(cs, true, long, 0), 0);
    Ok(Flow::Check)
}

pub(crate) fn sysexit<T: Int>(cpu: &mut Cpu, _: &Op) -> Step {
    let cs = cpu.msr.sysenter_cs as u16;
    if !cpu.protected() || cs & !3 == 0 || cpu.cpl != 0 {
        return Err(cpu.gp(0));
    }
    let long = T::BYTES == 8;
    let m = if long { u64::MAX } else { 0xffff_ffff };
    let (ip, sp) = (cpu.regs[2] & m, cpu.regs[1] & m);
    if long && (!canonical(ip) || !canonical(sp)) {
        return Err(cpu.gp(0));
    }
    let add = if long { 32 } else { 16 };
    cpu.seg[SS] = flat(cs.wrapping_add(add + 8), false, false, 3);
    cpu.rip = ip;
    cpu.regs[RSP] = sp;
    cpu.set_cs(flat(cs.wrapping_add(add), true, long, 3), 3);
    Ok(if cpu.mode == Mode::Bits64 {
        Flow::Jump
    } else {
        Flow::Check
    })
}
