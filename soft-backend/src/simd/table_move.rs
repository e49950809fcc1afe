//! From instruction code to handler: packs, shuffles, inserts, extracts.

use super::Operand::{Gpr32, Gpr64, Mmx, Xmm};
use super::table::{apply, from, full, mem, mmx, or as either, part, value, xmm};
use super::{Exec, Operand, SimdHandler, host, integer, shuffle};
use iced_x86::Code;
use iced_x86::Code as C;

/// Binary operation on XMM registers with an immediate.
macro_rules! xmm_imm {
    ($memory:expr, $f:expr) => {
        full($memory, |s, d, v, imm| {
            s.xmm[d & 15] = $f(s.xmm[d & 15], v, imm);
            Ok(())
        })
    };
}

/// Binary operation with a memory operand of fewer than 16 bytes.
macro_rules! narrow {
    ($memory:expr, $bytes:literal, $f:expr) => {
        part($memory, $bytes, |s, d, v, _| {
            s.xmm[d & 15] = apply($f, s.xmm[d & 15], v);
            Ok(())
        })
    };
}

/// Variable blend by XMM0.
macro_rules! blend {
    ($memory:expr, $f:expr) => {
        full($memory, |s, d, v, _| {
            s.xmm[d & 15] = $f(s.xmm[d & 15], v, s.xmm[0]);
            Ok(())
        })
    };
}

/// Insertion into an XMM register.
macro_rules! insert {
    ($src:expr, $f:expr) => {
        from($src, |s, d, v, imm| {
            s.xmm[d & 15] = $f(s.xmm[d & 15], v, imm);
            Ok(())
        })
    };
}

/// Insertion into an MMX register.
macro_rules! mmx_insert {
    ($src:expr, $f:expr) => {
        super::table::into_mmx($src, |s, d, v, imm| {
            let old = u128::from(s.mmx_read(d));
            s.mmx_write(d, $f(old, v, imm) as u64);
            Ok(())
        })
    };
}

/// Binary operation on MMX registers with an immediate.
macro_rules! mmx_imm {
    ($memory:expr, $f:expr) => {
        mmx_insert!(either(Mmx, 8, $memory), $f)
    };
}

const fn mask_move(register: Operand, bytes: u8) -> SimdHandler {
    SimdHandler {
        dst: mem(bytes),
        src: register,
        exec: Exec::MaskMove(shuffle::mask_move),
        mmx: matches!(register, Mmx),
    }
}

fn lanes(code: Code, m: bool) -> Option<SimdHandler> {
    Some(match code {
        C::Packsswb_xmm_xmmm128 => xmm!(m, |a, b| shuffle::each(a, b, shuffle::packsswb)),
        C::Packsswb_mm_mmm64 => mmx!(m, 8, |a, b| shuffle::paired(a, b, shuffle::packsswb)),
        C::Packuswb_xmm_xmmm128 => xmm!(m, |a, b| shuffle::each(a, b, shuffle::packuswb)),
        C::Packuswb_mm_mmm64 => mmx!(m, 8, |a, b| shuffle::paired(a, b, shuffle::packuswb)),
        C::Packssdw_xmm_xmmm128 => xmm!(m, |a, b| shuffle::each(a, b, shuffle::packssdw)),
        C::Packssdw_mm_mmm64 => mmx!(m, 8, |a, b| shuffle::paired(a, b, shuffle::packssdw)),
        C::Packusdw_xmm_xmmm128 => xmm!(m, |a, b| shuffle::each(a, b, shuffle::packusdw)),
        C::Phaddw_xmm_xmmm128 => xmm!(m, |a, b| shuffle::each(a, b, shuffle::phaddw)),
        C::Phaddw_mm_mmm64 => mmx!(m, 8, |a, b| shuffle::paired(a, b, shuffle::phaddw)),
        C::Phaddsw_xmm_xmmm128 => xmm!(m, |a, b| shuffle::each(a, b, shuffle::phaddsw)),
        C::Phaddsw_mm_mmm64 => mmx!(m, 8, |a, b| shuffle::paired(a, b, shuffle::phaddsw)),
        C::Phsubw_xmm_xmmm128 => xmm!(m, |a, b| shuffle::each(a, b, shuffle::phsubw)),
        C::Phsubw_mm_mmm64 => mmx!(m, 8, |a, b| shuffle::paired(a, b, shuffle::phsubw)),
        C::Phsubsw_xmm_xmmm128 => xmm!(m, |a, b| shuffle::each(a, b, shuffle::phsubsw)),
        C::Phsubsw_mm_mmm64 => mmx!(m, 8, |a, b| shuffle::paired(a, b, shuffle::phsubsw)),
        C::Phaddd_xmm_xmmm128 => xmm!(m, |a, b| shuffle::each(a, b, shuffle::phaddd)),
        C::Phaddd_mm_mmm64 => mmx!(m, 8, |a, b| shuffle::paired(a, b, shuffle::phaddd)),
        C::Phsubd_xmm_xmmm128 => xmm!(m, |a, b| shuffle::each(a, b, shuffle::phsubd)),
        C::Phsubd_mm_mmm64 => mmx!(m, 8, |a, b| shuffle::paired(a, b, shuffle::phsubd)),
        C::Punpcklbw_xmm_xmmm128 => xmm!(m, host::unpack_bytes),
        C::Punpckhbw_xmm_xmmm128 => xmm!(m, |a, b| host::unpack_bytes(a >> 64, b >> 64)),
        C::Punpcklbw_mm_mmm32 => mmx!(m, 4, host::unpack_bytes),
        C::Punpckhbw_mm_mmm64 => mmx!(m, 8, |a, b| host::unpack_bytes(a, b) >> 64),
        C::Punpcklwd_xmm_xmmm128 => xmm!(m, host::unpack_words),
        C::Punpckhwd_xmm_xmmm128 => xmm!(m, |a, b| host::unpack_words(a >> 64, b >> 64)),
        C::Punpcklwd_mm_mmm32 => mmx!(m, 4, host::unpack_words),
        C::Punpckhwd_mm_mmm64 => mmx!(m, 8, |a, b| host::unpack_words(a, b) >> 64),
        C::Punpckldq_xmm_xmmm128 => xmm!(m, shuffle::unpack_dwords),
        C::Punpckhdq_xmm_xmmm128 => xmm!(m, |a, b| shuffle::unpack_dwords(a >> 64, b >> 64)),
        C::Punpckldq_mm_mmm32 => mmx!(m, 4, shuffle::unpack_dwords),
        C::Punpckhdq_mm_mmm64 => mmx!(m, 8, |a, b| shuffle::unpack_dwords(a, b) >> 64),
        C::Punpcklqdq_xmm_xmmm128 => xmm!(m, shuffle::unpack_qwords),
        C::Punpckhqdq_xmm_xmmm128 => xmm!(m, |a, b| shuffle::unpack_qwords(a >> 64, b >> 64)),
        C::Unpcklps_xmm_xmmm128 => xmm!(m, shuffle::unpack_dwords),
        C::Unpckhps_xmm_xmmm128 => xmm!(m, |a, b| shuffle::unpack_dwords(a >> 64, b >> 64)),
        C::Unpcklpd_xmm_xmmm128 => xmm!(m, shuffle::unpack_qwords),
        C::Unpckhpd_xmm_xmmm128 => xmm!(m, |a, b| shuffle::unpack_qwords(a >> 64, b >> 64)),
        C::Pshufb_xmm_xmmm128 => xmm!(m, shuffle::pshufb),
        C::Pshufb_mm_mmm64 => mmx!(m, 8, shuffle::pshufb_mmx),
        C::Pshufd_xmm_xmmm128_imm8 => xmm_imm!(m, shuffle::pshufd),
        C::Pshuflw_xmm_xmmm128_imm8 => xmm_imm!(m, shuffle::pshuflw),
        C::Pshufhw_xmm_xmmm128_imm8 => xmm_imm!(m, shuffle::pshufhw),
        C::Shufps_xmm_xmmm128_imm8 => xmm_imm!(m, shuffle::shufps),
        C::Shufpd_xmm_xmmm128_imm8 => xmm_imm!(m, shuffle::shufpd),
        C::Pblendw_xmm_xmmm128_imm8 => xmm_imm!(m, shuffle::pblendw),
        C::Blendps_xmm_xmmm128_imm8 => xmm_imm!(m, shuffle::blendps),
        C::Blendpd_xmm_xmmm128_imm8 => xmm_imm!(m, shuffle::blendpd),
        C::Palignr_xmm_xmmm128_imm8 => xmm_imm!(m, shuffle::palignr),
        C::Mpsadbw_xmm_xmmm128_imm8 => xmm_imm!(m, integer::mpsadbw),
        C::Pshufw_mm_mmm64_imm8 => mmx_imm!(m, shuffle::pshuflw),
        C::Palignr_mm_mmm64_imm8 => mmx_imm!(m, shuffle::palignr_mmx),
        C::Pblendvb_xmm_xmmm128 => blend!(m, shuffle::pblendvb),
        C::Blendvps_xmm_xmmm128 => blend!(m, shuffle::blendvps),
        C::Blendvpd_xmm_xmmm128 => blend!(m, shuffle::blendvpd),
        C::Movsldup_xmm_xmmm128 => xmm!(m, shuffle::movsldup),
        C::Movshdup_xmm_xmmm128 => xmm!(m, shuffle::movshdup),
        C::Movddup_xmm_xmmm64 => narrow!(m, 8, shuffle::movddup),
        C::Movhlps_xmm_xmm => xmm!(m, shuffle::movhlps),
        C::Movlhps_xmm_xmm => xmm!(m, shuffle::unpack_qwords),
        C::Movlps_xmm_m64 => narrow!(true, 8, shuffle::movsd),
        C::Movlpd_xmm_m64 => narrow!(true, 8, shuffle::movsd),
        C::Movhps_xmm_m64 => narrow!(true, 8, shuffle::unpack_qwords),
        C::Movhpd_xmm_m64 => narrow!(true, 8, shuffle::unpack_qwords),
        C::Movhps_m64_xmm => value(mem(8), Xmm, |_, v, _| Ok(v >> 64)),
        C::Movhpd_m64_xmm => value(mem(8), Xmm, |_, v, _| Ok(v >> 64)),
        C::Movss_xmm_xmmm32 => xmm!(m, shuffle::movss),
        C::Movss_xmmm32_xmm => xmm!(m, shuffle::movss),
        C::Movsd_xmm_xmmm64 => xmm!(m, shuffle::movsd),
        C::Movsd_xmmm64_xmm => xmm!(m, shuffle::movsd),
        C::Movq_xmm_xmmm64 => narrow!(m, 8, |_a, b| b & u128::from(u64::MAX)),
        C::Movq_xmmm64_xmm => narrow!(m, 8, |_a, b| b & u128::from(u64::MAX)),
        C::Pmovsxbw_xmm_xmmm64 => narrow!(m, 8, |_a, b| shuffle::widen::<8, 16, true>(b)),
        C::Pmovsxbd_xmm_xmmm32 => narrow!(m, 4, |_a, b| shuffle::widen::<8, 32, true>(b)),
        C::Pmovsxbq_xmm_xmmm16 => narrow!(m, 2, |_a, b| shuffle::widen::<8, 64, true>(b)),
        C::Pmovsxwd_xmm_xmmm64 => narrow!(m, 8, |_a, b| shuffle::widen::<16, 32, true>(b)),
        C::Pmovsxwq_xmm_xmmm32 => narrow!(m, 4, |_a, b| shuffle::widen::<16, 64, true>(b)),
        C::Pmovsxdq_xmm_xmmm64 => narrow!(m, 8, |_a, b| shuffle::widen::<32, 64, true>(b)),
        C::Pmovzxbw_xmm_xmmm64 => narrow!(m, 8, |_a, b| shuffle::widen::<8, 16, false>(b)),
        C::Pmovzxbd_xmm_xmmm32 => narrow!(m, 4, |_a, b| shuffle::widen::<8, 32, false>(b)),
        C::Pmovzxbq_xmm_xmmm16 => narrow!(m, 2, |_a, b| shuffle::widen::<8, 64, false>(b)),
        C::Pmovzxwd_xmm_xmmm64 => narrow!(m, 8, |_a, b| shuffle::widen::<16, 32, false>(b)),
        C::Pmovzxwq_xmm_xmmm32 => narrow!(m, 4, |_a, b| shuffle::widen::<16, 64, false>(b)),
        C::Pmovzxdq_xmm_xmmm64 => narrow!(m, 8, |_a, b| shuffle::widen::<32, 64, false>(b)),
        _ => return None,
    })
}

fn single_lane(code: Code, m: bool) -> Option<SimdHandler> {
    let or = |register, bytes| either(register, bytes, m);
    Some(match code {
        C::Pinsrw_mm_r32m16_imm8 => mmx_insert!(or(Gpr32, 2), shuffle::pinsrw_mmx),
        C::Pinsrw_xmm_r32m16_imm8 => insert!(or(Gpr32, 2), shuffle::pinsrw),
        C::Pinsrb_xmm_r32m8_imm8 => insert!(or(Gpr32, 1), shuffle::pinsrb),
        C::Pextrw_r32_mm_imm8 => value(Gpr32, Mmx, |_, v, i| Ok(shuffle::pextrw_mmx(v, i))),
        C::Pextrw_r32_xmm_imm8 => value(Gpr32, Xmm, |_, v, i| Ok(shuffle::pextrw(v, i))),
        C::Pextrb_r32m8_xmm_imm8 => value(or(Gpr32, 1), Xmm, |_, v, i| Ok(shuffle::pextrb(v, i))),
        C::Pextrw_r32m16_xmm_imm8 => value(or(Gpr32, 2), Xmm, |_, v, i| Ok(shuffle::pextrw(v, i))),
        C::Pmovmskb_r32_mm => value(Gpr32, Mmx, |_, v, _| Ok(host::pmovmskb(v))),
        C::Pmovmskb_r32_xmm => value(Gpr32, Xmm, |_, v, _| Ok(host::pmovmskb(v))),
        C::Movmskps_r32_xmm => value(Gpr32, Xmm, |_, v, _| Ok(integer::movmskps(v))),
        C::Movmskpd_r32_xmm => value(Gpr32, Xmm, |_, v, _| Ok(integer::movmskpd(v))),
        C::Pinsrw_mm_r64m16_imm8 => mmx_insert!(or(Gpr64, 2), shuffle::pinsrw_mmx),
        C::Pinsrw_xmm_r64m16_imm8 => insert!(or(Gpr64, 2), shuffle::pinsrw),
        C::Pinsrb_xmm_r64m8_imm8 => insert!(or(Gpr64, 1), shuffle::pinsrb),
        C::Pextrw_r64_mm_imm8 => value(Gpr64, Mmx, |_, v, i| Ok(shuffle::pextrw_mmx(v, i))),
        C::Pextrw_r64_xmm_imm8 => value(Gpr64, Xmm, |_, v, i| Ok(shuffle::pextrw(v, i))),
        C::Pextrb_r64m8_xmm_imm8 => value(or(Gpr64, 1), Xmm, |_, v, i| Ok(shuffle::pextrb(v, i))),
        C::Pextrw_r64m16_xmm_imm8 => value(or(Gpr64, 2), Xmm, |_, v, i| Ok(shuffle::pextrw(v, i))),
        C::Pmovmskb_r64_mm => value(Gpr64, Mmx, |_, v, _| Ok(host::pmovmskb(v))),
        C::Pmovmskb_r64_xmm => value(Gpr64, Xmm, |_, v, _| Ok(host::pmovmskb(v))),
        C::Movmskps_r64_xmm => value(Gpr64, Xmm, |_, v, _| Ok(integer::movmskps(v))),
        C::Movmskpd_r64_xmm => value(Gpr64, Xmm, |_, v, _| Ok(integer::movmskpd(v))),
        C::Pinsrd_xmm_rm32_imm8 => insert!(or(Gpr32, 4), shuffle::pinsrd),
        C::Pinsrq_xmm_rm64_imm8 => insert!(or(Gpr64, 8), shuffle::pinsrq),
        C::Pextrd_rm32_xmm_imm8 => value(or(Gpr32, 4), Xmm, |_, v, i| Ok(shuffle::pextrd(v, i))),
        C::Extractps_rm32_xmm_imm8 => value(or(Gpr32, 4), Xmm, |_, v, i| Ok(shuffle::pextrd(v, i))),
        C::Extractps_r64m32_xmm_imm8 => {
            value(or(Gpr64, 4), Xmm, |_, v, i| Ok(shuffle::pextrd(v, i)))
        }
        C::Pextrq_rm64_xmm_imm8 => value(or(Gpr64, 8), Xmm, |_, v, i| Ok(shuffle::pextrq(v, i))),
        C::Maskmovq_rDI_mm_mm => mask_move(Mmx, 8),
        C::Maskmovdqu_rDI_xmm_xmm => mask_move(Xmm, 16),
        _ => return None,
    })
}

/// Handler of an instruction that moves lanes.
pub(super) fn lookup(code: Code, m: bool) -> Option<SimdHandler> {
    lanes(code, m).or_else(|| single_lane(code, m))
}
