//! Loads, stores, exchanges and constants.

use super::arith::operand;
use super::convert::{BCD_INDEFINITE, Stored, from_bcd, integer, narrow, to_bcd};
use super::stack::Answer;
use super::{C1, DE, IE, OE, PE, UE};
use crate::fpu::f80::{Class, F80};
use crate::fpu::round::{Format, Rounding};
use crate::fpu::{FpState, X87};

/// FLD m32/m64 and FILD m16/m32.
pub(super) fn load<const SOURCE: u8>(s: &mut FpState, value: u128) {
    let (value, denormal) = operand::<SOURCE>(value);
    let answer = match value.class() {
        Class::Signalling => Answer::exact(value.quieted(), IE),
        _ => Answer::exact(value, if denormal { DE } else { 0 }),
    };
    s.x87.push_loaded(&answer);
}

/// FILD m64.
pub(super) fn fild64(s: &mut FpState, value: u128) {
    let value = super::convert::from_integer(value as u64 as i64);
    s.x87.push_answer(&Answer::exact(value, 0));
}

/// FLD m80.
pub(super) fn fld80(s: &mut FpState, value: u128) {
    let value = F80::from_bits(value);
    s.x87.push_answer(&Answer::exact(value, 0));
}

/// FBLD.
pub(super) fn fbld(s: &mut FpState, value: u128) {
    s.x87.push_answer(&Answer::exact(from_bcd(value), 0));
}

/// Stores ST(0): `convert` gives bits, flags and whether it was rounded up.
fn store(
    s: &mut FpState,
    pops: bool,
    indefinite: u128,
    convert: impl FnOnce(&X87, F80) -> (u128, u16, bool),
) -> Option<u128> {
    let x = &mut s.x87;
    let bits = if x.is_empty(0) {
        if !x.stack_fault(false) {
            return None;
        }
        indefinite
    } else {
        x.clear_c1();
        let (bits, flags, up) = convert(x, x.get(0));
        let forbidden = flags & (IE | OE | UE) & !x.fcw != 0;
        let flags = if forbidden { flags & !PE } else { flags };
        x.raise(flags);
        if forbidden {
            return None;
        }
        if up && flags & PE != 0 {
            x.fsw |= C1;
        }
        bits
    };
    if pops {
        x.pop();
    }
    Some(bits)
}

fn parts(stored: Stored) -> (u128, u16, bool) {
    (u128::from(stored.bits), stored.flags, stored.up)
}

/// FST/FSTP m32.
pub(super) fn store_f32<const POPS: bool>(s: &mut FpState) -> Option<u128> {
    store(s, POPS, 0xffc0_0000, |x, v| {
        parts(narrow(v, 23, Format::F32, x.policy()))
    })
}

/// FST/FSTP m64.
pub(super) fn store_f64<const POPS: bool>(s: &mut FpState) -> Option<u128> {
    store(s, POPS, 0xfff8 << 48, |x, v| {
        parts(narrow(v, 52, Format::F64, x.policy()))
    })
}

/// FSTP m80.
pub(super) fn store_f80(s: &mut FpState) -> Option<u128> {
    store(s, true, F80::INDEFINITE.to_bits(), |_, v| {
        (v.to_bits(), 0, false)
    })
}

/// FIST/FISTP.
pub(super) fn store_int<const BITS: u32, const POPS: bool>(s: &mut FpState) -> Option<u128> {
    store(s, POPS, 1 << (BITS - 1), |x, v| {
        parts(integer(v, BITS, x.rounding()))
    })
}

/// FISTTP.
pub(super) fn store_truncated<const BITS: u32>(s: &mut FpState) -> Option<u128> {
    store(s, true, 1 << (BITS - 1), |_, v| {
        parts(integer(v, BITS, Rounding::Zero))
    })
}

/// FBSTP.
pub(super) fn fbstp(s: &mut FpState) -> Option<u128> {
    store(s, true, BCD_INDEFINITE, |x, v| to_bcd(v, x.rounding()))
}

/// FLD ST(i).
pub(super) fn fld_sti(s: &mut FpState, i: u8) {
    let x = &mut s.x87;
    let underflow = x.is_empty(i);
    if underflow || !x.is_empty(7) {
        if x.stack_fault(!underflow) {
            x.push(F80::INDEFINITE);
        }
    } else {
        x.clear_c1();
        x.push(x.get(i));
    }
}

/// FST/FSTP ST(i).
pub(super) fn fst_sti<const POPS: bool>(s: &mut FpState, i: u8) {
    let x = &mut s.x87;
    let value = if x.is_empty(0) {
        if !x.stack_fault(false) {
            return;
        }
        F80::INDEFINITE
    } else {
        x.clear_c1();
        x.get(0)
    };
    x.put(i, value);
    if POPS {
        x.pop();
    }
}

/// FSTPNCE: FSTP ST(i), but an empty ST(0) is popped without a fault.
pub(super) fn fstpnce(s: &mut FpState, i: u8) {
    let x = &mut s.x87;
    x.clear_c1();
    if !x.is_empty(0) {
        x.put(i, x.get(0));
    }
    x.pop();
}

/// FXCH.
pub(super) fn fxch(s: &mut FpState, i: u8) {
    let x = &mut s.x87;
    let or_indefinite = |x: &X87, i| {
        if x.is_empty(i) {
            F80::INDEFINITE
        } else {
            x.get(i)
        }
    };
    if x.is_empty(0) || x.is_empty(i) {
        if !x.stack_fault(false) {
            return;
        }
    } else {
        x.clear_c1();
    }
    let (a, b) = (or_indefinite(x, 0), or_indefinite(x, i));
    x.put(0, b);
    x.put(i, a);
}

/// FFREE, FFREEP.
pub(super) fn ffree<const POPS: bool>(s: &mut FpState, i: u8) {
    s.x87.clear_c1();
    s.x87.free(i);
    if POPS {
        s.x87.pop();
    }
}

/// FINCSTP.
pub(super) fn fincstp(s: &mut FpState, _: u8) {
    s.x87.clear_c1();
    s.x87.top = (s.x87.top + 1) & 7;
}

/// FDECSTP.
pub(super) fn fdecstp(s: &mut FpState, _: u8) {
    s.x87.clear_c1();
    s.x87.top = s.x87.top.wrapping_sub(1) & 7;
}

/// FCMOVcc: condition is `rflags & MASK != 0`, or its inverse.
pub(super) fn fcmov<const MASK: u64, const INVERSE: bool>(s: &mut FpState, i: u8, rflags: u64) {
    let x = &mut s.x87;
    if x.is_empty(0) || x.is_empty(i) {
        if x.stack_fault(false) {
            x.put(0, F80::INDEFINITE);
        }
        return;
    }
    if (rflags & MASK != 0) != INVERSE {
        x.put(0, x.get(i));
    }
}

/// A constant with its first 64 bits, truncated, and whether the rest is at least one half.
struct Constant {
    exponent: u16,
    sig: u64,
    rest_above_half: bool,
}

const CONSTANTS: [Constant; 5] = [
    // log2(10)
    Constant {
        exponent: 0x4000,
        sig: 0xd49a_784b_cd1b_8afe,
        rest_above_half: false,
    },
    // log2(e)
    Constant {
        exponent: 0x3fff,
        sig: 0xb8aa_3b29_5c17_f0bb,
        rest_above_half: true,
    },
    // pi
    Constant {
        exponent: 0x4000,
        sig: 0xc90f_daa2_2168_c234,
        rest_above_half: true,
    },
    // log10(2)
    Constant {
        exponent: 0x3ffd,
        sig: 0x9a20_9a84_fbcf_f798,
        rest_above_half: true,
    },
    // ln(2)
    Constant {
        exponent: 0x3ffe,
        sig: 0xb172_17f7_d1cf_79ab,
        rest_above_half: true,
    },
];

/// FLDL2T, FLDL2E, FLDPI, FLDLG2, FLDLN2 (in this order), rounded as the control word says.
pub(super) fn load_constant<const N: usize>(s: &mut FpState, _: u8) {
    let c = &CONSTANTS[N];
    let up = match s.x87.rounding() {
        Rounding::Nearest => c.rest_above_half,
        Rounding::Up => true,
        Rounding::Down | Rounding::Zero => false,
    };
    let value = F80 {
        sig: c.sig + u64::from(up),
        se: c.exponent,
    };
    s.x87.push_answer(&Answer::exact(value, 0));
}

/// FLD1.
pub(super) fn fld1(s: &mut FpState, _: u8) {
    s.x87.push_answer(&Answer::exact(F80::ONE, 0));
}

/// FLDZ.
pub(super) fn fldz(s: &mut FpState, _: u8) {
    s.x87.push_answer(&Answer::exact(F80::ZERO, 0));
}
