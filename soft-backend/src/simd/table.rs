//! From instruction code to handler.

use super::{Exec, Operand, SimdFault, SimdHandler, StringFn, XmmFn, shuffle};
use super::{table_float, table_integer, table_move};
use iced_x86::Code;

const fn copy(dst: Operand, src: Operand) -> SimdHandler {
    SimdHandler {
        dst,
        src,
        exec: Exec::Copy,
        mmx: matches!(dst, Operand::Mmx) || matches!(src, Operand::Mmx),
    }
}

fn moves(code: Code, memory: bool) -> Option<SimdHandler> {
    use Code as C;
    use Operand::{Gpr32, Gpr64, Mem, Mmx, Xmm};
    let mem = |bytes, aligned| Mem { bytes, aligned };
    let or = |register, bytes, aligned| {
        if memory {
            mem(bytes, aligned)
        } else {
            register
        }
    };
    Some(match code {
        C::Movaps_xmm_xmmm128 | C::Movapd_xmm_xmmm128 | C::Movdqa_xmm_xmmm128 => {
            copy(Xmm, or(Xmm, 16, true))
        }
        C::Movups_xmm_xmmm128 | C::Movupd_xmm_xmmm128 | C::Movdqu_xmm_xmmm128 => {
            copy(Xmm, or(Xmm, 16, false))
        }
        C::Movaps_xmmm128_xmm | C::Movapd_xmmm128_xmm | C::Movdqa_xmmm128_xmm => {
            copy(or(Xmm, 16, true), Xmm)
        }
        C::Movups_xmmm128_xmm | C::Movupd_xmmm128_xmm | C::Movdqu_xmmm128_xmm => {
            copy(or(Xmm, 16, false), Xmm)
        }
        C::Movntps_m128_xmm | C::Movntpd_m128_xmm | C::Movntdq_m128_xmm => copy(mem(16, true), Xmm),
        C::Movntdqa_xmm_m128 => copy(Xmm, mem(16, true)),
        C::Lddqu_xmm_m128 => copy(Xmm, mem(16, false)),
        C::Movss_xmm_xmmm32 if memory => copy(Xmm, mem(4, false)),
        C::Movsd_xmm_xmmm64 if memory => copy(Xmm, mem(8, false)),
        C::Movss_xmmm32_xmm if memory => copy(mem(4, false), Xmm),
        C::Movsd_xmmm64_xmm if memory => copy(mem(8, false), Xmm),
        C::Movlps_m64_xmm | C::Movlpd_m64_xmm => copy(mem(8, false), Xmm),
        C::Movd_xmm_rm32 => copy(Xmm, or(Gpr32, 4, false)),
        C::Movq_xmm_rm64 => copy(Xmm, or(Gpr64, 8, false)),
        C::Movd_rm32_xmm => copy(or(Gpr32, 4, false), Xmm),
        C::Movq_rm64_xmm => copy(or(Gpr64, 8, false), Xmm),
        C::Movd_mm_rm32 => copy(Mmx, or(Gpr32, 4, false)),
        C::Movq_mm_rm64 => copy(Mmx, or(Gpr64, 8, false)),
        C::Movd_rm32_mm => copy(or(Gpr32, 4, false), Mmx),
        C::Movq_rm64_mm => copy(or(Gpr64, 8, false), Mmx),
        C::Movq_mm_mmm64 => copy(Mmx, or(Mmx, 8, false)),
        C::Movq_mmm64_mm => copy(or(Mmx, 8, false), Mmx),
        C::Movntq_m64_mm => copy(mem(8, false), Mmx),
        C::Movdq2q_mm_xmm => copy(Mmx, Xmm),
        C::Movq2dq_xmm_mm => copy(Xmm, Mmx),
        C::Movq_xmm_xmmm64 if memory => copy(Xmm, mem(8, false)),
        C::Movq_xmmm64_xmm if memory => copy(mem(8, false), Xmm),
        C::Emms => SimdHandler {
            dst: Operand::None,
            src: Operand::None,
            exec: Exec::Emms,
            mmx: true,
        },
        _ => return None,
    })
}

/// Unaligned memory of so many bytes.
pub(super) const fn mem(bytes: u8) -> Operand {
    Operand::Mem {
        bytes,
        aligned: false,
    }
}

/// A register, or 1 to 8 bytes of unaligned memory, or 16 of aligned memory.
pub(super) const fn or(register: Operand, bytes: u8, memory: bool) -> Operand {
    if memory {
        Operand::Mem {
            bytes,
            aligned: bytes == 16,
        }
    } else {
        register
    }
}

/// XMM destination, any source.
pub(super) const fn from(src: Operand, run: XmmFn) -> SimdHandler {
    SimdHandler {
        dst: Operand::Xmm,
        src,
        exec: Exec::Xmm(run),
        mmx: matches!(src, Operand::Mmx),
    }
}

/// XMM destination; XMM or 16 bytes of memory.
pub(super) const fn full(memory: bool, run: XmmFn) -> SimdHandler {
    from(or(Operand::Xmm, 16, memory), run)
}

/// XMM destination; XMM or fewer bytes of memory.
pub(super) const fn part(memory: bool, bytes: u8, run: XmmFn) -> SimdHandler {
    from(or(Operand::Xmm, bytes, memory), run)
}

/// MMX destination.
pub(super) const fn into_mmx(src: Operand, run: super::MmxFn) -> SimdHandler {
    SimdHandler {
        dst: Operand::Mmx,
        src,
        exec: Exec::Mmx(run),
        mmx: true,
    }
}

/// A computed value.
pub(super) const fn value(dst: Operand, src: Operand, run: super::ValueFn) -> SimdHandler {
    SimdHandler {
        dst,
        src,
        exec: Exec::Value(run),
        mmx: matches!(dst, Operand::Mmx) || matches!(src, Operand::Mmx),
    }
}

/// A comparison.
pub(super) const fn flags(memory: bool, bytes: u8, run: super::FlagsFn) -> SimdHandler {
    SimdHandler {
        dst: Operand::Xmm,
        src: or(Operand::Xmm, bytes, memory),
        exec: Exec::Flags(run),
        mmx: false,
    }
}

/// Lets a macro call a function or a closure alike.
#[inline]
pub(super) fn apply(f: impl Fn(u128, u128) -> u128, a: u128, b: u128) -> u128 {
    f(a, b)
}

/// Binary operation on XMM registers: a function of both operands.
macro_rules! xmm {
    ($memory:expr, $f:expr) => {
        $crate::simd::table::full($memory, |s, d, v, _| {
            s.xmm[d & 15] = $crate::simd::table::apply($f, s.xmm[d & 15], v);
            Ok(())
        })
    };
}

/// Binary operation on MMX registers.
macro_rules! mmx {
    ($memory:expr, $bytes:literal, $f:expr) => {
        $crate::simd::table::into_mmx(
            $crate::simd::table::or($crate::simd::Operand::Mmx, $bytes, $memory),
            |s, d, v, _| {
                let old = u128::from(s.mmx_read(d));
                s.mmx_write(d, $crate::simd::table::apply($f, old, v) as u64);
                Ok(())
            },
        )
    };
}

pub(super) use {mmx, xmm};

fn string(memory: bool, run: StringFn, explicit: bool, wide: bool, index: bool) -> SimdHandler {
    SimdHandler {
        dst: Operand::Xmm,
        src: Operand::Xmm,
        exec: Exec::String {
            run,
            explicit,
            wide,
            index,
        },
        mmx: false,
    }
    .with_source(memory)
}

impl SimdHandler {
    /// The string instructions take misaligned memory.
    fn with_source(self, memory: bool) -> Self {
        Self {
            src: if memory { mem(16) } else { Operand::Xmm },
            ..self
        }
    }
}

fn insertps_register(
    s: &mut crate::fpu::FpState,
    d: usize,
    v: u128,
    imm: u8,
) -> Result<(), SimdFault> {
    s.xmm[d & 15] = shuffle::insertps(s.xmm[d & 15], v, imm, true);
    Ok(())
}

fn insertps_memory(
    s: &mut crate::fpu::FpState,
    d: usize,
    v: u128,
    imm: u8,
) -> Result<(), SimdFault> {
    s.xmm[d & 15] = shuffle::insertps(s.xmm[d & 15], v, imm, false);
    Ok(())
}

fn insertps(memory: bool) -> SimdHandler {
    let run = if memory {
        insertps_memory
    } else {
        insertps_register
    };
    part(memory, 4, run)
}

fn strings(code: Code, m: bool) -> Option<SimdHandler> {
    use super::strings;
    use Code as C;
    Some(match code {
        C::Pcmpestri_xmm_xmmm128_imm8 => string(m, strings::explicit, true, false, true),
        C::Pcmpestri64_xmm_xmmm128_imm8 => string(m, strings::explicit, true, true, true),
        C::Pcmpestrm_xmm_xmmm128_imm8 => string(m, strings::explicit, true, false, false),
        C::Pcmpestrm64_xmm_xmmm128_imm8 => string(m, strings::explicit, true, true, false),
        C::Pcmpistri_xmm_xmmm128_imm8 => string(m, strings::implicit, false, false, true),
        C::Pcmpistrm_xmm_xmmm128_imm8 => string(m, strings::implicit, false, false, false),
        C::Insertps_xmm_xmmm32_imm8 => insertps(m),
        _ => return None,
    })
}

/// Handler of an MMX or SSE instruction; `memory` tells whether one of its operands is in memory.
/// `None` if `code` is not one, or belongs to the core (see [`crate::fpu`]).
#[must_use]
pub fn lookup(code: Code, memory: bool) -> Option<SimdHandler> {
    moves(code, memory)
        .or_else(|| table_integer::lookup(code, memory))
        .or_else(|| table_move::lookup(code, memory))
        .or_else(|| table_float::lookup(code, memory))
        .or_else(|| strings(code, memory))
}
