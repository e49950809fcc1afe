//! MMX and SSE: operands for the functions of [`crate::simd`], and the state-moving instructions
//! that are the core's own.

use std::sync::LazyLock;

use iced_x86::Code;

use crate::cpu::state::{cr0, cr4};
use crate::cpu::{Cpu, Flow, R, Step};
use crate::decode::op::{Op, OpFn};
use crate::fpu::image::{FXSAVE_BYTES, FxLayout};
use crate::int::Int;
use crate::simd::{Exec, Operand, SimdHandler, lookup};

/// Handlers by number; register forms and memory forms are told apart.
static HANDLERS: LazyLock<Vec<SimdHandler>> =
    LazyLock::new(|| all_forms().map(|(_, _, h)| h).collect());
static NUMBERS: LazyLock<std::collections::HashMap<(Code, bool), u16>> = LazyLock::new(|| {
    all_forms()
        .enumerate()
        .map(|(i, (code, memory, _))| ((code, memory), i as u16))
        .collect()
});

fn all_forms() -> impl Iterator<Item = (Code, bool, SimdHandler)> {
    Code::values().flat_map(|code| {
        [false, true]
            .into_iter()
            .filter_map(move |m| lookup(code, m).map(|h| (code, m, h)))
    })
}

/// The number of a handler, for [`Op::tag`].
pub(crate) fn number(code: Code, memory: bool) -> Option<u16> {
    NUMBERS.get(&(code, memory)).copied()
}

/// The function of a handler's plain move between registers and memory, if it is one: they are most of what
/// programs use of SSE.
pub(crate) fn plain_move(number: u16) -> Option<OpFn> {
    use Operand::{Gpr32, Gpr64, Mem, Xmm};
    let h = &HANDLERS[usize::from(number)];
    if !matches!(h.exec, Exec::Copy) {
        return None;
    }
    let mem = |bytes, aligned| Mem { bytes, aligned };
    let forms: [((Operand, Operand), OpFn); 13] = [
        ((Xmm, Xmm), move_xmm),
        ((Xmm, mem(4, false)), load_xmm::<4, false>),
        ((Xmm, mem(8, false)), load_xmm::<8, false>),
        ((Xmm, mem(16, false)), load_xmm::<16, false>),
        ((Xmm, mem(16, true)), load_xmm::<16, true>),
        ((mem(4, false), Xmm), store_xmm::<4, false>),
        ((mem(8, false), Xmm), store_xmm::<8, false>),
        ((mem(16, false), Xmm), store_xmm::<16, false>),
        ((mem(16, true), Xmm), store_xmm::<16, true>),
        ((Xmm, Gpr32), xmm_from_gpr::<u32>),
        ((Xmm, Gpr64), xmm_from_gpr::<u64>),
        ((Gpr32, Xmm), gpr_from_xmm::<u32>),
        ((Gpr64, Xmm), gpr_from_xmm::<u64>),
    ];
    let found = forms.into_iter().find(|(form, _)| *form == (h.dst, h.src));
    found.map(|(_, run)| run)
}

#[inline(always)]
fn check_xmm(cpu: &mut Cpu) -> R<()> {
    if cpu.cr0 & (cr0::EM | cr0::TS) == 0 && cpu.cr4 & cr4::OSFXSR != 0 {
        return Ok(());
    }
    mxcsr_check(cpu)
}

fn move_xmm(cpu: &mut Cpu, op: &Op) -> Step {
    check_xmm(cpu)?;
    cpu.fp.xmm[usize::from(op.dst & 15)] = cpu.fp.xmm[usize::from(op.src & 15)];
    Ok(Flow::Next)
}

fn load_xmm<const BYTES: u8, const ALIGNED: bool>(cpu: &mut Cpu, op: &Op) -> Step {
    check_xmm(cpu)?;
    let at = cpu.simd_address(op, BYTES, ALIGNED, false)?;
    cpu.fp.xmm[usize::from(op.dst & 15)] = cpu.read_wide(at, BYTES)?;
    Ok(Flow::Next)
}

fn store_xmm<const BYTES: u8, const ALIGNED: bool>(cpu: &mut Cpu, op: &Op) -> Step {
    check_xmm(cpu)?;
    let at = cpu.simd_address(op, BYTES, ALIGNED, true)?;
    let v = cpu.fp.xmm[usize::from(op.src & 15)];
    cpu.write_wide(at, BYTES, v)?;
    Ok(Flow::Next)
}

fn xmm_from_gpr<T: Int>(cpu: &mut Cpu, op: &Op) -> Step {
    check_xmm(cpu)?;
    cpu.fp.xmm[usize::from(op.dst & 15)] = cpu.get::<T>(op.src).u64().into();
    Ok(Flow::Next)
}

fn gpr_from_xmm<T: Int>(cpu: &mut Cpu, op: &Op) -> Step {
    check_xmm(cpu)?;
    let v = cpu.fp.xmm[usize::from(op.src & 15)] as u64;
    cpu.set(op.dst, T::cut(v));
    Ok(Flow::Next)
}

/// Whether the form writes RIP-relative or other state that ends a block: none does.
fn check(cpu: &mut Cpu, h: &SimdHandler) -> R<()> {
    let sse = !h.mmx || matches!(h.dst, Operand::Xmm) || matches!(h.src, Operand::Xmm);
    if cpu.cr0 & cr0::EM != 0 || (sse && cpu.cr4 & cr4::OSFXSR == 0) {
        return Err(cpu.ud());
    }
    if cpu.cr0 & cr0::TS != 0 {
        return Err(cpu.raise(7, None));
    }
    if h.mmx && cpu.fp.x87_pending() {
        return Err(cpu.raise(16, None));
    }
    Ok(())
}

#[cold]
fn fault(cpu: &mut Cpu) -> crate::cpu::Trapped {
    const OSXMMEXCPT: u64 = 1 << 10;
    if cpu.cr4 & OSXMMEXCPT != 0 {
        cpu.raise(19, None)
    } else {
        cpu.ud()
    }
}

impl Cpu {
    /// Reads up to 16 bytes, zero-extended.
    #[inline(always)]
    pub(crate) fn read_wide(&mut self, at: u64, bytes: u8) -> R<u128> {
        Ok(match bytes {
            1 => self.read::<u8>(at)?.into(),
            2 => self.read::<u16>(at)?.into(),
            4 => self.read::<u32>(at)?.into(),
            8 => self.read::<u64>(at)?.into(),
            10 => {
                let low = self.read::<u64>(at)?;
                u128::from(low) | u128::from(self.read::<u16>(at.wrapping_add(8))?) << 64
            }
            _ => {
                let (low, high) = match self.run_for(at, 16, crate::mmu::Access::Read)? {
                    Some(p) => (p.load::<u64>(), p.add(8).load::<u64>()),
                    None => (self.read(at)?, self.read(at.wrapping_add(8))?),
                };
                u128::from(low) | u128::from(high) << 64
            }
        })
    }

    /// Writes up to 16 bytes; all or nothing.
    #[inline(always)]
    pub(crate) fn write_wide(&mut self, at: u64, bytes: u8, v: u128) -> R<()> {
        match bytes {
            1 => self.write(at, v as u8),
            2 => self.write(at, v as u16),
            4 => self.write(at, v as u32),
            8 => self.write(at, v as u64),
            n => {
                if let Some(p) = self.run_for(at, u64::from(n), crate::mmu::Access::Write)?
                    && !self.beside_code(at)
                {
                    p.store(v as u64);
                    if n == 10 {
                        p.add(8).store((v >> 64) as u16);
                    } else {
                        p.add(8).store((v >> 64) as u64);
                    }
                    return Ok(());
                }
                self.probe_write(at, u64::from(n))?;
                self.write(at, v as u64)?;
                if n == 10 {
                    self.write(at.wrapping_add(8), (v >> 64) as u16)
                } else {
                    self.write(at.wrapping_add(8), (v >> 64) as u64)
                }
            }
        }
    }

    #[inline(always)]
    fn simd_address(&mut self, op: &Op, bytes: u8, aligned: bool, write: bool) -> R<u64> {
        let at = self.ea_general_wide(op, u64::from(bytes), write)?;
        if aligned && at & u64::from(bytes - 1) != 0 {
            return Err(self.gp(0));
        }
        Ok(at)
    }

    #[inline(always)]
    fn ea_general_wide(&mut self, op: &Op, bytes: u64, write: bool) -> R<u64> {
        if op.mem == crate::decode::op::MEM_FLAT {
            return Ok(self.offset(op));
        }
        self.ea_general(op, bytes, write)
    }
}

/// Runs any instruction that [`crate::simd`] knows; `tag` is its handler.
pub(crate) fn run(cpu: &mut Cpu, op: &Op) -> Step {
    let h = &HANDLERS[op.tag as usize];
    check(cpu, h)?;
    let src = match h.src {
        Operand::None => 0,
        Operand::Xmm => cpu.fp.xmm[(op.src & 15) as usize],
        Operand::Mmx => u128::from(cpu.fp.mmx_read((op.src & 7) as usize)),
        Operand::Gpr32 => u128::from(cpu.get::<u32>(op.src)),
        Operand::Gpr64 => u128::from(cpu.get::<u64>(op.src)),
        Operand::Mem { bytes, aligned } => {
            let at = cpu.simd_address(op, bytes, aligned, false)?;
            cpu.read_wide(at, bytes)?
        }
    };
    let imm = op.imm as u8;
    let dst = op.dst as usize;
    match h.exec {
        Exec::Copy => store(cpu, op, h.dst, src)?,
        Exec::Xmm(f) => f(&mut cpu.fp, dst & 15, src, imm).map_err(|_| fault(cpu))?,
        Exec::Mmx(f) => f(&mut cpu.fp, dst & 7, src, imm).map_err(|_| fault(cpu))?,
        Exec::Value(f) => {
            if let Operand::Mem { bytes, aligned } = h.dst {
                let at = cpu.simd_address(op, bytes, aligned, true)?;
                cpu.probe_write(at, u64::from(bytes))?;
            }
            let v = f(&mut cpu.fp, src, imm).map_err(|_| fault(cpu))?;
            store(cpu, op, h.dst, v)?;
        }
        Exec::Flags(f) => {
            let flags = f(&mut cpu.fp, dst & 15, src).map_err(|_| fault(cpu))?;
            cpu.lazy.set_bits(u64::from(flags));
        }
        Exec::String {
            run,
            explicit,
            wide,
            index,
        } => {
            let a = cpu.fp.xmm[dst & 15];
            let (la, lb) = match (explicit, wide) {
                (true, true) => (cpu.regs[0] as i64, cpu.regs[2] as i64),
                (true, false) => (i64::from(cpu.regs[0] as i32), i64::from(cpu.regs[2] as i32)),
                _ => (0, 0),
            };
            let r = run(a, src, la, lb, imm);
            if index {
                cpu.set(1, r.index);
            } else {
                cpu.fp.xmm[0] = r.mask;
            }
            cpu.lazy.set_bits(u64::from(r.flags));
        }
        Exec::MaskMove(f) => mask_move(cpu, op, h, f, src)?,
        Exec::Emms => cpu.fp.emms(),
    }
    Ok(Flow::Next)
}

fn store(cpu: &mut Cpu, op: &Op, to: Operand, v: u128) -> R<()> {
    match to {
        Operand::None => {}
        Operand::Xmm => cpu.fp.xmm[(op.dst & 15) as usize] = v,
        Operand::Mmx => cpu.fp.mmx_write((op.dst & 7) as usize, v as u64),
        Operand::Gpr32 => cpu.set(op.dst, v as u32),
        Operand::Gpr64 => cpu.set(op.dst, v as u64),
        Operand::Mem { bytes, aligned } => {
            let at = cpu.simd_address(op, bytes, aligned, true)?;
            cpu.write_wide(at, bytes, v)?;
        }
    }
    Ok(())
}

/// MASKMOVQ and MASKMOVDQU store to `[rDI]`, which the decoder made the memory operand.
fn mask_move(
    cpu: &mut Cpu,
    op: &Op,
    h: &SimdHandler,
    f: crate::simd::MaskMoveFn,
    mask: u128,
) -> R<()> {
    let (value, len) = if h.mmx {
        (u128::from(cpu.fp.mmx_read((op.dst & 7) as usize)), 8)
    } else {
        (cpu.fp.xmm[(op.dst & 15) as usize], 16)
    };
    let (bytes, which) = f(value, mask);
    let at = cpu.ea_general_wide(op, len, true)?;
    for i in (0..len).filter(|i| which >> i & 1 != 0) {
        cpu.probe_write(at.wrapping_add(i), 1)?;
    }
    for i in (0..len).filter(|i| which >> i & 1 != 0) {
        cpu.write(at.wrapping_add(i), (bytes >> (8 * i)) as u8)?;
    }
    Ok(())
}

/// MOVNTI: a plain store.
pub(crate) fn movnti<T: Int>(cpu: &mut Cpu, op: &Op) -> Step {
    super::mov::mr::<T>(cpu, op)
}

fn layout(cpu: &Cpu, wide: bool) -> FxLayout {
    FxLayout {
        wide_pointers: wide,
        xmm_count: if cpu.code64() { 16 } else { 8 },
    }
}

fn fx_check(cpu: &mut Cpu, op: &Op, write: bool) -> R<u64> {
    if cpu.cr0 & (cr0::EM | cr0::TS) != 0 {
        return Err(cpu.raise(7, None));
    }
    let at = cpu.ea_general_wide(op, FXSAVE_BYTES as u64, write)?;
    if at & 15 != 0 { Err(cpu.gp(0)) } else { Ok(at) }
}

/// FXSAVE, and FXSAVE64 if `WIDE`.
pub(crate) fn fxsave<const WIDE: bool>(cpu: &mut Cpu, op: &Op) -> Step {
    let at = fx_check(cpu, op, true)?;
    cpu.probe_write(at, FXSAVE_BYTES as u64)?;
    let mut image = [0; FXSAVE_BYTES];
    cpu.read_bytes(at, &mut image)?;
    let layout = layout(cpu, WIDE);
    cpu.fp.fxsave(&mut image, layout);
    cpu.write_bytes(at, &image)?;
    Ok(Flow::Next)
}

pub(crate) fn fxrstor<const WIDE: bool>(cpu: &mut Cpu, op: &Op) -> Step {
    let at = fx_check(cpu, op, false)?;
    let mut image = [0; FXSAVE_BYTES];
    cpu.read_bytes(at, &mut image)?;
    let layout = layout(cpu, WIDE);
    if cpu.fp.fxrstor(&image, layout).is_err() {
        return Err(cpu.gp(0));
    }
    Ok(Flow::Next)
}

fn mxcsr_check(cpu: &mut Cpu) -> R<()> {
    if cpu.cr0 & cr0::EM != 0 || cpu.cr4 & cr4::OSFXSR == 0 {
        return Err(cpu.ud());
    }
    if cpu.cr0 & cr0::TS != 0 {
        Err(cpu.raise(7, None))
    } else {
        Ok(())
    }
}

pub(crate) fn ldmxcsr(cpu: &mut Cpu, op: &Op) -> Step {
    mxcsr_check(cpu)?;
    let at = cpu.ea::<u32>(op, false)?;
    let v = cpu.read::<u32>(at)?;
    if cpu.fp.set_mxcsr(v).is_err() {
        return Err(cpu.gp(0));
    }
    Ok(Flow::Next)
}

pub(crate) fn stmxcsr(cpu: &mut Cpu, op: &Op) -> Step {
    mxcsr_check(cpu)?;
    let at = cpu.ea::<u32>(op, true)?;
    let v = cpu.fp.mxcsr;
    cpu.write(at, v)?;
    Ok(Flow::Next)
}
