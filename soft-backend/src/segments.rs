//! Segment registers, descriptors, and effective addresses.

use crate::cpu::state::{RBP, RSP, canonical, efer};
use crate::cpu::{Cpu, Exception, Mode, R, Trap, Trapped};
use crate::decode::op::{MEM_16, MEM_32, MEM_BASED, MEM_FLAT, MEM_LIMIT, MEM_SEG, MEM_SIZE, Op};
use crate::int::Int;

pub(crate) const ES: usize = 0;
pub(crate) const CS: usize = 1;
pub(crate) const SS: usize = 2;
pub(crate) const DS: usize = 3;
pub(crate) const FS: usize = 4;
pub(crate) const GS: usize = 5;

/// Attribute bits, in the layout of a descriptor's bytes 5 and 6 (limit bits zero).
pub(crate) mod attr {
    pub(crate) const ACCESSED: u16 = 1;
    pub(crate) const WRITABLE: u16 = 1 << 1;
    pub(crate) const READABLE: u16 = 1 << 1;
    pub(crate) const DOWN: u16 = 1 << 2;
    pub(crate) const CONFORMING: u16 = 1 << 2;
    pub(crate) const CODE: u16 = 1 << 3;
    pub(crate) const S: u16 = 1 << 4;
    pub(crate) const P: u16 = 1 << 7;
    pub(crate) const L: u16 = 1 << 13;
    pub(crate) const DB: u16 = 1 << 14;
    pub(crate) const G: u16 = 1 << 15;
    /// Not an architectural bit: the register holds a null selector.
    pub(crate) const NULL: u16 = 1 << 8;
}

/// A segment register with its hidden part.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Segment {
    pub(crate) selector: u16,
    /// Attributes, see [`attr`].
    pub(crate) attr: u16,
    /// Limit in bytes, granularity applied.
    pub(crate) limit: u32,
    pub(crate) base: u64,
}

impl Segment {
    /// A real-mode segment.
    pub(crate) fn real(selector: u16, code: bool) -> Self {
        let t = if code { attr::CODE } else { 0 };
        Segment {
            selector,
            attr: attr::P | attr::S | attr::WRITABLE | attr::ACCESSED | t,
            limit: 0xffff,
            base: u64::from(selector) << 4,
        }
    }

    /// A null selector.
    pub(crate) fn null(selector: u16) -> Self {
        Segment {
            selector,
            attr: attr::NULL,
            limit: 0,
            base: 0,
        }
    }

    /// From a descriptor in memory.
    pub(crate) fn from_descriptor(selector: u16, d: u64) -> Self {
        let attr = (d >> 40 & 0xf0ff) as u16;
        let mut limit = (d & 0xffff | d >> 32 & 0xf_0000) as u32;
        if attr & attr::G != 0 {
            limit = limit << 12 | 0xfff;
        }
        let base = d >> 16 & 0xff_ffff | d >> 32 & 0xff00_0000;
        Segment {
            selector,
            attr,
            limit,
            base,
        }
    }

    pub(crate) fn dpl(&self) -> u8 {
        (self.attr >> 5 & 3) as u8
    }
    pub(crate) fn present(&self) -> bool {
        self.attr & attr::P != 0
    }
    pub(crate) fn is_null(&self) -> bool {
        self.attr & attr::NULL != 0
    }
    pub(crate) fn is_code(&self) -> bool {
        self.attr & (attr::S | attr::CODE) == attr::S | attr::CODE
    }
    pub(crate) fn is_data(&self) -> bool {
        self.attr & (attr::S | attr::CODE) == attr::S
    }
    pub(crate) fn big(&self) -> bool {
        self.attr & attr::DB != 0
    }
    /// The type field of a system descriptor.
    pub(crate) fn system_type(&self) -> Option<u8> {
        (self.attr & attr::S == 0).then_some((self.attr & 15) as u8)
    }
    fn writable(&self) -> bool {
        self.is_data() && self.attr & attr::WRITABLE != 0
    }
    fn readable(&self) -> bool {
        self.is_data() || self.is_code() && self.attr & attr::READABLE != 0
    }

    /// Whether `len` bytes from `offset` lie inside the limit.
    fn contains(&self, offset: u64, len: u64) -> bool {
        let last = offset + len - 1;
        if self.is_data() && self.attr & attr::DOWN != 0 {
            let top = if self.big() { 0xffff_ffff } else { 0xffff };
            offset > u64::from(self.limit) && last <= top
        } else {
            last <= u64::from(self.limit)
        }
    }
}

/// GDTR or IDTR.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct DescTable {
    pub(crate) base: u64,
    pub(crate) limit: u16,
}

impl Cpu {
    /// The offset part of a memory operand.
    #[inline(always)]
    pub(crate) fn offset(&self, op: &Op) -> u64 {
        let a = self.regs[(op.base & 31) as usize]
            .wrapping_add(self.regs[(op.index & 31) as usize] << op.scale)
            .wrapping_add(op.disp as u64);
        match op.mem & MEM_SIZE {
            0 => a,
            MEM_32 => a & 0xffff_ffff,
            _ => a & 0xffff,
        }
    }

    /// The linear address of a memory operand of width `T`; checks segment rights and limit.
    #[inline(always)]
    pub(crate) fn ea<T: Int>(&mut self, op: &Op, write: bool) -> R<u64> {
        if op.mem == MEM_FLAT {
            return Ok(self.regs[(op.base & 31) as usize]
                .wrapping_add(self.regs[(op.index & 31) as usize] << op.scale)
                .wrapping_add(op.disp as u64));
        }
        self.ea_general(op, T::BYTES, write)
    }

    /// As [`Cpu::ea`] with the width as a number.
    #[inline(never)]
    pub(crate) fn ea_general(&mut self, op: &Op, len: u64, write: bool) -> R<u64> {
        let offset = self.offset(op);
        self.linear(
            (op.mem & MEM_SEG) as usize,
            op.mem & MEM_LIMIT != 0,
            offset,
            len,
            write,
        )
    }

    /// Segment base plus offset, checked outside 64-bit mode.
    pub(crate) fn linear(
        &mut self,
        seg: usize,
        check: bool,
        offset: u64,
        len: u64,
        write: bool,
    ) -> R<u64> {
        if !check {
            let base = if seg >= FS { self.seg[seg].base } else { 0 };
            return Ok(base.wrapping_add(offset));
        }
        let s = self.seg[seg];
        let ok = !s.is_null()
            && s.contains(offset, len)
            && (!self.protected() || if write { s.writable() } else { s.readable() });
        if !ok {
            return Err(if seg == SS {
                self.ss_fault(0)
            } else {
                self.gp(0)
            });
        }
        Ok(s.base.wrapping_add(offset) & 0xffff_ffff)
    }

    /// Mask of the stack pointer's width.
    #[inline(always)]
    pub(crate) fn stack_mask(&self) -> u64 {
        if self.code64() {
            u64::MAX
        } else if self.seg[SS].big() {
            0xffff_ffff
        } else {
            0xffff
        }
    }

    /// Replaces the stack pointer within the stack's width.
    pub(crate) fn set_sp(&mut self, sp: u64) {
        let m = self.stack_mask();
        self.regs[RSP] = if m == 0xffff {
            self.regs[RSP] & !m | sp & m
        } else {
            sp & m
        };
    }

    /// The linear address of the stack at `sp` (outside 64-bit mode: limit checked).
    #[inline(always)]
    pub(crate) fn stack_linear(&mut self, sp: u64, len: u64, write: bool) -> R<u64> {
        if self.code64() {
            return Ok(sp);
        }
        self.linear(SS, true, sp & self.stack_mask(), len, write)
    }

    #[inline(always)]
    pub(crate) fn push<T: Int>(&mut self, v: T) -> R<()> {
        let sp = self.regs[RSP].wrapping_sub(T::BYTES);
        let at = self.stack_linear(sp, T::BYTES, true)?;
        self.write(at, v).map_err(|t| self.stack_fault(t))?;
        if self.code64() {
            self.regs[RSP] = sp;
        } else {
            self.set_sp(sp);
        }
        Ok(())
    }

    /// Reads the stack's top without moving it.
    #[inline(always)]
    pub(crate) fn peek<T: Int>(&mut self, depth: u64) -> R<T> {
        let at = self.stack_linear(self.regs[RSP].wrapping_add(depth), T::BYTES, false)?;
        self.read(at).map_err(|t| self.stack_fault(t))
    }

    /// Turns the #GP of an access to a non-canonical address into #SS: it went to the stack.
    #[cold]
    fn stack_fault(&mut self, trapped: Trapped) -> Trapped {
        if let Trap::Exception(e) = &mut self.trap
            && e.vector == 13
        {
            e.vector = 12;
        }
        trapped
    }

    /// After a fault of `op`: the #GP of an access to a non-canonical address is #SS where the operand's
    /// base is RSP or RBP and no FS or GS is in its way (Intel SDM volume 3, 6.15, interrupt 12).
    #[cold]
    pub(crate) fn blame_stack_segment(&mut self, op: &Op) {
        let Trap::Exception(e) = self.trap else {
            return;
        };
        let on_stack = op.mem & MEM_BASED == 0 && [RSP, RBP].contains(&op.base.into());
        if e.vector != 13 || e.error != Some(0) || !self.code64() || !on_stack {
            return;
        }
        let first = self.offset(op);
        if !canonical(first) || !canonical(first.wrapping_add(7)) {
            self.trap = Trap::Exception(Exception { vector: 12, ..e });
        }
    }

    /// Moves the stack pointer up.
    #[inline(always)]
    pub(crate) fn drop_stack(&mut self, n: u64) {
        let sp = self.regs[RSP].wrapping_add(n);
        if self.code64() {
            self.regs[RSP] = sp;
        } else {
            self.set_sp(sp);
        }
    }

    #[inline(always)]
    pub(crate) fn pop<T: Int>(&mut self) -> R<T> {
        let v = self.peek(0)?;
        self.drop_stack(T::BYTES);
        Ok(v)
    }

    /// Reads a descriptor; `None` if the selector is outside its table.
    pub(crate) fn descriptor(&mut self, selector: u16) -> R<Option<u64>> {
        let (base, limit) = if selector & 4 != 0 {
            if self.ldtr.is_null() {
                return Ok(None);
            }
            (self.ldtr.base, u64::from(self.ldtr.limit))
        } else {
            (self.gdtr.base, u64::from(self.gdtr.limit))
        };
        let off = u64::from(selector & !7);
        if off + 7 > limit {
            return Ok(None);
        }
        self.read_system(base.wrapping_add(off)).map(Some)
    }

    /// Reads a descriptor that must exist, else raises `vector` with the selector as code.
    pub(crate) fn need_descriptor(&mut self, selector: u16, vector: u8) -> R<u64> {
        match self.descriptor(selector)? {
            Some(d) => Ok(d),
            None => Err(self.raise(vector, Some(u32::from(selector & !3)))),
        }
    }

    fn mark_accessed(&mut self, selector: u16, d: u64) -> R<()> {
        if d >> 40 & 1 != 0 {
            return Ok(());
        }
        let base = if selector & 4 != 0 {
            self.ldtr.base
        } else {
            self.gdtr.base
        };
        let at = base.wrapping_add(u64::from(selector & !7) + 5);
        self.write_system(at, (d >> 40) as u8 | 1)
    }

    /// Loads DS, ES, FS, GS or SS as MOV, POP and the far pointer loads do.
    pub(crate) fn load_segment(&mut self, reg: usize, selector: u16) -> R<()> {
        if !self.protected() {
            // Limit and attributes stay as they are ("unreal mode").
            self.seg[reg].selector = selector;
            self.seg[reg].base = u64::from(selector) << 4;
            if reg == SS {
                self.update_context();
            }
            return Ok(());
        }
        let s = self.checked_data(reg, selector)?;
        self.seg[reg] = s;
        if reg == SS {
            self.update_context();
        }
        Ok(())
    }

    /// The segment that loading a data or stack segment register gives, after all checks.
    fn checked_data(&mut self, reg: usize, selector: u16) -> R<Segment> {
        let rpl = (selector & 3) as u8;
        let code = u32::from(selector & !3);
        if selector & !3 == 0 {
            if reg != SS {
                return Ok(Segment::null(selector));
            }
            if self.code64() && self.cpl != 3 && rpl == self.cpl {
                return Ok(Segment::null(selector));
            }
            return Err(self.gp(0));
        }
        let d = self.need_descriptor(selector, 13)?;
        let s = Segment::from_descriptor(selector, d);
        if reg == SS {
            if rpl != self.cpl || !s.writable() || s.dpl() != self.cpl {
                return Err(self.gp(code));
            }
            if !s.present() {
                return Err(self.ss_fault(code));
            }
        } else {
            let conforming = s.is_code() && s.attr & attr::CONFORMING != 0;
            let rights = conforming || s.dpl() >= rpl.max(self.cpl);
            if !s.readable() || !rights {
                return Err(self.gp(code));
            }
            if !s.present() {
                return Err(self.raise(11, Some(code)));
            }
        }
        self.mark_accessed(selector, d)?;
        Ok(Segment {
            attr: s.attr | attr::ACCESSED,
            ..s
        })
    }

    /// Makes `s` the code segment at privilege `cpl`.
    pub(crate) fn set_cs(&mut self, s: Segment, cpl: u8) {
        self.seg[CS] = Segment {
            selector: s.selector & !3 | u16::from(cpl),
            ..s
        };
        self.cpl = cpl;
        self.update_mode();
    }

    /// Recomputes the code width from CS and EFER.
    pub(crate) fn update_mode(&mut self) {
        let cs = self.seg[CS];
        self.mode = if self.efer & efer::LMA != 0 && cs.attr & attr::L != 0 {
            Mode::Bits64
        } else if cs.big() && self.protected() || cs.big() {
            Mode::Bits32
        } else {
            Mode::Bits16
        };
        self.update_context();
    }

    /// Reads and checks a code segment for a far transfer without privilege change.
    pub(crate) fn code_segment(&mut self, selector: u16) -> R<(Segment, u64)> {
        let d = self.need_descriptor(selector, 13)?;
        Ok((Segment::from_descriptor(selector, d), d))
    }

    /// Checks that `ip` may be the next instruction pointer under code segment `cs`.
    pub(crate) fn check_ip(&mut self, cs: &Segment, ip: u64) -> R<()> {
        let long = self.long_mode() && cs.attr & attr::L != 0;
        let ok = if long {
            canonical(ip)
        } else {
            ip <= u64::from(cs.limit)
        };
        if ok { Ok(()) } else { Err(self.gp(0)) }
    }

    /// Sets the accessed bit of a descriptor that is about to be loaded.
    pub(crate) fn touch_descriptor(&mut self, selector: u16, d: u64) -> R<()> {
        self.mark_accessed(selector, d)
    }

    /// Sets the instruction pointer after a near branch.
    #[inline(always)]
    pub(crate) fn branch(&mut self, ip: u64) -> Result<(), Trapped> {
        if self.code64() {
            if !canonical(ip) {
                return Err(self.gp(0));
            }
            self.rip = ip;
            return Ok(());
        }
        if ip > u64::from(self.seg[CS].limit) {
            return Err(self.gp(0));
        }
        self.rip = ip;
        Ok(())
    }
}

/// Which memory kind constants exist is decided in `decode::op`; this keeps the 16-bit one used.
const _: () = assert!(MEM_16 != MEM_32);
