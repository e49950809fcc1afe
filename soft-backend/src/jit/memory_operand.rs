//! Addresses, and the probe of the TLB before each access.

use iced_x86::{Instruction, Register};

use super::asm::{Mem, Reg, S0, S1, at, cc, framed};
use super::emit::Emit;
use super::frame::place;
use super::registers::{guest, host};
use crate::mmu::tlb;
use crate::segments::{FS, GS};

/// Bytes of a page that no probe may leave.
const PAGE_MASK: i32 = -4096;

/// Kind of access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Access {
    Read,
    /// Also of what is read and written.
    Write,
}

/// Where an access is on the host.
#[derive(Clone, Copy, Debug)]
pub(super) struct Found {
    pub(super) mem: Mem,
    /// The scratch register that is not needed for it.
    pub(super) free: Reg,
}

impl Emit<'_> {
    /// The value of a guest register in a host register: its own, or `scratch`.
    pub(super) fn value_of(&mut self, g: u8, scratch: Reg) -> Reg {
        host(g).unwrap_or_else(|| {
            self.asm.load(scratch, framed(place::gpr(g)));
            scratch
        })
    }

    /// Base, index and displacement, what is not in host registers loaded to the scratch registers.
    pub(super) fn parts(&mut self, i: &Instruction) -> Mem {
        let disp = i.memory_displacement64() as i32;
        let scale = i.memory_index_scale().trailing_zeros() as u8;
        if i.memory_base() == Register::RIP {
            // iced counts from the block's start, which the decoder was told is zero.
            self.asm.load(S0, framed(place::PAGE));
            return at(S0, disp + self.offset as i32);
        }
        Mem {
            base: guest(i.memory_base()).map(|g| self.value_of(g, S0)),
            index: guest(i.memory_index()).map(|g| (self.value_of(g, S1), scale)),
            disp,
        }
    }

    /// The segment's number if its base counts.
    fn based(i: &Instruction) -> Option<usize> {
        match i.memory_segment() {
            Register::FS => Some(FS),
            Register::GS => Some(GS),
            _ => None,
        }
    }

    /// Finds the memory operand of an instruction; its flags must be stored. With one of these bits in its address
    /// it is the interpreter's.
    pub(super) fn probe(&mut self, i: &Instruction, access: Access, unaligned: u8) -> Found {
        let bytes = i.memory_size().size() as i32;
        let m = self.parts(i);
        self.asm.lea(S0, m);
        let based = Self::based(i);
        if let Some(segment) = based {
            self.asm.add_mem(S0, framed(place::segment_base(segment)));
        }
        if unaligned != 0 {
            // TEST AL
            self.asm.raw(&[0xa8, unaligned]);
            self.leave_if(cc::NE);
        }
        let scratch = |r: Reg| r == S0 || r == S1;
        let whole = m.base.is_some_and(|b| !scratch(b)) && based.is_none();
        let simple = whole && m.index.is_none();
        let again = whole && m.index.is_none_or(|(r, _)| !scratch(r));
        if !simple && !again {
            self.asm.store(framed(place::TEMP), S0);
        }
        self.find_entry(place::DATA_TABLE);
        self.compare(bytes, access);
        self.asm.load(S1, at(S1, tlb::ADDEND));
        if simple {
            let mem = Mem {
                index: Some((S1, 0)),
                ..m
            };
            return Found { mem, free: S0 };
        }
        if again {
            self.asm.lea(S0, m);
            self.asm.rr(true, &[0x03], S0, S1);
        } else {
            self.asm.mov(S0, S1);
            self.asm.add_mem(S0, framed(place::TEMP));
        }
        Found {
            mem: at(S0, 0),
            free: S1,
        }
    }

    /// Finds 8 bytes at a pinned register plus a distance.
    pub(super) fn probe_at(&mut self, base: Reg, disp: i32, access: Access) -> Mem {
        self.asm.lea(S0, at(base, disp));
        self.find_entry(place::DATA_TABLE);
        self.compare(8, access);
        self.asm.load(S1, at(S1, tlb::ADDEND));
        Mem {
            base: Some(base),
            index: Some((S1, 0)),
            disp,
        }
    }

    /// From the linear address in S0 to its TLB entry in S1, for data or for code.
    pub(super) fn find_entry(&mut self, table: i32) {
        self.asm.mov(S1, S0);
        self.asm.shr(S1, tlb::ENTRY_SHIFT);
        self.asm.imm(false, 4, S1, tlb::ENTRY_MASK);
        self.asm.add_mem(S1, framed(table));
    }

    /// As the interpreter does: the page of the last byte is the one that the entry is for.
    fn compare(&mut self, bytes: i32, access: Access) {
        if bytes > 1 {
            self.asm.imm(true, 0, S0, bytes - 1);
        }
        self.asm.imm(true, 4, S0, PAGE_MASK);
        let tag = match access {
            Access::Read => tlb::READ_TAG,
            Access::Write => tlb::WRITE_TAG,
        };
        self.asm.cmp_mem(S0, at(S1, tag));
        self.leave_if(cc::NE);
    }
}
