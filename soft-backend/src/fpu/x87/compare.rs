//! Comparisons and classification.

use super::arith::{denormal_flag, operand};
use super::stack::unpack;
use super::{C0, C1, C2, C3, DE, IE};
use crate::fpu::FpState;
use crate::fpu::f80::{Class, F80};
use core::cmp::Ordering;

const CF: u32 = 1;
const PF: u32 = 4;
const ZF: u32 = 64;

/// Order of two values that are neither NaN nor unsupported.
fn order(a: F80, b: F80) -> Ordering {
    let magnitude = |v: F80, c: Class| match c {
        Class::Zero => (i32::MIN, 0),
        Class::Infinity => (i32::MAX, 0),
        _ => {
            let n = unpack(v);
            (n.exponent, n.significand)
        }
    };
    let (ca, cb) = (a.class(), b.class());
    if ca == Class::Zero && cb == Class::Zero {
        return Ordering::Equal;
    }
    match (a.negative(), b.negative()) {
        (false, false) => magnitude(a, ca).cmp(&magnitude(b, cb)),
        (true, true) => magnitude(b, cb).cmp(&magnitude(a, ca)),
        (true, false) => Ordering::Less,
        (false, true) => Ordering::Greater,
    }
}

/// Compares; `None` is unordered. Gives the flags too.
fn compare(a: F80, b: F80, quiet: bool, denormal: bool) -> (Option<Ordering>, u16) {
    let (ca, cb) = (a.class(), b.class());
    let either = |class| ca == class || cb == class;
    if either(Class::Unsupported) || either(Class::Signalling) {
        (None, IE)
    } else if either(Class::Quiet) {
        (None, if quiet { 0 } else { IE })
    } else {
        let flags = denormal_flag(ca, cb) | if denormal { DE } else { 0 };
        (Some(order(a, b)), flags)
    }
}

fn conditions(order: Option<Ordering>) -> u16 {
    match order {
        Some(Ordering::Greater) => 0,
        Some(Ordering::Less) => C0,
        Some(Ordering::Equal) => C3,
        None => C0 | C2 | C3,
    }
}

/// Compares ST(0) with `b` (`None`: empty register), sets the condition codes, pops. An unmasked
/// exception forbids the pop but not the codes.
fn to_codes(s: &mut FpState, b: Option<(F80, bool)>, quiet: bool, pops: u8) {
    let x = &mut s.x87;
    let (order, ok) = match b {
        Some((b, denormal)) if !x.is_empty(0) => {
            x.clear_c1();
            let (order, flags) = compare(x.get(0), b, quiet, denormal);
            (order, x.raise(flags))
        }
        _ => (None, x.stack_fault(false)),
    };
    x.set_condition(C0 | C2 | C3, conditions(order));
    if ok {
        for _ in 0..pops {
            x.pop();
        }
    }
}

fn register(s: &FpState, i: u8) -> Option<(F80, bool)> {
    (!s.x87.is_empty(i)).then(|| (s.x87.get(i), false))
}

/// FCOM, FCOMP, FUCOM, FUCOMP with ST(i).
pub(super) fn fcom<const QUIET: bool, const POPS: u8>(s: &mut FpState, i: u8) {
    let other = register(s, i);
    to_codes(s, other, QUIET, POPS);
}

/// FCOMPP, FUCOMPP.
pub(super) fn fcompp<const QUIET: bool>(s: &mut FpState, _: u8) {
    let other = register(s, 1);
    to_codes(s, other, QUIET, 2);
}

/// FCOM, FCOMP, FICOM, FICOMP with memory.
pub(super) fn fcom_memory<const SOURCE: u8, const POPS: u8>(s: &mut FpState, value: u128) {
    to_codes(s, Some(operand::<SOURCE>(value)), false, POPS);
}

/// FTST.
pub(super) fn ftst(s: &mut FpState, _: u8) {
    to_codes(s, Some((F80::ZERO, false)), false, 0);
}

/// FCOMI, FCOMIP, FUCOMI, FUCOMIP. C1 stays.
pub(super) fn fcomi<const QUIET: bool, const POPS: bool>(s: &mut FpState, i: u8) -> u32 {
    let x = &mut s.x87;
    let (order, ok) = if x.is_empty(0) || x.is_empty(i) {
        (None, x.stack_fault(false))
    } else {
        let (order, flags) = compare(x.get(0), x.get(i), QUIET, false);
        (order, x.raise(flags))
    };
    if POPS && ok {
        x.pop();
    }
    match order {
        Some(Ordering::Greater) => 0,
        Some(Ordering::Less) => CF,
        Some(Ordering::Equal) => ZF,
        None => CF | PF | ZF,
    }
}

/// FXAM.
pub(super) fn fxam(s: &mut FpState, _: u8) {
    let x = &mut s.x87;
    let value = x.get(0);
    let class = if x.is_empty(0) {
        C3 | C0
    } else {
        match value.class() {
            Class::Unsupported => 0,
            Class::Quiet | Class::Signalling => C0,
            Class::Normal => C2,
            Class::Infinity => C2 | C0,
            Class::Zero => C3,
            Class::Denormal => C3 | C2,
        }
    };
    let sign = if value.negative() { C1 } else { 0 };
    x.set_condition(C0 | C1 | C2 | C3, class | sign);
}
