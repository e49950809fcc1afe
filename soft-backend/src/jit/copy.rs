//! Copying: the guest's instruction with the host's registers in the place of its own.

use iced_x86::{
    Code as C, Instruction, InstructionInfoFactory, Mnemonic as M, OpAccess, OpKind, Register,
};

use super::asm::{Mem, Reg, S0, S1, at, framed};
use super::bits::general_exchange;
use super::choice::{How, Plan, Writes, reads_overflow};
use super::emit::Emit;
use super::flags::{Flags, Kind};
use super::frame::place;
use super::memory_operand::{Access, Found};
use super::registers::{guest, high, host, named};
use super::vector;

/// One instruction to be copied.
pub(super) struct Copy<'a> {
    pub(super) i: &'a Instruction,
    pub(super) plan: Plan,
    /// Somebody may ask for its flags.
    pub(super) live: bool,
}

/// A guest register that is in a scratch register during the instruction.
#[derive(Clone, Copy)]
pub(super) struct Visitor {
    guest: u8,
    /// It is the second byte of that.
    high: bool,
    scratch: Reg,
    read: bool,
    written: bool,
}

fn reads(a: OpAccess) -> bool {
    !matches!(a, OpAccess::Write | OpAccess::None | OpAccess::NoMemAccess)
}

fn writes(a: OpAccess) -> bool {
    matches!(
        a,
        OpAccess::Write | OpAccess::CondWrite | OpAccess::ReadWrite | OpAccess::ReadCondWrite
    )
}

impl Emit<'_> {
    /// Emits the instruction. False if it cannot be: then nothing of the block is of use.
    pub(super) fn copy(&mut self, info: &mut InstructionInfoFactory, c: &Copy<'_>) -> bool {
        let mut i = *c.i;
        let access: Vec<OpAccess> = {
            let info = info.info(c.i);
            (0..i.op_count()).map(|n| info.op_access(n)).collect()
        };
        let memory = (0..i.op_count()).find(|n| i.op_kind(*n) == OpKind::Memory);
        let vector = matches!(c.plan.how, How::Vector | How::Float);
        let mut scratch = [S0, S1];
        let wants_flags = c.plan.reads != 0 || c.plan.writes == Writes::Some && c.live;
        if vector {
            self.flags.store(&mut self.asm);
            if c.plan.how == How::Float {
                self.load_mxcsr();
            }
            self.check_vectors();
            self.flags.host = None;
        }
        match memory {
            Some(_) if i.mnemonic() == M::Lea => {
                let m = self.parts(c.i);
                point(&mut i, m);
            }
            Some(n) => {
                self.flags.store(&mut self.asm);
                let kind = if writes(access[n as usize]) {
                    Access::Write
                } else {
                    Access::Read
                };
                let unaligned = match vector {
                    true if vector::wants_alignment(c.i) => 15,
                    true => 0,
                    false => lock_alignment(c.i),
                };
                let mut found = self.probe(c.i, kind, unaligned);
                self.flags.host = None;
                if wants_flags {
                    found = self.free_s0(found);
                    self.flags.restore(&mut self.asm);
                }
                point(&mut i, found.mem);
                scratch = [found.free; 2];
            }
            None if wants_flags => self
                .flags
                .ready(&mut self.asm, reads_overflow(c.plan.reads)),
            None => {}
        }
        let visitors = self.visitors(&mut i, &access, scratch);
        let loaded = if vector {
            self.load_vectors(&mut i)
        } else {
            None
        };
        general(&mut i);
        if !self.asm.instruction(&i) {
            return false;
        }
        if let Some((n, host)) = loaded
            && writes(access[0])
        {
            // MOVUPS, to the vCPU
            self.asm
                .rm(false, &[0x0f, 0x11], host, framed(place::xmm(n)));
        }
        self.store_visitors(visitors);
        match (c.plan.how, c.plan.writes) {
            (How::Product, _) => self.product(&i, c.live),
            (_, Writes::All(kind)) => self.flags.written(kind, c.live),
            (_, Writes::Some) => self.flags.written(Kind::Exact, c.live),
            (_, Writes::Carelessly) => self.flags = Flags::STORED,
            (_, Writes::Nothing) => {}
        }
        true
    }

    /// Writes back what the instruction has changed; no flags change. Both scratch registers may be used.
    pub(super) fn store_visitors(&mut self, visitors: [Option<Visitor>; 2]) {
        for v in visitors.into_iter().flatten().filter(|v| v.written) {
            match host(v.guest).filter(|_| v.high) {
                Some(whole) if v.scratch == S0 => {
                    self.asm.mov(S1, whole);
                    // MOV DH, AL
                    self.asm.raw(&[0x88, 0xc6]);
                    self.asm.mov(whole, S1);
                }
                Some(whole) => {
                    self.asm.mov(S0, whole);
                    // MOV AH, DL
                    self.asm.raw(&[0x88, 0xd4]);
                    self.asm.mov(whole, S0);
                }
                None => self.asm.store(framed(place::gpr(v.guest)), v.scratch),
            }
        }
    }

    fn load_visitor(&mut self, v: Visitor) {
        match host(v.guest).filter(|_| v.high) {
            Some(whole) => {
                self.asm.mov(v.scratch, whole);
                // MOVZX EAX, AH; MOVZX EDX, DH
                let registers = if v.scratch == S0 { 0xc4 } else { 0xd6 };
                self.asm.raw(&[0x0f, 0xb6, registers]);
            }
            None => self.asm.load(v.scratch, framed(place::gpr(v.guest))),
        }
    }

    /// An address that does without RAX.
    pub(super) fn free_s0(&mut self, found: Found) -> Found {
        if found.free == S0 {
            return found;
        }
        self.asm.mov(S1, S0);
        Found {
            mem: at(S1, 0),
            free: S0,
        }
    }

    /// Replaces general registers; those in the vCPU are loaded.
    pub(super) fn visitors(
        &mut self,
        i: &mut Instruction,
        access: &[OpAccess],
        scratch: [Reg; 2],
    ) -> [Option<Visitor>; 2] {
        let mut all: [Option<Visitor>; 2] = [None; 2];
        for n in 0..i.op_count() {
            let r = i.op_register(n);
            let is_high = high(r).is_some();
            let (OpKind::Register, Some(g)) = (i.op_kind(n), guest(r).or(high(r))) else {
                continue;
            };
            if let Some(h) = host(g).filter(|_| !is_high) {
                i.set_op_register(n, named(h, r.size()));
                continue;
            }
            let a = access[n as usize];
            let known = all.iter().position(|v| v.is_some_and(|v| v.guest == g));
            let slot = known.unwrap_or(usize::from(all[0].is_some()));
            let v = all[slot].get_or_insert(Visitor {
                guest: g,
                high: is_high,
                scratch: scratch[slot],
                read: false,
                written: false,
            });
            // A conditional or partial write keeps the rest.
            v.read |= reads(a) || a == OpAccess::CondWrite || r.size() < 4;
            v.written |= writes(a);
            i.set_op_register(n, named(v.scratch, r.size()));
        }
        for v in all.into_iter().flatten().filter(|v| v.read) {
            self.load_visitor(v);
        }
        all
    }

    /// Replaces XMM registers by XMM0 and XMM1, with their values. Gives the first operand's number, if it is one.
    fn load_vectors(&mut self, i: &mut Instruction) -> Option<(u8, Reg)> {
        let mut first: Option<(u8, Reg)> = None;
        for n in 0..i.op_count() {
            let r = i.op_register(n);
            if i.op_kind(n) != OpKind::Register || !r.is_xmm() {
                continue;
            }
            let number = r.number() as u8;
            let same = first.filter(|(f, _)| *f == number);
            let host = same.map_or(u8::from(n != 0), |(_, host)| host);
            i.set_op_register(n, Register::XMM0 + u32::from(host));
            let needed = n != 0 || !vector::only_writes(i);
            if needed && (same.is_none() || vector::only_writes(i)) {
                // MOVUPS, from the vCPU
                self.asm
                    .rm(false, &[0x0f, 0x10], host, framed(place::xmm(number)));
            }
            if n == 0 {
                first = Some((number, host));
            }
        }
        first
    }

    /// The flags of a product: CF and OF are the processor's, the rest the result's, as the interpreter has it.
    fn product(&mut self, i: &Instruction, live: bool) {
        self.flags = Flags::STORED;
        if !live {
            return;
        }
        let r = i.op0_register();
        let number = (r.full_register() as u32 - Register::RAX as u32) as Reg;
        // The result is in a scratch register or a pinned one, and AL is needed.
        self.asm.mov(S1, number);
        self.product_flags(r.size() == 8);
    }

    /// CDQE, CWDE, CQO, CDQ.
    pub(super) fn widen(&mut self, i: &Instruction) {
        let (rax, rdx) = (host(0).unwrap_or(S0), host(2).unwrap_or(S1));
        match i.code() {
            // MOVSXD, MOVSX
            C::Cdqe => self.asm.rr(true, &[0x63], rax, rax),
            C::Cwde => self.asm.rr(false, &[0x0f, 0xbf], rax, rax),
            _ => {
                self.flags.store(&mut self.asm);
                self.flags.host = None;
                let wide = i.code() == C::Cqo;
                // MOV; SAR
                self.asm.rr(wide, &[0x8b], rdx, rax);
                self.asm.rr(wide, &[0xc1], 7, rdx);
                self.asm.raw(&[if wide { 63 } else { 31 }]);
            }
        }
    }
}

/// Bits of an address that have to be zero where an instruction is locked: others are not atomic, and hosts may
/// refuse them.
pub(super) fn lock_alignment(i: &Instruction) -> u8 {
    if i.has_lock_prefix() || i.mnemonic() == M::Xchg {
        (i.memory_size().size() as u8).saturating_sub(1)
    } else {
        0
    }
}

/// Gives an instruction another memory operand.
pub(super) fn point(i: &mut Instruction, m: Mem) {
    let wide = |r: Reg| named(r, 8);
    i.set_segment_prefix(Register::None);
    i.set_memory_base(m.base.map_or(Register::None, wide));
    let (index, scale) = m.index.map_or((Register::None, 0), |(r, s)| (wide(r), s));
    i.set_memory_index(index);
    i.set_memory_index_scale(1 << scale);
    i.set_memory_displacement64(m.disp as i64 as u64);
    let size = match (m.base, m.disp) {
        (None, _) => 4,
        (_, 0) => 0,
        _ => 1,
    };
    i.set_memory_displ_size(size);
}

/// Forms that have RAX as a fixed operand get the code that takes every register.
fn general(i: &mut Instruction) {
    if let Some(code) = general_exchange(i.code()) {
        i.set_code(code);
        return;
    }
    let size = match i.code() {
        C::Add_AL_imm8
        | C::Or_AL_imm8
        | C::Adc_AL_imm8
        | C::Sbb_AL_imm8
        | C::And_AL_imm8
        | C::Sub_AL_imm8
        | C::Xor_AL_imm8
        | C::Cmp_AL_imm8
        | C::Test_AL_imm8 => 0,
        C::Add_AX_imm16
        | C::Or_AX_imm16
        | C::Adc_AX_imm16
        | C::Sbb_AX_imm16
        | C::And_AX_imm16
        | C::Sub_AX_imm16
        | C::Xor_AX_imm16
        | C::Cmp_AX_imm16
        | C::Test_AX_imm16 => 1,
        C::Add_EAX_imm32
        | C::Or_EAX_imm32
        | C::Adc_EAX_imm32
        | C::Sbb_EAX_imm32
        | C::And_EAX_imm32
        | C::Sub_EAX_imm32
        | C::Xor_EAX_imm32
        | C::Cmp_EAX_imm32
        | C::Test_EAX_imm32 => 2,
        C::Add_RAX_imm32
        | C::Or_RAX_imm32
        | C::Adc_RAX_imm32
        | C::Sbb_RAX_imm32
        | C::And_RAX_imm32
        | C::Sub_RAX_imm32
        | C::Xor_RAX_imm32
        | C::Cmp_RAX_imm32
        | C::Test_RAX_imm32 => 3,
        _ => return,
    };
    let codes = match i.mnemonic() {
        M::Add => [
            C::Add_rm8_imm8,
            C::Add_rm16_imm16,
            C::Add_rm32_imm32,
            C::Add_rm64_imm32,
        ],
        M::Or => [
            C::Or_rm8_imm8,
            C::Or_rm16_imm16,
            C::Or_rm32_imm32,
            C::Or_rm64_imm32,
        ],
        M::Adc => [
            C::Adc_rm8_imm8,
            C::Adc_rm16_imm16,
            C::Adc_rm32_imm32,
            C::Adc_rm64_imm32,
        ],
        M::Sbb => [
            C::Sbb_rm8_imm8,
            C::Sbb_rm16_imm16,
            C::Sbb_rm32_imm32,
            C::Sbb_rm64_imm32,
        ],
        M::And => [
            C::And_rm8_imm8,
            C::And_rm16_imm16,
            C::And_rm32_imm32,
            C::And_rm64_imm32,
        ],
        M::Sub => [
            C::Sub_rm8_imm8,
            C::Sub_rm16_imm16,
            C::Sub_rm32_imm32,
            C::Sub_rm64_imm32,
        ],
        M::Xor => [
            C::Xor_rm8_imm8,
            C::Xor_rm16_imm16,
            C::Xor_rm32_imm32,
            C::Xor_rm64_imm32,
        ],
        M::Cmp => [
            C::Cmp_rm8_imm8,
            C::Cmp_rm16_imm16,
            C::Cmp_rm32_imm32,
            C::Cmp_rm64_imm32,
        ],
        _ => [
            C::Test_rm8_imm8,
            C::Test_rm16_imm16,
            C::Test_rm32_imm32,
            C::Test_rm64_imm32,
        ],
    };
    i.set_code(codes[size]);
}
