//! What all of a block's translation shares: the code, the flags, the ways to the interpreter.

use super::asm::{Asm, Hole, S0, cc, framed};
use super::control::Links;
use super::flags::Flags;
use super::frame::{Slow, place};
use super::stubs::Stubs;

/// A way to the interpreter, to be put behind the block's code.
struct Detour {
    from: Vec<Hole>,
    slow: usize,
    /// Where the block goes on, and whether it wants the flags in the host's register.
    back: Option<(u64, bool)>,
    /// The guest's MXCSR is in the host's.
    float: bool,
}

/// A block in the making.
pub(super) struct Emit<'a> {
    pub(super) asm: Asm,
    pub(super) flags: Flags,
    pub(super) stubs: &'a Stubs,
    /// Of the block's start in its page.
    pub(super) offset: u32,
    /// One for each operation; their place is final.
    slows: &'a [Slow],
    /// What leaves the current instruction.
    leaving: Vec<Hole>,
    detours: Vec<Detour>,
    /// It was looked whether SSE may be used.
    pub(super) vectors_checked: bool,
    /// The guest's MXCSR is in the host's, or an innocent one if its own is none that translated code may have.
    float: bool,
}

impl<'a> Emit<'a> {
    pub(super) fn new(base: u64, stubs: &'a Stubs, slows: &'a [Slow], offset: u32) -> Self {
        Emit {
            asm: Asm::new(base),
            flags: Flags::STORED,
            stubs,
            offset,
            slows,
            leaving: Vec::new(),
            detours: Vec::new(),
            vectors_checked: false,
            float: false,
        }
    }

    /// If the condition holds, the interpreter runs the current instruction.
    pub(super) fn leave_if(&mut self, condition: u8) {
        let hole = self.asm.jcc(condition);
        self.leaving.push(hole);
    }

    /// A jump that is the current instruction's way to the interpreter until it is linked.
    pub(super) fn leave(&mut self) -> Hole {
        let hole = self.asm.jmp();
        self.leaving.push(hole);
        hole
    }

    /// As [`Emit::leave`], conditional.
    pub(super) fn leave_linked(&mut self, condition: u8) -> Hole {
        let hole = self.asm.jcc(condition);
        self.leaving.push(hole);
        hole
    }

    /// The current instruction is complete.
    pub(super) fn finish(&mut self, slow: usize) {
        if self.leaving.is_empty() {
            return;
        }
        let back = (self.asm.here(), self.flags.host.is_some());
        self.detours.push(Detour {
            from: std::mem::take(&mut self.leaving),
            slow,
            back: Some(back),
            float: self.float,
        });
    }

    /// The block's end is complete: from there the interpreter does not come back.
    pub(super) fn finish_end(&mut self, slow: usize) {
        let from = std::mem::take(&mut self.leaving);
        if !from.is_empty() {
            self.detours.push(Detour {
                from,
                slow,
                back: None,
                float: self.float,
            });
        }
    }

    /// The interpreter's function, here.
    pub(super) fn call(&mut self, slow: usize) {
        self.flags.store(&mut self.asm);
        self.flags = Flags::STORED;
        self.store_mxcsr();
        self.call_slow(slow, false);
    }

    /// The interpreter's function of the block's end, which does not come back.
    pub(super) fn leave_by(&mut self, slow: usize) -> Links {
        self.call(slow);
        self.never();
        [None; 2]
    }

    /// UD2, behind what does not come back.
    pub(super) fn never(&mut self) {
        self.asm.raw(&[0x0f, 0x0b]);
    }

    fn call_slow(&mut self, slow: usize, float: bool) {
        let address = &raw const self.slows[slow] as u64;
        self.asm.mov_imm64(S0, address);
        self.asm.call_to(if float {
            self.stubs.slow_float
        } else {
            self.stubs.slow
        });
    }

    /// Puts the ways to the interpreter behind the block.
    pub(super) fn detours(&mut self) {
        for detour in std::mem::take(&mut self.detours) {
            for hole in detour.from {
                self.asm.bind(hole);
            }
            self.call_slow(detour.slow, detour.float);
            match detour.back {
                Some((to, flags)) => {
                    if flags {
                        Flags::emit_restore(&mut self.asm);
                    }
                    self.asm.jmp_to(to);
                }
                // The interpreter has set the instruction pointer, and the stub left.
                None => self.never(),
            }
        }
    }

    /// Before a floating-point instruction: the host's MXCSR is the guest's. Where that has exceptions unmasked or
    /// rounds in its own way, the interpreter runs the instruction.
    pub(super) fn load_mxcsr(&mut self) {
        if !self.float {
            self.float = true;
            self.asm.rm(false, &[0x0f, 0xae], 2, framed(place::MXCSR));
        }
        self.asm.rm(true, &[0x83], 7, framed(place::FLOAT));
        self.asm.raw(&[0]);
        self.leave_if(cc::E);
    }

    /// Before everything that is not of this block: what it raised is the guest's.
    pub(super) fn store_mxcsr(&mut self) {
        if std::mem::take(&mut self.float) {
            self.asm.rm(false, &[0x0f, 0xae], 3, framed(place::MXCSR));
        }
    }

    /// SSE instructions fault if the system does not allow them; nothing inside a block changes that.
    pub(super) fn check_vectors(&mut self) {
        if !self.vectors_checked {
            self.vectors_checked = true;
            self.asm.rm(true, &[0x83], 7, framed(place::SSE));
            self.asm.raw(&[0]);
            self.leave_if(cc::E);
        }
    }
}
