//! Both tiers run the same random code: registers, flags, XMM and x87 state, memory, the count of instructions and
//! faults are the same afterwards.

use std::collections::BTreeMap;

use iced_x86::{Decoder, DecoderOptions, FlowControl, Instruction, Mnemonic as M};
use vm_memory::{Bytes, GuestAddress};

use super::random::Random;
use super::rig::{CODE, HANDLER, Rig, TSS};
use crate::block::CodeCache;
use crate::cpu::{Cpu, Trap};
use crate::jit::Jit;
use crate::run::Stop;

const SCRATCH: u64 = 0x30_0000;
const SCRATCH_BYTES: usize = 3 * 4096;
/// Of the handlers.
const STACK: u64 = 0x31_0000;

/// A value likely to be interesting, often one that points into the scratch memory, sometimes over its pages' ends.
fn value(r: &mut Random) -> u64 {
    match r.below(8) {
        0..=3 => r.value(),
        4 => SCRATCH + 4096 - r.below(20),
        _ => SCRATCH + r.below(SCRATCH_BYTES as u64),
    }
}

/// Half of a vector register.
fn lane(r: &mut Random) -> u64 {
    const SPECIAL: [f64; 10] = [
        0.0,
        -0.0,
        1.0,
        -1.5,
        1e300,
        3e-310,
        f64::INFINITY,
        f64::NAN,
        4e9,
        0.1,
    ];
    let special = SPECIAL[r.below(SPECIAL.len() as u64) as usize];
    match r.below(4) {
        0 => value(r),
        1 => {
            let narrow = u64::from((special as f32).to_bits());
            narrow << 32 | u64::from((r.below(1000) as f32 - 500.0).to_bits())
        }
        2 => special.to_bits(),
        _ => (r.below(1 << 20) as f64 / 1024.0).to_bits(),
    }
}

/// Mostly one under which translated code computes, with any flags.
fn mxcsr(r: &mut Random) -> u32 {
    let flags = r.next() as u32 & 0x3f;
    match r.below(8) {
        0 => (r.next() as u32 & 0xffff) | flags,
        1 => 0x1f80 | 0x6000 & r.next() as u32 | flags,
        _ => 0x1f80 | flags,
    }
}

/// Opcodes that programs are made of come more often than others.
fn bytes(r: &mut Random) -> Vec<u8> {
    const COMMON: &[u8] = &[
        0x01, 0x03, 0x09, 0x0b, 0x11, 0x13, 0x19, 0x1b, 0x21, 0x23, 0x29, 0x2b, 0x31, 0x33, 0x39,
        0x3b, 0x38, 0x3a, 0x63, 0x69, 0x6b, 0x80, 0x81, 0x83, 0x84, 0x85, 0x88, 0x89, 0x8a, 0x8b,
        0x8d, 0xc0, 0xc1, 0xc6, 0xc7, 0xc9, 0xd1, 0xd3, 0xf6, 0xf7, 0xfe, 0xff, 0x50, 0x51, 0x54,
        0x58, 0x5a, 0x5c, 0x98, 0x99, 0x05, 0x25, 0x3d, 0xa8, 0xa9, 0xb8, 0xbf, 0x68, 0x6a, 0x86,
        0x87, 0x93, 0x99, 0xd1, 0xd3, 0xc1, 0xf7, 0xf7, 0xff,
    ];
    const COMMON_0F: &[u8] = &[
        0x10, 0x11, 0x28, 0x29, 0x40, 0x42, 0x44, 0x4c, 0x4f, 0x54, 0x57, 0x6e, 0x6f, 0x7e, 0x7f,
        0x90, 0x92, 0x94, 0x9c, 0x9f, 0xa3, 0xa4, 0xa5, 0xac, 0xaf, 0xb6, 0xb7, 0xba, 0xbe, 0xbf,
        0xb8, 0xc1, 0xb1, 0xc8, 0xd6, 0xd7, 0xef, 0xfe, 0x70, 0x72, 0x73, 0x61, 0x62, 0x6c, 0xc6,
        0xd4, 0xeb, 0xdb, 0xfa, 0x12, 0x16, 0x17, 0x13, 0xc4, 0xc5, 0xb0, 0xc0, 0xab, 0xb3, 0xbb,
        0xba, 0xbc, 0xbd, 0x0d, 0x18,
    ];
    const FLOATING: &[u8] = &[
        0x51, 0x58, 0x59, 0x5c, 0x5d, 0x5e, 0x5f, 0x2a, 0x2c, 0x2d, 0x2e, 0x2f, 0x5a, 0x5b, 0xc2,
        0xe6, 0x7c, 0xd0,
    ];
    let mut code = Vec::new();
    match r.below(8) {
        0 | 1 => code.push(0x66),
        2 => code.push(0xf3),
        3 => code.push(0xf2),
        4 if r.below(2) == 0 => code.push([0x64, 0x65, 0xf0][r.below(3) as usize]),
        _ => {}
    }
    if r.below(3) != 0 {
        code.push(0x40 | r.below(16) as u8);
    }
    let pick = |r: &mut Random, list: &[u8]| list[r.below(list.len() as u64) as usize];
    match r.below(10) {
        0..=4 => code.push(pick(r, COMMON)),
        5 | 6 => code.extend([0x0f, pick(r, COMMON_0F)]),
        7 => code.extend([0x0f, pick(r, FLOATING)]),
        8 => code.extend([0x0f, [0x38, 0x3a][r.below(2) as usize], r.next() as u8]),
        _ => code.push(r.next() as u8),
    }
    if r.below(6) == 0 {
        // An address without registers.
        let at = SCRATCH + r.below(SCRATCH_BYTES as u64);
        code.extend([(r.below(8) as u8) << 3 | 4, 0x25]);
        code.extend((at as u32).to_le_bytes());
    }
    for n in 0..10 {
        // Small immediates and displacements.
        let b = r.next();
        code.push(if n > 1 && b >> 8 & 3 != 0 { 0 } else { b as u8 });
    }
    code
}

fn wanted(i: &Instruction) -> bool {
    let repeated = i.is_string_instruction() && (i.has_rep_prefix() || i.has_repne_prefix());
    let excluded = matches!(i.mnemonic(), M::Hlt | M::Pause | M::Cpuid | M::Xgetbv);
    !i.is_invalid()
        && i.flow_control() == FlowControl::Next
        && !i.is_privileged()
        && !excluded
        && !repeated
}

fn one(r: &mut Random) -> Vec<u8> {
    loop {
        let mut code = bytes(r);
        let i = Decoder::with_ip(64, &code, 0, DecoderOptions::NONE).decode();
        if wanted(&i) {
            code.truncate(i.len());
            return code;
        }
    }
}

/// A sequence, some of its instructions skipped by conditional jumps, then HLT. Also what is in it.
fn sequence(r: &mut Random, names: &mut BTreeMap<M, u32>) -> Vec<u8> {
    let mut code = Vec::new();
    for _ in 0..2 + r.below(19) {
        let next = one(r);
        let i = Decoder::with_ip(64, &next, 0, DecoderOptions::NONE).decode();
        *names.entry(i.mnemonic()).or_default() += 1;
        match r.below(8) {
            0 => code.extend([0x70 | r.below(16) as u8, next.len() as u8]),
            1 if r.below(3) == 0 => code.extend([0xe2, next.len() as u8]),
            // CALL over the instruction, JMP over it
            2 if r.below(3) == 0 => code.extend([0xe8, next.len() as u8, 0, 0, 0]),
            3 if r.below(3) == 0 => code.extend([0xeb, next.len() as u8]),
            _ => {}
        }
        code.extend(next);
    }
    code.push(0xf4);
    code
}

/// A machine whose faults end in HLT, on a stack of their own.
fn rig() -> Rig {
    let mut r = Rig::long(CODE);
    r.cache = CodeCache::new();
    r.code(HANDLER, &[0xf4]);
    for vector in 0..32 {
        r.gate(vector, HANDLER, 1, 0);
    }
    r.put64(TSS + 0x24, STACK);
    r
}

#[derive(Clone)]
struct Start {
    regs: [u64; 16],
    xmm: [u128; 16],
    mxcsr: u32,
    flags: u64,
    scratch: Vec<u8>,
}

fn begin(rig: &mut Rig, s: &Start, at: u64) {
    rig.ram
        .write_slice(&s.scratch, GuestAddress(SCRATCH))
        .unwrap();
    let cpu = &mut rig.cpu;
    cpu.regs[..16].copy_from_slice(&s.regs);
    cpu.fp = Default::default();
    cpu.fp.xmm = s.xmm;
    cpu.fp.mxcsr = s.mxcsr;
    cpu.set_rflags(s.flags);
    cpu.rip = at;
    cpu.retired = 0;
    cpu.cr2 = 0;
    cpu.shadow = false;
    cpu.trap = Trap::None;
}

/// What there is to compare.
fn end(rig: &mut Rig, stop: Stop) -> String {
    let mut scratch = vec![0; SCRATCH_BYTES];
    rig.ram
        .read_slice(&mut scratch, GuestAddress(SCRATCH))
        .unwrap();
    let mut stack = [0; 64];
    rig.ram
        .read_slice(&mut stack, GuestAddress(STACK - 64))
        .unwrap();
    let cpu: &Cpu = &rig.cpu;
    let state = (&cpu.regs[..16], cpu.rip, cpu.rflags(), cpu.cr2, cpu.retired);
    let bytes: Vec<(usize, &u8)> = scratch
        .iter()
        .enumerate()
        .filter(|(_, b)| **b != 0)
        .collect();
    format!(
        "{stop:?} {state:x?} {:x?} {stack:x?} {:x?} {bytes:x?}",
        cpu.fp, rig.devices.out
    )
}

fn parse(name: &str) -> Option<u64> {
    std::env::var(name).ok().and_then(|s| s.parse().ok())
}

#[test]
fn translated_code_does_as_the_interpreter_does() {
    compare(Jit::new(1), parse("SOFT_TIERS_SEED").unwrap_or(1));
}

#[test]
fn room_for_a_few_blocks_only_changes_nothing() {
    compare(Jit::with_memory(1, 40 << 10), 77);
}

/// In an optimized build, too, where small functions have several addresses.
#[test]
fn code_with_nops_and_over_a_pages_end_is_translated() {
    if !Jit::is_possible() {
        return;
    }
    // NOP; NOP; ADD EAX, 1; NOP; HLT
    let code = [0x0f, 0x1f, 0x44, 0, 0, 0x90, 0x05, 1, 0, 0, 0, 0x90, 0xf4];
    for (at, blocks) in [(CODE, 1), (CODE + 0xffe, 2), (CODE + 0xff7, 3)] {
        let mut rig = rig();
        rig.cache = CodeCache::new().translating(Some(1));
        rig.code(at, &code);
        rig.cpu.rip = at;
        rig.cpu.regs[0] = 41;
        rig.run();
        assert_eq!(rig.cpu.regs[0], 42);
        assert_eq!(rig.cache.translations(), blocks, "{at:x}");
    }
}

#[test]
fn when_code_is_translated_changes_nothing() {
    let mut r = Random(parse("SOFT_TIERS_SEED").unwrap_or(5));
    let thresholds = [None, Some(1), Some(8), Some(64)];
    let mut rigs = thresholds.map(|after| {
        let mut rig = rig();
        rig.cache = CodeCache::new().translating(after);
        rig
    });
    let mut names = BTreeMap::new();
    for round in 0..30 {
        let code = sequence(&mut r, &mut names);
        let at = CODE + r.below(0x3000);
        for rig in &mut rigs {
            rig.code(at, &code);
        }
        let start = start(&mut r);
        for run in 0..70 {
            let all = rigs.each_mut().map(|rig| {
                begin(rig, &start, at);
                let stop = rig.run();
                end(rig, stop)
            });
            for (other, after) in all.iter().zip(thresholds) {
                let shown = || listing(&code, at);
                assert_eq!(*other, all[0], "{round}.{run} {after:?}\n{}", shown());
            }
        }
    }
    assert!(!Jit::is_possible() || rigs[3].cache.translations() > 0);
}

/// Registers and memory to begin with.
fn start(r: &mut Random) -> Start {
    let mut scratch = vec![0; SCRATCH_BYTES];
    for _ in 0..200 {
        scratch[r.below(SCRATCH_BYTES as u64) as usize] = r.next() as u8;
    }
    let mut start = Start {
        regs: std::array::from_fn(|_| value(r)),
        xmm: std::array::from_fn(|_| u128::from(lane(r)) << 64 | u128::from(lane(r))),
        mxcsr: mxcsr(r),
        flags: 2 | r.next() & 0x8d5,
        scratch,
    };
    // Most code leaves its stack pointer in peace.
    start.regs[4] = SCRATCH + 0x800 + 8 * r.below(512);
    start
}

fn compare(jit: Option<Jit>, seed: u64) {
    // A host without the second tier has nothing to compare.
    let Some(jit) = jit else {
        assert!(!Jit::is_possible());
        return;
    };
    let rounds = parse("SOFT_TIERS_ROUNDS").unwrap_or(3000);
    let mut r = Random(seed);
    let (mut ours, mut theirs) = (rig(), rig());
    ours.cache.jit = Some(jit);
    let mut names = BTreeMap::new();
    for round in 0..rounds {
        let code = sequence(&mut r, &mut names);
        let at = CODE + r.below(0x3000);
        for rig in [&mut ours, &mut theirs] {
            rig.code(at, &code);
        }
        let start = start(&mut r);
        // The second time from flags and registers that came from translated code.
        for _ in 0..2 {
            begin(&mut ours, &start, at);
            begin(&mut theirs, &start, at);
            let (a, b) = (ours.run(), theirs.run());
            let (a, b) = (end(&mut ours, a), end(&mut theirs, b));
            if a != b {
                let shown = listing(&code, at);
                panic!(
                    "round {round}\n{shown}\n{:x?} {:x}\njit {a}\nint {b}",
                    start.regs, start.flags
                );
            }
        }
    }
    assert!(ours.cache.translations() > rounds);
    if rounds >= 3000 {
        assert!(names.len() > 150, "only {} mnemonics", names.len());
    }
}

fn listing(code: &[u8], at: u64) -> String {
    let mut d = Decoder::with_ip(64, code, at, DecoderOptions::NONE);
    let mut text = String::new();
    while d.can_decode() {
        let start = d.position();
        let i = d.decode();
        text += &format!(
            "{:x}: {:?} {:02x?}\n",
            i.ip(),
            i.code(),
            &code[start..d.position()]
        );
    }
    text
}
