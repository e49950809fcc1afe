//! Encodings of the host's instructions: the few that translation needs by itself, and iced's encoder for
//! the guest's own.

use iced_x86::{Encoder, Instruction};

/// Numbers of host registers, as in encodings.
pub(super) type Reg = u8;

/// First scratch register, RAX: flags go through it.
pub(super) const S0: Reg = 0;
/// Second scratch register, RDX.
pub(super) const S1: Reg = 2;
/// Instructions left until the run loop wants control.
pub(super) const BUDGET: Reg = 14;
/// Address of the [`Frame`](super::frame::Frame).
pub(super) const FRAME: Reg = 15;
/// The native stack pointer.
pub(super) const SP: Reg = 4;

/// Condition codes.
pub(super) mod cc {
    pub(crate) const AE: u8 = 3;
    pub(crate) const E: u8 = 4;
    pub(crate) const NE: u8 = 5;
    pub(crate) const BE: u8 = 6;
    pub(crate) const LE: u8 = 14;
}

/// A memory operand.
#[derive(Clone, Copy, Debug)]
pub(super) struct Mem {
    pub(super) base: Option<Reg>,
    /// Register and shift.
    pub(super) index: Option<(Reg, u8)>,
    pub(super) disp: i32,
}

/// Base and displacement.
pub(super) fn at(base: Reg, disp: i32) -> Mem {
    Mem {
        base: Some(base),
        index: None,
        disp,
    }
}

/// A place in the frame's surroundings.
pub(super) fn framed(disp: i32) -> Mem {
    at(FRAME, disp)
}

/// Code in the making.
pub(super) struct Asm {
    pub(super) bytes: Vec<u8>,
    /// Where it will run.
    base: u64,
    encoder: Encoder,
}

/// A 32-bit distance that is to be filled in.
#[derive(Clone, Copy, Debug)]
pub(super) struct Hole(usize);

impl Hole {
    /// Its place in the code.
    pub(super) fn offset(self) -> usize {
        self.0
    }

    /// The same in code that was put so far behind.
    pub(super) fn moved(self, by: usize) -> Self {
        Hole(self.0 + by)
    }
}

impl Asm {
    pub(super) fn new(base: u64) -> Self {
        Asm {
            bytes: Vec::with_capacity(2048),
            base,
            encoder: Encoder::new(64),
        }
    }

    pub(super) fn here(&self) -> u64 {
        self.base + self.bytes.len() as u64
    }

    pub(super) fn raw(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// One of the guest's instructions, its operands replaced. False if it has no encoding.
    pub(super) fn instruction(&mut self, i: &Instruction) -> bool {
        let here = self.here();
        let done = self.encoder.encode(i, here).is_ok();
        let code = self.encoder.take_buffer();
        if done {
            self.raw(&code);
        }
        done
    }

    /// Opcode with two registers.
    pub(super) fn rr(&mut self, wide: bool, opcode: &[u8], reg: Reg, rm: Reg) {
        let rex = 0x40 | u8::from(wide) << 3 | (reg >> 3) << 2 | rm >> 3;
        if rex != 0x40 {
            self.bytes.push(rex);
        }
        self.raw(opcode);
        self.bytes.push(0xc0 | (reg & 7) << 3 | rm & 7);
    }

    /// Opcode with a register and memory.
    pub(super) fn rm(&mut self, wide: bool, opcode: &[u8], reg: Reg, m: Mem) {
        let base = m.base.unwrap_or(5);
        let index = m.index.map_or(4, |(r, _)| r);
        let rex = 0x40 | u8::from(wide) << 3 | (reg >> 3) << 2 | (index >> 3) << 1 | base >> 3;
        if rex != 0x40 {
            self.bytes.push(rex);
        }
        self.raw(opcode);
        let short = i8::try_from(m.disp);
        let mode = match (m.base, short) {
            (None, _) => 0,
            (Some(b), Ok(0)) if b & 7 != 5 => 0,
            (_, Ok(_)) => 1,
            _ => 2,
        };
        let reg = (reg & 7) << 3;
        if m.index.is_some() || m.base.is_none() || base & 7 == 4 {
            let scale = m.index.map_or(0, |(_, s)| s);
            self.bytes.push(mode << 6 | reg | 4);
            self.bytes.push(scale << 6 | (index & 7) << 3 | base & 7);
        } else {
            self.bytes.push(mode << 6 | reg | base & 7);
        }
        match (mode, m.base) {
            (1, _) => self.bytes.push(m.disp as u8),
            (2, _) | (_, None) => self.raw(&m.disp.to_le_bytes()),
            _ => {}
        }
    }

    pub(super) fn load(&mut self, dst: Reg, m: Mem) {
        self.rm(true, &[0x8b], dst, m);
    }

    pub(super) fn store(&mut self, m: Mem, src: Reg) {
        self.rm(true, &[0x89], src, m);
    }

    /// Where the two differ.
    pub(super) fn mov(&mut self, dst: Reg, src: Reg) {
        if dst != src {
            self.rr(true, &[0x8b], dst, src);
        }
    }

    pub(super) fn lea(&mut self, dst: Reg, m: Mem) {
        self.rm(true, &[0x8d], dst, m);
    }

    /// ADD of memory.
    pub(super) fn add_mem(&mut self, dst: Reg, m: Mem) {
        self.rm(true, &[0x03], dst, m);
    }

    /// CMP with memory.
    pub(super) fn cmp_mem(&mut self, a: Reg, m: Mem) {
        self.rm(true, &[0x3b], a, m);
    }

    /// An operation of the 0x81 group with a sign-extended immediate: 0 ADD, 4 AND, 5 SUB, 7 CMP.
    pub(super) fn imm(&mut self, wide: bool, what: u8, reg: Reg, v: i32) {
        match i8::try_from(v) {
            Ok(v) => {
                self.rr(wide, &[0x83], what, reg);
                self.bytes.push(v as u8);
            }
            Err(_) => {
                self.rr(wide, &[0x81], what, reg);
                self.raw(&v.to_le_bytes());
            }
        }
    }

    pub(super) fn shr(&mut self, reg: Reg, n: u8) {
        self.rr(true, &[0xc1], 5, reg);
        self.bytes.push(n);
    }

    pub(super) fn mov_imm64(&mut self, dst: Reg, v: u64) {
        self.raw(&[0x48 | dst >> 3, 0xb8 | dst & 7]);
        self.raw(&v.to_le_bytes());
    }

    /// Zero-extended.
    pub(super) fn mov_imm32(&mut self, dst: Reg, v: u32) {
        if dst >= 8 {
            self.bytes.push(0x41);
        }
        self.bytes.push(0xb8 | dst & 7);
        self.raw(&v.to_le_bytes());
    }

    fn hole(&mut self) -> Hole {
        self.raw(&[0; 4]);
        Hole(self.bytes.len() - 4)
    }

    pub(super) fn jcc(&mut self, condition: u8) -> Hole {
        self.raw(&[0x0f, 0x80 | condition]);
        self.hole()
    }

    pub(super) fn jmp(&mut self) -> Hole {
        self.bytes.push(0xe9);
        self.hole()
    }

    pub(super) fn call_to(&mut self, to: u64) {
        self.bytes.push(0xe8);
        let hole = self.hole();
        self.lead(hole, to);
    }

    pub(super) fn jmp_to(&mut self, to: u64) {
        let hole = self.jmp();
        self.lead(hole, to);
    }

    /// Fills a hole: it leads there.
    pub(super) fn lead(&mut self, hole: Hole, to: u64) {
        let from = self.base + hole.0 as u64 + 4;
        self.bytes[hole.0..hole.0 + 4].copy_from_slice(&distance(from, to));
    }

    /// Fills a hole: it leads to what comes next.
    pub(super) fn bind(&mut self, hole: Hole) {
        self.lead(hole, self.here());
    }
}

/// A relative distance; all code is in one region of much less than 2 GiB.
pub(super) fn distance(from: u64, to: u64) -> [u8; 4] {
    (to.wrapping_sub(from) as u32).to_le_bytes()
}
