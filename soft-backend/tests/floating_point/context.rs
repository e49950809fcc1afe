//! The state an instruction is tried with.

use super::random::Random;
use iced_x86::Instruction;
use soft_backend::fpu::FpState;
use soft_backend::fpu::f80::F80;
use soft_backend::fpu::image::FxLayout;

/// Bytes of memory an instruction under test may touch.
pub(crate) const MEM_BYTES: usize = 128;

/// State before and after the instruction; the stub knows the offsets.
#[repr(C, align(64))]
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Context {
    /// FXSAVE64 image.
    pub(crate) fx: [u8; 512],
    /// RAX, RCX, RDX.
    pub(crate) gpr: [u64; 3],
    unused: u64,
    /// RFLAGS after.
    pub(crate) flags_out: u64,
    /// RFLAGS before.
    pub(crate) flags_in: u64,
    mxcsr_default: u64,
    unused2: u64,
    /// RSI and RDI point here.
    pub(crate) mem: [u8; MEM_BYTES],
}

impl Context {
    pub(crate) fn new() -> Self {
        Self {
            fx: [0; 512],
            gpr: [0; 3],
            unused: 0,
            flags_out: 0,
            flags_in: 0x202,
            mxcsr_default: 0x1f80,
            unused2: 0,
            mem: [0; MEM_BYTES],
        }
    }
}

/// Random registers, mostly sensible control words.
pub(crate) fn random_context(r: &mut Random) -> Context {
    let mut s = FpState::default();
    for v in &mut s.xmm {
        *v = r.vector();
    }
    for reg in &mut s.x87.regs {
        *reg = F80::from_bits(r.f80());
    }
    if r.one_in(3) {
        s.x87.regs[1] = s.x87.regs[0];
    }
    s.x87.top = r.below(8) as u8;
    s.x87.in_use = match r.below(5) {
        0 => 0xff,
        1 => r.next() as u8,
        _ => !(1 << ((s.x87.top + 7) & 7)),
    };
    let masks = if r.one_in(3) {
        r.next() as u16 & 0x3f
    } else {
        0x3f
    };
    let precision = [0, 1, 2, 3, 3, 3, 3][r.below(7) as usize];
    s.x87.fcw = masks | precision << 8 | (r.below(4) as u16) << 10 | 0x40;
    s.x87.fsw = r.next() as u16 & (masks | 0x4700) & !(if r.one_in(2) { 0x3f } else { 0 });
    let masks = if r.one_in(4) {
        r.next() as u32 & 0x3f
    } else {
        0x3f
    };
    let flags = match r.below(3) {
        0 => 0,
        1 => 0x20,
        _ => r.next() as u32 & 0x3f,
    };
    let rounding = if r.one_in(2) { 0 } else { r.below(4) as u32 };
    let zeroing = if r.one_in(3) {
        r.next() as u32 & 0x8040
    } else {
        0
    };
    s.mxcsr = masks << 7 | flags | rounding << 13 | zeroing;
    let mut context = Context::new();
    s.fxsave(&mut context.fx, FxLayout::FULL);
    for g in &mut context.gpr {
        *g = r.integer();
    }
    context.flags_in = 0x202 | r.next() & 0x8d5;
    for chunk in context.mem.chunks_exact_mut(16) {
        chunk.copy_from_slice(&r.vector().to_le_bytes());
    }
    context
}

/// Memory that suits the instruction's operand.
pub(crate) fn shape_memory(r: &mut Random, instruction: &Instruction, context: &mut Context) {
    use iced_x86::MemorySize as S;
    let bytes = match instruction.memory_size() {
        S::Float32 => u128::from(r.f32()),
        S::Float64 => u128::from(r.f64()),
        S::Float80 => r.f80(),
        S::Int16 | S::Int32 | S::Int64 => u128::from(r.integer()),
        S::Bcd => {
            let base = if r.one_in(4) { 16 } else { 10 };
            let digits = (0..18).fold(0u128, |v, _| v << 4 | u128::from(r.below(base)));
            digits | u128::from(r.next() & 0x80) << 72
        }
        S::FpuEnv14 | S::FpuEnv28 | S::FpuState94 | S::FpuState108 => {
            for byte in &mut context.mem {
                *byte = r.next() as u8;
            }
            // Nothing may be pending, or the stub's FXSAVE sees other pointers.
            context.mem[0] |= 0x3f;
            return;
        }
        _ => return,
    };
    context.mem[..16].copy_from_slice(&bytes.to_le_bytes());
}
