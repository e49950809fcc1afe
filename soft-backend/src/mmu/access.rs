//! Loads and stores by linear address.
//!
//! The fast path is one compare with the TLB; everything else (a miss, a page crossing, a device, a
//! store to code, a watchpoint) goes through the slow functions at the end of the file.

use std::sync::atomic::{Ordering, fence};

use super::Access;
use super::tlb::Table;
use super::walk::{TABLE_LOST, Who};
use crate::cpu::{Cpu, IoRequest, R, Trap, Trapped};
use crate::int::Int;
use crate::mem::{Lost, PAGE, raw::HostPtr};

const PAGE_MASK: u64 = !(PAGE - 1);

/// Where a linear address leads.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Place {
    Ram(HostPtr),
    Device(u64),
}

/// What an access of so many bytes is aligned to where alignment is checked (Intel SDM volume 3, table 6-7);
/// structures are accessed in pieces.
fn alignment(bytes: u64) -> u64 {
    match bytes {
        2 | 4 | 8 => bytes,
        10 | 16 => 8,
        _ => 1,
    }
}

impl Cpu {
    /// Reads memory at a linear address with the current privilege.
    #[inline(always)]
    pub(crate) fn read<T: Int>(&mut self, va: u64) -> R<T> {
        let e = self.tlb.entry(self.table, va);
        if e.read == va.wrapping_add(T::BYTES - 1) & PAGE_MASK {
            return Ok(HostPtr::from_tlb(e.addend, va).load());
        }
        self.read_slow(va, self.table)
    }

    /// Writes memory at a linear address with the current privilege.
    #[inline(always)]
    pub(crate) fn write<T: Int>(&mut self, va: u64, v: T) -> R<()> {
        let e = self.tlb.entry(self.table, va);
        if e.write == va.wrapping_add(T::BYTES - 1) & PAGE_MASK {
            HostPtr::from_tlb(e.addend, va).store(v);
            return Ok(());
        }
        self.write_slow(va, v, self.table)
    }

    /// Reads, computes and writes back; `f` may set flags, which are undone if the write faults.
    #[inline(always)]
    pub(crate) fn modify<T: Int>(
        &mut self,
        va: u64,
        f: impl Fn(&mut crate::cpu::flags::LazyFlags, T) -> T,
    ) -> R<T> {
        let e = self.tlb.entry(self.table, va);
        if e.write == va.wrapping_add(T::BYTES - 1) & PAGE_MASK {
            let p = HostPtr::from_tlb(e.addend, va);
            let old = p.load();
            let new = f(&mut self.lazy, old);
            p.store(new);
            return Ok(old);
        }
        let before = self.lazy;
        self.probe_write(va, T::BYTES)?;
        let old = self.read_slow(va, self.table)?;
        let new = f(&mut self.lazy, old);
        if let Err(t) = self.write_slow(va, new, self.table) {
            self.lazy = before;
            return Err(t);
        }
        Ok(old)
    }

    /// As [`Cpu::modify`], atomically with respect to everything that touches the memory.
    pub(crate) fn modify_locked<T: Int>(
        &mut self,
        va: u64,
        f: impl Fn(&mut crate::cpu::flags::LazyFlags, T) -> T,
    ) -> R<T> {
        let Some(p) = self.ram_for_write(va, T::BYTES)? else {
            // Not atomic, but a fence, as every locked instruction is.
            fence(Ordering::SeqCst);
            let old = self.modify(va, f);
            fence(Ordering::SeqCst);
            return old;
        };
        let before = self.lazy;
        let mut old = p.load();
        loop {
            let new = f(&mut self.lazy, old);
            match p.compare_exchange(old, new) {
                Ok(()) => return Ok(old),
                Err(now) => old = now,
            }
            self.lazy = before;
        }
    }

    /// The host pointer for a store inside one page of RAM; `None` for a device or a crossing.
    pub(crate) fn ram_for_write(&mut self, va: u64, bytes: u64) -> R<Option<HostPtr>> {
        self.in_page::<false>(va, bytes, Access::Write)
    }

    /// The host pointer for accesses to `len` bytes inside one page of RAM; `None` for a device, where
    /// they leave the page, or if each of them has to be looked at.
    #[inline]
    pub(crate) fn run_for(&mut self, va: u64, len: u64, kind: Access) -> R<Option<HostPtr>> {
        self.in_page::<true>(va, len, kind)
    }

    /// `SEVERAL` accesses, or one.
    #[inline]
    fn in_page<const SEVERAL: bool>(
        &mut self,
        va: u64,
        len: u64,
        kind: Access,
    ) -> R<Option<HostPtr>> {
        let e = self.tlb.entry(self.table, va);
        let tag = if kind == Access::Write {
            e.write
        } else {
            e.read
        };
        if tag == va.wrapping_add(len - 1) & PAGE_MASK {
            return Ok(Some(HostPtr::from_tlb(e.addend, va)));
        }
        self.in_page_slow(va, len, kind, SEVERAL)
    }

    #[cold]
    #[inline(never)]
    fn in_page_slow(
        &mut self,
        va: u64,
        len: u64,
        kind: Access,
        several: bool,
    ) -> R<Option<HostPtr>> {
        if (va & (PAGE - 1)) + len > PAGE {
            return Ok(None);
        }
        if !several {
            self.watch(va, len, kind)?;
        } else if self.debug.watches_page(va, kind) || self.table.wants_alignment() {
            return Ok(None);
        }
        let place = if !several && kind == Access::Write {
            self.place_sized(va, len, self.table)?
        } else {
            self.place(va, kind, self.table)?
        };
        if !several {
            self.check_alignment(va, len, self.table)?;
        }
        match place {
            Place::Ram(p) => Ok(Some(p)),
            Place::Device(_) => Ok(None),
        }
    }

    /// Reads a system structure: supervisor rights whatever the current privilege.
    pub(crate) fn read_system<T: Int>(&mut self, va: u64) -> R<T> {
        self.read_slow(va, Table::SUPERVISOR)
    }

    /// Writes a system structure.
    pub(crate) fn write_system<T: Int>(&mut self, va: u64, v: T) -> R<()> {
        self.write_slow(va, v, Table::SUPERVISOR)
    }

    /// Whether the page of a store target holds code: long stores then go in small pieces, each of
    /// which is looked at.
    pub(crate) fn beside_code(&mut self, va: u64) -> bool {
        let e = self.tlb.entry(self.table, va);
        e.write != va & PAGE_MASK
    }

    /// #AC for an access of `bytes` that has to be aligned and is not. Page faults come first.
    #[inline]
    fn check_alignment(&mut self, va: u64, bytes: u64, table: Table) -> R<()> {
        if table.wants_alignment() && va & (alignment(bytes) - 1) != 0 {
            return Err(self.raise(17, Some(0)));
        }
        Ok(())
    }

    /// Faults as a write of `len` bytes would, without writing.
    pub(crate) fn probe_write(&mut self, va: u64, len: u64) -> R<()> {
        self.watch_probe(va, len)?;
        self.place(va, Access::Write, self.table)?;
        if (va & (PAGE - 1)) + len > PAGE {
            self.place(va.wrapping_add(len - 1), Access::Write, self.table)?;
        }
        self.check_alignment(va, len, self.table)
    }

    /// Reads `out.len()` bytes at the current privilege, page by page.
    pub(crate) fn read_bytes(&mut self, va: u64, out: &mut [u8]) -> R<()> {
        for (i, b) in out.iter_mut().enumerate() {
            *b = self.read::<u8>(va.wrapping_add(i as u64))?;
        }
        Ok(())
    }

    /// Writes bytes at the current privilege; all pages are probed first.
    pub(crate) fn write_bytes(&mut self, va: u64, data: &[u8]) -> R<()> {
        self.probe_write(va, data.len() as u64)?;
        for (i, b) in data.iter().enumerate() {
            self.write::<u8>(va.wrapping_add(i as u64), *b)?;
        }
        Ok(())
    }

    /// Translates for instruction fetch: the guest physical address.
    pub(crate) fn fetch(&mut self, va: u64) -> R<u64> {
        let known = self.tlb.code(self.table, va).or_else(|| {
            let back = self.tlb.put_back(self.table, va, Access::Exec);
            back.then(|| self.tlb.code(self.table, va)).flatten()
        });
        if let Some(host) = known
            && let Some(gpa) = self.ram.gpa(host)
        {
            return Ok(gpa);
        }
        self.fetch_page(va)
    }

    /// Walks for instruction fetch: the guest physical address. The page gets its execute tag, unless a
    /// code breakpoint in it has to be asked for each time.
    fn fetch_page(&mut self, va: u64) -> R<u64> {
        let leaf = match self.walk(va, Access::Exec, Self::who(self.table)) {
            Ok(leaf) => leaf,
            Err(code) => return Err(self.page_fault(va, code)),
        };
        if let Ok(Some(page)) = self.ram.page(leaf.gpa)
            && !self.debug.watches_page(va, Access::Exec)
        {
            self.tlb.insert(self.table, va, leaf, Access::Exec, page);
        }
        Ok(leaf.gpa)
    }

    fn who(table: Table) -> Who {
        Who {
            user: table.is_user(),
            ac: table.lifts_smap(),
        }
    }

    #[cold]
    fn page_fault(&mut self, va: u64, code: u32) -> Trapped {
        if code == TABLE_LOST {
            return self.memory_lost();
        }
        self.cr2 = va;
        self.raise(14, Some(code))
    }

    /// Memory that the vCPU needs cannot be had: it stops for good.
    #[cold]
    pub(crate) fn memory_lost(&mut self) -> Trapped {
        self.trap = Trap::MemoryLost;
        Trapped
    }

    /// Translates and, for RAM, fills the TLB.
    fn place(&mut self, va: u64, kind: Access, table: Table) -> R<Place> {
        let e = self.tlb.entry(table, va);
        let have = if kind == Access::Write {
            e.write
        } else {
            e.read
        };
        if have == va & PAGE_MASK {
            return Ok(Place::Ram(HostPtr::from_tlb(e.addend, va)));
        }
        if self.tlb.put_back(table, va, kind) {
            let e = self.tlb.entry(table, va);
            return Ok(Place::Ram(HostPtr::from_tlb(e.addend, va)));
        }
        if !crate::cpu::state::canonical(va) {
            return Err(self.gp(0));
        }
        let who = Self::who(table);
        let leaf = match self.walk(va, kind, who) {
            Ok(leaf) => leaf,
            Err(code) => return Err(self.page_fault(va, code)),
        };
        let pa = leaf.gpa;
        let page = match self.ram.page(pa) {
            Ok(Some(page)) => page,
            Ok(None) => return Ok(Place::Device(pa)),
            Err(Lost) => return Err(self.memory_lost()),
        };
        if kind == Access::Write {
            if self.code_pages.holds_code(pa) {
                if self.code_pages.touches_code(pa) {
                    self.trap = Trap::CodeWrite { gpa: pa };
                    return Err(Trapped);
                }
                // Data beside code: allowed, but each store is looked at.
                self.ram.mark_dirty(pa);
                return Ok(Place::Ram(page.add((pa & (PAGE - 1)) as usize)));
            }
            self.ram.mark_dirty(pa);
        }
        if !self.debug.watches_page(va, kind) && !table.wants_alignment() {
            self.tlb.insert(table, va, leaf, kind, page);
        }
        Ok(Place::Ram(page.add((pa & (PAGE - 1)) as usize)))
    }

    #[cold]
    #[inline(never)]
    fn read_slow<T: Int>(&mut self, va: u64, table: Table) -> R<T> {
        self.watch(va, T::BYTES, Access::Read)?;
        if (va & (PAGE - 1)) + T::BYTES <= PAGE {
            let place = self.place(va, Access::Read, table)?;
            self.check_alignment(va, T::BYTES, table)?;
            return match place {
                Place::Ram(p) => Ok(p.load()),
                Place::Device(gpa) => self.device_read(gpa, T::BYTES as u8).map(T::cut),
            };
        }
        self.place(va, Access::Read, table)?;
        let second = (va | (PAGE - 1)).wrapping_add(1);
        self.place(second, Access::Read, table)?;
        self.check_alignment(va, T::BYTES, table)?;
        let mut v = 0;
        for i in 0..T::BYTES {
            let b = match self.place(va.wrapping_add(i), Access::Read, table)? {
                Place::Ram(p) => u64::from(p.load::<u8>()),
                Place::Device(gpa) => self.device_read(gpa, 1)?,
            };
            v |= b << (8 * i);
        }
        Ok(T::cut(v))
    }

    #[cold]
    #[inline(never)]
    fn write_slow<T: Int>(&mut self, va: u64, v: T, table: Table) -> R<()> {
        self.watch(va, T::BYTES, Access::Write)?;
        if (va & (PAGE - 1)) + T::BYTES <= PAGE {
            let place = self.place_sized(va, T::BYTES, table)?;
            self.check_alignment(va, T::BYTES, table)?;
            return match place {
                Place::Ram(p) => {
                    p.store(v);
                    Ok(())
                }
                Place::Device(gpa) => self.device_write(gpa, T::BYTES as u8, v.u64()),
            };
        }
        // Both pages are probed before the first byte is stored.
        let first = PAGE - (va & (PAGE - 1));
        self.place_sized(va, first, table)?;
        self.place_sized(va.wrapping_add(first), T::BYTES - first, table)?;
        self.check_alignment(va, T::BYTES, table)?;
        for i in 0..T::BYTES {
            let b = (v.u64() >> (8 * i)) as u8;
            match self.place(va.wrapping_add(i), Access::Write, table)? {
                Place::Ram(p) => p.store(b),
                Place::Device(gpa) => self.device_write(gpa, 1, u64::from(b))?,
            }
        }
        Ok(())
    }

    /// As `place` for a write of several bytes in one page: every byte is looked at for code.
    fn place_sized(&mut self, va: u64, len: u64, table: Table) -> R<Place> {
        let p = self.place(va, Access::Write, table)?;
        if len > 1 {
            self.place(va + len - 1, Access::Write, table)?;
        }
        Ok(p)
    }

    /// A device read: the answer of an earlier attempt, or a request to the run loop.
    pub(crate) fn device_read(&mut self, gpa: u64, size: u8) -> R<u64> {
        self.request(IoRequest::MmioRead { gpa, size })
    }

    /// A device write.
    pub(crate) fn device_write(&mut self, gpa: u64, size: u8, data: u64) -> R<()> {
        self.request(IoRequest::MmioWrite { gpa, size, data })
            .map(|_| ())
    }

    /// Takes the next answered request of this instruction, or stops for a new one.
    pub(crate) fn request(&mut self, req: IoRequest) -> R<u64> {
        if let Some(v) = self.replay.get(self.replay_pos) {
            self.replay_pos += 1;
            return Ok(*v);
        }
        self.trap = Trap::Io(req);
        Err(Trapped)
    }
}
