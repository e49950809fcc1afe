//! Compares the software CPU's floating-point and vector instructions with the host CPU's, bit by bit.
//!
//! Encodings are found by decoding every opcode of the maps, so no instruction is left out.
//! `SMOLVM_FP_ROUNDS` sets the number of operands tried per encoding.
#![cfg(all(target_arch = "x86_64", target_os = "linux"))]

mod core;
mod native;
mod random;

use crate::core::Emulated;
use crate::native::{Context, Native};
use crate::random::Random;
use iced_x86::{Code, CpuidFeature, Decoder, DecoderOptions, Instruction, Mnemonic, OpKind};
use soft_backend::fpu::FpState;
use soft_backend::fpu::f80::F80;
use soft_backend::fpu::image::FxLayout;
use std::collections::BTreeMap;
use std::fmt::Write;

fn rounds(default: u64) -> u64 {
    std::env::var("SMOLVM_FP_ROUNDS")
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(default)
}

#[derive(Clone)]
struct Encoding {
    bytes: Vec<u8>,
    instruction: Instruction,
}

fn decode(bytes: &[u8]) -> Option<Encoding> {
    let instruction = Decoder::new(64, bytes, DecoderOptions::NONE).decode();
    (!instruction.is_invalid()).then(|| Encoding {
        bytes: bytes[..instruction.len()].to_vec(),
        instruction,
    })
}

fn has_feature(code: Code, features: &[CpuidFeature]) -> bool {
    code.cpuid_features().iter().any(|f| features.contains(f))
}

/// Every register number of D8..DF and one memory form each.
fn x87_encodings() -> Vec<Encoding> {
    let mut found = Vec::new();
    for opcode in 0xd8..=0xdf {
        for modrm in (0xc0..=0xff).chain((0..8).map(|reg| reg << 3 | 6)) {
            found.extend(decode(&[opcode, modrm]));
            if modrm < 0xc0 && matches!(opcode, 0xd9 | 0xdd) {
                found.extend(decode(&[0x66, opcode, modrm]));
            }
        }
    }
    found
}

/// Registers 2 (reg) and 1 (r/m), and memory at RSI, for the SSE and MMX opcodes.
fn simd_encodings() -> Vec<Encoding> {
    use CpuidFeature as F;
    let features = [
        F::MMX,
        F::SSE,
        F::SSE2,
        F::SSE3,
        F::SSSE3,
        F::SSE4_1,
        F::SSE4_2,
    ];
    let mut found: BTreeMap<(Code, bool), Encoding> = BTreeMap::new();
    let maps: [&[u8]; 3] = [&[0x0f], &[0x0f, 0x38], &[0x0f, 0x3a]];
    for prefix in [None, Some(0x66), Some(0xf3), Some(0xf2)] {
        for rex in [None, Some(0x48)] {
            for map in maps {
                for opcode in 0..=255u8 {
                    for modrm in (0..8).flat_map(|reg| [0xc1 | reg << 3, 6 | reg << 3]) {
                        let group = map.len() == 1 && matches!(opcode, 0x71..=0x73);
                        if (modrm >> 3 & 7 != 2) && !group {
                            continue;
                        }
                        let bytes: Vec<u8> = prefix
                            .into_iter()
                            .chain(rex)
                            .chain(map.iter().copied())
                            .chain([opcode, modrm, 0])
                            .collect();
                        let Some(e) = decode(&bytes) else { continue };
                        let code = e.instruction.code();
                        if has_feature(code, &features) && !is_core(code) {
                            found.entry((code, modrm < 0xc0)).or_insert(e);
                        }
                    }
                }
            }
        }
    }
    found.into_values().collect()
}

/// Instructions that the contract leaves to the core.
fn is_core(code: Code) -> bool {
    use Mnemonic as M;
    matches!(
        code.mnemonic(),
        M::Prefetchnta
            | M::Prefetcht0
            | M::Prefetcht1
            | M::Prefetcht2
            | M::Lfence
            | M::Mfence
            | M::Sfence
            | M::Crc32
            | M::Movnti
            | M::Fxsave
            | M::Fxsave64
            | M::Fxrstor
            | M::Fxrstor64
            | M::Ldmxcsr
            | M::Stmxcsr
    )
}

#[test]
fn every_instruction_has_a_handler() {
    use CpuidFeature as F;
    let features = [
        F::FPU,
        F::FPU287,
        F::FPU387,
        F::MMX,
        F::SSE,
        F::SSE2,
        F::SSE3,
        F::SSSE3,
        F::SSE4_1,
        F::SSE4_2,
    ];
    // Only the 80287XL and 80387SL have these.
    let obsolete = [
        Code::Fstdw_AX,
        Code::Fstsg_AX,
        Code::Fnstdw_AX,
        Code::Fnstsg_AX,
    ];
    let missing: Vec<Code> = Code::values()
        .filter(|&code| has_feature(code, &features) && !is_core(code))
        .filter(|code| !obsolete.contains(code))
        .filter(|&code| {
            soft_backend::fpu::x87::lookup(code).is_none()
                && soft_backend::simd::lookup(code, false).is_none()
                && soft_backend::simd::lookup(code, true).is_none()
        })
        .collect();
    assert!(missing.is_empty(), "no handler: {missing:?}");
}

fn is_transcendental(code: Code) -> bool {
    matches!(
        code,
        Code::F2xm1
            | Code::Fyl2x
            | Code::Fyl2xp1
            | Code::Fptan
            | Code::Fpatan
            | Code::Fsin
            | Code::Fcos
            | Code::Fsincos
    )
}

fn random_context(r: &mut Random) -> Context {
    let mut s = FpState::default();
    for v in &mut s.xmm {
        *v = r.vector();
    }
    for reg in &mut s.x87.regs {
        *reg = F80::from_bits(r.f80());
    }
    if r.one_in(3) {
        s.x87.regs[1] = s.x87.regs[0];
    }
    s.x87.top = r.below(8) as u8;
    s.x87.in_use = match r.below(5) {
        0 => 0xff,
        1 => r.next() as u8,
        _ => !(1 << ((s.x87.top + 7) & 7)),
    };
    let masks = if r.one_in(3) {
        r.next() as u16 & 0x3f
    } else {
        0x3f
    };
    let precision = [0, 2, 3, 3, 3, 3, 3][r.below(7) as usize];
    s.x87.fcw = masks | precision << 8 | (r.below(4) as u16) << 10 | 0x40;
    s.x87.fsw = r.next() as u16 & (masks | 0x4700) & !(if r.one_in(2) { 0x3f } else { 0 });
    let masks = if r.one_in(4) {
        r.next() as u32 & 0x3f
    } else {
        0x3f
    };
    let flags = match r.below(3) {
        0 => 0,
        1 => 0x20,
        _ => r.next() as u32 & 0x3f,
    };
    let rounding = if r.one_in(2) { 0 } else { r.below(4) as u32 };
    let zeroing = if r.one_in(3) {
        r.next() as u32 & 0x8040
    } else {
        0
    };
    s.mxcsr = masks << 7 | flags | rounding << 13 | zeroing;
    let mut context = Context::new();
    s.fxsave(&mut context.fx, FxLayout::FULL);
    for g in &mut context.gpr {
        *g = r.integer();
    }
    context.flags_in = 0x202 | r.next() & 0x8d5;
    for chunk in context.mem.chunks_exact_mut(16) {
        chunk.copy_from_slice(&r.vector().to_le_bytes());
    }
    context
}

/// Memory that suits the instruction's operand.
fn shape_memory(r: &mut Random, instruction: &Instruction, context: &mut Context) {
    use iced_x86::MemorySize as S;
    let bytes = match instruction.memory_size() {
        S::Float32 => u128::from(r.f32()),
        S::Float64 => u128::from(r.f64()),
        S::Float80 => r.f80(),
        S::Int16 | S::Int32 | S::Int64 => u128::from(r.integer()),
        S::Bcd => {
            let digits = (0..18).fold(0u128, |v, _| v << 4 | u128::from(r.below(10)));
            digits | u128::from(r.next() & 0x80) << 72
        }
        S::FpuEnv14 | S::FpuEnv28 | S::FpuState94 | S::FpuState108 => {
            for byte in &mut context.mem {
                *byte = r.next() as u8;
            }
            // Nothing may be pending, or the stub's FXSAVE sees other pointers.
            context.mem[0] |= 0x3f;
            return;
        }
        _ => return,
    };
    context.mem[..16].copy_from_slice(&bytes.to_le_bytes());
}

/// Blanks the last-instruction pointers, which the core keeps, in an FNSTENV image.
fn blank_pointers(instruction: &Instruction, mem: &mut [u8]) {
    use iced_x86::MemorySize as S;
    match instruction.memory_size() {
        S::FpuEnv14 | S::FpuState94 => mem[6..14].fill(0),
        S::FpuEnv28 | S::FpuState108 => mem[12..28].fill(0),
        _ => {}
    }
}

fn difference(e: &Encoding, native: &Context, faulted: bool, ours: &Emulated) -> Option<String> {
    let mut text = String::new();
    let mut n = FpState::default();
    n.fxrstor(&native.fx, FxLayout::FULL).unwrap();
    let mut o = ours.state.clone();
    for s in [&mut n, &mut o] {
        (s.x87.fop, s.x87.fip, s.x87.fdp, s.x87.fcs, s.x87.fds) = (0, 0, 0, 0, 0);
    }
    let (mut native_mem, mut our_mem) = (native.mem, ours.mem);
    let stores_env = matches!(
        e.instruction.mnemonic(),
        Mnemonic::Fnstenv | Mnemonic::Fnsave
    );
    if stores_env {
        blank_pointers(&e.instruction, &mut native_mem);
        blank_pointers(&e.instruction, &mut our_mem);
    }
    let mut check = |name: &str, native: String, ours: String| {
        if native != ours {
            writeln!(text, "    {name}: native {native} ours {ours}").unwrap();
        }
    };
    for i in 0..16 {
        check(
            &format!("xmm{i}"),
            format!("{:032x}", n.xmm[i]),
            format!("{:032x}", o.xmm[i]),
        );
    }
    let f80 = |v: F80| format!("{:04x}:{:016x}", v.se, v.sig);
    for i in 0..8 {
        check(&format!("R{i}"), f80(n.x87.regs[i]), f80(o.x87.regs[i]));
    }
    check(
        "top/use",
        format!("{}/{:08b}", n.x87.top, n.x87.in_use),
        format!("{}/{:08b}", o.x87.top, o.x87.in_use),
    );
    check(
        "fcw",
        format!("{:04x}", n.x87.fcw),
        format!("{:04x}", o.x87.fcw),
    );
    check(
        "fsw",
        format!("{:04x}", n.x87.fsw),
        format!("{:04x}", o.x87.fsw),
    );
    check(
        "mxcsr",
        format!("{:04x}", n.mxcsr),
        format!("{:04x}", o.mxcsr),
    );
    check(
        "gpr",
        format!("{:x?}", native.gpr),
        format!("{:x?}", ours.gpr),
    );
    let arithmetic = |flags: u64| format!("{:03x}", flags & 0x8d5);
    check(
        "rflags",
        arithmetic(native.flags_out),
        arithmetic(ours.rflags),
    );
    check(
        "mem",
        format!("{native_mem:02x?}"),
        format!("{our_mem:02x?}"),
    );
    check("fault", format!("{faulted}"), format!("{}", ours.faulted));
    (!text.is_empty()).then_some(text)
}

/// Place of a finite value on the number line, in units of the last place.
fn place(v: F80) -> i128 {
    let magnitude = i128::from(v.sig & !(1 << 63)) | i128::from(v.exponent()) << 63;
    if v.negative() { -magnitude } else { magnitude }
}

/// Transcendental results may differ by a unit in the last place, and C1 (the direction of rounding)
/// with them: takes over the host's where it is that close.
fn forgive(native: &Context, ours: &mut Emulated) {
    let mut host = FpState::default();
    host.fxrstor(&native.fx, FxLayout::FULL).unwrap();
    for (theirs, mine) in host.x87.regs.iter().zip(&mut ours.state.x87.regs) {
        if (place(*theirs) - place(*mine)).abs() <= 1 {
            *mine = *theirs;
        }
    }
    const C1: u16 = 1 << 9;
    const SF: u16 = 1 << 6;
    if host.x87.fsw & SF == 0 {
        ours.state.x87.fsw = ours.state.x87.fsw & !C1 | host.x87.fsw & C1;
    }
}

fn describe(context: &Context) -> String {
    let s = Emulated::from_context(context).state;
    let mut text = String::new();
    let x = &s.x87;
    write!(
        text,
        "    before: top {} use {:08b} fcw {:04x} fsw {:04x} mxcsr {:04x} gpr {:x?} mem {:02x?}\n    st",
        x.top,
        x.in_use,
        x.fcw,
        x.fsw,
        s.mxcsr,
        context.gpr,
        &context.mem[..16]
    )
    .unwrap();
    for i in 0..8 {
        let v = x.regs[(usize::from(x.top) + i) & 7];
        write!(text, " {:04x}:{:016x}", v.se, v.sig).unwrap();
    }
    write!(
        text,
        "\n    xmm0 {:032x} xmm1 {:032x} xmm2 {:032x}\n",
        s.xmm[0], s.xmm[1], s.xmm[2]
    )
    .unwrap();
    text
}

/// Tries every encoding with `rounds` random states.
fn compare_all(encodings: &[Encoding], rounds: u64, seed: u64) {
    let native = Native::new();
    let mut report = String::new();
    let mut failures: BTreeMap<String, u64> = BTreeMap::new();
    for (number, encoding) in encodings.iter().enumerate() {
        let mut r = Random::new(seed + number as u64);
        let last = encoding.instruction.op_count().saturating_sub(1);
        let immediate = encoding.instruction.op_count() > 0
            && encoding.instruction.op_kind(last) == OpKind::Immediate8;
        let mut encoding = encoding.clone();
        for _ in 0..rounds {
            if immediate {
                let at = encoding.bytes.len() - 1;
                encoding.bytes[at] = if r.one_in(2) {
                    r.below(20) as u8
                } else {
                    r.next() as u8
                };
                encoding = decode(&encoding.bytes).unwrap();
            }
            let mut context = random_context(&mut r);
            shape_memory(&mut r, &encoding.instruction, &mut context);
            let mut ours = Emulated::from_context(&context);
            ours.execute(&encoding.instruction)
                .unwrap_or_else(|| panic!("no handler for {:?}", encoding.instruction.code()));
            let before = context.clone();
            let faulted = native.run(&encoding.bytes, &mut context);
            if is_transcendental(encoding.instruction.code()) {
                forgive(&context, &mut ours);
            }
            if let Some(text) = difference(&encoding, &context, faulted, &ours) {
                let code = encoding.instruction.code();
                let count = failures.entry(format!("{code:?}")).or_default();
                *count += 1;
                if *count <= 2 {
                    writeln!(
                        report,
                        "{code:?} {:02x?}\n{}{text}",
                        encoding.bytes,
                        describe(&before)
                    )
                    .unwrap();
                }
            }
        }
    }
    assert!(failures.is_empty(), "{report}\n{failures:#?}");
}

#[test]
fn x87_equals_the_host() {
    let encodings: Vec<_> = x87_encodings()
        .into_iter()
        .filter(|e| !is_transcendental(e.instruction.code()))
        .collect();
    assert!(encodings.len() > 400, "{} encodings", encodings.len());
    compare_all(&encodings, rounds(150), 1);
}

fn is_approximate(code: Code) -> bool {
    use Mnemonic as M;
    matches!(
        code.mnemonic(),
        M::Rcpps | M::Rcpss | M::Rsqrtps | M::Rsqrtss
    )
}

#[test]
fn simd_equals_the_host() {
    let encodings: Vec<_> = simd_encodings()
        .into_iter()
        .filter(|e| !is_approximate(e.instruction.code()))
        .collect();
    assert!(encodings.len() > 400, "{} encodings", encodings.len());
    compare_all(&encodings, rounds(150), 2);
}

/// Makers differ in the approximations: both must be within 1.5 * 2^-12 of each other's value, equal for
/// zeros, infinities and NaNs, and raise nothing.
#[test]
fn approximations_are_close_to_the_host() {
    let native = Native::new();
    for encoding in simd_encodings() {
        let code = encoding.instruction.code();
        if !is_approximate(code) {
            continue;
        }
        let mut r = Random::new(3);
        for _ in 0..rounds(2000) {
            let mut context = random_context(&mut r);
            let mut ours = Emulated::from_context(&context);
            ours.execute(&encoding.instruction).unwrap();
            let before = context.clone();
            assert!(!native.run(&encoding.bytes, &mut context));
            let theirs = Emulated::from_context(&context).state;
            assert_eq!(theirs.mxcsr, ours.state.mxcsr);
            for lane in 0..4 {
                let value = |s: &FpState| f32::from_bits((s.xmm[2] >> (32 * lane)) as u32);
                let (a, b) = (value(&theirs), value(&ours.state));
                let flushed = a == 0.0 && b.abs() <= f32::MIN_POSITIVE;
                let close = flushed
                    || (f64::from(a) - f64::from(b)).abs() <= f64::from(a).abs() * 3.0 / 4096.0;
                assert!(
                    a.to_bits() == b.to_bits() || close,
                    "{code:?} lane {lane}: native {a:e} ours {b:e}\n{}",
                    describe(&before)
                );
            }
        }
    }
}

#[test]
fn transcendentals_equal_the_host() {
    let encodings: Vec<_> = x87_encodings()
        .into_iter()
        .filter(|e| is_transcendental(e.instruction.code()))
        .collect();
    compare_all(&encodings, rounds(1000), 4);
}
