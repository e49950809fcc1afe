//! The software TLB: from linear page to host pointer in one compare.
//!
//! There is a table per privilege, so that an entry needs no more than one tag per kind of access: the page's
//! linear address. A write tag is present only if the page's dirty bit, the tracker's dirty mark and
//! the code map have been seen to; an execute tag only if no code breakpoint lies in the page.

use std::mem::offset_of;

use super::Access;
use super::walk::{LARGE_SHIFTS, Leaf, SMALL_SHIFT};
use crate::cpu::state::{cr0, cr4};
use crate::cpu::{Cpu, flags};
use crate::mem::{PAGE, RamMap, raw::HostPtr};

/// Entries of a privilege's table; a power of two.
const ENTRIES: usize = 4096;
/// Entries of all tables.
const ALL: usize = ENTRIES * 4;
/// Entries that others have displaced, of any table: pages that share a place would displace each other for ever.
const DISPLACED: usize = 16;
/// All entries; those displaced come last.
const ROOM: usize = ALL + 64;
/// No tag: no page has this address.
const NONE: u64 = u64::MAX;

/// The table of a privilege: the index of its first entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Table(usize);

impl Table {
    /// Levels 0 to 2, also for system structures.
    pub(crate) const SUPERVISOR: Table = Table(0);
    pub(crate) const USER: Table = Table(ENTRIES);
    /// Levels 0 to 2 with EFLAGS.AC, which lifts SMAP.
    const SUPERVISOR_AC: Table = Table(2 * ENTRIES);
    /// User code whose accesses have to be aligned: it stays empty, so that each of them takes the slow way.
    const USER_ALIGNED: Table = Table(3 * ENTRIES);

    pub(super) fn is_user(self) -> bool {
        matches!(self, Table::USER | Table::USER_ALIGNED)
    }

    pub(super) fn lifts_smap(self) -> bool {
        self == Table::SUPERVISOR_AC
    }

    /// Whether accesses have to be aligned.
    #[inline(always)]
    pub(super) fn wants_alignment(self) -> bool {
        self == Table::USER_ALIGNED
    }

    /// The table that execute tags of code at this privilege are in.
    #[inline(always)]
    fn of_code(self) -> Self {
        Table(self.0 & ENTRIES)
    }
}

/// One entry: tags for three kinds of access and what to add to a linear address.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Entry {
    pub(crate) read: u64,
    pub(crate) write: u64,
    exec: u64,
    pub(crate) addend: usize,
}

const EMPTY: Entry = Entry {
    read: NONE,
    write: NONE,
    exec: NONE,
    addend: 0,
};

/// For translated code: from a linear address, shifted so and masked so, to an entry's distance from its table.
pub(crate) const ENTRY_SHIFT: u8 = 12 - size_of::<Entry>().trailing_zeros() as u8;
pub(crate) const ENTRY_MASK: i32 = ((ENTRIES - 1) * size_of::<Entry>()) as i32;
/// Places in an entry.
pub(crate) const READ_TAG: i32 = offset_of!(Entry, read) as i32;
pub(crate) const WRITE_TAG: i32 = offset_of!(Entry, write) as i32;
pub(crate) const EXEC_TAG: i32 = offset_of!(Entry, exec) as i32;
pub(crate) const ADDEND: i32 = offset_of!(Entry, addend) as i32;

const _: () = assert!(size_of::<Entry>().is_power_of_two());

/// A set of entries.
struct Entries([u64; ROOM / 64]);

impl Entries {
    const NONE: Self = Entries([0; ROOM / 64]);

    fn add(&mut self, at: usize) {
        self.0[at / 64] |= 1 << (at % 64);
    }

    fn remove(&mut self, at: usize) {
        self.0[at / 64] &= !(1 << (at % 64));
    }

    fn has(&self, at: usize) -> bool {
        self.0[at / 64] >> (at % 64) & 1 != 0
    }

    fn swap(&mut self, a: usize, b: usize) {
        let (had_a, had_b) = (self.has(a), self.has(b));
        for (at, has) in [(a, had_b), (b, had_a)] {
            if has {
                self.add(at);
            } else {
                self.remove(at);
            }
        }
    }

    /// Calls `f` for each.
    fn each(&self, mut f: impl FnMut(usize)) {
        for (i, word) in self.0.iter().enumerate() {
            let mut left = *word;
            while left != 0 {
                f(i * 64 + left.trailing_zeros() as usize);
                left &= left - 1;
            }
        }
    }
}

/// Of which large pages the tables may hold parts: a set of hashes, emptied by a flush. It lets INVLPG
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

/// The tables.
pub(crate) struct Tlb {
    entries: [Entry; ROOM],
    /// The tables that the displaced entries are of.
    displaced_from: [Table; DISPLACED],
    /// Where the next one goes.
    next_displaced: usize,
    /// The entries that hold something.
    used: Entries,
    /// Those of pages that are not global.
    local: Entries,
    large_local: LargePages,
    large_global: LargePages,
}

impl Tlb {
    /// Empty tables.
    pub(crate) fn new() -> Box<Self> {
        Box::new(Tlb {
            entries: [EMPTY; ROOM],
            displaced_from: [Table::SUPERVISOR; DISPLACED],
            next_displaced: 0,
            used: Entries::NONE,
            local: Entries::NONE,
            large_local: LargePages::default(),
            large_global: LargePages::default(),
        })
    }

    #[inline(always)]
    fn slot(table: Table, va: u64) -> usize {
        ((va >> 12) as usize & (ENTRIES - 1)) | table.0
    }

    /// The entry that a page would be in.
    #[inline(always)]
    pub(crate) fn entry(&self, table: Table, va: u64) -> &Entry {
        &self.entries[Self::slot(table, va) & (ALL - 1)]
    }

    /// Addresses of the first entries for data and for code at a privilege.
    pub(crate) fn tables(&self, table: Table) -> (usize, usize) {
        let first = |t: Table| &raw const self.entries[t.0 & (ALL - 1)] as usize;
        (first(table), first(table.of_code()))
    }

    /// The host address of the code at a linear address, if its page has an execute tag.
    #[inline(always)]
    pub(crate) fn code(&self, table: Table, va: u64) -> Option<HostPtr> {
        let e = self.entry(table.of_code(), va);
        (e.exec == va & !(PAGE - 1)).then(|| HostPtr::from_tlb(e.addend, va))
    }

    /// Adds one kind of access for the 4 KiB of a page in which `va` lies. What the entry has for other kinds
    /// stays if it is of the same page.
    pub(super) fn insert(
        &mut self,
        table: Table,
        va: u64,
        leaf: Leaf,
        kind: Access,
        page: HostPtr,
    ) {
        if leaf.shift != SMALL_SHIFT {
            let large = if leaf.global {
                &mut self.large_global
            } else {
                &mut self.large_local
            };
            large.add(va, leaf.shift);
        }
        let base = va & !(PAGE - 1);
        let addend = page.addr().wrapping_sub(base as usize);
        let table = if kind == Access::Exec {
            table.of_code()
        } else {
            table
        };
        self.forget_displaced(va, |from| from == table);
        let at = Self::slot(table, va) & (ALL - 1);
        let e = &mut self.entries[at];
        let other = |tag: u64| tag != NONE && tag != base;
        let displaces = other(e.read) || other(e.write) || other(e.exec);
        if e.addend != addend || displaces {
            let old = std::mem::replace(e, Entry { addend, ..EMPTY });
            let local = self.local.has(at);
            self.local.remove(at);
            if displaces {
                self.displace(table, old, local);
            }
        }
        let e = &mut self.entries[at];
        self.used.add(at);
        if !leaf.global {
            self.local.add(at);
        }
        match kind {
            Access::Read => e.read = base,
            Access::Write => {
                e.write = base;
                e.read = base;
            }
            Access::Exec => e.exec = base,
        }
    }

    /// Keeps an entry that has lost its place.
    fn displace(&mut self, table: Table, entry: Entry, local: bool) {
        let n = self.next_displaced;
        self.next_displaced = (n + 1) % DISPLACED;
        self.displaced_from[n] = table;
        let at = ALL + n;
        self.entries[at] = entry;
        self.used.add(at);
        if local {
            self.local.add(at);
        } else {
            self.local.remove(at);
        }
    }

    /// Puts an entry that was displaced into its place again, and what is there among the displaced. True if it
    /// has this kind of access.
    pub(super) fn put_back(&mut self, table: Table, va: u64, kind: Access) -> bool {
        let base = va & !(PAGE - 1);
        let table = if kind == Access::Exec {
            table.of_code()
        } else {
            table
        };
        let tag = |e: &Entry| match kind {
            Access::Read => e.read,
            Access::Write => e.write,
            Access::Exec => e.exec,
        };
        let found = self.entries[ALL..ALL + DISPLACED]
            .iter()
            .zip(&self.displaced_from)
            .position(|(e, from)| *from == table && tag(e) == base);
        let Some(n) = found else {
            return false;
        };
        let (at, from) = (Self::slot(table, va) & (ALL - 1), ALL + n);
        self.entries.swap(at, from);
        self.used.swap(at, from);
        self.local.swap(at, from);
        true
    }

    /// Forgets the page of an address, whatever its size, under every privilege.
    fn forget(&mut self, va: u64) {
        for table in [Table::SUPERVISOR, Table::USER, Table::SUPERVISOR_AC] {
            self.forget_entry(Self::slot(table, va));
        }
        self.forget_displaced(va, |_| true);
        for shift in LARGE_SHIFTS {
            if self.large_local.may_hold(va, shift) || self.large_global.may_hold(va, shift) {
                self.forget_range(va, shift);
            }
        }
    }

    /// Forgets the 2^`shift` aligned bytes around an address.
    #[cold]
    fn forget_range(&mut self, va: u64, shift: u32) {
        let here = |tag: u64| tag != NONE && (tag ^ va) >> shift == 0;
        let (entries, mut gone) = (&self.entries, Vec::new());
        self.used.each(|at| {
            let e = &entries[at];
            if here(e.read) || here(e.write) || here(e.exec) {
                gone.push(at);
            }
        });
        for at in gone {
            self.forget_entry(at);
        }
    }

    /// Forgets displaced entries of a page, of tables for which this holds.
    fn forget_displaced(&mut self, va: u64, of: impl Fn(Table) -> bool) {
        let base = va & !(PAGE - 1);
        for n in 0..DISPLACED {
            let e = &self.entries[ALL + n];
            if [e.read, e.write, e.exec].contains(&base) && of(self.displaced_from[n]) {
                self.forget_entry(ALL + n);
            }
        }
    }

    fn forget_entry(&mut self, at: usize) {
        self.entries[at] = EMPTY;
        self.used.remove(at);
        self.local.remove(at);
    }

    /// Forgets everything.
    fn clear(&mut self) {
        self.used.each(|at| self.entries[at] = EMPTY);
        self.used = Entries::NONE;
        self.local = Entries::NONE;
        self.large_local = LargePages::default();
        self.large_global = LargePages::default();
    }

    /// Forgets what is not of a global page.
    fn clear_local(&mut self) {
        self.local.each(|at| self.entries[at] = EMPTY);
        for (used, local) in self.used.0.iter_mut().zip(&self.local.0) {
            *used &= !local;
        }
        self.local = Entries::NONE;
        self.large_local = LargePages::default();
    }

    /// Takes the write tags of every mapping of this host page.
    pub(crate) fn protect(&mut self, page: HostPtr) {
        self.used.each(|at| {
            let e = &mut self.entries[at];
            if e.write != NONE && e.addend.wrapping_add(e.write as usize) == page.addr() {
                e.write = NONE;
            }
        });
    }

    /// Takes the write tags of pages of one region; gives the pages' numbers in it.
    pub(crate) fn take_write_tags(&mut self, ram: &RamMap, region: usize) -> Vec<usize> {
        let Some(region) = ram.regions().get(region) else {
            return Vec::new();
        };
        let mut pages = Vec::new();
        self.used.each(|at| {
            let e = &mut self.entries[at];
            if e.write == NONE {
                return;
            }
            let host = e.addend.wrapping_add(e.write as usize);
            let offset = host.wrapping_sub(region.host()) as u64;
            if offset < region.bytes {
                pages.push((offset / PAGE) as usize);
                e.write = NONE;
            }
        });
        pages
    }

    /// Takes all write tags: the next store to each page is seen.
    pub(crate) fn protect_all(&mut self) {
        self.used.each(|at| self.entries[at].write = NONE);
    }
}

impl Cpu {
    /// Chooses the TLB's table after a change of privilege, AC or what AC means.
    pub(crate) fn update_context(&mut self) {
        let user = self.cpl == 3;
        self.table = match (user, self.flag(flags::AC)) {
            (true, true) if self.cr0 & cr0::AM != 0 => Table::USER_ALIGNED,
            (true, _) => Table::USER,
            (false, true) if self.cr4 & cr4::SMAP != 0 => Table::SUPERVISOR_AC,
            (false, _) => Table::SUPERVISOR,
        };
    }

    /// Drops every translation.
    pub(crate) fn flush_tlb(&mut self) {
        self.tlb.clear();
        self.update_context();
    }

    /// Drops every translation of a page that is not global.
    pub(crate) fn flush_local(&mut self) {
        self.tlb.clear_local();
    }

    /// Drops the translation of the page of an address, which may be a large one.
    pub(crate) fn flush_page(&mut self, va: u64) {
        self.tlb.forget(va);
    }

    /// Whether paging is on.
    pub(crate) fn paging(&self) -> bool {
        self.cr0 & cr0::PG != 0
    }
}
