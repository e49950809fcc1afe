//! Model-specific registers of machine model 1.

use crate::cpu::state::{canonical, efer};
use crate::cpu::{Cpu, R};
use crate::mtrr::Mtrrs;
use crate::segments::{FS, GS};
use vmm_core::x86::msr;

/// MSRs that are only values.
#[derive(Clone, Debug)]
pub(crate) struct Msrs {
    pub(crate) star: u64,
    pub(crate) lstar: u64,
    pub(crate) cstar: u64,
    pub(crate) sfmask: u64,
    pub(crate) sysenter_cs: u64,
    pub(crate) sysenter_esp: u64,
    pub(crate) sysenter_eip: u64,
    pub(crate) kernel_gs_base: u64,
    pub(crate) tsc_aux: u64,
    pub(crate) pat: u64,
    pub(crate) misc_enable: u64,
    pub(crate) apic_base: u64,
    pub(crate) mtrr: Mtrrs,
}

/// PAT after reset.
const PAT_RESET: u64 = 0x0007_0406_0007_0406;
/// IA32_MISC_ENABLE: fast strings.
const MISC_ENABLE_RESET: u64 = 1;
/// IA32_APIC_BASE: enabled, at its architectural address.
pub(crate) const APIC_BASE_RESET: u64 = 0xfee0_0900;
/// Bootstrap processor, in IA32_APIC_BASE.
pub(crate) const APIC_BASE_BSP: u64 = 0x100;

impl Msrs {
    pub(crate) fn reset(bsp: bool) -> Self {
        Msrs {
            star: 0,
            lstar: 0,
            cstar: 0,
            sfmask: 0,
            sysenter_cs: 0,
            sysenter_esp: 0,
            sysenter_eip: 0,
            kernel_gs_base: 0,
            tsc_aux: 0,
            pat: PAT_RESET,
            misc_enable: MISC_ENABLE_RESET,
            apic_base: APIC_BASE_RESET & !APIC_BASE_BSP | if bsp { APIC_BASE_BSP } else { 0 },
            mtrr: Mtrrs::default(),
        }
    }
}

/// What kernels read on AMD's processors and virtual machines answer with zero: SYSCFG, HWCR, NB_CFG,
/// interrupt pending, MMIO configuration base, TSEG, DC_CFG, BU_CFG2 (AMD APM volume 2, appendix A).
const AMD_ZERO: [u32; 9] = [
    0xc001_0010,
    0xc001_0015,
    0xc001_001f,
    0xc001_0055,
    0xc001_0058,
    0xc001_0112,
    0xc001_0113,
    0xc001_1022,
    0xc001_102a,
];

/// EFER bits that may be written.
const EFER_WRITABLE: u64 = efer::SCE | efer::LME | efer::NXE;

impl Cpu {
    /// Reads an MSR; `None`: there is none of that number (#GP).
    pub(crate) fn read_msr(&mut self, number: u32) -> Option<u64> {
        Some(match number {
            msr::TSC => self.time.read(self.retired),
            msr::APIC_BASE => self.msr.apic_base,
            msr::SYSENTER_CS => self.msr.sysenter_cs,
            msr::SYSENTER_ESP => self.msr.sysenter_esp,
            msr::SYSENTER_EIP => self.msr.sysenter_eip,
            msr::MISC_ENABLE => self.msr.misc_enable,
            msr::PAT => self.msr.pat,
            msr::EFER => self.efer,
            msr::STAR => self.msr.star,
            msr::LSTAR => self.msr.lstar,
            msr::CSTAR => self.msr.cstar,
            msr::SYSCALL_MASK => self.msr.sfmask,
            msr::FS_BASE => self.seg[FS].base,
            msr::GS_BASE => self.seg[GS].base,
            msr::KERNEL_GS_BASE => self.msr.kernel_gs_base,
            msr::TSC_AUX => self.msr.tsc_aux,
            _ => return self.platform_msr(number),
        })
    }

    /// Writes an MSR; `None`: no such MSR or a reserved bit (#GP).
    pub(crate) fn write_msr(&mut self, number: u32, v: u64) -> Option<()> {
        let address = || canonical(v).then_some(v);
        match number {
            msr::TSC => self.time.write(v, self.retired),
            msr::APIC_BASE => self.msr.apic_base = v,
            msr::SYSENTER_CS => self.msr.sysenter_cs = v & 0xffff,
            msr::SYSENTER_ESP => self.msr.sysenter_esp = address()?,
            msr::SYSENTER_EIP => self.msr.sysenter_eip = address()?,
            msr::MISC_ENABLE => self.msr.misc_enable = v,
            msr::PAT => {
                let valid = v.to_le_bytes().iter().all(|t| matches!(t, 0 | 1 | 4..=7));
                self.msr.pat = valid.then_some(v)?;
            }
            msr::EFER => return self.write_efer(v),
            msr::STAR => self.msr.star = v,
            msr::LSTAR => self.msr.lstar = address()?,
            msr::CSTAR => self.msr.cstar = address()?,
            msr::SYSCALL_MASK => self.msr.sfmask = v & 0xffff_ffff,
            msr::FS_BASE => self.seg[FS].base = address()?,
            msr::GS_BASE => self.seg[GS].base = address()?,
            msr::KERNEL_GS_BASE => self.msr.kernel_gs_base = address()?,
            msr::TSC_AUX => self.msr.tsc_aux = v & 0xffff_ffff,
            _ => return self.set_platform_msr(number, v),
        }
        Some(())
    }

    fn write_efer(&mut self, v: u64) -> Option<()> {
        if v & !(EFER_WRITABLE | efer::LMA) != 0 {
            return None;
        }
        if self.paging() && (v ^ self.efer) & efer::LME != 0 {
            return None;
        }
        self.efer = v & EFER_WRITABLE | self.efer & efer::LMA;
        self.flush_tlb();
        Some(())
    }

    /// Sets an MSR on behalf of a restore: as the guest's WRMSR, but the wall clock structure is
    /// left as it is in memory.
    pub(crate) fn load_msr(&mut self, number: u32, v: u64) -> Option<()> {
        match number {
            msr::KVM_WALL_CLOCK => {
                self.clock.wall_clock = v;
                Some(())
            }
            _ => self.write_msr(number, v),
        }
    }

    /// MSRs with a fixed answer. Kernels probe these on any processor of the vendors; what a
    /// profile does not have is #GP.
    fn platform_msr(&mut self, number: u32) -> Option<u64> {
        match number {
            // IA32_BIOS_SIGN_ID (microcode revision), IA32_PLATFORM_ID.
            0x8b | 0x17 => Some(0),
            _ if AMD_ZERO.contains(&number) => Some(0),
            msr::KVM_SYSTEM_TIME => Some(self.clock.system_time),
            msr::KVM_WALL_CLOCK => Some(self.clock.wall_clock),
            _ => self.msr.mtrr.read(number),
        }
    }

    fn set_platform_msr(&mut self, number: u32, v: u64) -> Option<()> {
        match number {
            msr::KVM_SYSTEM_TIME => self.set_system_time(v),
            msr::KVM_WALL_CLOCK => self.set_wall_clock(v),
            0x8b => {}
            _ if AMD_ZERO.contains(&number) => return (v == 0).then_some(()),
            _ => return self.msr.mtrr.write(number, v, self.phys_bits),
        }
        Some(())
    }

    /// RDMSR and WRMSR of an unknown number.
    pub(crate) fn msr_or_gp<T>(&mut self, v: Option<T>) -> R<T> {
        v.ok_or_else(|| self.gp(0))
    }
}
