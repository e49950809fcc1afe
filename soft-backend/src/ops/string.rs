//! MOVS, STOS, LODS, SCAS, CMPS, INS, OUTS with their REP forms.
//!
//! Progress is in the registers after each element, so a fault or an interrupt between elements
//! resumes the instruction. Forward MOVS and STOS over RAM go a page run at a time.

use crate::cpu::flags::{DF, TF};
use crate::cpu::{Cpu, Flow, IoRequest, R, Step};
use crate::decode::op::{MEM_32, MEM_LIMIT, MEM_SEG, MEM_SIZE, Op};
use crate::int::Int;
use crate::mem::PAGE;
use crate::mem::raw::HostPtr;
use crate::mmu::Access;
use crate::segments::ES;

const RCX: usize = 1;
const RSI: usize = 6;
const RDI: usize = 7;

/// Elements (or page runs) after which the run loop gets a chance to look for interrupts.
const SLICE: u32 = 1024;

/// No prefix, REP or REPE, REPNE: the `REP` parameter.
pub(crate) const ONCE: u8 = 0;
pub(crate) const WHILE_EQUAL: u8 = 1;
pub(crate) const WHILE_UNEQUAL: u8 = 2;

fn address_mask(op: &Op) -> u64 {
    match op.mem & MEM_SIZE {
        0 => u64::MAX,
        MEM_32 => 0xffff_ffff,
        _ => 0xffff,
    }
}

/// Writes an index register in the address size.
fn put(cpu: &mut Cpu, r: usize, mask: u64, v: u64) {
    cpu.regs[r] = if mask == 0xffff {
        cpu.regs[r] & !mask | v & mask
    } else {
        v & mask
    };
}

/// One string instruction in progress.
struct Walk {
    mask: u64,
    step: u64,
    check: bool,
    seg: usize,
}

impl Walk {
    fn new<T: Int>(cpu: &Cpu, op: &Op) -> Self {
        let back = cpu.flag(DF);
        Walk {
            mask: address_mask(op),
            step: if back {
                T::BYTES.wrapping_neg()
            } else {
                T::BYTES
            },
            check: op.mem & MEM_LIMIT != 0,
            seg: (op.mem & MEM_SEG) as usize,
        }
    }

    fn source<T: Int>(&self, cpu: &mut Cpu) -> R<u64> {
        let off = cpu.regs[RSI] & self.mask;
        cpu.linear(self.seg, self.check, off, T::BYTES, false)
    }

    fn dest<T: Int>(&self, cpu: &mut Cpu, write: bool) -> R<u64> {
        let off = cpu.regs[RDI] & self.mask;
        cpu.linear(ES, self.check, off, T::BYTES, write)
    }

    fn advance(&self, cpu: &mut Cpu, r: usize, elements: u64) {
        let v = cpu.regs[r].wrapping_add(self.step.wrapping_mul(elements));
        put(cpu, r, self.mask, v);
    }

    fn count(&self, cpu: &Cpu) -> u64 {
        cpu.regs[RCX] & self.mask
    }

    fn counted(&self, cpu: &mut Cpu, elements: u64) {
        let v = cpu.regs[RCX].wrapping_sub(elements);
        put(cpu, RCX, self.mask, v);
    }
}

/// Runs `element` once or under REP. `element` does as many elements as it likes of at most the
/// given number, advances the indices, and gives the number done and whether to stop.
fn repeat<const REP: u8>(
    cpu: &mut Cpu,
    op: &Op,
    walk: &Walk,
    mut element: impl FnMut(&mut Cpu, &Walk, u64) -> R<(u64, bool)>,
) -> Step {
    if REP == ONCE {
        element(cpu, walk, 1)?;
        return Ok(Flow::Next);
    }
    // A trap comes after each iteration, not after the instruction.
    let stepping = cpu.flag(TF);
    let most = if stepping { 1 } else { u64::MAX };
    for _ in 0..SLICE {
        let left = walk.count(cpu);
        if left == 0 {
            return Ok(Flow::Next);
        }
        let (done, stop) = element(cpu, walk, left.min(most))?;
        walk.counted(cpu, done);
        cpu.forget_replay();
        if stop {
            return Ok(Flow::Next);
        }
        if stepping || cpu.debug.pending != 0 {
            break;
        }
    }
    if walk.count(cpu) == 0 {
        return Ok(Flow::Next);
    }
    cpu.rip = cpu.ip(op);
    Ok(if cpu.leaves_repetition(stepping) {
        Flow::Check
    } else {
        Flow::Jump
    })
}

/// How many elements fit in the page from `at`, at most `left`.
fn in_page<T: Int>(at: u64, left: u64) -> u64 {
    left.min((PAGE - (at & (PAGE - 1))) / T::BYTES)
}

/// With 16- and 32-bit addresses a run must not wrap round the index or leave the limit; the fast
/// path is then only taken where neither can happen.
fn run_ok(walk: &Walk) -> bool {
    walk.mask == u64::MAX && !walk.check && walk.step < PAGE
}

/// Whether a forward copy, element by element, reads what it has written. Told by where the memory is:
/// different linear addresses may be the same page.
fn spreads(src: HostPtr, dst: HostPtr, bytes: u64) -> bool {
    let ahead = dst.addr().wrapping_sub(src.addr()) as u64;
    ahead != 0 && ahead < bytes
}

pub(crate) fn movs<T: Int, const REP: u8>(cpu: &mut Cpu, op: &Op) -> Step {
    let walk = Walk::new::<T>(cpu, op);
    repeat::<REP>(cpu, op, &walk, |cpu, w, left| {
        let from = w.source::<T>(cpu)?;
        let to = w.dest::<T>(cpu, true)?;
        if REP != ONCE && run_ok(w) {
            let n = in_page::<T>(to, in_page::<T>(from, left));
            let bytes = n * T::BYTES;
            if n > 1
                && let Some(src) = cpu.run_for(from, bytes, Access::Read)?
                && let Some(dst) = cpu.run_for(to, bytes, Access::Write)?
                && !cpu.beside_code(to)
                && !spreads(src, dst, bytes)
            {
                src.copy_to(dst, bytes as usize);
                w.advance(cpu, RSI, n);
                w.advance(cpu, RDI, n);
                return Ok((n, false));
            }
        }
        let v = cpu.read::<T>(from)?;
        cpu.write(to, v)?;
        w.advance(cpu, RSI, 1);
        w.advance(cpu, RDI, 1);
        Ok((1, false))
    })
}

pub(crate) fn stos<T: Int, const REP: u8>(cpu: &mut Cpu, op: &Op) -> Step {
    let walk = Walk::new::<T>(cpu, op);
    let v = cpu.get::<T>(0);
    repeat::<REP>(cpu, op, &walk, |cpu, w, left| {
        let to = w.dest::<T>(cpu, true)?;
        if REP != ONCE && run_ok(w) {
            let n = in_page::<T>(to, left);
            if n > 1
                && let Some(dst) = cpu.run_for(to, n * T::BYTES, Access::Write)?
                && !cpu.beside_code(to)
            {
                dst.fill(v, n as usize);
                w.advance(cpu, RDI, n);
                return Ok((n, false));
            }
        }
        cpu.write(to, v)?;
        w.advance(cpu, RDI, 1);
        Ok((1, false))
    })
}

pub(crate) fn lods<T: Int, const REP: u8>(cpu: &mut Cpu, op: &Op) -> Step {
    let walk = Walk::new::<T>(cpu, op);
    repeat::<REP>(cpu, op, &walk, |cpu, w, _| {
        let from = w.source::<T>(cpu)?;
        let v = cpu.read::<T>(from)?;
        cpu.set(0, v);
        w.advance(cpu, RSI, 1);
        Ok((1, false))
    })
}

fn compare<T: Int, const REP: u8>(cpu: &mut Cpu, a: T, b: T) -> bool {
    cpu.lazy
        .set_sub(a, b, T::cut(a.u64().wrapping_sub(b.u64())));
    if REP == WHILE_EQUAL { a != b } else { a == b }
}

pub(crate) fn scas<T: Int, const REP: u8>(cpu: &mut Cpu, op: &Op) -> Step {
    let walk = Walk::new::<T>(cpu, op);
    repeat::<REP>(cpu, op, &walk, |cpu, w, _| {
        let at = w.dest::<T>(cpu, false)?;
        let b = cpu.read::<T>(at)?;
        let a = cpu.get::<T>(0);
        let stop = compare::<T, REP>(cpu, a, b);
        w.advance(cpu, RDI, 1);
        Ok((1, stop))
    })
}

pub(crate) fn cmps<T: Int, const REP: u8>(cpu: &mut Cpu, op: &Op) -> Step {
    let walk = Walk::new::<T>(cpu, op);
    repeat::<REP>(cpu, op, &walk, |cpu, w, _| {
        let from = w.source::<T>(cpu)?;
        let at = w.dest::<T>(cpu, false)?;
        let a = cpu.read::<T>(from)?;
        let b = cpu.read::<T>(at)?;
        let stop = compare::<T, REP>(cpu, a, b);
        w.advance(cpu, RSI, 1);
        w.advance(cpu, RDI, 1);
        Ok((1, stop))
    })
}

pub(crate) fn ins<T: Int, const REP: u8>(cpu: &mut Cpu, op: &Op) -> Step {
    let port = cpu.get::<u16>(2);
    super::io::check_port(cpu, port, T::BYTES)?;
    let walk = Walk::new::<T>(cpu, op);
    repeat::<REP>(cpu, op, &walk, |cpu, w, _| {
        let to = w.dest::<T>(cpu, true)?;
        // The device is read only once the store is known to succeed.
        cpu.probe_write(to, T::BYTES)?;
        cpu.watch_port(port, T::BYTES)?;
        let v = cpu.request(IoRequest::PortIn {
            port,
            size: T::BYTES as u8,
        })?;
        cpu.write(to, T::cut(v))?;
        w.advance(cpu, RDI, 1);
        Ok((1, false))
    })
}

pub(crate) fn outs<T: Int, const REP: u8>(cpu: &mut Cpu, op: &Op) -> Step {
    let port = cpu.get::<u16>(2);
    super::io::check_port(cpu, port, T::BYTES)?;
    let walk = Walk::new::<T>(cpu, op);
    repeat::<REP>(cpu, op, &walk, |cpu, w, _| {
        let from = w.source::<T>(cpu)?;
        let v = cpu.read::<T>(from)?.u64() as u32;
        cpu.watch_port(port, T::BYTES)?;
        cpu.request(IoRequest::PortOut {
            port,
            size: T::BYTES as u8,
            data: v,
        })?;
        w.advance(cpu, RSI, 1);
        Ok((1, false))
    })
}
