//! Lane-wise integer instructions that every x86-64 host has, and their portable twins elsewhere.
//!
//! The portable functions of [`super::integer`] define the result; a test compares the two.
#![allow(unsafe_code)] // vendor intrinsics

macro_rules! hosted {
    ($($name:ident = $intrinsic:ident;)*) => {
        $(
            #[cfg(target_arch = "x86_64")]
            #[inline]
            pub(super) fn $name(a: u128, b: u128) -> u128 {
                // SAFETY: SSE2 is part of x86-64.
                unsafe { x86::bits(core::arch::x86_64::$intrinsic(x86::vector(a), x86::vector(b))) }
            }
            #[cfg(not(target_arch = "x86_64"))]
            pub(super) use super::integer::$name;
        )*

        #[cfg(all(test, target_arch = "x86_64"))]
        const TWINS: &[(&str, fn(u128, u128) -> u128, fn(u128, u128) -> u128)] = &[
            $((stringify!($name), $name, super::integer::$name),)*
        ];
    };
}

hosted! {
    pcmpeqb = _mm_cmpeq_epi8;
    pcmpeqw = _mm_cmpeq_epi16;
    pcmpeqd = _mm_cmpeq_epi32;
    pcmpgtb = _mm_cmpgt_epi8;
    pcmpgtw = _mm_cmpgt_epi16;
    pcmpgtd = _mm_cmpgt_epi32;
    paddb = _mm_add_epi8;
    paddw = _mm_add_epi16;
    paddd = _mm_add_epi32;
    paddq = _mm_add_epi64;
    psubb = _mm_sub_epi8;
    psubw = _mm_sub_epi16;
    psubd = _mm_sub_epi32;
    psubq = _mm_sub_epi64;
    paddusb = _mm_adds_epu8;
    paddusw = _mm_adds_epu16;
    psubusb = _mm_subs_epu8;
    psubusw = _mm_subs_epu16;
    paddsb = _mm_adds_epi8;
    paddsw = _mm_adds_epi16;
    psubsb = _mm_subs_epi8;
    psubsw = _mm_subs_epi16;
    pminub = _mm_min_epu8;
    pmaxub = _mm_max_epu8;
    pminsw = _mm_min_epi16;
    pmaxsw = _mm_max_epi16;
    pavgb = _mm_avg_epu8;
    pavgw = _mm_avg_epu16;
    pmullw = _mm_mullo_epi16;
    pmulhw = _mm_mulhi_epi16;
    pmulhuw = _mm_mulhi_epu16;
    pmuludq = _mm_mul_epu32;
    pmaddwd = _mm_madd_epi16;
    psadbw = _mm_sad_epu8;
    unpack_bytes = _mm_unpacklo_epi8;
    unpack_words = _mm_unpacklo_epi16;
}

/// PMOVMSKB.
#[cfg(target_arch = "x86_64")]
#[inline]
pub(super) fn pmovmskb(v: u128) -> u128 {
    // SAFETY: SSE2 is part of x86-64.
    let mask = unsafe { core::arch::x86_64::_mm_movemask_epi8(x86::vector(v)) };
    u128::from(mask as u32)
}
#[cfg(not(target_arch = "x86_64"))]
pub(super) use super::integer::pmovmskb;

/// CRC32 over the low 1, 2, 4 or 8 bytes, on hosts that have it.
#[inline]
pub(super) fn crc32c(crc: u32, value: u64, bytes: usize) -> Option<u32> {
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("sse4.2") {
        // SAFETY: the host has SSE4.2.
        return Some(unsafe { x86::crc32c(crc, value, bytes) });
    }
    let _ = (crc, value, bytes);
    None
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use core::arch::x86_64::{__m128i, _mm_crc32_u8, _mm_crc32_u16, _mm_crc32_u32, _mm_crc32_u64};

    /// # Safety
    ///
    /// The host has SSE4.2.
    #[target_feature(enable = "sse4.2")]
    pub(super) unsafe fn crc32c(crc: u32, value: u64, bytes: usize) -> u32 {
        match bytes {
            1 => _mm_crc32_u8(crc, value as u8),
            2 => _mm_crc32_u16(crc, value as u16),
            4 => _mm_crc32_u32(crc, value as u32),
            _ => _mm_crc32_u64(crc.into(), value) as u32,
        }
    }

    #[inline]
    pub(super) fn vector(v: u128) -> __m128i {
        // SAFETY: both are 128 plain bits.
        unsafe { core::mem::transmute::<u128, __m128i>(v) }
    }

    #[inline]
    pub(super) fn bits(v: __m128i) -> u128 {
        // SAFETY: both are 128 plain bits.
        unsafe { core::mem::transmute::<__m128i, u128>(v) }
    }
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::*;

    #[test]
    fn host_instructions_equal_the_portable_ones() {
        let mut seed = 0x9e37_79b9_7f4a_7c15_u128;
        let mut next = || {
            seed = seed
                .wrapping_mul(0x2545_f491_4f6c_dd1d_9e37_79b9_7f4a_7c15)
                .wrapping_add(0x1234_5677);
            let lanes = super::super::lanes::bytes(seed >> 3 ^ seed << 61);
            // Many equal and extreme lanes.
            super::super::lanes::from_bytes(lanes.map(|b| match b & 7 {
                0 => 0x80,
                1 => 0x7f,
                2 => 0xff,
                3 => 0,
                _ => b,
            }))
        };
        for _ in 0..20_000 {
            let (a, b) = (next(), next());
            for (name, host, portable) in TWINS {
                assert_eq!(host(a, b), portable(a, b), "{name} {a:x} {b:x}");
            }
            assert_eq!(pmovmskb(a), super::super::integer::pmovmskb(a));
        }
    }
}
