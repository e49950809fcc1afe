//! SSE floating-point instructions on whole registers, built from one-lane operations.

use super::SimdFault;
use super::lane::Lane;
use super::lanes::{dwords, from_dwords, from_qwords, qwords};
use super::scalar::{
    Mxcsr, Op, arithmetic, compare, compare_mask, extreme, from_int, resize, round_integral, sqrt,
    to_int,
};
use crate::fpu::FpState;
use crate::fpu::round::Rounding;
use core::cmp::Ordering;

const BEFORE: u32 = 7;

/// Sets MXCSR flags; an unmasked one is a fault. Flags found after rounding do not show when one
/// found before forbids the operation.
#[inline]
pub(super) fn raise(s: &mut FpState, flags: u32) -> Result<(), SimdFault> {
    if flags == 0 {
        return Ok(());
    }
    let unmasked = flags & !(s.mxcsr >> 7);
    let shown = if unmasked & BEFORE != 0 {
        flags & BEFORE
    } else {
        flags
    };
    s.mxcsr |= shown & 0x3f;
    if unmasked != 0 {
        Err(SimdFault)
    } else {
        Ok(())
    }
}

/// Maps pairs of lanes of `W` bits; gives all flags.
#[inline]
fn pairs<const W: u32>(a: u128, b: u128, f: impl Fn(u64, u64) -> Lane) -> (u128, u32) {
    let mut flags = 0;
    let mut lane = |a: u64, b: u64| {
        let result = f(a, b);
        flags |= result.flags;
        result.bits
    };
    let value = if W == 32 {
        let (a, b) = (dwords(a), dwords(b));
        from_dwords(std::array::from_fn(|i| {
            lane(a[i].into(), b[i].into()) as u32
        }))
    } else {
        let (a, b) = (qwords(a), qwords(b));
        from_qwords(std::array::from_fn(|i| lane(a[i], b[i])))
    };
    (value, flags)
}

#[inline]
fn low<const W: u32>(v: u128) -> u64 {
    v as u64 & (!0 >> (64 - W))
}

#[inline]
fn with_low<const W: u32>(v: u128, bits: u64) -> u128 {
    let mask = (1u128 << W) - 1;
    v & !mask | u128::from(bits) & mask
}

/// Packed two-operand instruction.
#[inline]
fn packed<const W: u32>(
    s: &mut FpState,
    dst: usize,
    src: u128,
    f: impl Fn(u64, u64, Mxcsr) -> Lane,
) -> Result<(), SimdFault> {
    let mxcsr = Mxcsr(s.mxcsr);
    let (value, flags) = pairs::<W>(s.xmm[dst & 15], src, |a, b| f(a, b, mxcsr));
    raise(s, flags)?;
    s.xmm[dst & 15] = value;
    Ok(())
}

/// Scalar two-operand instruction: the rest of the register stays.
#[inline]
fn scalar<const W: u32>(
    s: &mut FpState,
    dst: usize,
    src: u128,
    f: impl Fn(u64, u64, Mxcsr) -> Lane,
) -> Result<(), SimdFault> {
    let old = s.xmm[dst & 15];
    let lane = f(low::<W>(old), low::<W>(src), Mxcsr(s.mxcsr));
    raise(s, lane.flags)?;
    s.xmm[dst & 15] = with_low::<W>(old, lane.bits);
    Ok(())
}

type Done = Result<(), SimdFault>;

/// Defines the packed and the scalar form of a one-lane operation for both widths.
macro_rules! forms {
    ($($packed:ident $scalar:ident |$a:ident, $b:ident, $imm:ident, $m:ident| $body:expr;)*) => {
        $(
            pub(super) fn $packed<const W: u32>(s: &mut FpState, d: usize, v: u128, $imm: u8) -> Done {
                packed::<W>(s, d, v, |$a, $b, $m| $body)
            }
            pub(super) fn $scalar<const W: u32>(s: &mut FpState, d: usize, v: u128, $imm: u8) -> Done {
                scalar::<W>(s, d, v, |$a, $b, $m| $body)
            }
        )*
    };
}

forms! {
    add_packed add_scalar |a, b, _imm, m| arithmetic::<W>(Op::Add, a, b, m);
    sub_packed sub_scalar |a, b, _imm, m| arithmetic::<W>(Op::Sub, a, b, m);
    mul_packed mul_scalar |a, b, _imm, m| arithmetic::<W>(Op::Mul, a, b, m);
    div_packed div_scalar |a, b, _imm, m| arithmetic::<W>(Op::Div, a, b, m);
    sqrt_packed sqrt_scalar |_a, b, _imm, m| sqrt::<W>(b, m);
    min_packed min_scalar |a, b, _imm, m| extreme::<W>(a, b, false, m);
    max_packed max_scalar |a, b, _imm, m| extreme::<W>(a, b, true, m);
    cmp_packed cmp_scalar |a, b, imm, m| compare_mask::<W>(a, b, imm & 7, m);
    round_packed round_scalar |_a, b, imm, m| round_integral::<W>(b, imm, m);
}

/// Approximate reciprocal or reciprocal square root of one binary32. Architecturally the relative
/// error is below 1.5 * 2^-12 and differs between makers; here the value is the correctly rounded one,
/// equal on all hosts. Denormals count as zero, tiny results become zero, no flags.
fn approximate(bits: u64, square_root: bool) -> Lane {
    let value = f32::from_bits(bits as u32);
    let value = if value.is_subnormal() {
        0.0f32.copysign(value)
    } else {
        value
    };
    let result = if value.is_nan() {
        return Lane {
            bits: bits | 1 << 22,
            flags: 0,
        };
    } else if square_root {
        if value < 0.0 {
            return Lane {
                bits: 0xffc0_0000,
                flags: 0,
            };
        }
        let root = f64::from(value).sqrt();
        (1.0 / root) as f32
    } else {
        let result = 1.0 / value;
        if result.is_subnormal() {
            0.0f32.copysign(result)
        } else {
            result
        }
    };
    Lane {
        bits: u64::from(result.to_bits()),
        flags: 0,
    }
}

/// RCPPS/RSQRTPS.
pub(super) fn approximate_packed<const ROOT: bool>(
    s: &mut FpState,
    d: usize,
    v: u128,
    _: u8,
) -> Done {
    packed::<32>(s, d, v, |_, b, _| approximate(b, ROOT))
}

/// RCPSS/RSQRTSS.
pub(super) fn approximate_scalar<const ROOT: bool>(
    s: &mut FpState,
    d: usize,
    v: u128,
    _: u8,
) -> Done {
    scalar::<32>(s, d, v, |_, b, _| approximate(b, ROOT))
}

/// ADDSUBPS/PD: subtracts in even lanes, adds in odd ones.
pub(super) fn addsub<const W: u32>(s: &mut FpState, d: usize, v: u128, _: u8) -> Done {
    let mxcsr = Mxcsr(s.mxcsr);
    let a = s.xmm[d & 15];
    let lane = |i: u32| {
        let op = if i & 1 == 0 { Op::Sub } else { Op::Add };
        let at = i * W;
        arithmetic::<W>(op, low::<W>(a >> at), low::<W>(v >> at), mxcsr)
    };
    let result = (0..128 / W).fold((0, 0), |(value, flags), i| {
        let lane = lane(i);
        (value | u128::from(lane.bits) << (i * W), flags | lane.flags)
    });
    put(s, d, result)
}

/// HADDPS/PD and HSUBPS/PD.
pub(super) fn horizontal<const W: u32, const SUBTRACT: bool>(
    s: &mut FpState,
    d: usize,
    v: u128,
    _: u8,
) -> Done {
    let (a, b) = (s.xmm[d & 15], v);
    let op = if SUBTRACT { Op::Sub } else { Op::Add };
    let (even, odd) = if W == 32 {
        let (a, b) = (dwords(a), dwords(b));
        (
            from_dwords([a[0], a[2], b[0], b[2]]),
            from_dwords([a[1], a[3], b[1], b[3]]),
        )
    } else {
        let (a, b) = (qwords(a), qwords(b));
        (from_qwords([a[0], b[0]]), from_qwords([a[1], b[1]]))
    };
    let mxcsr = Mxcsr(s.mxcsr);
    let (value, flags) = pairs::<W>(even, odd, |a, b| arithmetic::<W>(op, a, b, mxcsr));
    raise(s, flags)?;
    s.xmm[d & 15] = value;
    Ok(())
}

/// DPPS/DPPD: products chosen by the high half of the immediate, their sum to the lanes in the low half.
pub(super) fn dot<const W: u32>(s: &mut FpState, d: usize, v: u128, imm: u8) -> Done {
    let mxcsr = Mxcsr(s.mxcsr);
    let count = 128 / W;
    let mut flags = 0;
    let mut products = [0u64; 4];
    for i in 0..count {
        if imm >> (4 + i) & 1 != 0 {
            let (a, b) = (s.xmm[d & 15] >> (i * W), v >> (i * W));
            let lane = arithmetic::<W>(Op::Mul, low::<W>(a), low::<W>(b), mxcsr);
            flags |= lane.flags;
            products[i as usize] = lane.bits;
        }
    }
    raise(s, flags)?;
    let sum = if W == 32 {
        let left = arithmetic::<W>(Op::Add, products[0], products[1], mxcsr);
        let right = arithmetic::<W>(Op::Add, products[2], products[3], mxcsr);
        raise(s, left.flags | right.flags)?;
        arithmetic::<W>(Op::Add, left.bits, right.bits, mxcsr)
    } else {
        arithmetic::<W>(Op::Add, products[0], products[1], mxcsr)
    };
    raise(s, sum.flags)?;
    let sum = sum.bits;
    s.xmm[d & 15] = (0..count)
        .filter(|i| imm >> i & 1 != 0)
        .fold(0, |value, i| value | u128::from(sum) << (i * W));
    Ok(())
}

const ZF: u32 = 64;
const PF: u32 = 4;
const CF: u32 = 1;

/// COMISx and UCOMISx.
pub(super) fn comi<const W: u32, const QUIET: bool>(
    s: &mut FpState,
    d: usize,
    v: u128,
) -> Result<u32, SimdFault> {
    let a = low::<W>(s.xmm[d & 15]);
    let (order, flags) = compare::<W>(a, low::<W>(v), Mxcsr(s.mxcsr), QUIET);
    raise(s, flags)?;
    Ok(match order {
        None => ZF | PF | CF,
        Some(Ordering::Greater) => 0,
        Some(Ordering::Less) => CF,
        Some(Ordering::Equal) => ZF,
    })
}

/// PTEST.
pub(super) fn ptest(s: &mut FpState, d: usize, v: u128) -> Result<u32, SimdFault> {
    let a = s.xmm[d & 15];
    let zero = if a & v == 0 { ZF } else { 0 };
    Ok(zero | if !a & v == 0 { CF } else { 0 })
}

fn int_rounding(s: &FpState, truncate: bool) -> Rounding {
    if truncate {
        Rounding::Zero
    } else {
        Mxcsr(s.mxcsr).rounding()
    }
}

/// CVT(T)SS2SI, CVT(T)SD2SI to `BITS` bits.
pub(super) fn to_gpr<const W: u32, const BITS: u32, const TRUNCATE: bool>(
    s: &mut FpState,
    v: u128,
    _: u8,
) -> Result<u128, SimdFault> {
    let rounding = int_rounding(s, TRUNCATE);
    let lane = to_int::<W>(low::<W>(v), BITS, rounding, Mxcsr(s.mxcsr));
    raise(s, lane.flags)?;
    Ok(lane.bits.into())
}

/// CVTSI2SS, CVTSI2SD from `BITS` bits.
pub(super) fn from_gpr<const W: u32, const BITS: u32>(
    s: &mut FpState,
    d: usize,
    v: u128,
    _: u8,
) -> Done {
    let value = if BITS == 32 {
        i64::from(v as u32 as i32)
    } else {
        v as u64 as i64
    };
    scalar::<W>(s, d, 0, |_, _, mxcsr| from_int::<W>(value, mxcsr))
}

/// CVTSS2SD, CVTSD2SS.
pub(super) fn resize_scalar<const FROM: u32, const TO: u32>(
    s: &mut FpState,
    d: usize,
    v: u128,
    _: u8,
) -> Done {
    let source = low::<FROM>(v);
    scalar::<TO>(s, d, 0, |_, _, mxcsr| resize::<FROM, TO>(source, mxcsr))
}

/// Converts `COUNT` lanes of `FROM` bits to lanes of `TO` bits; the rest is zero.
fn convert<const FROM: u32, const TO: u32, const COUNT: u32>(
    v: u128,
    f: impl Fn(u64) -> Lane,
) -> (u128, u32) {
    (0..COUNT).fold((0, 0), |(value, flags), i| {
        let lane = f(low::<FROM>(v >> (i * FROM)));
        (
            value | u128::from(lane.bits) << (i * TO),
            flags | lane.flags,
        )
    })
}

fn put(s: &mut FpState, d: usize, (value, flags): (u128, u32)) -> Done {
    raise(s, flags)?;
    s.xmm[d & 15] = value;
    Ok(())
}

/// CVTPS2PD.
pub(super) fn ps2pd(s: &mut FpState, d: usize, v: u128, _: u8) -> Done {
    let mxcsr = Mxcsr(s.mxcsr);
    put(
        s,
        d,
        convert::<32, 64, 2>(v, |a| resize::<32, 64>(a, mxcsr)),
    )
}

/// CVTPD2PS.
pub(super) fn pd2ps(s: &mut FpState, d: usize, v: u128, _: u8) -> Done {
    let mxcsr = Mxcsr(s.mxcsr);
    put(
        s,
        d,
        convert::<64, 32, 2>(v, |a| resize::<64, 32>(a, mxcsr)),
    )
}

/// CVTDQ2PS.
pub(super) fn dq2ps(s: &mut FpState, d: usize, v: u128, _: u8) -> Done {
    let mxcsr = Mxcsr(s.mxcsr);
    let lane = |a: u64| from_int::<32>(i64::from(a as u32 as i32), mxcsr);
    put(s, d, convert::<32, 32, 4>(v, lane))
}

/// CVTDQ2PD, and CVTPI2PD.
pub(super) fn dq2pd(s: &mut FpState, d: usize, v: u128, _: u8) -> Done {
    let mxcsr = Mxcsr(s.mxcsr);
    let lane = |a: u64| from_int::<64>(i64::from(a as u32 as i32), mxcsr);
    put(s, d, convert::<32, 64, 2>(v, lane))
}

/// CVT(T)PS2DQ.
pub(super) fn ps2dq<const TRUNCATE: bool>(s: &mut FpState, d: usize, v: u128, _: u8) -> Done {
    let (mxcsr, rounding) = (Mxcsr(s.mxcsr), int_rounding(s, TRUNCATE));
    let lane = |a| to_int::<32>(a, 32, rounding, mxcsr);
    put(s, d, convert::<32, 32, 4>(v, lane))
}

/// CVT(T)PD2DQ.
pub(super) fn pd2dq<const TRUNCATE: bool>(s: &mut FpState, d: usize, v: u128, _: u8) -> Done {
    let (mxcsr, rounding) = (Mxcsr(s.mxcsr), int_rounding(s, TRUNCATE));
    let lane = |a| to_int::<64>(a, 32, rounding, mxcsr);
    put(s, d, convert::<64, 32, 2>(v, lane))
}

/// CVTPI2PS: the high half of the register stays.
pub(super) fn pi2ps(s: &mut FpState, d: usize, v: u128, _: u8) -> Done {
    let mxcsr = Mxcsr(s.mxcsr);
    let lane = |a: u64| from_int::<32>(i64::from(a as u32 as i32), mxcsr);
    let (value, flags) = convert::<32, 32, 2>(v, lane);
    raise(s, flags)?;
    s.xmm[d & 15] = with_low::<64>(s.xmm[d & 15], value as u64);
    Ok(())
}

/// CVT(T)PS2PI and CVT(T)PD2PI, as a value for an MMX register.
pub(super) fn to_mmx<const W: u32, const TRUNCATE: bool>(
    s: &mut FpState,
    v: u128,
    _: u8,
) -> Result<u128, SimdFault> {
    let (mxcsr, rounding) = (Mxcsr(s.mxcsr), int_rounding(s, TRUNCATE));
    let (value, flags) = convert::<W, 32, 2>(v, |a| to_int::<W>(a, 32, rounding, mxcsr));
    // The switch to MMX use happens even if the conversion faults.
    s.enter_mmx();
    raise(s, flags)?;
    Ok(value)
}
