//! The code that all translated code shares: the way in, the ways out, the call of the interpreter, the look-up
//! of code by address.
#![allow(unsafe_code)] // code that was made at run time is entered, and calls back

use std::sync::atomic::Ordering;

use super::asm::{Asm, BUDGET, FRAME, Reg, S0, S1, SP, at, cc, framed};
use super::frame::{Frame, Slow, place};
use super::registers::pinned;
use crate::cpu::{Cpu, Flow};
use crate::decode::op::Op;
use crate::mmu::tlb;

/// Why translated code was left: [`Flow`]s from 1, then these.
pub(super) mod status {
    pub(crate) const LINK0: u32 = 1;
    pub(crate) const LINK1: u32 = 2;
    pub(crate) const JUMP: u32 = 3;
    pub(crate) const CHECK: u32 = 4;
    pub(crate) const TRAP: u32 = 5;
    /// The block in `about` is next, but may use the budget up.
    pub(crate) const INTERPRET: u32 = 6;
    /// The block at the offset `about` of the page is next, but was dropped.
    pub(crate) const DEAD: u32 = 7;
}

/// Entries of the table of translated code by host address; a power of two.
pub(super) const JUMP_ENTRIES: usize = 16384;

/// The place of an address in that table.
pub(super) fn jump_slot(host: u64) -> usize {
    (host ^ host >> 12) as usize & (JUMP_ENTRIES - 1)
}

/// Registers that callees keep.
const KEPT: [Reg; 6] = [3, 5, 12, 13, 14, 15];

/// Addresses of the shared code.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stubs {
    enter: u64,
    /// Called with a [`Slow`] in S0; comes back if the instruction is complete and the next one follows.
    pub(super) slow: u64,
    /// The same where the guest's MXCSR is in the host's.
    pub(super) slow_float: u64,
    /// Jumped to with a block in S0.
    pub(super) interpret: u64,
    /// Jumped to with an offset in S0.
    pub(super) dead: u64,
    /// Called with a linear address in S0; afterwards "not equal" says that nothing was found.
    pub(super) look_up: u64,
}

fn spill(a: &mut Asm) {
    for (g, h) in pinned() {
        a.store(framed(place::gpr(g)), h);
    }
    a.store(framed(place::BUDGET), BUDGET);
}

fn fill(a: &mut Asm) {
    for (g, h) in pinned() {
        a.load(h, framed(place::gpr(g)));
    }
    a.load(BUDGET, framed(place::BUDGET));
}

impl Stubs {
    /// The code, to be put at `base`.
    pub(super) fn new(base: u64) -> (Self, Vec<u8>) {
        let mut a = Asm::new(base);
        let enter = a.here();
        for r in KEPT {
            push(&mut a, 0x50, r);
        }
        // The stack is aligned again.
        a.imm(true, 5, SP, 8);
        a.mov(FRAME, 7);
        a.mov(S0, 6);
        fill(&mut a);
        // JMP RAX
        a.rr(false, &[0xff], 4, S0);

        let leave = a.here();
        a.imm(true, 0, SP, 8);
        for r in KEPT.into_iter().rev() {
            push(&mut a, 0x58, r);
        }
        a.raw(&[0xc3]);

        let slow = Self::slow(&mut a, leave, false);
        let slow_float = Self::slow(&mut a, leave, true);

        let interpret = a.here();
        Self::exit(&mut a, status::INTERPRET, leave);
        let dead = a.here();
        Self::exit(&mut a, status::DEAD, leave);
        let look_up = a.here();
        Self::look_up(&mut a);
        let stubs = Stubs {
            enter,
            slow,
            slow_float,
            interpret,
            dead,
            look_up,
        };
        (stubs, a.bytes)
    }

    /// The call of the interpreter; `float` says that the guest's MXCSR is in the host's.
    fn slow(a: &mut Asm, leave: u64, float: bool) -> u64 {
        let here = a.here();
        if float {
            // STMXCSR
            a.rm(false, &[0x0f, 0xae], 3, framed(place::MXCSR));
        }
        spill(a);
        a.mov(6, S0);
        a.lea(7, framed(place::CPU));
        a.imm(true, 5, SP, 8);
        a.mov_imm64(S0, run_op as *const () as u64);
        // CALL RAX
        a.rr(false, &[0xff], 2, S0);
        a.imm(true, 0, SP, 8);
        // TEST EAX, EAX
        a.rr(false, &[0x85], S0, S0);
        let out = a.jcc(cc::NE);
        fill(a);
        if float {
            // LDMXCSR
            a.rm(false, &[0x0f, 0xae], 2, framed(place::MXCSR));
        }
        a.raw(&[0xc3]);
        a.bind(out);
        // Without the address to come back to.
        a.imm(true, 0, SP, 8);
        a.jmp_to(leave);
        here
    }

    fn exit(a: &mut Asm, status: u32, leave: u64) {
        a.store(framed(place::ABOUT), S0);
        spill(a);
        a.mov_imm32(S0, status);
        a.jmp_to(leave);
    }

    /// By the TLB's execute tag to the host address, by that to the code.
    fn look_up(a: &mut Asm) {
        a.load(S1, framed(place::STALE));
        // CMP BYTE [RDX], 0
        a.rm(false, &[0x80], 7, at(S1, 0));
        a.raw(&[0]);
        let stale = a.jcc(cc::NE);
        a.mov(S1, S0);
        a.shr(S1, tlb::ENTRY_SHIFT);
        a.imm(false, 4, S1, tlb::ENTRY_MASK);
        a.add_mem(S1, framed(place::CODE_TABLE));
        a.store(framed(place::TEMP), S0);
        a.imm(true, 4, S0, -4096);
        a.cmp_mem(S0, at(S1, tlb::EXEC_TAG));
        let no_page = a.jcc(cc::NE);
        a.store(framed(place::NEXT_PAGE), S0);
        a.load(S0, framed(place::TEMP));
        a.add_mem(S0, at(S1, tlb::ADDEND));
        a.mov(S1, S0);
        a.shr(S1, 12);
        // XOR EDX, EAX
        a.rr(false, &[0x33], S1, S0);
        a.imm(false, 4, S1, JUMP_ENTRIES as i32 - 1);
        // SHL EDX, 4
        a.rr(false, &[0xc1], 4, S1);
        a.raw(&[4]);
        a.add_mem(S1, framed(place::JUMPS));
        a.cmp_mem(S0, at(S1, 0));
        let not_there = a.jcc(cc::NE);
        a.load(S1, at(S1, 8));
        a.store(framed(place::NEXT_ENTRY), S1);
        a.bind(stale);
        a.bind(no_page);
        a.bind(not_there);
        a.raw(&[0xc3]);
    }

    /// Runs translated code until it leaves; gives its status.
    pub(super) fn enter(&self, cpu: &mut Cpu, entry: u64) -> u32 {
        let cpu: *mut Cpu = cpu;
        // SAFETY: `enter` is the code made by `new`, which keeps the conventions of C, and `entry` that of a block
        // of the same memory; both are there while the caller has the memory. What they access is the vCPU, the
        // tables that its frame names, guest memory as the TLB's tags allow, and operations of living blocks.
        unsafe {
            let enter: extern "C" fn(*mut Frame, u64) -> u32 =
                std::mem::transmute(self.enter as *const ());
            enter(&raw mut (*cpu).jit, entry)
        }
    }
}

/// PUSH or POP.
fn push(a: &mut Asm, opcode: u8, r: Reg) {
    if r >= 8 {
        a.raw(&[0x41]);
    }
    a.raw(&[opcode | r & 7]);
}

/// Runs an instruction by the interpreter's function. Zero if the next one follows.
unsafe extern "C" fn run_op(cpu: *mut Cpu, slow: *const Slow) -> u32 {
    // SAFETY: called by translated code only, with the vCPU that it was entered with, which nobody else uses
    // meanwhile, and a place of the block that runs; its operations live as long as it.
    let (cpu, slow, op) = unsafe { (&mut *cpu, &*slow, &*((*slow).op as *const Op)) };
    cpu.regs[16] = cpu.jit.page.wrapping_add(slow.offset.into());
    cpu.jit.about = &raw const *slow as u64;
    let begun = cpu.jit.end.wrapping_sub(cpu.jit.budget);
    cpu.retired = begun.wrapping_sub(slow.count.into());
    if slow.flags {
        cpu.flags_from_frame();
    }
    cpu.mxcsr_from_frame();
    let step = (op.run)(cpu, op);
    if step == Ok(Flow::Next) {
        if slow.flags {
            cpu.flags_to_frame();
        }
        cpu.refresh_frame();
        let stale = cpu.ram.ram.stale_code_flag().load(Ordering::Relaxed);
        if stale || cpu.router.attention.load(Ordering::Relaxed) {
            // The next block is not begun.
            (cpu.jit.end, cpu.jit.budget) = (begun, 0);
        }
        return 0;
    }
    if !slow.flags {
        cpu.flags_from_frame();
    }
    match step {
        Ok(Flow::Link0) => status::LINK0,
        Ok(Flow::Link1) => status::LINK1,
        Ok(Flow::Jump | Flow::Next) => status::JUMP,
        Ok(Flow::Check) => status::CHECK,
        Err(_) => status::TRAP,
    }
}

/// The place that an exit is about.
pub(super) fn slow_of(frame: &Frame) -> Slow {
    // SAFETY: `run_op` has just put the address there, and its block was not dropped since: nothing but the exit
    // of translated code lies between.
    unsafe { *(frame.about as *const Slow) }
}
