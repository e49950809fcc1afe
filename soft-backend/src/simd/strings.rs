//! PCMPESTRx and PCMPISTRx (Intel SDM volume 2, 4.1).

use super::StringResult;
use super::lanes::{bytes, from_bytes, from_words, words};

const CF: u32 = 1;
const ZF: u32 = 64;
const SF: u32 = 128;
const OF: u32 = 2048;

/// Elements of one operand, widened, and how many are valid.
struct Text {
    lanes: [i32; 16],
    length: usize,
}

fn lanes(v: u128, imm: u8) -> [i32; 16] {
    let (b, w) = (bytes(v), words(v));
    std::array::from_fn(|i| match imm & 3 {
        0 => i32::from(b[i]),
        1 => i32::from(w[i % 8]),
        2 => i32::from(b[i] as i8),
        _ => i32::from(w[i % 8] as i16),
    })
}

fn count(imm: u8) -> usize {
    if imm & 1 == 0 { 16 } else { 8 }
}

/// Explicit lengths: the magnitude, saturated.
pub(super) fn explicit(a: u128, b: u128, len_a: i64, len_b: i64, imm: u8) -> StringResult {
    let text = |v, length: i64| Text {
        lanes: lanes(v, imm),
        length: length.unsigned_abs().min(count(imm) as u64) as usize,
    };
    compare(&text(a, len_a), &text(b, len_b), imm)
}

/// Implicit lengths: up to the first zero element.
pub(super) fn implicit(a: u128, b: u128, _: i64, _: i64, imm: u8) -> StringResult {
    let text = |v| {
        let lanes = lanes(v, imm);
        let valid = &lanes[..count(imm)];
        Text {
            lanes,
            length: valid.iter().position(|&l| l == 0).unwrap_or(valid.len()),
        }
    };
    compare(&text(a), &text(b), imm)
}

/// IntRes1 of the manual, one bit for each element of `b`.
fn aggregate(a: &Text, b: &Text, imm: u8) -> u32 {
    let n = count(imm);
    let any = |j: usize| a.lanes[..a.length].contains(&b.lanes[j]);
    let ranges = |j: usize| {
        a.lanes[..a.length]
            .chunks_exact(2)
            .any(|range| (range[0]..=range[1]).contains(&b.lanes[j]))
    };
    let each = |j: usize| match (j < a.length, j < b.length) {
        (true, true) => a.lanes[j] == b.lanes[j],
        (valid_a, valid_b) => !valid_a && !valid_b,
    };
    let ordered = |j: usize| {
        (0..a.length.min(n - j)).all(|i| j + i < b.length && a.lanes[i] == b.lanes[j + i])
    };
    let holds = |j: usize| match imm >> 2 & 3 {
        0 => j < b.length && any(j),
        1 => j < b.length && ranges(j),
        2 => each(j),
        _ => ordered(j),
    };
    (0..n).fold(0, |bits, j| bits | u32::from(holds(j)) << j)
}

fn compare(a: &Text, b: &Text, imm: u8) -> StringResult {
    let n = count(imm);
    let valid = (1u32 << b.length) - 1;
    let bits = match imm >> 4 & 3 {
        1 => aggregate(a, b, imm) ^ ((1 << n) - 1),
        3 => aggregate(a, b, imm) ^ valid,
        _ => aggregate(a, b, imm),
    };
    let most = imm & 0x40 != 0;
    let index = if bits == 0 {
        n as u32
    } else if most {
        31 - bits.leading_zeros()
    } else {
        bits.trailing_zeros()
    };
    let set = |i: usize| bits >> i & 1 != 0;
    let mask = match (most, n) {
        (false, _) => bits.into(),
        (true, 16) => from_bytes(std::array::from_fn(|i| if set(i) { !0 } else { 0 })),
        (true, _) => from_words(std::array::from_fn(|i| if set(i) { !0 } else { 0 })),
    };
    let flag = |holds, flag| if holds { flag } else { 0 };
    StringResult {
        index,
        mask,
        flags: flag(bits != 0, CF)
            | flag(b.length < n, ZF)
            | flag(a.length < n, SF)
            | flag(bits & 1 != 0, OF),
    }
}
