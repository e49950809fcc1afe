//! IN and OUT, and the I/O permission check.

use crate::cpu::{Cpu, Flow, IoRequest, R, Step};
use crate::decode::op::Op;
use crate::int::Int;

/// IOPL, else the I/O permission bitmap of the TSS.
pub(crate) fn check_port(cpu: &mut Cpu, port: u16, size: u64) -> R<()> {
    if !cpu.protected() || cpu.cpl <= cpu.iopl() {
        return Ok(());
    }
    // Only the 32-bit and 64-bit TSS have a bitmap; its offset is at 0x66 in both.
    if cpu.tr.attr & 8 == 0 || cpu.tr.limit < 0x67 {
        return Err(cpu.gp(0));
    }
    let (base, limit) = (cpu.tr.base, u64::from(cpu.tr.limit));
    let map = u64::from(cpu.read_system::<u16>(base.wrapping_add(0x66))?);
    let byte = map + u64::from(port >> 3);
    if byte + 1 > limit {
        return Err(cpu.gp(0));
    }
    let bits = cpu.read_system::<u16>(base.wrapping_add(byte))?;
    let mask = (1u16 << size) - 1;
    if bits >> (port & 7) & mask != 0 {
        return Err(cpu.gp(0));
    }
    Ok(())
}

fn port<const DX: bool>(cpu: &Cpu, op: &Op) -> u16 {
    if DX {
        cpu.get::<u16>(2)
    } else {
        u16::from(op.imm as u8)
    }
}

pub(crate) fn input<T: Int, const DX: bool>(cpu: &mut Cpu, op: &Op) -> Step {
    let port = port::<DX>(cpu, op);
    check_port(cpu, port, T::BYTES)?;
    cpu.watch_port(port, T::BYTES)?;
    let v = cpu.request(IoRequest::PortIn {
        port,
        size: T::BYTES as u8,
    })?;
    cpu.set(0, T::cut(v));
    Ok(Flow::Next)
}

pub(crate) fn output<T: Int, const DX: bool>(cpu: &mut Cpu, op: &Op) -> Step {
    let port = port::<DX>(cpu, op);
    check_port(cpu, port, T::BYTES)?;
    cpu.watch_port(port, T::BYTES)?;
    let data = cpu.get::<T>(0).u64() as u32;
    cpu.request(IoRequest::PortOut {
        port,
        size: T::BYTES as u8,
        data,
    })?;
    // The machine may have been stopped or reset by this write.
    cpu.rip = cpu.next_ip(op);
    Ok(Flow::Check)
}
