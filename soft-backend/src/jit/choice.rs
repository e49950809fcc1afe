//! What is done with each instruction: copied, made of other instructions, or left to the interpreter.
//! Copying is a list of what may be; everything else is called.

use iced_x86::{
    Code as C, ConditionCode, EncodingKind, Instruction, Mnemonic as M, OpKind, Register,
    RflagsBits,
};

use super::flags::Kind;
use super::{bits, divide, registers, shift, vector};

/// How an instruction is translated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum How {
    /// With other registers and, for memory, behind a probe.
    Copy,
    /// As `Copy`; its XMM registers are loaded from the vCPU and stored there.
    Vector,
    /// IMUL with two or three operands: flags of their own.
    Product,
    /// As `Vector`, under the guest's MXCSR.
    Float,
    /// BT and its like, where their operand is.
    BitTest,
    /// BSF and BSR.
    Scan,
    /// A shift by CL or a rotation, with its flags.
    Shift,
    /// MUL and IMUL with one operand.
    Multiply,
    /// DIV and IDIV.
    Divide,
    /// CMPXCHG of memory.
    CompareExchange,
    /// CDQE, CWDE, CQO, CDQ.
    Widen,
    Push,
    PushMemory,
    Pop,
    Leave,
    /// Nothing.
    Nop,
    /// By the interpreter.
    Call,
    Jcc,
    /// LOOP by RCX.
    Loop,
    Jmp,
    JmpIndirect,
    CallDirect,
    CallIndirect,
    Ret,
}

impl How {
    /// Whether the block ends there.
    pub(super) fn ends(self) -> bool {
        matches!(
            self,
            How::Jcc
                | How::Loop
                | How::Jmp
                | How::JmpIndirect
                | How::CallDirect
                | How::CallIndirect
                | How::Ret
        )
    }
}

/// What it does to arithmetic flags.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Writes {
    Nothing,
    All(Kind),
    /// Some; the others stay. What is written is exact.
    Some,
    /// Some, or not as the interpreter does: to be copied only where nobody asks.
    Carelessly,
}

/// The choice, and what it means for the flags.
#[derive(Clone, Copy, Debug)]
pub(super) struct Plan {
    pub(super) how: How,
    pub(super) writes: Writes,
    /// Flags that it reads.
    pub(super) reads: u32,
    /// It may fault or end the block.
    pub(super) exits: bool,
}

impl Plan {
    /// Left to the interpreter.
    pub(super) const CALL: Plan = Plan {
        how: How::Call,
        writes: Writes::Nothing,
        reads: 0,
        exits: true,
    };

    /// What is done where somebody asks for flags that copying would not give.
    pub(super) fn careful(self, i: &Instruction) -> Plan {
        if !shift::suits(i) {
            return Plan::CALL;
        }
        Plan {
            how: How::Shift,
            writes: Writes::Some,
            ..self
        }
    }

    /// Whether the flags before it matter to anybody, given whether those after it do.
    pub(super) fn live_before(&self, live_after: bool) -> bool {
        if self.exits || self.reads != 0 {
            return true;
        }
        live_after && !matches!(self.writes, Writes::All(_))
    }
}

/// The choice for an instruction.
pub(super) fn choose(i: &Instruction) -> Plan {
    if i.encoding() != EncodingKind::Legacy {
        // The guest's processor has none of them; some have a condition, and would be taken for what is copied.
        return Plan::CALL;
    }
    if let Some(how) = control(i) {
        return Plan {
            how,
            reads: i.rflags_read(),
            ..Plan::CALL
        };
    }
    let known = integer(i).or_else(|| vector::choose(i));
    let fits = |how| operands_fit(i, how == How::Copy);
    let Some((how, writes)) = known.filter(|(how, _)| fits(*how)) else {
        return Plan::CALL;
    };
    let touches = (0..i.op_count()).any(|n| i.op_kind(n) == OpKind::Memory);
    let exits =
        touches && i.mnemonic() != M::Lea || matches!(how, How::Push | How::Pop | How::Leave);
    let exits = exits || matches!(how, How::Divide | How::Scan | How::Float | How::Vector);
    Plan {
        how,
        writes,
        reads: i.rflags_read(),
        // The check whether SSE may be used is an exit as well.
        exits,
    }
}

/// Whether an instruction reads OF, of what is copied.
pub(super) fn reads_overflow(reads: u32) -> bool {
    reads & RflagsBits::OF != 0
}

/// Whether the interpreter's function of an instruction that is not called anyway uses flags.
pub(super) fn touches_flags(i: &Instruction) -> bool {
    const ARITH: u32 = RflagsBits::OF
        | RflagsBits::SF
        | RflagsBits::ZF
        | RflagsBits::AF
        | RflagsBits::CF
        | RflagsBits::PF;
    (i.rflags_read() | i.rflags_modified()) & ARITH != 0
}

fn control(i: &Instruction) -> Option<How> {
    let wide = |n| i.op_register(n).size() == 8;
    let target = |how| match i.op0_kind() {
        OpKind::Register if wide(0) && registers::guest(i.op0_register()).is_some() => Some(how),
        OpKind::Memory if i.memory_size().size() == 8 && address_fits(i) => Some(how),
        _ => None,
    };
    let near = i32::try_from(i.near_branch64() as i64).is_ok_and(|t| t.checked_add(8192).is_some());
    let direct = near && i.op0_kind() == OpKind::NearBranch64;
    match i.mnemonic() {
        _ if i.is_jcc_short_or_near() => direct.then_some(How::Jcc),
        M::Loop if direct && i.code() == C::Loop_rel8_64_RCX => Some(How::Loop),
        M::Jmp if direct => Some(How::Jmp),
        M::Call if direct => Some(How::CallDirect),
        M::Jmp if i.is_jmp_near_indirect() => target(How::JmpIndirect),
        M::Call if i.is_call_near_indirect() => target(How::CallIndirect),
        M::Ret => matches!(i.code(), C::Retnq | C::Retnq_imm16).then_some(How::Ret),
        _ => None,
    }
}

/// Width of the first operand in bytes.
fn width(i: &Instruction) -> usize {
    if i.op0_kind() == OpKind::Register {
        i.op0_register().size()
    } else {
        i.memory_size().size()
    }
}

fn integer(i: &Instruction) -> Option<(How, Writes)> {
    if i.has_rep_prefix() || i.has_repne_prefix() {
        return None;
    }
    let wide = width(i) >= 4;
    let exact = Writes::All(Kind::Exact);
    Some(match i.mnemonic() {
        M::Mov | M::Movzx | M::Movsx | M::Movsxd | M::Not => (How::Copy, Writes::Nothing),
        M::Bswap | M::Lea if wide => (How::Copy, Writes::Nothing),
        M::Add | M::Sub | M::Cmp | M::Neg | M::Adc | M::Sbb => (How::Copy, exact),
        M::And | M::Or | M::Xor | M::Test => (How::Copy, Writes::All(Kind::Logic)),
        M::Inc | M::Dec => (How::Copy, Writes::Some),
        M::Shl | M::Sal | M::Shr | M::Sar => (How::Copy, shift(i)?),
        M::Rol | M::Ror if wide => (How::Copy, Writes::Carelessly),
        M::Shld | M::Shrd if wide => (How::Copy, Writes::Carelessly),
        M::Popcnt if wide => (How::Copy, exact),
        M::Imul if i.op_count() > 1 && wide => (How::Product, exact),
        M::Mul | M::Imul if divide::suits(i) => (How::Multiply, exact),
        M::Div | M::Idiv if divide::suits(i) => (How::Divide, Writes::Nothing),
        M::Xadd => (How::Copy, exact),
        M::Xchg => (How::Copy, Writes::Nothing),
        M::Cmpxchg if bits::exchange_suits(i) => (How::CompareExchange, exact),
        M::Bt | M::Bts | M::Btr | M::Btc if wide && bits::test_suits(i) => {
            (How::BitTest, Writes::Some)
        }
        M::Bsf | M::Bsr | M::Tzcnt | M::Lzcnt if wide => (How::Scan, Writes::Some),
        M::Cdqe | M::Cwde | M::Cqo | M::Cdq => (How::Widen, Writes::Nothing),
        M::Push => (stack(i, How::Push)?, Writes::Nothing),
        M::Pop => (stack(i, How::Pop)?, Writes::Nothing),
        M::Leave if i.code() == C::Leaveq => (How::Leave, Writes::Nothing),
        M::Mfence => (How::Copy, Writes::Nothing),
        M::Nop | M::Endbr64 | M::Lfence | M::Sfence => (How::Nop, Writes::Nothing),
        M::Prefetchnta | M::Prefetcht0 | M::Prefetcht1 | M::Prefetcht2 | M::Prefetchw => {
            (How::Nop, Writes::Nothing)
        }
        _ if i.condition_code() != ConditionCode::None && !i.is_loopcc() => {
            (How::Copy, Writes::Nothing)
        }
        _ => return None,
    })
}

/// A shift's kind of flags. By zero bits it is the interpreter's.
fn shift(i: &Instruction) -> Option<Writes> {
    let wide = width(i) >= 4;
    if i.op1_kind() == OpKind::Register {
        return wide.then_some(Writes::Carelessly);
    }
    let n = i.immediate8() & if width(i) == 8 { 63 } else { 31 };
    if usize::from(n) >= 8 * width(i) {
        return None;
    }
    let left = matches!(i.mnemonic(), M::Shl | M::Sal);
    Some(Writes::All(match n {
        0 => return None,
        1 => Kind::ShiftOne,
        _ if left => Kind::ShiftLeft,
        _ => Kind::ShiftRight,
    }))
}

/// PUSH and POP of 64-bit registers and immediates.
fn stack(i: &Instruction, how: How) -> Option<How> {
    let plain = match i.op0_kind() {
        OpKind::Register => registers::guest(i.op0_register()).is_some(),
        OpKind::Memory => how == How::Push,
        _ => how == How::Push,
    };
    let how = match i.op0_kind() {
        OpKind::Memory => How::PushMemory,
        _ => how,
    };
    (plain && i.stack_pointer_increment().abs() == 8).then_some(how)
}

/// Whether every register operand is one that can be replaced, and memory can be reached by a probe. AH, CH, DH and
/// BH can be replaced in what is `copied` only.
fn operands_fit(i: &Instruction, copied: bool) -> bool {
    let high_fits = copied && !matches!(i.mnemonic(), M::Xchg | M::Xadd);
    let mut unpinned = [None; 2];
    let mut memory = false;
    for n in 0..i.op_count() {
        match i.op_kind(n) {
            OpKind::Register => {
                let r = i.op_register(n);
                if r.is_xmm() {
                    continue;
                }
                let high = registers::high(r).filter(|_| high_fits);
                let Some(g) = registers::guest(r).or(high) else {
                    return false;
                };
                let visits = registers::host(g).is_none() || high.is_some();
                if visits && !unpinned.contains(&Some(r.full_register())) {
                    match unpinned.iter_mut().find(|u| u.is_none()) {
                        Some(free) => *free = Some(r.full_register()),
                        None => return false,
                    }
                }
            }
            OpKind::Memory => {
                memory = true;
                if !address_fits(i) {
                    return false;
                }
            }
            OpKind::Immediate8
            | OpKind::Immediate16
            | OpKind::Immediate32
            | OpKind::Immediate64
            | OpKind::Immediate8to16
            | OpKind::Immediate8to32
            | OpKind::Immediate8to64
            | OpKind::Immediate32to64 => {}
            _ => return false,
        }
    }
    // Behind a probe, one scratch register is free.
    !memory || i.mnemonic() == M::Lea || unpinned[1].is_none()
}

/// The forms of MOV with 64-bit addresses have their own encodings.
fn has_long_address(i: &Instruction) -> bool {
    matches!(
        i.code(),
        C::Mov_AL_moffs8
            | C::Mov_AX_moffs16
            | C::Mov_EAX_moffs32
            | C::Mov_RAX_moffs64
            | C::Mov_moffs8_AL
            | C::Mov_moffs16_AX
            | C::Mov_moffs32_EAX
            | C::Mov_moffs64_RAX
    )
}

/// Whether an address is of 64 bits, with a displacement that fits everywhere.
fn address_fits(i: &Instruction) -> bool {
    let (base, index) = (i.memory_base(), i.memory_index());
    let fits = |r: Register| r == Register::None || r.is_gpr64();
    let relative = base == Register::RIP;
    let disp = i.memory_displacement64() as i64;
    (fits(base) || relative)
        && fits(index)
        && !has_long_address(i)
        && i32::try_from(disp).is_ok_and(|d| d.checked_add(8192).is_some())
}

#[cfg(test)]
mod tests {
    use iced_x86::{Decoder, DecoderOptions};

    use super::*;

    #[test]
    fn what_the_guest_does_not_have_is_not_copied() {
        // CMPOXADD [RAX], ECX, EDX; ANDN EAX, EBX, ECX; VADDPS XMM0, XMM1, XMM2
        for code in [
            &[0xc4, 0xe2, 0x69, 0xe0, 0x08][..],
            &[0xc4, 0xe2, 0x60, 0xf2, 0xc1],
            &[0xc5, 0xf0, 0x58, 0xc2],
        ] {
            let i = Decoder::new(64, code, DecoderOptions::NONE).decode();
            assert!(!i.is_invalid(), "{code:x?}");
            assert!(choose(&i).how == How::Call, "{i:?}");
        }
    }
}
