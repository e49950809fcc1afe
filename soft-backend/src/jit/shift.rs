//! Shifts by CL and rotates whose flags somebody may ask for.
//!
//! Both leave flags alone where the count is zero, and a processor leaves some undefined for counts above one: the
//! instruction is run, then the interpreter's flags are made of what it left and put into the frame, if the count
//! says so.

use iced_x86::{Instruction, Mnemonic as M, OpKind};

use super::asm::{Reg, S0, S1, cc, framed};
use super::emit::Emit;
use super::flags::Flags;
use super::frame::place;
use super::registers::{guest, host, named};

/// The guest's RCX is in the host's.
const RCX: u8 = 1;

/// Whether an instruction can be translated here: one of a register, by a count that is no part of it.
pub(super) fn suits(i: &Instruction) -> bool {
    let known = matches!(i.mnemonic(), M::Shl | M::Sal | M::Shr | M::Sar) || is_rotate(i);
    if !known || i.op0_kind() != OpKind::Register {
        return false;
    }
    let counted = i.op1_kind() == OpKind::Register;
    if counted {
        return guest(i.op0_register()) != Some(RCX);
    }
    is_rotate(i) && i.immediate8() & mask(i) != 0
}

fn is_rotate(i: &Instruction) -> bool {
    matches!(i.mnemonic(), M::Rol | M::Ror)
}

fn mask(i: &Instruction) -> u8 {
    if i.op0_register().size() == 8 { 63 } else { 31 }
}

impl Emit<'_> {
    /// Emits it, and its flags. False if it has no encoding.
    pub(super) fn shift_with_flags(&mut self, i: &Instruction) -> bool {
        self.flags.store(&mut self.asm);
        let mut j = *i;
        let g = guest(i.op0_register()).unwrap_or(0);
        let r = self.value_of(g, S1);
        j.set_op0_register(named(r, i.op0_register().size()));
        if !self.asm.instruction(&j) {
            return false;
        }
        if host(g).is_none() {
            self.asm.store(framed(place::gpr(g)), r);
        }
        if is_rotate(i) {
            self.rotated(i, r);
        } else {
            self.shifted(i, r);
        }
        let over = (i.op1_kind() == OpKind::Register).then(|| {
            // TEST CL, mask
            self.asm.raw(&[0xf6, 0xc1, mask(i)]);
            self.asm.jcc(cc::E)
        });
        self.flags.put(&mut self.asm);
        if let Some(over) = over {
            self.asm.bind(over);
        }
        self.flags = Flags::STORED;
        true
    }

    /// AX for the frame after a shift by a count that is not zero.
    fn shifted(&mut self, i: &Instruction, r: Reg) {
        // LAHF
        self.asm.raw(&[0x9f]);
        match i.mnemonic() {
            // As for the bit before the top one: that of the operand's top for a count of one, else zero.
            M::Shr => self.bit_to_al(i, r, 2),
            // MOV AL, 0
            M::Sar => self.asm.raw(&[0xb0, 0]),
            // MOV AL, AH; SHR AL, 7; XOR AL, AH; AND AL, 1
            _ => self
                .asm
                .raw(&[0x88, 0xe0, 0xc0, 0xe8, 7, 0x30, 0xe0, 0x24, 1]),
        }
        // AND AH, without AF
        self.asm.raw(&[0x80, 0xe4, 0xef]);
    }

    /// AX for the frame after a rotation: CF from the host's, OF from the result, the others from the frame.
    fn rotated(&mut self, i: &Instruction, r: Reg) {
        self.asm.raw(&[0x66]);
        self.asm.rm(false, &[0x8b], S0, framed(place::FLAGS));
        // RCR AH, 1; ROL AH, 1
        self.asm.raw(&[0xd0, 0xdc, 0xd0, 0xc4]);
        // TEST AL, the mark; JZ over AND AH, without AF
        self.asm
            .raw(&[0xa8, super::frame::NO_AF as u8, 0x74, 3, 0x80, 0xe4, 0xef]);
        let below = if i.mnemonic() == M::Rol { 1 } else { 2 };
        self.bit_to_al(i, r, below);
        // XOR AL, AH; AND AL, 1
        self.asm.raw(&[0x30, 0xe0, 0x24, 1]);
    }

    /// BT; SETC AL: the bit so many below the operand's end.
    fn bit_to_al(&mut self, i: &Instruction, r: Reg, below: u8) {
        let bytes = i.op0_register().size() as u8;
        self.asm.rr(bytes == 8, &[0x0f, 0xba], 4, r);
        self.asm.raw(&[8 * bytes - below, 0x0f, 0x92, 0xc0]);
    }
}
