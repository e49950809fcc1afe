//! From instruction code to handler: lane-wise integers and shifts.

use super::table::{from, mmx, xmm};
use super::{Operand, SimdHandler, host, integer};
use iced_x86::Code;
use iced_x86::Code as C;

/// Shift of an XMM register by the immediate.
macro_rules! xmm_count {
    ($f:expr) => {
        from(Operand::None, |s, d, _, imm| {
            s.xmm[d & 15] = $f(s.xmm[d & 15], imm.into());
            Ok(())
        })
    };
}

/// Shift of an MMX register by the immediate.
macro_rules! mmx_count {
    ($f:expr) => {
        super::table::into_mmx(Operand::None, |s, d, _, imm| {
            let old = u128::from(s.mmx_read(d));
            s.mmx_write(d, $f(old, imm.into()) as u64);
            Ok(())
        })
    };
}

fn on_xmm(code: Code, m: bool) -> Option<SimdHandler> {
    Some(match code {
        C::Paddb_xmm_xmmm128 => xmm!(m, host::paddb),
        C::Paddw_xmm_xmmm128 => xmm!(m, host::paddw),
        C::Paddd_xmm_xmmm128 => xmm!(m, host::paddd),
        C::Paddq_xmm_xmmm128 => xmm!(m, host::paddq),
        C::Psubb_xmm_xmmm128 => xmm!(m, host::psubb),
        C::Psubw_xmm_xmmm128 => xmm!(m, host::psubw),
        C::Psubd_xmm_xmmm128 => xmm!(m, host::psubd),
        C::Psubq_xmm_xmmm128 => xmm!(m, host::psubq),
        C::Paddusb_xmm_xmmm128 => xmm!(m, host::paddusb),
        C::Paddusw_xmm_xmmm128 => xmm!(m, host::paddusw),
        C::Psubusb_xmm_xmmm128 => xmm!(m, host::psubusb),
        C::Psubusw_xmm_xmmm128 => xmm!(m, host::psubusw),
        C::Paddsb_xmm_xmmm128 => xmm!(m, host::paddsb),
        C::Paddsw_xmm_xmmm128 => xmm!(m, host::paddsw),
        C::Psubsb_xmm_xmmm128 => xmm!(m, host::psubsb),
        C::Psubsw_xmm_xmmm128 => xmm!(m, host::psubsw),
        C::Pcmpeqb_xmm_xmmm128 => xmm!(m, host::pcmpeqb),
        C::Pcmpeqw_xmm_xmmm128 => xmm!(m, host::pcmpeqw),
        C::Pcmpeqd_xmm_xmmm128 => xmm!(m, host::pcmpeqd),
        C::Pcmpeqq_xmm_xmmm128 => xmm!(m, integer::pcmpeqq),
        C::Pcmpgtb_xmm_xmmm128 => xmm!(m, host::pcmpgtb),
        C::Pcmpgtw_xmm_xmmm128 => xmm!(m, host::pcmpgtw),
        C::Pcmpgtd_xmm_xmmm128 => xmm!(m, host::pcmpgtd),
        C::Pcmpgtq_xmm_xmmm128 => xmm!(m, integer::pcmpgtq),
        C::Pminub_xmm_xmmm128 => xmm!(m, host::pminub),
        C::Pmaxub_xmm_xmmm128 => xmm!(m, host::pmaxub),
        C::Pminsw_xmm_xmmm128 => xmm!(m, host::pminsw),
        C::Pmaxsw_xmm_xmmm128 => xmm!(m, host::pmaxsw),
        C::Pminsb_xmm_xmmm128 => xmm!(m, integer::pminsb),
        C::Pmaxsb_xmm_xmmm128 => xmm!(m, integer::pmaxsb),
        C::Pminuw_xmm_xmmm128 => xmm!(m, integer::pminuw),
        C::Pmaxuw_xmm_xmmm128 => xmm!(m, integer::pmaxuw),
        C::Pminsd_xmm_xmmm128 => xmm!(m, integer::pminsd),
        C::Pmaxsd_xmm_xmmm128 => xmm!(m, integer::pmaxsd),
        C::Pminud_xmm_xmmm128 => xmm!(m, integer::pminud),
        C::Pmaxud_xmm_xmmm128 => xmm!(m, integer::pmaxud),
        C::Pavgb_xmm_xmmm128 => xmm!(m, host::pavgb),
        C::Pavgw_xmm_xmmm128 => xmm!(m, host::pavgw),
        C::Pmullw_xmm_xmmm128 => xmm!(m, host::pmullw),
        C::Pmulhw_xmm_xmmm128 => xmm!(m, host::pmulhw),
        C::Pmulhuw_xmm_xmmm128 => xmm!(m, host::pmulhuw),
        C::Pmulhrsw_xmm_xmmm128 => xmm!(m, integer::pmulhrsw),
        C::Pmulld_xmm_xmmm128 => xmm!(m, integer::pmulld),
        C::Pmuludq_xmm_xmmm128 => xmm!(m, host::pmuludq),
        C::Pmuldq_xmm_xmmm128 => xmm!(m, integer::pmuldq),
        C::Psignb_xmm_xmmm128 => xmm!(m, integer::psignb),
        C::Psignw_xmm_xmmm128 => xmm!(m, integer::psignw),
        C::Psignd_xmm_xmmm128 => xmm!(m, integer::psignd),
        C::Pabsb_xmm_xmmm128 => xmm!(m, integer::pabsb),
        C::Pabsw_xmm_xmmm128 => xmm!(m, integer::pabsw),
        C::Pabsd_xmm_xmmm128 => xmm!(m, integer::pabsd),
        C::Pand_xmm_xmmm128 => xmm!(m, integer::pand),
        C::Pandn_xmm_xmmm128 => xmm!(m, integer::pandn),
        C::Por_xmm_xmmm128 => xmm!(m, integer::por),
        C::Pxor_xmm_xmmm128 => xmm!(m, integer::pxor),
        C::Pmaddwd_xmm_xmmm128 => xmm!(m, host::pmaddwd),
        C::Pmaddubsw_xmm_xmmm128 => xmm!(m, integer::pmaddubsw),
        C::Psadbw_xmm_xmmm128 => xmm!(m, host::psadbw),
        C::Psrlw_xmm_xmmm128 => xmm!(m, integer::psrlw),
        C::Psrld_xmm_xmmm128 => xmm!(m, integer::psrld),
        C::Psrlq_xmm_xmmm128 => xmm!(m, integer::psrlq),
        C::Psllw_xmm_xmmm128 => xmm!(m, integer::psllw),
        C::Pslld_xmm_xmmm128 => xmm!(m, integer::pslld),
        C::Psllq_xmm_xmmm128 => xmm!(m, integer::psllq),
        C::Psraw_xmm_xmmm128 => xmm!(m, integer::psraw),
        C::Psrad_xmm_xmmm128 => xmm!(m, integer::psrad),
        C::Phminposuw_xmm_xmmm128 => xmm!(m, integer::phminposuw),
        C::Andps_xmm_xmmm128 => xmm!(m, integer::pand),
        C::Andpd_xmm_xmmm128 => xmm!(m, integer::pand),
        C::Andnps_xmm_xmmm128 => xmm!(m, integer::pandn),
        C::Andnpd_xmm_xmmm128 => xmm!(m, integer::pandn),
        C::Orps_xmm_xmmm128 => xmm!(m, integer::por),
        C::Orpd_xmm_xmmm128 => xmm!(m, integer::por),
        C::Xorps_xmm_xmmm128 => xmm!(m, integer::pxor),
        C::Xorpd_xmm_xmmm128 => xmm!(m, integer::pxor),
        _ => return None,
    })
}

fn on_mmx_and_shifts(code: Code, m: bool) -> Option<SimdHandler> {
    Some(match code {
        C::Paddb_mm_mmm64 => mmx!(m, 8, host::paddb),
        C::Paddw_mm_mmm64 => mmx!(m, 8, host::paddw),
        C::Paddd_mm_mmm64 => mmx!(m, 8, host::paddd),
        C::Paddq_mm_mmm64 => mmx!(m, 8, host::paddq),
        C::Psubb_mm_mmm64 => mmx!(m, 8, host::psubb),
        C::Psubw_mm_mmm64 => mmx!(m, 8, host::psubw),
        C::Psubd_mm_mmm64 => mmx!(m, 8, host::psubd),
        C::Psubq_mm_mmm64 => mmx!(m, 8, host::psubq),
        C::Paddusb_mm_mmm64 => mmx!(m, 8, host::paddusb),
        C::Paddusw_mm_mmm64 => mmx!(m, 8, host::paddusw),
        C::Psubusb_mm_mmm64 => mmx!(m, 8, host::psubusb),
        C::Psubusw_mm_mmm64 => mmx!(m, 8, host::psubusw),
        C::Paddsb_mm_mmm64 => mmx!(m, 8, host::paddsb),
        C::Paddsw_mm_mmm64 => mmx!(m, 8, host::paddsw),
        C::Psubsb_mm_mmm64 => mmx!(m, 8, host::psubsb),
        C::Psubsw_mm_mmm64 => mmx!(m, 8, host::psubsw),
        C::Pcmpeqb_mm_mmm64 => mmx!(m, 8, host::pcmpeqb),
        C::Pcmpeqw_mm_mmm64 => mmx!(m, 8, host::pcmpeqw),
        C::Pcmpeqd_mm_mmm64 => mmx!(m, 8, host::pcmpeqd),
        C::Pcmpgtb_mm_mmm64 => mmx!(m, 8, host::pcmpgtb),
        C::Pcmpgtw_mm_mmm64 => mmx!(m, 8, host::pcmpgtw),
        C::Pcmpgtd_mm_mmm64 => mmx!(m, 8, host::pcmpgtd),
        C::Pminub_mm_mmm64 => mmx!(m, 8, host::pminub),
        C::Pmaxub_mm_mmm64 => mmx!(m, 8, host::pmaxub),
        C::Pminsw_mm_mmm64 => mmx!(m, 8, host::pminsw),
        C::Pmaxsw_mm_mmm64 => mmx!(m, 8, host::pmaxsw),
        C::Pavgb_mm_mmm64 => mmx!(m, 8, host::pavgb),
        C::Pavgw_mm_mmm64 => mmx!(m, 8, host::pavgw),
        C::Pmullw_mm_mmm64 => mmx!(m, 8, host::pmullw),
        C::Pmulhw_mm_mmm64 => mmx!(m, 8, host::pmulhw),
        C::Pmulhuw_mm_mmm64 => mmx!(m, 8, host::pmulhuw),
        C::Pmulhrsw_mm_mmm64 => mmx!(m, 8, integer::pmulhrsw),
        C::Pmuludq_mm_mmm64 => mmx!(m, 8, host::pmuludq),
        C::Psignb_mm_mmm64 => mmx!(m, 8, integer::psignb),
        C::Psignw_mm_mmm64 => mmx!(m, 8, integer::psignw),
        C::Psignd_mm_mmm64 => mmx!(m, 8, integer::psignd),
        C::Pabsb_mm_mmm64 => mmx!(m, 8, integer::pabsb),
        C::Pabsw_mm_mmm64 => mmx!(m, 8, integer::pabsw),
        C::Pabsd_mm_mmm64 => mmx!(m, 8, integer::pabsd),
        C::Pand_mm_mmm64 => mmx!(m, 8, integer::pand),
        C::Pandn_mm_mmm64 => mmx!(m, 8, integer::pandn),
        C::Por_mm_mmm64 => mmx!(m, 8, integer::por),
        C::Pxor_mm_mmm64 => mmx!(m, 8, integer::pxor),
        C::Pmaddwd_mm_mmm64 => mmx!(m, 8, host::pmaddwd),
        C::Pmaddubsw_mm_mmm64 => mmx!(m, 8, integer::pmaddubsw),
        C::Psadbw_mm_mmm64 => mmx!(m, 8, host::psadbw),
        C::Psrlw_mm_mmm64 => mmx!(m, 8, integer::psrlw),
        C::Psrld_mm_mmm64 => mmx!(m, 8, integer::psrld),
        C::Psrlq_mm_mmm64 => mmx!(m, 8, integer::psrlq),
        C::Psllw_mm_mmm64 => mmx!(m, 8, integer::psllw),
        C::Pslld_mm_mmm64 => mmx!(m, 8, integer::pslld),
        C::Psllq_mm_mmm64 => mmx!(m, 8, integer::psllq),
        C::Psraw_mm_mmm64 => mmx!(m, 8, integer::psraw),
        C::Psrad_mm_mmm64 => mmx!(m, 8, integer::psrad),
        C::Psrlw_xmm_imm8 => xmm_count!(integer::psrlw),
        C::Psrlw_mm_imm8 => mmx_count!(integer::psrlw),
        C::Psraw_xmm_imm8 => xmm_count!(integer::psraw),
        C::Psraw_mm_imm8 => mmx_count!(integer::psraw),
        C::Psllw_xmm_imm8 => xmm_count!(integer::psllw),
        C::Psllw_mm_imm8 => mmx_count!(integer::psllw),
        C::Psrld_xmm_imm8 => xmm_count!(integer::psrld),
        C::Psrld_mm_imm8 => mmx_count!(integer::psrld),
        C::Psrad_xmm_imm8 => xmm_count!(integer::psrad),
        C::Psrad_mm_imm8 => mmx_count!(integer::psrad),
        C::Pslld_xmm_imm8 => xmm_count!(integer::pslld),
        C::Pslld_mm_imm8 => mmx_count!(integer::pslld),
        C::Psrlq_xmm_imm8 => xmm_count!(integer::psrlq),
        C::Psrlq_mm_imm8 => mmx_count!(integer::psrlq),
        C::Psllq_xmm_imm8 => xmm_count!(integer::psllq),
        C::Psllq_mm_imm8 => mmx_count!(integer::psllq),
        C::Psrldq_xmm_imm8 => xmm_count!(integer::psrldq),
        C::Pslldq_xmm_imm8 => xmm_count!(integer::pslldq),
        _ => return None,
    })
}

/// Handler of a lane-wise integer instruction.
pub(super) fn lookup(code: Code, m: bool) -> Option<SimdHandler> {
    on_xmm(code, m).or_else(|| on_mmx_and_shifts(code, m))
}
