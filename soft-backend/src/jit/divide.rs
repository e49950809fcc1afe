//! MUL, IMUL, DIV and IDIV of RDX:RAX, which are scratch registers on the host.

use iced_x86::{Instruction, Mnemonic as M, OpKind};

use super::asm::{Mem, Reg, S0, S1, cc, framed};
use super::emit::Emit;
use super::flags::Flags;
use super::frame::place;
use super::memory_operand::Access;
use super::registers::{guest, host};

/// The operand: neither in RAX nor in RDX.
enum Operand {
    Register(Reg),
    Memory(Mem),
}

/// Whether its width is one that is translated.
pub(super) fn suits(i: &Instruction) -> bool {
    bytes(i) >= 4
}

fn bytes(i: &Instruction) -> usize {
    match i.op0_kind() {
        OpKind::Register => i.op0_register().size(),
        _ => i.memory_size().size(),
    }
}

/// Host registers of the guest's RAX and RDX.
fn pair() -> (Reg, Reg) {
    (host(0).unwrap_or(S0), host(2).unwrap_or(S1))
}

impl Emit<'_> {
    fn operand(&mut self, i: &Instruction) -> Operand {
        if i.op0_kind() == OpKind::Memory {
            let found = self.probe(i, Access::Read, 0);
            self.asm.rm(bytes(i) == 8, &[0x8b], S0, found.mem);
            self.asm.store(framed(place::TEMP), S0);
            return Operand::Memory(framed(place::TEMP));
        }
        let g = guest(i.op0_register()).unwrap_or(0);
        host(g).map_or(Operand::Memory(framed(place::gpr(g))), Operand::Register)
    }

    /// An opcode with one more register, or a number of its group.
    fn with(&mut self, wide: bool, opcode: u8, reg: Reg, operand: &Operand) {
        match operand {
            Operand::Register(r) => self.asm.rr(wide, &[opcode], reg, *r),
            Operand::Memory(m) => self.asm.rm(wide, &[opcode], reg, *m),
        }
    }

    fn store_pair(&mut self) {
        let (rax, rdx) = pair();
        self.asm.mov(rax, S0);
        self.asm.mov(rdx, S1);
    }

    /// MUL and IMUL with one operand.
    pub(super) fn multiply(&mut self, i: &Instruction, live: bool) {
        let wide = bytes(i) == 8;
        if i.op0_kind() == OpKind::Memory {
            self.flags.store(&mut self.asm);
        }
        let operand = self.operand(i);
        self.asm.mov(S0, pair().0);
        let group = if i.mnemonic() == M::Mul { 4 } else { 5 };
        self.with(wide, 0xf7, group, &operand);
        self.store_pair();
        self.flags = Flags::STORED;
        if live {
            self.asm.mov(S1, pair().0);
            self.product_flags(wide);
        }
    }

    /// DIV and IDIV. What faults, or might, is the interpreter's.
    pub(super) fn divide(&mut self, i: &Instruction) {
        const DIVIDEND: u8 = 0x3b;
        let wide = bytes(i) == 8;
        let (rax, rdx) = pair();
        self.flags.store(&mut self.asm);
        self.flags.host = None;
        let operand = self.operand(i);
        let group = if i.mnemonic() == M::Div {
            // The quotient fits if the upper half is less than the divisor, which then is not zero.
            self.asm.mov(S1, rdx);
            self.with(wide, DIVIDEND, S1, &operand);
            self.leave_if(cc::AE);
            self.asm.mov(S0, rax);
            6
        } else {
            // It fits if the dividend is no longer than the divisor, and that neither 0 nor -1.
            self.with(wide, 0x8b, S0, &operand);
            self.asm.imm(wide, 0, S0, 1);
            self.asm.imm(wide, 7, S0, 1);
            self.leave_if(cc::BE);
            self.asm.mov(S0, rax);
            // CDQ, CQO
            self.asm.raw(if wide { &[0x48, 0x99] } else { &[0x99] });
            self.asm.rr(wide, &[DIVIDEND], S1, rdx);
            self.leave_if(cc::NE);
            7
        };
        self.with(wide, 0xf7, group, &operand);
        self.store_pair();
    }

    /// The flags of a product in the frame: CF and OF are the processor's, the rest those of the low half, in S1.
    pub(super) fn product_flags(&mut self, wide: bool) {
        // SETO AL; TEST; LAHF; AND AH, without AF; OR AH, AL
        self.asm.raw(&[0x0f, 0x90, 0xc0]);
        self.asm.rr(wide, &[0x85], S1, S1);
        self.asm.raw(&[0x9f, 0x80, 0xe4, 0xef, 0x08, 0xc4]);
        self.flags.put(&mut self.asm);
    }
}
