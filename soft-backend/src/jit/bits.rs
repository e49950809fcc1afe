//! Bit tests and scans, which change one flag, and CMPXCHG.

use iced_x86::{Code as C, Instruction, InstructionInfoFactory, Mnemonic as M, OpAccess, OpKind};

use super::asm::{Reg, S0, S1, cc, framed};
use super::copy::{lock_alignment, point};
use super::emit::Emit;
use super::flags::{Flags, Kind};
use super::frame::place;
use super::memory_operand::Access;
use super::registers::{guest, host, named};

/// Whether a bit test is one of a register, or of the memory that its operand says.
pub(super) fn test_suits(i: &Instruction) -> bool {
    i.op0_kind() == OpKind::Register || i.op1_kind() == OpKind::Immediate8
}

/// The scan that the guest's processor makes of an instruction, which it may not know by its other name.
fn scan_opcode(i: &Instruction) -> u8 {
    match i.mnemonic() {
        M::Bsf | M::Tzcnt => 0xbc,
        _ => 0xbd,
    }
}

/// Whether it is a CMPXCHG of memory.
pub(super) fn exchange_suits(i: &Instruction) -> bool {
    i.op0_kind() == OpKind::Memory
}

impl Emit<'_> {
    /// BT, BTS, BTR, BTC: CF changes, in the frame.
    pub(super) fn bit_test(
        &mut self,
        info: &mut InstructionInfoFactory,
        i: &Instruction,
        live: bool,
    ) -> bool {
        let changes = i.mnemonic() != M::Bt;
        let mut j = *i;
        let memory = i.op0_kind() == OpKind::Memory;
        if memory || live {
            self.flags.store(&mut self.asm);
        }
        if memory {
            let access = if changes { Access::Write } else { Access::Read };
            let found = self.probe(i, access, lock_alignment(i));
            point(&mut j, found.mem);
        }
        let access: Vec<OpAccess> = {
            let info = info.info(i);
            (0..i.op_count()).map(|n| info.op_access(n)).collect()
        };
        let visitors = self.visitors(&mut j, &access, [S0, S1]);
        if !self.asm.instruction(&j) {
            return false;
        }
        self.store_visitors(visitors);
        self.flags = Flags::STORED;
        if live {
            let flags = framed(place::FLAGS + 1);
            // SETC AL; MOV DL, flags; AND DL, without CF; OR DL, AL; MOV flags, DL
            self.asm.raw(&[0x0f, 0x92, 0xc0]);
            self.asm.rm(false, &[0x8a], S1, flags);
            self.asm.raw(&[0x80, 0xe2, 0xfe, 0x08, 0xc2]);
            self.asm.rm(false, &[0x88], S1, flags);
        }
        true
    }

    /// BSF and BSR of what is not zero: ZF is cleared, in the frame.
    pub(super) fn scan(&mut self, i: &Instruction, live: bool) {
        let wide = i.op0_register().size() == 8;
        self.flags.store(&mut self.asm);
        self.flags.host = None;
        let source = if i.op1_kind() == OpKind::Memory {
            let found = self.probe(i, Access::Read, 0);
            self.asm.rm(wide, &[0x8b], S1, found.mem);
            S1
        } else {
            self.value_of(guest(i.op1_register()).unwrap_or(0), S1)
        };
        // TEST
        self.asm.rr(wide, &[0x85], source, source);
        self.leave_if(cc::E);
        let g = guest(i.op0_register()).unwrap_or(0);
        let to = host(g).unwrap_or(S0);
        self.asm.rr(wide, &[0x0f, scan_opcode(i)], to, source);
        if host(g).is_none() {
            self.asm.store(framed(place::gpr(g)), to);
        }
        if live {
            // AND, without ZF
            self.asm.rm(false, &[0x80], 4, framed(place::FLAGS + 1));
            self.asm.raw(&[0xbf]);
        }
    }

    /// CMPXCHG of memory.
    pub(super) fn compare_exchange(&mut self, i: &Instruction, live: bool) -> bool {
        let mut j = *i;
        self.flags.store(&mut self.asm);
        self.flags.host = None;
        let found = self.probe(i, Access::Write, lock_alignment(i));
        let found = self.free_s0(found);
        point(&mut j, found.mem);
        let g = guest(i.op1_register()).unwrap_or(0);
        let lent = host(g).is_none().then(|| other_than(found.mem.base));
        if let Some(lent) = lent {
            self.asm.store(framed(place::TEMP), lent);
            self.asm.load(lent, framed(place::gpr(g)));
        }
        let new = host(g).or(lent).unwrap_or(S0);
        j.set_op1_register(named(new, i.op1_register().size()));
        let rax = host(0).unwrap_or(S0);
        self.asm.mov(S0, rax);
        if !self.asm.instruction(&j) {
            return false;
        }
        // CMOVNE: where it was not equal, RAX is what the narrow ones leave of it, too.
        self.asm.rr(true, &[0x0f, 0x45], rax, S0);
        if let Some(lent) = lent {
            self.asm.load(lent, framed(place::TEMP));
        }
        self.flags.written(Kind::Exact, live);
        true
    }
}

/// A register that can be lent for an instruction with this base.
fn other_than(base: Option<Reg>) -> Reg {
    const RBX: Reg = 3;
    const RBP: Reg = 5;
    if base == Some(RBX) { RBP } else { RBX }
}

/// XCHG with AX has a form of its own; gives the one that takes every register.
pub(super) fn general_exchange(code: C) -> Option<C> {
    Some(match code {
        C::Xchg_r16_AX => C::Xchg_rm16_r16,
        C::Xchg_r32_EAX => C::Xchg_rm32_r32,
        C::Xchg_r64_RAX => C::Xchg_rm64_r64,
        _ => return None,
    })
}
