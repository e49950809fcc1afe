//! Every instruction has a handler, of the right shape, with the same results on every host.

use super::context::{random_context, shape_memory};
use super::core::Emulated;
use super::encodings::{Encoding, has_feature, is_core, simd_encodings, x87_encodings};
use super::random::Random;
use iced_x86::{Code, CpuidFeature, OpKind};
use soft_backend::fpu::image::FxLayout;
use soft_backend::fpu::x87;
use soft_backend::simd::{self, Operand};

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

/// Bytes of memory that the handler says an instruction touches.
fn memory_bytes(encoding: &Encoding) -> usize {
    let code = encoding.instruction.code();
    if let Some(handler) = x87::lookup(code) {
        let format = |small| x87::EnvFormat { small, real: false };
        return match handler.exec {
            x87::Exec::Load { bytes, .. } | x87::Exec::Store { bytes, .. } => bytes.into(),
            x87::Exec::StoreEnv { small } | x87::Exec::LoadEnv { small } => {
                format(small).env_bytes()
            }
            x87::Exec::Save { small } | x87::Exec::Restore { small } => format(small).save_bytes(),
            _ => 0,
        };
    }
    let handler = simd::lookup(code, true).unwrap();
    [handler.dst, handler.src]
        .into_iter()
        .map(|operand| match operand {
            Operand::Mem { bytes, .. } => usize::from(bytes),
            _ => 0,
        })
        .sum()
}

#[test]
fn memory_operands_have_the_decoders_size() {
    let mut seen = 0;
    for encoding in x87_encodings().into_iter().chain(simd_encodings()) {
        let instruction = &encoding.instruction;
        let memory = (0..instruction.op_count()).any(|n| instruction.op_kind(n) == OpKind::Memory);
        if memory {
            seen += 1;
            let expected = instruction.memory_size().size();
            assert_eq!(
                memory_bytes(&encoding),
                expected,
                "{:?}",
                instruction.code()
            );
        }
    }
    assert!(seen > 250, "{seen} memory forms");
}

/// FNV-1a.
fn hash(digest: u64, bytes: &[u8]) -> u64 {
    bytes.iter().fold(digest, |digest, byte| {
        (digest ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

/// The results of a fixed set of operands, which the host comparison found right on x86-64, are the same
/// on every host. A change that is meant to change results changes the constant.
#[test]
fn results_do_not_depend_on_the_host() {
    let mut digest = 0xcbf2_9ce4_8422_2325;
    for (number, encoding) in x87_encodings()
        .into_iter()
        .chain(simd_encodings())
        .enumerate()
    {
        let mut r = Random::new(1000 + number as u64);
        for _ in 0..20 {
            let mut context = random_context(&mut r);
            shape_memory(&mut r, &encoding.instruction, &mut context);
            let mut after = Emulated::from_context(&context);
            after.execute(&encoding.instruction).unwrap();
            let mut image = [0; 512];
            after.state.fxsave(&mut image, FxLayout::FULL);
            digest = hash(digest, &image);
            digest = hash(digest, &after.mem);
            digest = hash(digest, &after.rflags.to_le_bytes());
            for register in after.gpr {
                digest = hash(digest, &register.to_le_bytes());
            }
        }
    }
    assert_eq!(digest, 4_868_614_367_318_191_796);
}
