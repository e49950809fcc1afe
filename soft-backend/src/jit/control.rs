//! Ends of blocks, and the stack instructions.
//!
//! Nothing of the guest is changed before it is certain that the end runs to its end here: until then every way
//! out leads to the interpreter's function for the whole instruction.

use iced_x86::{Instruction, OpKind};

use super::asm::{Hole, Reg, S0, S1, at, cc, framed};
use super::choice::reads_overflow;
use super::emit::Emit;
use super::frame::place;
use super::memory_operand::Access;
use super::registers::host;
use crate::mmu::tlb;

/// Bytes of a page.
const PAGE: i64 = 4096;

/// A jump to a block of the same page, which is made when both are there.
#[derive(Clone, Copy, Debug)]
pub(super) struct Link {
    /// Leads to the interpreter until then; afterwards to the instruction behind it.
    pub(super) guard: Option<Hole>,
    /// Leads to the block.
    pub(super) jump: Hole,
}

/// Links of a block, as the interpreter numbers them.
pub(super) type Links = [Option<Link>; 2];

/// The host register of the guest's RSP.
fn stack() -> Reg {
    host(4).unwrap_or(S0)
}

impl Emit<'_> {
    /// Whether an offset from the block's start is in its page; gives it from the page's start.
    fn in_page(&self, off: i64) -> Result<i32, i32> {
        let at = off + i64::from(self.offset);
        if (0..PAGE).contains(&at) {
            Ok(at as i32)
        } else {
            Err(at as i32)
        }
    }

    /// At the start of a block whose only instruction ends in the next page: that must be the page it is known by.
    /// Gives the jumps that are made where it is not.
    pub(super) fn check_second_page(&mut self, page: u64) -> [Hole; 2] {
        self.asm.load(S0, framed(place::PAGE));
        self.asm.lea(S0, at(S0, PAGE as i32));
        self.find_entry(place::CODE_TABLE);
        self.asm.cmp_mem(S0, at(S1, tlb::EXEC_TAG));
        let unknown = self.asm.jcc(cc::NE);
        self.asm.add_mem(S0, at(S1, tlb::ADDEND));
        self.asm.mov_imm64(S1, page);
        // CMP
        self.asm.rr(true, &[0x3b], S0, S1);
        let other = self.asm.jcc(cc::NE);
        [unknown, other]
    }

    fn store_flags(&mut self) {
        self.flags.store(&mut self.asm);
    }

    /// Goes on at an offset from the block's start.
    pub(super) fn jump(&mut self, off: i64) -> Links {
        self.store_flags();
        match self.in_page(off) {
            Ok(_) => {
                let jump = self.leave();
                [Some(Link { guard: None, jump }), None]
            }
            Err(from_page) => {
                self.far(from_page);
                self.commit();
                [None; 2]
            }
        }
    }

    /// Looks the code at a distance from the page's start up.
    fn far(&mut self, from_page: i32) {
        self.asm.load(S0, framed(place::PAGE));
        self.asm.lea(S0, at(S0, from_page));
        self.look_up();
    }

    /// Looks the code at the address in S0 up.
    fn look_up(&mut self) {
        self.asm.call_to(self.stubs.look_up);
        self.leave_if(cc::NE);
    }

    /// Goes to the code that was looked up.
    fn commit(&mut self) {
        self.asm.load(S1, framed(place::NEXT_PAGE));
        self.asm.store(framed(place::PAGE), S1);
        // JMP
        self.asm.rm(false, &[0xff], 4, framed(place::NEXT_ENTRY));
    }

    pub(super) fn conditional(&mut self, i: &Instruction, next: i64) -> Links {
        let code = i.condition_code() as u8 - 1;
        let overflow = reads_overflow(i.rflags_read());
        self.store_flags();
        self.flags.ready(&mut self.asm, overflow);
        let taken_off = i.near_branch64() as i64;
        let mut links = [None; 2];
        let taken = match self.in_page(taken_off) {
            Ok(_) => {
                let jump = self.leave_linked(code);
                links[1] = Some(Link { guard: None, jump });
                None
            }
            Err(from_page) => Some((self.asm.jcc(code), from_page)),
        };
        links[0] = self.jump(next)[0];
        if let Some((hole, from_page)) = taken {
            self.asm.bind(hole);
            self.far(from_page);
            self.commit();
        }
        links
    }

    /// LOOP; `None` where it leaves the page.
    pub(super) fn looping(&mut self, i: &Instruction, next: i64) -> Option<Links> {
        self.in_page(i.near_branch64() as i64).ok()?;
        self.in_page(next).ok()?;
        self.store_flags();
        let rcx = host(1).unwrap_or(S0);
        self.asm.lea(S0, at(rcx, -1));
        self.asm.rr(true, &[0x85], S0, S0);
        let taken = self.asm.jcc(cc::NE);
        let through = self.counted(rcx);
        self.asm.bind(taken);
        let again = self.counted(rcx);
        Some([Some(through), Some(again)])
    }

    /// A way out of LOOP: the count in S0 is stored once it is linked.
    fn counted(&mut self, rcx: Reg) -> Link {
        let guard = Some(self.leave());
        self.asm.mov(rcx, S0);
        let jump = self.asm.jmp();
        Link { guard, jump }
    }

    /// Stores the address after the instruction below the stack pointer, and moves that.
    fn push_return(&mut self, next: i64) {
        let rsp = stack();
        let to = self.probe_at(rsp, -8, Access::Write);
        self.asm.load(S0, framed(place::PAGE));
        let next = next as i32 + self.offset as i32;
        self.asm.lea(S0, at(S0, next));
        self.asm.store(to, S0);
        self.asm.lea(rsp, at(rsp, -8));
    }

    pub(super) fn call_direct(&mut self, i: &Instruction, next: i64) -> Links {
        self.store_flags();
        match self.in_page(i.near_branch64() as i64) {
            Ok(_) => {
                let guard = self.leave();
                self.push_return(next);
                let jump = self.asm.jmp();
                let guard = Some(guard);
                [Some(Link { guard, jump }), None]
            }
            Err(from_page) => {
                self.far(from_page);
                self.push_return(next);
                self.commit();
                [None; 2]
            }
        }
    }

    /// The target of an indirect jump or call, looked up.
    fn target(&mut self, i: &Instruction) {
        self.store_flags();
        if i.op0_kind() == OpKind::Memory {
            let found = self.probe(i, Access::Read, 0);
            self.asm.load(S0, found.mem);
        } else if let Some(g) = super::registers::guest(i.op0_register()) {
            let r = self.value_of(g, S0);
            self.asm.mov(S0, r);
        }
        self.look_up();
    }

    pub(super) fn jump_indirect(&mut self, i: &Instruction) -> Links {
        self.target(i);
        self.commit();
        [None; 2]
    }

    pub(super) fn call_indirect(&mut self, i: &Instruction, next: i64) -> Links {
        self.target(i);
        self.push_return(next);
        self.commit();
        [None; 2]
    }

    pub(super) fn ret(&mut self, i: &Instruction) -> Links {
        self.store_flags();
        let rsp = stack();
        let from = self.probe_at(rsp, 0, Access::Read);
        self.asm.load(S0, from);
        self.look_up();
        self.asm.lea(rsp, at(rsp, i.stack_pointer_increment()));
        self.commit();
        [None; 2]
    }

    pub(super) fn push(&mut self, i: &Instruction) {
        self.store_flags();
        self.flags.host = None;
        let rsp = stack();
        let to = self.probe_at(rsp, -8, Access::Write);
        match super::registers::guest(i.op0_register()).filter(|_| i.op0_kind() == OpKind::Register)
        {
            Some(g) => {
                let r = self.value_of(g, S0);
                self.asm.store(to, r);
            }
            None => {
                // MOV with a sign-extended immediate
                self.asm.rm(true, &[0xc7], 0, to);
                let v = i.immediate(0) as u32;
                self.asm.raw(&v.to_le_bytes());
            }
        }
        self.asm.lea(rsp, at(rsp, -8));
    }

    /// PUSH of memory.
    pub(super) fn push_memory(&mut self, i: &Instruction) {
        self.store_flags();
        self.flags.host = None;
        let found = self.probe(i, Access::Read, 0);
        self.asm.load(S0, found.mem);
        self.asm.store(framed(place::TEMP), S0);
        let rsp = stack();
        let to = self.probe_at(rsp, -8, Access::Write);
        self.asm.load(S0, framed(place::TEMP));
        self.asm.store(to, S0);
        self.asm.lea(rsp, at(rsp, -8));
    }

    pub(super) fn pop(&mut self, i: &Instruction) {
        self.store_flags();
        self.flags.host = None;
        let rsp = stack();
        let from = self.probe_at(rsp, 0, Access::Read);
        self.pop_into(super::registers::guest(i.op0_register()).unwrap_or(0), from);
    }

    /// POP RSP gets the value, not the moved pointer.
    fn pop_into(&mut self, g: u8, from: super::asm::Mem) {
        let rsp = stack();
        self.asm.load(S0, from);
        self.asm.lea(rsp, at(rsp, 8));
        match host(g) {
            Some(h) => self.asm.mov(h, S0),
            None => self.asm.store(framed(place::gpr(g)), S0),
        }
    }

    pub(super) fn leave_frame(&mut self) {
        self.store_flags();
        self.flags.host = None;
        let rbp = host(5).unwrap_or(S0);
        let from = self.probe_at(rbp, 0, Access::Read);
        self.asm.load(S0, from);
        self.asm.lea(stack(), at(rbp, 8));
        self.asm.mov(rbp, S0);
    }
}
