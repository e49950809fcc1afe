//! Encodings of every instruction, found by decoding every opcode of the maps.

use iced_x86::{Code, CpuidFeature, Decoder, DecoderOptions, Instruction, Mnemonic};
use std::collections::BTreeMap;

#[derive(Clone)]
pub(crate) struct Encoding {
    pub(crate) bytes: Vec<u8>,
    pub(crate) instruction: Instruction,
}

pub(crate) fn decode(bytes: &[u8]) -> Option<Encoding> {
    let instruction = Decoder::new(64, bytes, DecoderOptions::NONE).decode();
    (!instruction.is_invalid()).then(|| Encoding {
        bytes: bytes[..instruction.len()].to_vec(),
        instruction,
    })
}

pub(crate) fn has_feature(code: Code, features: &[CpuidFeature]) -> bool {
    code.cpuid_features().iter().any(|f| features.contains(f))
}

/// Every register number of D8..DF and one memory form each.
pub(crate) fn x87_encodings() -> Vec<Encoding> {
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
pub(crate) fn simd_encodings() -> Vec<Encoding> {
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
pub(crate) fn is_core(code: Code) -> bool {
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

pub(crate) fn is_transcendental(code: Code) -> bool {
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

pub(crate) fn is_approximate(code: Code) -> bool {
    use Mnemonic as M;
    matches!(
        code.mnemonic(),
        M::Rcpps | M::Rcpss | M::Rsqrtps | M::Rsqrtss
    )
}
