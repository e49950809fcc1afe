//! The page walk: four-level, PAE and 32-bit tables, with accessed and dirty bits.

use super::Access;
use crate::cpu::Cpu;
use crate::cpu::state::{cr0, cr4, efer};
use crate::mem::{Lost, PAGE, raw::HostPtr};

/// Page-fault error code bits.
pub(crate) const PF_PRESENT: u32 = 1;
pub(crate) const PF_WRITE: u32 = 2;
pub(crate) const PF_USER: u32 = 4;
pub(crate) const PF_RESERVED: u32 = 8;
pub(crate) const PF_FETCH: u32 = 16;
/// No page fault, and no bit of a guest's error code: a table on the way is lost.
pub(crate) const TABLE_LOST: u32 = 1 << 31;

const P: u64 = 1;
const RW: u64 = 1 << 1;
const US: u64 = 1 << 2;
const A: u64 = 1 << 5;
const D: u64 = 1 << 6;
const PS: u64 = 1 << 7;
const G: u64 = 1 << 8;
const NX: u64 = 1 << 63;
/// The address field of a long-format entry.
const ADDR: u64 = 0x000f_ffff_ffff_f000;

/// Who makes the access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Who {
    pub(crate) user: bool,
    /// SMAP does not apply (EFLAGS.AC, explicit supervisor access).
    pub(crate) ac: bool,
}

/// Where a walk ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Leaf {
    /// The guest physical address.
    pub(crate) gpa: u64,
    /// Binary logarithm of the page's size: one of [`SMALL_SHIFT`] and [`LARGE_SHIFTS`].
    pub(crate) shift: u32,
    /// A load of CR3 keeps the translation.
    pub(crate) global: bool,
}

/// [`Leaf::shift`] of a 4 KiB page.
pub(crate) const SMALL_SHIFT: u32 = 12;
/// [`Leaf::shift`] of the larger pages: 2 MiB, 4 MiB (32-bit tables), 1 GiB.
pub(crate) const LARGE_SHIFTS: [u32; 3] = [21, 22, 30];

/// One paging structure format.
struct Format {
    levels: u32,
    /// Index bits per level.
    bits: u32,
    /// Entries are 8 bytes (else 4).
    wide: bool,
}

impl Cpu {
    fn format(&self) -> Format {
        if self.efer & efer::LMA != 0 {
            Format {
                levels: 4,
                bits: 9,
                wide: true,
            }
        } else if self.cr4 & cr4::PAE != 0 {
            Format {
                levels: 3,
                bits: 9,
                wide: true,
            }
        } else {
            Format {
                levels: 2,
                bits: 10,
                wide: false,
            }
        }
    }

    /// Reads an entry; outside RAM it reads as zero (not present).
    fn entry(&self, gpa: u64, wide: bool) -> Result<(u64, Option<HostPtr>), u32> {
        let Some(page) = self.ram.page(gpa).map_err(|Lost| TABLE_LOST)? else {
            return Ok((0, None));
        };
        let p = page.add((gpa & (PAGE - 1)) as usize);
        let v = if wide {
            p.load::<u64>()
        } else {
            u64::from(p.load::<u32>())
        };
        Ok((v, Some(p)))
    }

    /// Sets bits of an entry as hardware does: atomically, and the page holding it is dirtied.
    fn set_entry_bits(&self, at: Option<HostPtr>, gpa: u64, old: u64, bits: u64, wide: bool) {
        let Some(p) = at else { return };
        self.ram.mark_dirty(gpa);
        if wide {
            let mut cur = old;
            while let Err(now) = p.compare_exchange::<u64>(cur, cur | bits) {
                cur = now;
            }
        } else {
            let mut cur = old as u32;
            while let Err(now) = p.compare_exchange::<u32>(cur, cur | bits as u32) {
                cur = now;
            }
        }
    }

    /// Translates `va`; the error is a page-fault error code, or [`TABLE_LOST`]. Sets A, and D for a write.
    pub(crate) fn walk(&self, va: u64, kind: Access, who: Who) -> Result<Leaf, u32> {
        if !self.paging() {
            return Ok(Leaf {
                gpa: va & 0xffff_ffff,
                shift: SMALL_SHIFT,
                global: false,
            });
        }
        let base_err = self.base_error(kind, who);
        let f = self.format();
        let mut table = match f.levels {
            4 => self.cr3 & ADDR,
            3 => self.cr3 & 0xffff_ffe0,
            _ => self.cr3 & 0xffff_f000,
        };
        let (mut rights, mut nx) = (RW | US, false);
        let mut level = f.levels;
        loop {
            let shift = 12 + f.bits * (level - 1);
            let index = va >> shift & ((1 << f.bits) - 1);
            let gpa = table + index * if f.wide { 8 } else { 4 };
            let (e, at) = self.entry(gpa, f.wide)?;
            if e & P == 0 {
                return Err(base_err);
            }
            // The four top entries of PAE have neither rights nor A.
            let pdpte = f.levels == 3 && level == 3;
            let leaf = level == 1 || (!pdpte && e & PS != 0 && self.large_ok(level, f.wide));
            if self.reserved(e, level, leaf, f.wide, pdpte) {
                return Err(base_err | PF_PRESENT | PF_RESERVED);
            }
            if !pdpte {
                rights &= e;
                nx |= f.wide && e & NX != 0;
            }
            if leaf {
                if !self.allowed(rights, nx, kind, who) {
                    return Err(base_err | PF_PRESENT);
                }
                let want = if kind == Access::Write { A | D } else { A };
                if e & want != want {
                    self.set_entry_bits(at, gpa, e, want, f.wide);
                }
                return Ok(Leaf {
                    gpa: Self::leaf_address(e, va, shift, f.wide),
                    shift,
                    global: e & G != 0 && self.cr4 & cr4::PGE != 0,
                });
            }
            if !pdpte && e & A == 0 {
                self.set_entry_bits(at, gpa, e, A, f.wide);
            }
            table = if f.wide { e & ADDR } else { e & 0xffff_f000 };
            level -= 1;
        }
    }

    fn base_error(&self, kind: Access, who: Who) -> u32 {
        let nx_on = self.efer & efer::NXE != 0 && self.format().wide || self.cr4 & cr4::SMEP != 0;
        (if kind == Access::Write { PF_WRITE } else { 0 })
            | (if who.user { PF_USER } else { 0 })
            | (if kind == Access::Exec && nx_on {
                PF_FETCH
            } else {
                0
            })
    }

    fn large_ok(&self, level: u32, wide: bool) -> bool {
        // A set bit 7 at level 4 is reserved; 32-bit tables have 4 MiB pages only with CR4.PSE.
        if wide {
            level == 2 || level == 3
        } else {
            level == 2 && self.cr4 & cr4::PSE != 0
        }
    }

    fn reserved(&self, e: u64, level: u32, leaf: bool, wide: bool, pdpte: bool) -> bool {
        if !wide {
            return false;
        }
        let high = ADDR & !((1 << self.phys_bits) - 1);
        if e & high != 0 || (e & NX != 0 && (pdpte || self.efer & efer::NXE == 0)) {
            return true;
        }
        if level == 4 && e & PS != 0 {
            return true;
        }
        // Large pages: address bits below the page size, above PAT (bit 12).
        leaf && level > 1 && e & ((1u64 << (12 + 9 * (level - 1))) - 1) & !0x1fff != 0
    }

    fn allowed(&self, rights: u64, nx: bool, kind: Access, who: Who) -> bool {
        let user_page = rights & US != 0;
        let write_ok = rights & RW != 0;
        if kind == Access::Exec && nx {
            return false;
        }
        if who.user {
            return user_page && (kind != Access::Write || write_ok);
        }
        match kind {
            Access::Exec => !(user_page && self.cr4 & cr4::SMEP != 0),
            _ if user_page && self.cr4 & cr4::SMAP != 0 && !who.ac => false,
            Access::Write => write_ok || self.cr0 & cr0::WP == 0,
            Access::Read => true,
        }
    }

    fn leaf_address(e: u64, va: u64, shift: u32, wide: bool) -> u64 {
        let offset = va & ((1 << shift) - 1);
        if wide {
            (e & ADDR & !((1u64 << shift) - 1)) | offset
        } else if shift == 22 {
            // PSE-36: bits 13–20 are address bits 32–39.
            (e & 0xffc0_0000) | (e & 0x001f_e000) << 19 | offset
        } else {
            (e & 0xffff_f000) | offset
        }
    }
}
