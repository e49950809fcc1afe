//! Lane-wise integer instructions: the same function serves MMX and XMM.

#![cfg_attr(target_arch = "x86_64", allow(dead_code))] // twins of host instructions: for tests

#[cfg(any(test, not(target_arch = "x86_64")))]
pub(super) use super::shuffle::{unpack_bytes, unpack_words};

use super::lanes::{
    bytes, dwords, from_dwords, from_qwords, from_words, map8, map16, map32, map64, qwords, words,
};

macro_rules! lanewise {
    ($($name:ident = $map:ident |$a:ident, $b:ident| $body:expr;)*) => {
        $(
            #[inline]
            pub(super) fn $name(a: u128, b: u128) -> u128 {
                $map(a, b, |$a, $b| $body)
            }
        )*
    };
}

const fn all_ones8(set: bool) -> u8 {
    if set { !0 } else { 0 }
}
const fn all_ones16(set: bool) -> u16 {
    if set { !0 } else { 0 }
}
const fn all_ones32(set: bool) -> u32 {
    if set { !0 } else { 0 }
}
const fn all_ones64(set: bool) -> u64 {
    if set { !0 } else { 0 }
}

lanewise! {
    paddb = map8 |a, b| a.wrapping_add(b);
    paddw = map16 |a, b| a.wrapping_add(b);
    paddd = map32 |a, b| a.wrapping_add(b);
    paddq = map64 |a, b| a.wrapping_add(b);
    psubb = map8 |a, b| a.wrapping_sub(b);
    psubw = map16 |a, b| a.wrapping_sub(b);
    psubd = map32 |a, b| a.wrapping_sub(b);
    psubq = map64 |a, b| a.wrapping_sub(b);
    paddusb = map8 |a, b| a.saturating_add(b);
    paddusw = map16 |a, b| a.saturating_add(b);
    psubusb = map8 |a, b| a.saturating_sub(b);
    psubusw = map16 |a, b| a.saturating_sub(b);
    paddsb = map8 |a, b| (a as i8).saturating_add(b as i8) as u8;
    paddsw = map16 |a, b| (a as i16).saturating_add(b as i16) as u16;
    psubsb = map8 |a, b| (a as i8).saturating_sub(b as i8) as u8;
    psubsw = map16 |a, b| (a as i16).saturating_sub(b as i16) as u16;
    pcmpeqb = map8 |a, b| all_ones8(a == b);
    pcmpeqw = map16 |a, b| all_ones16(a == b);
    pcmpeqd = map32 |a, b| all_ones32(a == b);
    pcmpeqq = map64 |a, b| all_ones64(a == b);
    pcmpgtb = map8 |a, b| all_ones8(a as i8 > b as i8);
    pcmpgtw = map16 |a, b| all_ones16(a as i16 > b as i16);
    pcmpgtd = map32 |a, b| all_ones32(a as i32 > b as i32);
    pcmpgtq = map64 |a, b| all_ones64(a as i64 > b as i64);
    pminub = map8 |a, b| a.min(b);
    pmaxub = map8 |a, b| a.max(b);
    pminsw = map16 |a, b| (a as i16).min(b as i16) as u16;
    pmaxsw = map16 |a, b| (a as i16).max(b as i16) as u16;
    pminsb = map8 |a, b| (a as i8).min(b as i8) as u8;
    pmaxsb = map8 |a, b| (a as i8).max(b as i8) as u8;
    pminuw = map16 |a, b| a.min(b);
    pmaxuw = map16 |a, b| a.max(b);
    pminsd = map32 |a, b| (a as i32).min(b as i32) as u32;
    pmaxsd = map32 |a, b| (a as i32).max(b as i32) as u32;
    pminud = map32 |a, b| a.min(b);
    pmaxud = map32 |a, b| a.max(b);
    pavgb = map8 |a, b| (u16::from(a) + u16::from(b)).div_ceil(2) as u8;
    pavgw = map16 |a, b| (u32::from(a) + u32::from(b)).div_ceil(2) as u16;
    pmullw = map16 |a, b| a.wrapping_mul(b);
    pmulhw = map16 |a, b| ((i32::from(a as i16) * i32::from(b as i16)) >> 16) as u16;
    pmulhuw = map16 |a, b| ((u32::from(a) * u32::from(b)) >> 16) as u16;
    pmulhrsw = map16 |a, b| {
        ((((i32::from(a as i16) * i32::from(b as i16)) >> 14) + 1) >> 1) as u16
    };
    pmulld = map32 |a, b| a.wrapping_mul(b);
    pmuludq = map64 |a, b| u64::from(a as u32) * u64::from(b as u32);
    pmuldq = map64 |a, b| (i64::from(a as i32) * i64::from(b as i32)) as u64;
    psignb = map8 |a, b| (a as i8).wrapping_mul((b as i8).signum()) as u8;
    psignw = map16 |a, b| (a as i16).wrapping_mul((b as i16).signum()) as u16;
    psignd = map32 |a, b| (a as i32).wrapping_mul((b as i32).signum()) as u32;
    pabsb = map8 |_a, b| (b as i8).unsigned_abs();
    pabsw = map16 |_a, b| (b as i16).unsigned_abs();
    pabsd = map32 |_a, b| (b as i32).unsigned_abs();
}

#[inline]
pub(super) fn pand(a: u128, b: u128) -> u128 {
    a & b
}

#[inline]
pub(super) fn pandn(a: u128, b: u128) -> u128 {
    !a & b
}

#[inline]
pub(super) fn por(a: u128, b: u128) -> u128 {
    a | b
}

#[inline]
pub(super) fn pxor(a: u128, b: u128) -> u128 {
    a ^ b
}

/// PMADDWD: products of signed words, adjacent ones added.
pub(super) fn pmaddwd(a: u128, b: u128) -> u128 {
    let (a, b) = (words(a), words(b));
    let product = |i: usize| i32::from(a[i] as i16) * i32::from(b[i] as i16);
    from_dwords(std::array::from_fn(|i| {
        product(2 * i).wrapping_add(product(2 * i + 1)) as u32
    }))
}

/// PMADDUBSW: unsigned bytes of `a` times signed bytes of `b`, adjacent ones added with saturation.
pub(super) fn pmaddubsw(a: u128, b: u128) -> u128 {
    let (a, b) = (bytes(a), bytes(b));
    let product = |i: usize| i16::from(a[i]) * i16::from(b[i] as i8);
    from_words(std::array::from_fn(|i| {
        product(2 * i).saturating_add(product(2 * i + 1)) as u16
    }))
}

/// PSADBW: sums of absolute differences of each eight bytes.
pub(super) fn psadbw(a: u128, b: u128) -> u128 {
    let (a, b) = (bytes(a), bytes(b));
    from_qwords(std::array::from_fn(|half| {
        (8 * half..8 * half + 8)
            .map(|i| u64::from(a[i].abs_diff(b[i])))
            .sum()
    }))
}

macro_rules! shifts {
    ($($name:ident = $map:ident $bits:literal |$lane:ident, $count:ident| $body:expr;)*) => {
        $(
            /// Shift by the low 64 bits of the second operand; too much gives zero.
            #[inline]
            pub(super) fn $name(a: u128, count: u128) -> u128 {
                let count = count as u64;
                if count >= $bits {
                    return 0;
                }
                let $count = count as u32;
                $map(a, 0, |$lane, _| $body)
            }
        )*
    };
}

shifts! {
    psrlw = map16 16 |v, n| v >> n;
    psrld = map32 32 |v, n| v >> n;
    psrlq = map64 64 |v, n| v >> n;
    psllw = map16 16 |v, n| v << n;
    pslld = map32 32 |v, n| v << n;
    psllq = map64 64 |v, n| v << n;
}

/// PSRAW; too large a count repeats the sign.
pub(super) fn psraw(a: u128, count: u128) -> u128 {
    let count = (count as u64).min(15) as u32;
    map16(a, 0, |v, _| ((v as i16) >> count) as u16)
}

/// PSRAD; too large a count repeats the sign.
pub(super) fn psrad(a: u128, count: u128) -> u128 {
    let count = (count as u64).min(31) as u32;
    map32(a, 0, |v, _| ((v as i32) >> count) as u32)
}

/// PSRLDQ by bytes.
pub(super) fn psrldq(a: u128, count: u128) -> u128 {
    if count > 15 { 0 } else { a >> (8 * count) }
}

/// PSLLDQ by bytes.
pub(super) fn pslldq(a: u128, count: u128) -> u128 {
    if count > 15 { 0 } else { a << (8 * count) }
}

/// PMOVMSKB.
#[inline]
pub(super) fn pmovmskb(v: u128) -> u128 {
    mask_of(bytes(v).map(|b| b >> 7 != 0))
}

/// MOVMSKPS.
pub(super) fn movmskps(v: u128) -> u128 {
    mask_of(dwords(v).map(|d| d >> 31 != 0))
}

/// MOVMSKPD.
pub(super) fn movmskpd(v: u128) -> u128 {
    mask_of(qwords(v).map(|q| q >> 63 != 0))
}

fn mask_of<const N: usize>(lanes: [bool; N]) -> u128 {
    let bit = |(i, set): (usize, bool)| u32::from(set) << i;
    u128::from(lanes.into_iter().enumerate().map(bit).sum::<u32>())
}

/// PHMINPOSUW: smallest word and its index.
pub(super) fn phminposuw(_: u128, b: u128) -> u128 {
    let lanes = words(b);
    let (index, value) = lanes
        .iter()
        .enumerate()
        .min_by_key(|&(_, value)| value)
        .unwrap_or((0, &0));
    u128::from(*value) | (index as u128) << 16
}

/// MPSADBW.
pub(super) fn mpsadbw(a: u128, b: u128, imm: u8) -> u128 {
    let (a, b) = (bytes(a), bytes(b));
    let first = usize::from(imm >> 2 & 1) * 4;
    let second = usize::from(imm & 3) * 4;
    from_words(std::array::from_fn(|i| {
        (0..4)
            .map(|k| u16::from(a[first + i + k].abs_diff(b[second + k])))
            .sum()
    }))
}
