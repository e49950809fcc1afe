//! Behaviours that were once wrong here, each with the bits a processor gave.

use super::context::Context;
use super::core::Emulated;
use super::encodings::decode;
use soft_backend::fpu::f80::F80;
use soft_backend::fpu::{FpState, x87};

const DENORMAL: F80 = F80 { sig: 1, se: 0 };

/// Executes `code` on `state`.
fn run(state: FpState, code: &[u8]) -> Emulated {
    let mut machine = Emulated::from_context(&Context::new());
    machine.state = state;
    machine.execute(&decode(code).unwrap().instruction).unwrap();
    machine
}

/// ST(0), ST(1) ... in use, the rest empty.
fn stack(values: &[F80]) -> FpState {
    let mut s = FpState::default();
    for (i, value) in values.iter().enumerate() {
        s.x87.regs[i] = *value;
        s.x87.in_use |= 1 << i;
    }
    s
}

#[test]
fn division_of_a_denormal_by_zero_is_only_a_zero_divide() {
    let s = run(stack(&[DENORMAL, F80::ZERO]), &[0xd8, 0xf1]).state;
    assert_eq!(s.x87.regs[0], F80::infinity(false));
    assert_eq!(s.x87.fsw, x87::ZE);
}

#[test]
fn an_unmasked_invalid_compare_sets_the_codes_but_does_not_pop() {
    let mut before = stack(&[F80::INDEFINITE, F80::ONE]);
    before.x87.fcw &= !x87::IE;
    let s = run(before, &[0xd8, 0xd9]).state;
    assert_eq!(s.x87.top, 0);
    assert_eq!(s.x87.fsw & 0x4700, x87::C0 | x87::C2 | x87::C3);
    assert!(s.x87_pending());
}

#[test]
fn a_load_of_a_denormal_is_pushed_though_the_exception_is_unmasked() {
    let mut machine = Emulated::from_context(&Context::new());
    machine.state.x87.fcw &= !x87::DE;
    machine.mem[0] = 1;
    machine
        .execute(&decode(&[0xd9, 0x06]).unwrap().instruction)
        .unwrap();
    assert_eq!(machine.state.x87.top, 7);
    assert!(machine.state.x87_pending());
}

#[test]
fn copying_an_empty_register_onto_a_full_stack_is_an_underflow() {
    let mut before = stack(&[F80::ONE; 8]);
    before.x87.in_use = 0b1111_1110;
    let s = run(before, &[0xd9, 0xc0]).state;
    assert_eq!(s.x87.fsw & (x87::SF | x87::C1), x87::SF);
}

#[test]
fn fstpnce_pops_an_empty_register_without_a_fault() {
    let s = run(stack(&[]), &[0xd9, 0xd9]).state;
    assert_eq!((s.x87.top, s.x87.fsw, s.x87.in_use), (1, 0, 0));
}

#[test]
fn scaling_far_beyond_the_range_is_infinite_if_overflow_is_unmasked() {
    let huge = F80 {
        sig: !0,
        se: 0x5fec,
    };
    let mut before = stack(&[F80::ONE, huge]);
    before.x87.fcw = 0x0477 & !x87::OE; // rounds down
    let s = run(before, &[0xd9, 0xfd]).state;
    assert_eq!(s.x87.regs[0], F80::infinity(false));
    assert_eq!(s.x87.fsw & 0x3f, x87::OE | x87::PE);
}

#[test]
fn a_remainder_keeps_the_codes_when_there_is_none() {
    let mut before = stack(&[F80::infinity(false), F80::ONE]);
    before.x87.fsw = x87::C0 | x87::C1 | x87::C2 | x87::C3;
    let s = run(before, &[0xd9, 0xf8]).state;
    assert_eq!(s.x87.fsw, x87::C0 | x87::C3 | x87::IE);
}

#[test]
fn a_conversion_to_mmx_that_faults_has_switched_the_registers() {
    let mut before = FpState::default();
    before.xmm[1] = u128::from(f32::NAN.to_bits());
    before.mxcsr &= !0x80;
    before.x87.top = 3;
    let machine = run(before, &[0x0f, 0x2d, 0xc1]);
    assert!(machine.faulted);
    assert_eq!((machine.state.x87.top, machine.state.x87.in_use), (0, 0xff));
}

#[test]
fn large_angles_are_reduced_by_a_pi_of_66_bits() {
    let x = F80 {
        sig: 0xc409_a680_8000_0000,
        se: 0x403c,
    };
    let s = run(stack(&[x]), &[0xd9, 0xfe]).state;
    assert_eq!(
        s.x87.regs[0],
        F80 {
            sig: 0x8478_5c4d_f30f_b208,
            se: 0x3ffd
        }
    );
}

#[test]
fn a_power_of_two_has_a_logarithm_that_counts_as_inexact() {
    let eight = F80 {
        sig: 1 << 63,
        se: 0x4002,
    };
    let s = run(stack(&[eight, F80::ONE]), &[0xd9, 0xf1]).state;
    assert_eq!(s.x87.regs[1].to_bits(), 0x4000_c000_0000_0000_0000);
    assert_eq!(s.x87.fsw, x87::PE);
}

#[test]
fn a_remainder_by_infinity_is_the_dividend_normalised() {
    let pseudo_denormal = F80 {
        sig: 0x8100_0000_0000_0000,
        se: 0x8000,
    };
    let s = run(
        stack(&[pseudo_denormal, F80::infinity(true)]),
        &[0xd9, 0xf8],
    )
    .state;
    assert_eq!(s.x87.regs[0].to_bits(), 0x8001_8100_0000_0000_0000);
    let mut before = stack(&[DENORMAL, F80::infinity(false)]);
    before.x87.fcw &= !x87::UE;
    let s = run(before, &[0xd9, 0xf5]).state;
    assert_eq!(s.x87.fsw & 0x3f, x87::DE | x87::UE);
    assert_eq!(s.x87.regs[0].class(), soft_backend::fpu::f80::Class::Normal);
}
