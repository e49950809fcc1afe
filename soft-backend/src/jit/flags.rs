//! Where the guest's arithmetic flags are at each place of a block.
//!
//! Inside a block they are the host's own; before everything that may leave the block they are stored in the
//! frame. What a processor leaves undefined has the interpreter's value in the frame, and is read from there.

use super::asm::{Asm, S0, framed};
use super::frame::place;

/// What the flags in the host's register are worth.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// All as they should be.
    Exact,
    /// AF should be zero.
    Logic,
    /// As [`Kind::Logic`], of a shift by one bit.
    ShiftOne,
    /// AF should be zero, OF the exclusive or of CF and SF: SHL by more than one bit.
    ShiftLeft,
    /// AF and OF should be zero: SHR and SAR by more than one bit.
    ShiftRight,
    /// AF may be wrong, but is right in the frame.
    Restored,
}

/// Where the flags are.
#[derive(Clone, Copy, Debug)]
pub(super) struct Flags {
    /// In the host's register.
    pub(super) host: Option<Kind>,
    /// In the frame (or nowhere, if nobody will ask).
    pub(super) stored: bool,
}

impl Flags {
    /// As blocks begin and calls return.
    pub(super) const STORED: Self = Flags {
        host: None,
        stored: true,
    };

    /// After an instruction that left all of them in the host's register.
    pub(super) fn written(&mut self, kind: Kind, live: bool) {
        *self = if live {
            Flags {
                host: Some(kind),
                stored: false,
            }
        } else {
            Flags::STORED
        };
    }

    /// Makes sure that the frame has them. Changes RAX.
    pub(super) fn store(&mut self, asm: &mut Asm) {
        let Some(kind) = self.host.filter(|_| !self.stored) else {
            return;
        };
        const LAHF: u8 = 0x9f;
        const SETO_AL: [u8; 3] = [0x0f, 0x90, 0xc0];
        const NO_AF_IN_AH: [u8; 3] = [0x80, 0xe4, 0xef];
        asm.raw(&[LAHF]);
        match kind {
            Kind::Exact | Kind::Restored => asm.raw(&SETO_AL),
            // MOV AL, the mark
            Kind::Logic | Kind::ShiftRight => asm.raw(&[0xb0, super::frame::NO_AF as u8]),
            Kind::ShiftOne => {
                asm.raw(&SETO_AL);
                asm.raw(&NO_AF_IN_AH);
                self.host = None;
            }
            Kind::ShiftLeft => {
                // MOV AL, AH; SHR AL, 7; XOR AL, AH; AND AL, 1
                asm.raw(&[0x88, 0xe0, 0xc0, 0xe8, 7, 0x30, 0xe0, 0x24, 1]);
                asm.raw(&NO_AF_IN_AH);
                self.host = None;
            }
        }
        self.put(asm);
        self.stored = true;
    }

    /// Stores AX.
    pub(super) fn put(self, asm: &mut Asm) {
        asm.raw(&[0x66]);
        asm.rm(false, &[0x89], S0, framed(place::FLAGS));
    }

    /// Makes sure that the host's register has them. Changes RAX if [`Flags::is_ready`] is false.
    pub(super) fn ready(&mut self, asm: &mut Asm, overflow: bool) {
        if !self.is_ready(overflow) {
            self.store(asm);
            self.restore(asm);
        }
    }

    /// Whether the host's register has them; `overflow` asks for OF, too.
    pub(super) fn is_ready(self, overflow: bool) -> bool {
        match self.host {
            None => false,
            Some(Kind::ShiftLeft | Kind::ShiftRight) => !overflow,
            Some(_) => true,
        }
    }

    /// Takes them from the frame. Changes RAX.
    pub(super) fn restore(&mut self, asm: &mut Asm) {
        Self::emit_restore(asm);
        self.host = Some(Kind::Restored);
    }

    /// MOV AX, the flags; ADD AL, 127, which overflows for 1 only; SAHF.
    pub(super) fn emit_restore(asm: &mut Asm) {
        asm.raw(&[0x66]);
        asm.rm(false, &[0x8b], S0, framed(place::FLAGS));
        asm.raw(&[0x04, 0x7f, 0x9e]);
    }
}
