//! Control and debug registers, MSRs, CPUID, TSC, HLT, INVLPG, SWAPGS, CLI, STI, CLAC, STAC, CLTS.

use crate::cpu::flags::{AC, IF};
use crate::cpu::state::{cr0, cr4, efer};
use crate::cpu::{Cpu, Flow, R, Step, Trap, Trapped};
use crate::debug::{dr6_of, dr7_of};
use crate::decode::op::Op;
use crate::int::Int;
use crate::segments::{CS, GS, attr};

impl Cpu {
    /// CR4 bits that this processor has.
    fn cr4_mask(&self) -> u64 {
        // VME, PVI, TSD, DE, PSE, PAE, MCE, PGE, PCE, OSFXSR, OSXMMEXCPT.
        let base = 0x7ff & !(1 << 11);
        let leaf7 = self.cpuid.get(7, 0).map_or(0, |e| e.ebx);
        let umip = self.cpuid.get(7, 0).map_or(0, |e| e.ecx) >> 2 & 1;
        let pcid = self.cpuid.get(1, 0).map_or(0, |e| e.ecx) >> 17 & 1;
        base | u64::from(umip) << 11
            | u64::from(leaf7 & 1) << 16
            | u64::from(pcid) << 17
            | u64::from(leaf7 >> 7 & 1) << 20
            | u64::from(leaf7 >> 20 & 1) << 21
    }

    /// Writes CR0 with all its checks and effects.
    pub(crate) fn set_cr0(&mut self, v: u64) -> R<()> {
        let v = v & cr0::ALL | cr0::ET;
        let bad = v & (cr0::PG | cr0::PE) == cr0::PG || v & (cr0::NW | cr0::CD) == cr0::NW;
        if bad {
            return Err(self.gp(0));
        }
        let turned = v ^ self.cr0;
        if turned & v & cr0::PG != 0 && self.efer & efer::LME != 0 {
            let l = self.seg[CS].attr & attr::L != 0;
            if self.cr4 & cr4::PAE == 0 || l {
                return Err(self.gp(0));
            }
            self.efer |= efer::LMA;
        }
        if turned & !v & cr0::PG != 0 {
            if self.code64() {
                return Err(self.gp(0));
            }
            self.efer &= !efer::LMA;
        }
        self.cr0 = v;
        if turned & (cr0::PG | cr0::WP | cr0::PE) != 0 {
            self.flush_tlb();
        }
        self.update_mode();
        Ok(())
    }

    fn set_cr4(&mut self, v: u64) -> R<()> {
        let pae_off = self.long_mode() && v & cr4::PAE == 0;
        let pcid = v & cr4::PCIDE != 0 && !self.long_mode();
        if v & !self.cr4_mask() != 0 || pae_off || pcid {
            return Err(self.gp(0));
        }
        self.cr4 = v;
        self.update_breakpoints();
        self.flush_tlb();
        Ok(())
    }

    fn set_cr3(&mut self, v: u64) -> R<()> {
        let v = if self.cr4 & cr4::PCIDE != 0 {
            v & !(1 << 63)
        } else {
            v
        };
        if self.long_mode() && v >> self.phys_bits != 0 {
            return Err(self.gp(0));
        }
        self.cr3 = v;
        // Translations are not tagged with a PCID: keeping none, whatever bit 63 says, is always allowed.
        self.flush_local();
        Ok(())
    }
}

fn done(cpu: &mut Cpu, op: &Op) -> Step {
    cpu.rip = cpu.next_ip(op);
    Ok(Flow::Check)
}

/// MOV r, CRn: `src` is n.
pub(crate) fn from_cr(cpu: &mut Cpu, op: &Op) -> Step {
    cpu.need_cpl0()?;
    let v = match op.src {
        0 => cpu.cr0,
        2 => cpu.cr2,
        3 => cpu.cr3,
        4 => cpu.cr4,
        8 => cpu.task_priority(),
        _ => return Err(cpu.ud()),
    };
    put_wide(cpu, op.dst, v);
    Ok(Flow::Next)
}

fn put_wide(cpu: &mut Cpu, r: u8, v: u64) {
    if cpu.code64() {
        cpu.set(r, v)
    } else {
        cpu.set(r, v as u32)
    }
}

fn get_wide(cpu: &Cpu, r: u8) -> u64 {
    if cpu.code64() {
        cpu.get::<u64>(r)
    } else {
        u64::from(cpu.get::<u32>(r))
    }
}

/// MOV CRn, r: `dst` is n.
pub(crate) fn to_cr(cpu: &mut Cpu, op: &Op) -> Step {
    cpu.need_cpl0()?;
    let v = get_wide(cpu, op.src);
    match op.dst {
        0 => {
            if v >> 32 != 0 {
                return Err(cpu.gp(0));
            }
            cpu.set_cr0(v)?;
        }
        2 => cpu.cr2 = v,
        3 => cpu.set_cr3(v)?,
        4 => cpu.set_cr4(v)?,
        8 => {
            if v > 15 {
                return Err(cpu.gp(0));
            }
            cpu.set_task_priority(v);
        }
        _ => return Err(cpu.ud()),
    }
    done(cpu, op)
}

/// DR4 and DR5 are DR6 and DR7 (CR4.DE is clear or #UD).
fn dr_number(cpu: &mut Cpu, n: u8) -> R<usize> {
    match n {
        4 | 5 if cpu.cr4 & cr4::DE != 0 => Err(cpu.ud()),
        4 | 5 => Ok(n as usize + 2),
        0..=7 => Ok(n as usize),
        _ => Err(cpu.ud()),
    }
}

pub(crate) fn from_dr(cpu: &mut Cpu, op: &Op) -> Step {
    cpu.need_cpl0()?;
    let n = dr_number(cpu, op.src)?;
    cpu.general_detect()?;
    let v = cpu.dr[n];
    put_wide(cpu, op.dst, v);
    Ok(Flow::Next)
}

pub(crate) fn to_dr(cpu: &mut Cpu, op: &Op) -> Step {
    cpu.need_cpl0()?;
    let n = dr_number(cpu, op.dst)?;
    cpu.general_detect()?;
    let v = get_wide(cpu, op.src);
    if n >= 6 && v >> 32 != 0 {
        return Err(cpu.gp(0));
    }
    cpu.dr[n] = match n {
        6 => dr6_of(v),
        7 => dr7_of(v),
        _ => v,
    };
    cpu.update_breakpoints();
    done(cpu, op)
}

pub(crate) fn clts(cpu: &mut Cpu, op: &Op) -> Step {
    cpu.need_cpl0()?;
    cpu.cr0 &= !cr0::TS;
    done(cpu, op)
}

pub(crate) fn rdmsr(cpu: &mut Cpu, _: &Op) -> Step {
    cpu.need_cpl0()?;
    let number = cpu.get::<u32>(1);
    let v = cpu.read_msr(number);
    if v.is_none() {
        tracing::debug!(
            msr = number,
            "read of an MSR that the machine does not have"
        );
    }
    let v = cpu.msr_or_gp(v)?;
    cpu.set(0, v as u32);
    cpu.set(2, (v >> 32) as u32);
    Ok(Flow::Next)
}

pub(crate) fn wrmsr(cpu: &mut Cpu, op: &Op) -> Step {
    cpu.need_cpl0()?;
    let number = cpu.get::<u32>(1);
    let v = u64::from(cpu.get::<u32>(2)) << 32 | u64::from(cpu.get::<u32>(0));
    let r = cpu.write_msr(number, v);
    if r.is_none() {
        tracing::debug!(
            msr = number,
            value = v,
            "write of an MSR that the machine does not have"
        );
    }
    cpu.msr_or_gp(r)?;
    done(cpu, op)
}

pub(crate) fn cpuid(cpu: &mut Cpu, _: &Op) -> Step {
    let (leaf, sub) = (cpu.get::<u32>(0), cpu.get::<u32>(1));
    let e = cpu.cpuid.get(leaf, sub).copied().unwrap_or_default();
    let mut ecx = e.ecx;
    let mut edx = e.edx;
    if leaf == 1 {
        // OSXSAVE follows CR4, which has no such bit here; APIC follows its enable bit.
        ecx &= !(1 << 27);
        if cpu.msr.apic_base & 0x800 == 0 {
            edx &= !(1 << 9);
        }
    }
    cpu.set(0, e.eax);
    cpu.set(3, e.ebx);
    cpu.set(1, ecx);
    cpu.set(2, edx);
    Ok(Flow::Next)
}

pub(crate) fn rdtsc(cpu: &mut Cpu, _: &Op) -> Step {
    if cpu.cr4 & cr4::TSD != 0 && cpu.cpl != 0 {
        return Err(cpu.gp(0));
    }
    let v = cpu.time.read(cpu.retired);
    cpu.set(0, v as u32);
    cpu.set(2, (v >> 32) as u32);
    Ok(Flow::Next)
}

pub(crate) fn rdtscp(cpu: &mut Cpu, op: &Op) -> Step {
    if cpu
        .cpuid
        .get(0x8000_0001, 0)
        .is_none_or(|e| e.edx >> 27 & 1 == 0)
    {
        return Err(cpu.ud());
    }
    let flow = rdtsc(cpu, op)?;
    let aux = cpu.msr.tsc_aux;
    cpu.set(1, aux as u32);
    Ok(flow)
}

pub(crate) fn hlt(cpu: &mut Cpu, op: &Op) -> Step {
    cpu.need_cpl0()?;
    cpu.trap = Trap::Halt {
        next: cpu.next_ip(op),
    };
    Err(Trapped)
}

pub(crate) fn invlpg(cpu: &mut Cpu, op: &Op) -> Step {
    cpu.need_cpl0()?;
    let seg = (op.mem & crate::decode::op::MEM_SEG) as usize;
    let base = if cpu.code64() && seg < crate::segments::FS {
        0
    } else {
        cpu.seg[seg].base
    };
    let base = if op.mem == crate::decode::op::MEM_FLAT {
        0
    } else {
        base
    };
    let at = base.wrapping_add(cpu.offset(op));
    cpu.flush_page(if cpu.code64() { at } else { at & 0xffff_ffff });
    done(cpu, op)
}

/// WBINVD, INVD: caches are not modelled.
pub(crate) fn wbinvd(cpu: &mut Cpu, _: &Op) -> Step {
    cpu.need_cpl0()?;
    Ok(Flow::Next)
}

pub(crate) fn swapgs(cpu: &mut Cpu, _: &Op) -> Step {
    if !cpu.code64() {
        return Err(cpu.ud());
    }
    cpu.need_cpl0()?;
    std::mem::swap(&mut cpu.seg[GS].base, &mut cpu.msr.kernel_gs_base);
    Ok(Flow::Next)
}

/// RDFSBASE and relatives: `aux` is the segment, `src` or `dst` the register.
pub(crate) fn rd_base<T: Int>(cpu: &mut Cpu, op: &Op) -> Step {
    fsgsbase(cpu)?;
    let v = cpu.seg[op.aux as usize].base;
    cpu.set(op.dst, T::cut(v));
    Ok(Flow::Next)
}

pub(crate) fn wr_base<T: Int>(cpu: &mut Cpu, op: &Op) -> Step {
    fsgsbase(cpu)?;
    let v = cpu.get::<T>(op.dst).u64();
    if !crate::cpu::state::canonical(v) {
        return Err(cpu.gp(0));
    }
    cpu.seg[op.aux as usize].base = v;
    Ok(Flow::Next)
}

fn fsgsbase(cpu: &mut Cpu) -> R<()> {
    if cpu.cr4 & cr4::FSGSBASE == 0 || !cpu.code64() {
        Err(cpu.ud())
    } else {
        Ok(())
    }
}

fn may_change_if(cpu: &mut Cpu) -> R<()> {
    if cpu.protected() && cpu.cpl > cpu.iopl() {
        Err(cpu.gp(0))
    } else {
        Ok(())
    }
}

pub(crate) fn cli(cpu: &mut Cpu, _: &Op) -> Step {
    may_change_if(cpu)?;
    cpu.sysflags &= !IF;
    Ok(Flow::Next)
}

/// STI with the next instruction in the same block, after which events are looked at.
pub(crate) fn sti_goes_on(cpu: &mut Cpu, _: &Op) -> Step {
    may_change_if(cpu)?;
    cpu.sysflags |= IF;
    Ok(Flow::Next)
}

/// STI that ends its block: the next instruction runs in the interrupt shadow.
pub(crate) fn sti_ends(cpu: &mut Cpu, op: &Op) -> Step {
    may_change_if(cpu)?;
    if !cpu.flag(IF) {
        cpu.sysflags |= IF;
        cpu.shadow = true;
    }
    done(cpu, op)
}

/// VMCALL, VMMCALL: there is no hypercall that the machine offers.
pub(crate) fn hypercall(cpu: &mut Cpu, _: &Op) -> Step {
    const KVM_ENOSYS: i64 = 1000;
    cpu.set(0, (-KVM_ENOSYS) as u64);
    Ok(Flow::Next)
}

/// STAC (`SET`) and CLAC.
pub(crate) fn ac<const SET: bool>(cpu: &mut Cpu, _: &Op) -> Step {
    if cpu.cpuid.get(7, 0).is_none_or(|e| e.ebx >> 20 & 1 == 0) || cpu.cpl != 0 {
        return Err(cpu.ud());
    }
    if SET {
        cpu.sysflags |= AC;
    } else {
        cpu.sysflags &= !AC;
    }
    cpu.update_context();
    Ok(Flow::Next)
}

/// PAUSE: the run loop may give the turn to another vCPU.
pub(crate) fn pause(cpu: &mut Cpu, op: &Op) -> Step {
    cpu.paused = true;
    done(cpu, op)
}
