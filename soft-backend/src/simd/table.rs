//! From instruction code to handler.

use super::{Exec, Operand, SimdHandler};
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
        C::Emms => SimdHandler {
            dst: Operand::None,
            src: Operand::None,
            exec: Exec::Emms,
            mmx: true,
        },
        _ => return None,
    })
}

/// Handler of an MMX or SSE instruction; `memory` tells whether one of its operands is in memory.
/// `None` if `code` is not one, or belongs to the core (see [`crate::fpu`]).
#[must_use]
pub fn lookup(code: Code, memory: bool) -> Option<SimdHandler> {
    moves(code, memory)
}
