//! BT, BTS, BTR, BTC, BSF, BSR, TZCNT and LZCNT (which v1 and v2 decode as BSF and BSR), POPCNT,
//! CRC32, MOVBE.

use super::source;
use crate::cpu::{Cpu, Flow, R, Step};
use crate::decode::op::Op;
use crate::int::Int;

/// What happens to the tested bit.
pub(crate) const TEST: u8 = 0;
pub(crate) const SET: u8 = 1;
pub(crate) const RESET: u8 = 2;
pub(crate) const COMPLEMENT: u8 = 3;

#[inline(always)]
fn changed<const WHAT: u8>(v: u64, bit: u64) -> u64 {
    match WHAT {
        SET => v | bit,
        RESET => v & !bit,
        COMPLEMENT => v ^ bit,
        _ => v,
    }
}

fn number<T: Int, const IMM: bool>(cpu: &Cpu, op: &Op) -> u64 {
    if IMM {
        op.imm as u8 as u64
    } else {
        cpu.get::<T>(op.src).sext()
    }
}

pub(crate) fn bt_r<T: Int, const WHAT: u8, const IMM: bool>(cpu: &mut Cpu, op: &Op) -> Step {
    let n = number::<T, IMM>(cpu, op) & u64::from(T::BITS - 1);
    let v = cpu.get::<T>(op.dst).u64();
    if WHAT != TEST {
        cpu.set(op.dst, T::cut(changed::<WHAT>(v, 1 << n)));
    }
    cpu.lazy.put_cf(v >> n & 1 != 0);
    Ok(Flow::Next)
}

/// The address of the unit that holds the bit: a register offset reaches outside the operand.
fn unit<T: Int, const WHAT: u8, const IMM: bool>(cpu: &mut Cpu, op: &Op, n: u64) -> R<u64> {
    if IMM {
        return cpu.ea::<T>(op, WHAT != TEST);
    }
    let units = (n as i64) >> T::BITS.trailing_zeros();
    let moved = Op {
        disp: op.disp.wrapping_add(units.wrapping_mul(T::BYTES as i64)),
        ..*op
    };
    cpu.ea::<T>(&moved, WHAT != TEST)
}

pub(crate) fn bt_m<T: Int, const WHAT: u8, const IMM: bool, const LOCK: bool>(
    cpu: &mut Cpu,
    op: &Op,
) -> Step {
    let n = number::<T, IMM>(cpu, op);
    let at = unit::<T, WHAT, IMM>(cpu, op, n)?;
    let n = n & u64::from(T::BITS - 1);
    let v = if WHAT == TEST {
        cpu.read::<T>(at)?
    } else if LOCK {
        cpu.modify_locked::<T>(at, |_, v| T::cut(changed::<WHAT>(v.u64(), 1 << n)))?
    } else {
        cpu.modify::<T>(at, |_, v| T::cut(changed::<WHAT>(v.u64(), 1 << n)))?
    };
    cpu.lazy.put_cf(v.u64() >> n & 1 != 0);
    Ok(Flow::Next)
}

/// BSF (`BACK` false) and BSR. With a zero source the destination stays as it is.
pub(crate) fn scan<T: Int, const BACK: bool, const MEM: bool>(cpu: &mut Cpu, op: &Op) -> Step {
    let v = source::<T, MEM>(cpu, op)?.u64();
    cpu.lazy.put_zf(v == 0);
    if v != 0 {
        let n = if BACK {
            63 - v.leading_zeros()
        } else {
            v.trailing_zeros()
        };
        cpu.set(op.dst, T::cut(u64::from(n)));
    }
    Ok(Flow::Next)
}

pub(crate) fn popcnt<T: Int, const MEM: bool>(cpu: &mut Cpu, op: &Op) -> Step {
    let v = source::<T, MEM>(cpu, op)?.u64();
    cpu.set(op.dst, T::cut(u64::from(v.count_ones())));
    // Only ZF can be set.
    cpu.lazy
        .set_bits(if v == 0 { crate::cpu::flags::ZF } else { 0 });
    Ok(Flow::Next)
}

/// CRC32 (Castagnoli) of one operand of width `T` into the destination.
pub(crate) fn crc32<T: Int, const MEM: bool>(cpu: &mut Cpu, op: &Op) -> Step {
    const POLY: u32 = 0x82f6_3b78;
    let v = source::<T, MEM>(cpu, op)?.u64();
    let mut crc = cpu.get::<u32>(op.dst);
    for i in 0..T::BYTES {
        crc ^= (v >> (8 * i)) as u8 as u32;
        for _ in 0..8 {
            crc = crc >> 1 ^ if crc & 1 != 0 { POLY } else { 0 };
        }
    }
    cpu.set(op.dst, crc);
    Ok(Flow::Next)
}
