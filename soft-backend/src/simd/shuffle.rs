//! Instructions that move lanes: packs, unpacks, shuffles, horizontal sums, inserts, blends.
//!
//! "half" functions make 64 bits from 128: XMM instructions run them on each operand, MMX
//! instructions once on the two 64-bit operands side by side.

use super::lanes::{
    bytes, dwords, from_bytes, from_dwords, from_qwords, from_words, qwords, words,
};

const LOW: u128 = u64::MAX as u128;

/// Runs a half function on both operands.
#[inline]
pub(super) fn each(a: u128, b: u128, half: impl Fn(u128) -> u64) -> u128 {
    u128::from(half(a)) | u128::from(half(b)) << 64
}

/// Runs a half function on two MMX operands.
#[inline]
pub(super) fn paired(a: u128, b: u128, half: impl Fn(u128) -> u64) -> u128 {
    u128::from(half(a & LOW | b << 64))
}

fn low_bytes(lanes: [u8; 8]) -> u64 {
    u64::from_le_bytes(lanes)
}

fn low_words(lanes: [u16; 4]) -> u64 {
    lanes.iter().rev().fold(0, |v, &w| v << 16 | u64::from(w))
}

pub(super) fn packsswb(v: u128) -> u64 {
    low_bytes(words(v).map(|w| (w as i16).clamp(-128, 127) as u8))
}

pub(super) fn packuswb(v: u128) -> u64 {
    low_bytes(words(v).map(|w| (w as i16).clamp(0, 255) as u8))
}

pub(super) fn packssdw(v: u128) -> u64 {
    low_words(dwords(v).map(|d| (d as i32).clamp(-32768, 32767) as u16))
}

pub(super) fn packusdw(v: u128) -> u64 {
    low_words(dwords(v).map(|d| (d as i32).clamp(0, 65535) as u16))
}

fn pair_words(v: u128, f: impl Fn(i16, i16) -> i16) -> u64 {
    let w = words(v);
    low_words(std::array::from_fn(|i| {
        f(w[2 * i] as i16, w[2 * i + 1] as i16) as u16
    }))
}

fn pair_dwords(v: u128, f: impl Fn(u32, u32) -> u32) -> u64 {
    let d = dwords(v);
    u64::from(f(d[0], d[1])) | u64::from(f(d[2], d[3])) << 32
}

pub(super) fn phaddw(v: u128) -> u64 {
    pair_words(v, i16::wrapping_add)
}

pub(super) fn phaddsw(v: u128) -> u64 {
    pair_words(v, i16::saturating_add)
}

pub(super) fn phsubw(v: u128) -> u64 {
    pair_words(v, i16::wrapping_sub)
}

pub(super) fn phsubsw(v: u128) -> u64 {
    pair_words(v, i16::saturating_sub)
}

pub(super) fn phaddd(v: u128) -> u64 {
    pair_dwords(v, u32::wrapping_add)
}

pub(super) fn phsubd(v: u128) -> u64 {
    pair_dwords(v, u32::wrapping_sub)
}

/// Interleaves the low halves, lanes of bytes.
#[cfg_attr(all(target_arch = "x86_64", not(test)), allow(dead_code))] // twin of a host instruction
pub(super) fn unpack_bytes(a: u128, b: u128) -> u128 {
    let (a, b) = (bytes(a), bytes(b));
    from_bytes(std::array::from_fn(|i| {
        if i & 1 == 0 { a[i / 2] } else { b[i / 2] }
    }))
}

/// Interleaves the low halves, lanes of words.
#[cfg_attr(all(target_arch = "x86_64", not(test)), allow(dead_code))] // twin of a host instruction
pub(super) fn unpack_words(a: u128, b: u128) -> u128 {
    let (a, b) = (words(a), words(b));
    from_words(std::array::from_fn(|i| {
        if i & 1 == 0 { a[i / 2] } else { b[i / 2] }
    }))
}

/// Interleaves the low halves, lanes of doublewords.
pub(super) fn unpack_dwords(a: u128, b: u128) -> u128 {
    let (a, b) = (dwords(a), dwords(b));
    from_dwords([a[0], b[0], a[1], b[1]])
}

/// The low quadwords side by side.
pub(super) fn unpack_qwords(a: u128, b: u128) -> u128 {
    a & LOW | b << 64
}

/// PSHUFB; a set top bit gives zero.
pub(super) fn pshufb(a: u128, control: u128) -> u128 {
    let source = bytes(a);
    from_bytes(bytes(control).map(|c| {
        if c & 0x80 != 0 {
            0
        } else {
            source[usize::from(c & 15)]
        }
    }))
}

/// PSHUFB on MMX registers: three index bits.
pub(super) fn pshufb_mmx(a: u128, control: u128) -> u128 {
    pshufb(a & LOW, control & 0x8787_8787_8787_8787)
}

fn select(imm: u8, i: usize) -> usize {
    usize::from(imm >> (2 * i) & 3)
}

pub(super) fn pshufd(_: u128, b: u128, imm: u8) -> u128 {
    let d = dwords(b);
    from_dwords(std::array::from_fn(|i| d[select(imm, i)]))
}

/// PSHUFLW and, on MMX registers, PSHUFW.
pub(super) fn pshuflw(_: u128, b: u128, imm: u8) -> u128 {
    let w = words(b);
    from_words(std::array::from_fn(|i| {
        if i < 4 { w[select(imm, i)] } else { w[i] }
    }))
}

pub(super) fn pshufhw(_: u128, b: u128, imm: u8) -> u128 {
    let w = words(b);
    from_words(std::array::from_fn(|i| {
        if i < 4 {
            w[i]
        } else {
            w[4 + select(imm, i - 4)]
        }
    }))
}

pub(super) fn shufps(a: u128, b: u128, imm: u8) -> u128 {
    let (a, b) = (dwords(a), dwords(b));
    from_dwords(std::array::from_fn(|i| {
        if i < 2 {
            a[select(imm, i)]
        } else {
            b[select(imm, i)]
        }
    }))
}

pub(super) fn shufpd(a: u128, b: u128, imm: u8) -> u128 {
    let (a, b) = (qwords(a), qwords(b));
    from_qwords([a[usize::from(imm & 1)], b[usize::from(imm >> 1 & 1)]])
}

/// PALIGNR: the operands side by side, shifted right by bytes.
pub(super) fn palignr(a: u128, b: u128, imm: u8) -> u128 {
    let shift = u32::from(imm) * 8;
    match shift {
        0 => b,
        1..128 => b >> shift | a << (128 - shift),
        128..256 => a >> (shift - 128),
        _ => 0,
    }
}

/// PALIGNR on MMX registers.
pub(super) fn palignr_mmx(a: u128, b: u128, imm: u8) -> u128 {
    let joined = a << 64 | b & LOW;
    if imm < 16 { joined >> (8 * imm) } else { 0 }
}

pub(super) fn movss(a: u128, b: u128) -> u128 {
    a & !0xffff_ffff | b & 0xffff_ffff
}

pub(super) fn movsd(a: u128, b: u128) -> u128 {
    a & !LOW | b & LOW
}

pub(super) fn movhlps(a: u128, b: u128) -> u128 {
    a & !LOW | b >> 64
}

pub(super) fn movddup(_: u128, b: u128) -> u128 {
    b & LOW | b << 64
}

pub(super) fn movsldup(_: u128, b: u128) -> u128 {
    let d = dwords(b);
    from_dwords([d[0], d[0], d[2], d[2]])
}

pub(super) fn movshdup(_: u128, b: u128) -> u128 {
    let d = dwords(b);
    from_dwords([d[1], d[1], d[3], d[3]])
}

/// Replaces the lane of `bits` bits with number `imm`, taken modulo the number of lanes.
fn insert(a: u128, b: u128, imm: u8, bits: u32) -> u128 {
    let at = u32::from(imm) % (128 / bits) * bits;
    let mask = ((1u128 << bits) - 1) << at;
    a & !mask | b << at & mask
}

pub(super) fn pinsrb(a: u128, b: u128, imm: u8) -> u128 {
    insert(a, b, imm, 8)
}

pub(super) fn pinsrw(a: u128, b: u128, imm: u8) -> u128 {
    insert(a, b, imm, 16)
}

pub(super) fn pinsrw_mmx(a: u128, b: u128, imm: u8) -> u128 {
    insert(a, b, imm & 3, 16)
}

pub(super) fn pinsrd(a: u128, b: u128, imm: u8) -> u128 {
    insert(a, b, imm, 32)
}

pub(super) fn pinsrq(a: u128, b: u128, imm: u8) -> u128 {
    insert(a, b, imm, 64)
}

fn extract(v: u128, imm: u8, bits: u32) -> u128 {
    v >> (u32::from(imm) % (128 / bits) * bits) & ((1u128 << bits) - 1)
}

pub(super) fn pextrb(v: u128, imm: u8) -> u128 {
    extract(v, imm, 8)
}

pub(super) fn pextrw(v: u128, imm: u8) -> u128 {
    extract(v, imm, 16)
}

pub(super) fn pextrw_mmx(v: u128, imm: u8) -> u128 {
    extract(v, imm & 3, 16)
}

pub(super) fn pextrd(v: u128, imm: u8) -> u128 {
    extract(v, imm, 32)
}

pub(super) fn pextrq(v: u128, imm: u8) -> u128 {
    extract(v, imm, 64)
}

/// INSERTPS; `register` tells that the source lane is chosen by the immediate.
pub(super) fn insertps(a: u128, b: u128, imm: u8, register: bool) -> u128 {
    let source = dwords(b)[if register { usize::from(imm >> 6) } else { 0 }];
    let mut lanes = dwords(a);
    lanes[usize::from(imm >> 4 & 3)] = source;
    for (i, lane) in lanes.iter_mut().enumerate() {
        if imm >> i & 1 != 0 {
            *lane = 0;
        }
    }
    from_dwords(lanes)
}

/// Takes lanes of `b` where the selector's bit is set.
fn blend(a: u128, b: u128, imm: u8, bits: u32) -> u128 {
    (0..128 / bits).fold(a, |v, i| {
        if imm >> i & 1 != 0 {
            insert(v, b >> (i * bits), i as u8, bits)
        } else {
            v
        }
    })
}

pub(super) fn pblendw(a: u128, b: u128, imm: u8) -> u128 {
    blend(a, b, imm, 16)
}

pub(super) fn blendps(a: u128, b: u128, imm: u8) -> u128 {
    blend(a, b, imm, 32)
}

pub(super) fn blendpd(a: u128, b: u128, imm: u8) -> u128 {
    blend(a, b, imm, 64)
}

/// Takes lanes of `b` where the lane's top bit in `mask` is set.
pub(super) fn pblendvb(a: u128, b: u128, mask: u128) -> u128 {
    let (a, b, mask) = (bytes(a), bytes(b), bytes(mask));
    from_bytes(std::array::from_fn(|i| {
        if mask[i] >> 7 != 0 { b[i] } else { a[i] }
    }))
}

pub(super) fn blendvps(a: u128, b: u128, mask: u128) -> u128 {
    blendps(a, b, super::integer::movmskps(mask) as u8)
}

pub(super) fn blendvpd(a: u128, b: u128, mask: u128) -> u128 {
    blendpd(a, b, super::integer::movmskpd(mask) as u8)
}

/// Widens the lowest lanes of `from` bits to `to` bits.
pub(super) fn widen<const FROM: u32, const TO: u32, const SIGNED: bool>(v: u128) -> u128 {
    let shift = 64 - FROM;
    (0..128 / TO).fold(0, |out, i| {
        let lane = (v >> (i * FROM)) as u64;
        let lane = if SIGNED {
            ((lane << shift) as i64 >> shift) as u64
        } else {
            lane << shift >> shift
        };
        out | u128::from(lane & (!0 >> (64 - TO))) << (i * TO)
    })
}

/// MASKMOVQ, MASKMOVDQU: store the bytes whose mask byte has the top bit set.
pub(super) fn mask_move(value: u128, mask: u128) -> (u128, u16) {
    (value, super::host::pmovmskb(mask) as u16)
}
