//! Random user-level integer instructions, run here and on the host's CPU.

use std::collections::BTreeMap;

use iced_x86::{
    CpuidFeature as F, Decoder, DecoderOptions, EncodingKind, FlowControl, Instruction,
    Mnemonic as M, OpKind, Register, RflagsBits,
};
use vm_memory::{Bytes, GuestAddress};

use super::host::{Host, Regs, SCRATCH, SCRATCH_BYTES};
use super::random::Random;
use super::rig::Rig;
use crate::cpu::{Flow, Mode, Trap, flags};
use crate::decode::decode;
use crate::mmu::Access;

/// Random bytes that have a chance to be an instruction.
fn bytes(r: &mut Random) -> Vec<u8> {
    let mut b = Vec::new();
    for (prefix, odds) in [(0x66, 4), (0xf0, 12), (0xf3, 10), (0xf2, 20)] {
        if r.below(odds) == 0 {
            b.push(prefix);
        }
    }
    if r.below(2) == 0 {
        b.push(0x40 | r.below(16) as u8);
    }
    match r.below(8) {
        0..=4 => b.push(r.next() as u8),
        5 | 6 => b.extend([0x0f, r.next() as u8]),
        _ => b.extend([0x0f, 0x38, 0xf0 | r.below(2) as u8]),
    }
    for _ in 0..9 {
        b.push(r.next() as u8);
    }
    b
}

/// Instructions of this machine's user level without control flow.
fn wanted(i: &Instruction) -> bool {
    let excluded = matches!(
        i.mnemonic(),
        // Later feature levels, which the host has.
        M::Tzcnt | M::Lzcnt | M::Movbe | M::Adcx | M::Adox | M::Rdrand | M::Rdseed | M::Rdpid
        // Not a function of registers and memory, or privileged in ways that iced does not say.
        | M::Cpuid | M::Rdtsc | M::Rdtscp | M::Pushf | M::Pushfq | M::Popf | M::Popfq | M::Xgetbv
        | M::Rdpmc | M::Sldt | M::Str | M::Smsw | M::Sgdt | M::Sidt | M::Lar | M::Lsl | M::Verr
        | M::Verw | M::In | M::Out | M::Insb | M::Insw | M::Insd | M::Outsb | M::Outsw | M::Outsd
        | M::Rdfsbase | M::Rdgsbase | M::Wrfsbase | M::Wrgsbase | M::Clzero | M::Rdpru | M::Hlt
        | M::Lss | M::Lfs | M::Lgs | M::Wbnoinvd | M::Enter | M::Monitorx | M::Mwaitx | M::Xsave
        | M::Rdsspd | M::Rdsspq | M::Incsspd | M::Incsspq | M::Ptwrite | M::Cli | M::Sti
        | M::Clflush | M::Clflushopt | M::Clwb | M::Sfence | M::Umonitor | M::Umwait | M::Tpause
    );
    if i.is_invalid() || excluded || i.is_privileged() || i.encoding() != EncodingKind::Legacy {
        return false;
    }
    let integer = |f: &F| {
        matches!(
            f,
            F::INTEL8086
                | F::INTEL186
                | F::INTEL286
                | F::INTEL386
                | F::INTEL486
                | F::X64
                | F::CMOV
                | F::CX8
                | F::CMPXCHG16B
                | F::POPCNT
                | F::SSE2
                | F::SSE4_2
        )
    };
    let other_sse = i.mnemonic() != M::Crc32 && i.mnemonic() != M::Movnti;
    if !i.cpuid_features().iter().all(integer)
        || (other_sse
            && i.cpuid_features()
                .iter()
                .any(|f| matches!(f, F::SSE2 | F::SSE4_2)))
    {
        return false;
    }
    if i.flow_control() != FlowControl::Next || i.segment_prefix() != Register::None {
        return false;
    }
    (0..i.op_count()).all(|n| match i.op_kind(n) {
        OpKind::Register => i.op_register(n).is_gpr(),
        OpKind::Memory => {
            i.memory_base().is_gpr64()
                && (i.memory_index() == Register::None || i.memory_index().is_gpr64())
        }
        OpKind::MemorySegESI | OpKind::MemoryESEDI | OpKind::MemorySegEDI => false,
        _ => true,
    }) && i.memory_base() != Register::RIP
        && !i.is_string_instruction_with_short_address()
}

trait ShortAddress {
    fn is_string_instruction_with_short_address(&self) -> bool;
}
impl ShortAddress for Instruction {
    fn is_string_instruction_with_short_address(&self) -> bool {
        (0..self.op_count()).any(|n| {
            matches!(
                self.op_kind(n),
                OpKind::MemorySegSI | OpKind::MemoryESDI | OpKind::MemorySegDI
            )
        })
    }
}

/// Registers such that the memory operands lie in the scratch memory.
fn registers(r: &mut Random, i: &Instruction) -> Option<Regs> {
    let mut regs = Regs::default();
    for v in &mut regs.gpr {
        *v = r.value();
    }
    regs.flags = 0x202 | r.next() & flags::ARITH | if r.below(4) == 0 { flags::DF } else { 0 };
    let middle = SCRATCH + 4096;
    // Near the page boundary now and then.
    regs.gpr[4] = middle - r.below(40) - if r.below(2) == 0 { 64 } else { 0 };
    let string = (0..i.op_count())
        .any(|n| matches!(i.op_kind(n), OpKind::MemorySegRSI | OpKind::MemoryESRDI));
    if string {
        regs.gpr[6] = middle - r.below(64);
        regs.gpr[7] = middle - 256 + r.below(512);
        regs.gpr[1] = r.below(40);
    }
    if i.mnemonic() == M::Leave {
        regs.gpr[5] = middle - r.below(16);
    }
    if i.mnemonic() == M::Xlatb {
        regs.gpr[3] = middle - r.below(16);
    }
    if (0..i.op_count()).any(|n| i.op_kind(n) == OpKind::Memory) {
        let number = |r: Register| r.number();
        let base = number(i.memory_base());
        let mut offset = i.memory_displacement64();
        if i.memory_index() != Register::None {
            let index = number(i.memory_index());
            if index != base {
                regs.gpr[index] = r.below(16);
            }
            if index == base {
                return None;
            }
            offset = offset.wrapping_add(regs.gpr[index] * u64::from(i.memory_index_scale()));
        }
        let bits = matches!(i.mnemonic(), M::Bt | M::Bts | M::Btr | M::Btc);
        if bits && i.op_kind(1) == OpKind::Register {
            // A bit offset reaches far: keep it near.
            let n = number(i.op_register(1).full_register());
            if n == base || (i.memory_index() != Register::None && n == number(i.memory_index())) {
                return None;
            }
            regs.gpr[n] = (r.below(2000) as i64 - 1000) as u64;
        }
        let wanted = (middle - r.below(80)) & if r.below(3) == 0 { !15 } else { u64::MAX };
        if i.mnemonic() != M::Lea {
            regs.gpr[base] = wanted.wrapping_sub(offset);
        }
        if base == 4 && !(SCRATCH + 512..SCRATCH + 7680).contains(&regs.gpr[4]) {
            return None;
        }
    }
    Some(regs)
}

/// Flags that are not compared.
fn undefined(i: &Instruction) -> u64 {
    let u = i.rflags_undefined();
    [
        (RflagsBits::OF, flags::OF),
        (RflagsBits::SF, flags::SF),
        (RflagsBits::ZF, flags::ZF),
        (RflagsBits::AF, flags::AF),
        (RflagsBits::CF, flags::CF),
        (RflagsBits::PF, flags::PF),
    ]
    .into_iter()
    .filter(|(bit, _)| u & bit != 0)
    .fold(0, |m, (_, f)| m | f)
}

/// Shifts by more than the operand's width leave CF undefined, by more than one OF; double shifts
/// of 16 bits by more than 16 leave everything undefined.
fn too_far(i: &Instruction, regs: &Regs) -> Option<u64> {
    let shift = matches!(
        i.mnemonic(),
        M::Shl | M::Sal | M::Shr | M::Sar | M::Shld | M::Shrd | M::Rol | M::Ror | M::Rcl | M::Rcr
    );
    if !shift {
        return Some(0);
    }
    let last = i.op_count() - 1;
    let count = match i.op_kind(last) {
        OpKind::Register => regs.gpr[1],
        _ => i.immediate(last),
    };
    let size = match i.op_kind(0) {
        OpKind::Register => i.op_register(0).size(),
        _ => i.memory_size().size(),
    } as u64
        * 8;
    let count = count & if size == 64 { 63 } else { 31 };
    let double = matches!(i.mnemonic(), M::Shld | M::Shrd);
    if double && count > size {
        return None;
    }
    let mut mask = 0;
    if count > 1 {
        mask |= flags::OF;
    }
    if count >= size && matches!(i.mnemonic(), M::Shl | M::Sal | M::Shr) {
        mask |= flags::CF;
    }
    Some(mask)
}

/// One comparison; gives what differs.
fn compare(
    rig: &mut Rig,
    host: &Host,
    code: &[u8],
    i: &Instruction,
    regs: &Regs,
) -> Option<String> {
    let mut mask = undefined(i) | too_far(i, regs)?;
    if matches!(i.mnemonic(), M::Mul | M::Imul) {
        // Defined by AMD's manual and by Intel's differently.
        mask |= flags::SF | flags::ZF | flags::AF | flags::PF;
    }
    let mut before = vec![0; SCRATCH_BYTES];
    before.copy_from_slice(host.scratch());
    rig.ram.write_slice(&before, GuestAddress(SCRATCH)).unwrap();

    let native = host.run(code, regs);
    rig.cpu.regs[..16].copy_from_slice(&regs.gpr);
    rig.cpu.set_rflags(regs.flags);
    rig.cpu.trap = Trap::None;
    let decoded = decode(code, Mode::Bits64, 0).expect("whole instructions decode");
    rig.cpu.regs[16] = 0x10_0000;
    let mut step = (decoded.op.run)(&mut rig.cpu, &decoded.op);
    while step == Ok(Flow::Jump) && rig.cpu.rip == 0x10_0000 {
        step = (decoded.op.run)(&mut rig.cpu, &decoded.op);
    }
    let ours = match (&step, rig.cpu.trap) {
        (Ok(_), _) => None,
        (Err(_), Trap::Exception(e)) => Some(e.vector),
        (Err(_), other) => return Some(format!("trapped: {other:?}")),
    };
    let native = match (native, ours) {
        (Ok(n), None) => n,
        (Err(libc::SIGFPE), Some(0)) | (Err(libc::SIGILL), Some(6)) => {
            let same = rig.cpu.regs[..16] == regs.gpr && rig.cpu.rflags() == regs.flags;
            return (!same).then(|| "a fault changed registers".to_owned());
        }
        (Err(libc::SIGSEGV), Some(13 | 14)) => {
            host.scratch().copy_from_slice(&before);
            return None;
        }
        (n, o) => return Some(format!("host {n:x?}, here {o:?}")),
    };
    let mut text = String::new();
    for n in 0..16 {
        if native.gpr[n] != rig.cpu.regs[n] {
            let (theirs, ours) = (native.gpr[n], rig.cpu.regs[n]);
            text += &format!(" r{n}: host {theirs:#x} here {ours:#x}");
        }
    }
    let differ = (native.flags ^ rig.cpu.rflags()) & (flags::ARITH | flags::DF) & !mask;
    if differ != 0 {
        text += &format!(" flags {differ:#x}: host {:#x}", native.flags);
    }
    let mut after = vec![0; SCRATCH_BYTES];
    rig.ram
        .read_slice(&mut after, GuestAddress(SCRATCH))
        .unwrap();
    if after != host.scratch() {
        text += " memory";
    }
    (!text.is_empty()).then_some(text)
}

#[test]
fn integer_instructions_do_as_the_host_does() {
    let rounds: u32 = std::env::var("SOFT_DIFF_ROUNDS")
        .ok()
        .and_then(|s| s.parse().ok())
        .unwrap_or(60_000);
    let seed = std::env::var("SOFT_DIFF_SEED")
        .ok()
        .and_then(|s| s.parse().ok())
        .unwrap_or(7);
    let host = Host::new();
    let mut rig = Rig::long(0x10_0000);
    let mut r = Random(seed);
    for b in host.scratch() {
        *b = r.next() as u8;
    }
    // Warm the TLB as nothing else runs here.
    rig.cpu.run_for(SCRATCH, 8, Access::Write).unwrap();
    let mut seen: BTreeMap<String, u32> = BTreeMap::new();
    let mut failures: BTreeMap<String, String> = BTreeMap::new();
    for _ in 0..rounds {
        let code = bytes(&mut r);
        let mut d = Decoder::with_ip(64, &code, 0, DecoderOptions::NONE);
        let i = d.decode();
        if !wanted(&i) {
            continue;
        }
        let code = &code[..i.len()];
        for _ in 0..3 {
            let Some(regs) = registers(&mut r, &i) else {
                continue;
            };
            let name = format!("{:?}", i.mnemonic());
            *seen.entry(name.clone()).or_default() += 1;
            if let Some(text) = compare(&mut rig, &host, code, &i, &regs) {
                let detail = format!("{:?} {code:02x?}:{text}\n  {regs:x?}", i.code());
                failures.entry(name).or_insert(detail);
            }
        }
    }
    let list: Vec<&String> = failures.values().collect();
    assert!(
        failures.is_empty(),
        "{} mnemonics differ: {list:#?}",
        failures.len()
    );
    if rounds >= 60_000 {
        assert!(
            seen.len() > 60,
            "only {} mnemonics: {:?}",
            seen.len(),
            seen.keys()
        );
    }
}
