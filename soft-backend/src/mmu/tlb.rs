//! The software TLB: from linear page to host pointer in one compare.
//!
//! An entry has one tag per kind of access: the page's linear address, and in the low twelve bits
//! the epoch (a flush just takes the next epoch) and the privilege under which the translation was
//! made. A write tag is present only if the page's dirty bit, the tracker's dirty mark and the code
//! map have been seen to.

use super::walk::{LARGE_SHIFTS, SMALL_SHIFT};
use crate::cpu::state::{cr0, cr4};
use crate::cpu::{Cpu, flags};
use crate::mem::{PAGE, RamMap, raw::HostPtr};

/// Number of entries; a power of two.
const ENTRIES: usize = 1024;
/// No tag: the low bits are an epoch that is never current.
const NONE: u64 = u64::MAX;
/// Privilege bits of a tag.
const TAG_USER: u64 = 1;
const TAG_AC: u64 = 2;
/// Both: user code whose accesses have to be aligned. No entry has it, so that each of them takes the slow
/// way.
const TAG_ALIGN: u64 = TAG_USER | TAG_AC;
/// Epochs run from 0 to this, then the table is cleared.
const LAST_EPOCH: u64 = 1022;
/// Low bits of the code context that hold mode and privilege.
const CONTEXT_MODE_BITS: u32 = 5;

/// One entry: tags for three kinds of access and what to add to a linear address.
#[derive(Clone, Copy)]
pub(crate) struct Entry {
    pub(crate) read: u64,
    pub(crate) write: u64,
    pub(crate) exec: u64,
    pub(crate) addend: usize,
}

/// Of which large pages the table may hold parts: a set of hashes, emptied by a flush. It lets INVLPG
/// tell the address of a 4 KiB page, which is one entry, from one whose page fills many.
#[derive(Default)]
struct LargePages([u64; Self::WORDS]);

impl LargePages {
    const WORDS: usize = 32;

    fn place(va: u64, shift: u32) -> (usize, u64) {
        let page = (va >> shift) << 6 | u64::from(shift);
        let hash = page.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        ((hash >> 6) as usize % Self::WORDS, 1 << (hash & 63))
    }

    fn add(&mut self, va: u64, shift: u32) {
        let (word, bit) = Self::place(va, shift);
        self.0[word] |= bit;
    }

    fn may_hold(&self, va: u64, shift: u32) -> bool {
        let (word, bit) = Self::place(va, shift);
        self.0[word] & bit != 0
    }
}

/// The table.
pub(crate) struct Tlb {
    pub(crate) entries: [Entry; ENTRIES],
    large: LargePages,
    epoch: u64,
    /// Counts changes that make block links invalid.
    context_epoch: u64,
}

impl Tlb {
    /// An empty table. `context_base` makes code contexts differ between vCPUs.
    pub(crate) fn new(context_base: u64) -> Box<Self> {
        let none = Entry {
            read: NONE,
            write: NONE,
            exec: NONE,
            addend: 0,
        };
        Box::new(Tlb {
            entries: [none; ENTRIES],
            large: LargePages::default(),
            epoch: 0,
            context_epoch: context_base,
        })
    }

    #[inline(always)]
    pub(crate) fn slot(va: u64) -> usize {
        (va >> 12) as usize & (ENTRIES - 1)
    }

    fn clear(&mut self) {
        self.entries.fill(Entry {
            read: NONE,
            write: NONE,
            exec: NONE,
            addend: 0,
        });
    }

    /// Adds one kind of access for 4 KiB of a page of 2^`shift` bytes; other kinds stay if they are of the
    /// same page and tag.
    pub(crate) fn insert(
        &mut self,
        va: u64,
        shift: u32,
        tag: u64,
        kind: super::Access,
        page: HostPtr,
    ) {
        if shift != SMALL_SHIFT {
            self.large.add(va, shift);
        }
        let base = va & !(PAGE - 1);
        let full = base | tag;
        let addend = page.addr().wrapping_sub(base as usize);
        let e = &mut self.entries[Self::slot(va)];
        if e.addend != addend {
            *e = Entry {
                read: NONE,
                write: NONE,
                exec: NONE,
                addend,
            };
        }
        for t in [&mut e.read, &mut e.write, &mut e.exec] {
            if *t != full {
                *t = NONE;
            }
        }
        match kind {
            super::Access::Read => e.read = full,
            super::Access::Write => {
                e.write = full;
                e.read = full;
            }
            super::Access::Exec => e.exec = full,
        }
    }

    /// Forgets the page of an address, whatever its size, under every privilege.
    pub(crate) fn forget(&mut self, va: u64) {
        self.forget_entry(Self::slot(va));
        for shift in LARGE_SHIFTS {
            if self.large.may_hold(va, shift) {
                self.forget_range(va, shift);
            }
        }
    }

    /// Forgets the 2^`shift` aligned bytes around an address.
    #[cold]
    fn forget_range(&mut self, va: u64, shift: u32) {
        for slot in 0..ENTRIES {
            let e = &self.entries[slot];
            let here = |tag: u64| tag != NONE && (tag ^ va) >> shift == 0;
            if here(e.read) || here(e.write) || here(e.exec) {
                self.forget_entry(slot);
            }
        }
    }

    fn forget_entry(&mut self, slot: usize) {
        self.entries[slot] = Entry {
            read: NONE,
            write: NONE,
            exec: NONE,
            addend: 0,
        };
    }

    /// Takes the write tags of every mapping of this host page.
    pub(crate) fn protect(&mut self, page: HostPtr) {
        for (i, e) in self.entries.iter_mut().enumerate() {
            if e.write == NONE {
                continue;
            }
            debug_assert_eq!(Self::slot(e.write), i);
            if e.addend.wrapping_add((e.write & !(PAGE - 1)) as usize) == page.addr() {
                e.write = NONE;
            }
        }
    }

    /// Takes the write tags of pages of one region; gives the pages' numbers in it.
    pub(crate) fn take_write_tags(&mut self, ram: &RamMap, region: usize) -> Vec<usize> {
        let Some(region) = ram.regions().get(region) else {
            return Vec::new();
        };
        let mut pages = Vec::new();
        for e in &mut self.entries {
            if e.write == NONE {
                continue;
            }
            let host = e.addend.wrapping_add((e.write & !(PAGE - 1)) as usize);
            let offset = host.wrapping_sub(region.host()) as u64;
            if offset < region.bytes {
                pages.push((offset / PAGE) as usize);
                e.write = NONE;
            }
        }
        pages
    }

    /// Takes all write tags: the next store to each page is seen.
    pub(crate) fn protect_all(&mut self) {
        for e in &mut self.entries {
            e.write = NONE;
        }
    }
}

impl Cpu {
    /// Recomputes the TLB tag and the code context after a change of privilege, AC or mode.
    pub(crate) fn update_context(&mut self) {
        let user = self.cpl == 3;
        let low = match (user, self.flag(flags::AC)) {
            (true, true) if self.cr0 & cr0::AM != 0 => TAG_ALIGN,
            (true, _) => TAG_USER,
            (false, true) if self.cr4 & cr4::SMAP != 0 => TAG_AC,
            (false, _) => 0,
        };
        self.tlb_tag = self.tlb.epoch << 2 | low;
        self.code_context = self.tlb.context_epoch << CONTEXT_MODE_BITS
            | (self.mode as u64) << 2
            | u64::from(self.seg[2].big()) << 4
            | u64::from(user);
    }

    /// The tag of system accesses (descriptor tables, task state): supervisor, AC ignored.
    pub(crate) fn system_tag(&self) -> u64 {
        self.tlb.epoch << 2
    }

    /// Whether accesses under a tag have to be aligned.
    #[inline(always)]
    pub(super) fn wants_alignment(tag: u64) -> bool {
        tag & TAG_ALIGN == TAG_ALIGN
    }

    /// Drops every translation, global ones too (allowed: a TLB may lose entries at any time).
    pub(crate) fn flush_tlb(&mut self) {
        self.tlb.epoch += 1;
        if self.tlb.epoch > LAST_EPOCH {
            self.tlb.epoch = 0;
            self.tlb.clear();
        }
        self.tlb.large = LargePages::default();
        self.forget_links();
    }

    /// Drops the translation of the page of an address, which may be a large one.
    pub(crate) fn flush_page(&mut self, va: u64) {
        self.tlb.forget(va);
        self.forget_links();
    }

    /// Makes every remembered block address be looked up again.
    pub(crate) fn forget_links(&mut self) {
        self.tlb.context_epoch += 1;
        self.update_context();
    }

    /// Whether paging is on.
    pub(crate) fn paging(&self) -> bool {
        self.cr0 & cr0::PG != 0
    }
}
