//! SSE instructions that are copied: moves, arithmetic, and floating point where MXCSR is a usual one.

use iced_x86::{Instruction, Mnemonic as M};

use super::choice::{How, Writes};
use super::flags::Kind;

/// The choice for an SSE instruction. Which registers it has is looked at elsewhere.
pub(super) fn choose(i: &Instruction) -> Option<(How, Writes)> {
    let m = i.mnemonic();
    let writes = match m {
        M::Ptest => Writes::All(Kind::Exact),
        M::Comiss | M::Comisd | M::Ucomiss | M::Ucomisd => Writes::All(Kind::Exact),
        _ if is_move(m) || is_logic(m) || is_arithmetic(m) || is_shuffle(m) || is_float(m) => {
            Writes::Nothing
        }
        _ => return None,
    };
    let how = if is_float(m) { How::Float } else { How::Vector };
    (0..i.op_count())
        .any(|n| i.op_register(n).is_xmm())
        .then_some((how, writes))
}

/// Floating point that every processor computes alike: neither approximations nor MMX.
fn is_float(m: M) -> bool {
    is_float_arithmetic(m)
        || matches!(
            m,
            M::Comiss
                | M::Comisd
                | M::Ucomiss
                | M::Ucomisd
                | M::Cvtsi2ss
                | M::Cvtsi2sd
                | M::Cvtss2si
                | M::Cvtsd2si
                | M::Cvttss2si
                | M::Cvttsd2si
                | M::Cvtss2sd
                | M::Cvtsd2ss
                | M::Cvtps2pd
                | M::Cvtpd2ps
                | M::Cvtdq2ps
                | M::Cvtdq2pd
                | M::Cvtps2dq
                | M::Cvttps2dq
                | M::Cvtpd2dq
                | M::Cvttpd2dq
        )
}

fn is_float_arithmetic(m: M) -> bool {
    matches!(
        m,
        M::Addss
            | M::Addsd
            | M::Addps
            | M::Addpd
            | M::Subss
            | M::Subsd
            | M::Subps
            | M::Subpd
            | M::Mulss
            | M::Mulsd
            | M::Mulps
            | M::Mulpd
            | M::Divss
            | M::Divsd
            | M::Divps
            | M::Divpd
            | M::Sqrtss
            | M::Sqrtsd
            | M::Sqrtps
            | M::Sqrtpd
            | M::Minss
            | M::Minsd
            | M::Minps
            | M::Minpd
            | M::Maxss
            | M::Maxsd
            | M::Maxps
            | M::Maxpd
            | M::Cmpss
            | M::Cmpsd
            | M::Cmpps
            | M::Cmppd
            | M::Roundss
            | M::Roundsd
            | M::Roundps
            | M::Roundpd
            | M::Haddps
            | M::Haddpd
            | M::Hsubps
            | M::Hsubpd
            | M::Addsubps
            | M::Addsubpd
    )
}

fn is_move(m: M) -> bool {
    matches!(
        m,
        M::Movaps
            | M::Movapd
            | M::Movups
            | M::Movupd
            | M::Movdqa
            | M::Movdqu
            | M::Lddqu
            | M::Movss
            | M::Movsd
            | M::Movd
            | M::Movq
            | M::Movlps
            | M::Movlpd
            | M::Movhps
            | M::Movhpd
            | M::Movhlps
            | M::Movlhps
            | M::Pmovmskb
            | M::Movmskps
            | M::Movmskpd
            | M::Pinsrb
            | M::Pinsrw
            | M::Pinsrd
            | M::Pinsrq
            | M::Pextrb
            | M::Pextrw
            | M::Pextrd
            | M::Pextrq
    )
}

fn is_logic(m: M) -> bool {
    matches!(
        m,
        M::Pand
            | M::Pandn
            | M::Por
            | M::Pxor
            | M::Andps
            | M::Andpd
            | M::Andnps
            | M::Andnpd
            | M::Orps
            | M::Orpd
            | M::Xorps
            | M::Xorpd
    )
}

fn is_arithmetic(m: M) -> bool {
    matches!(
        m,
        M::Paddb
            | M::Paddw
            | M::Paddd
            | M::Paddq
            | M::Psubb
            | M::Psubw
            | M::Psubd
            | M::Psubq
            | M::Pcmpeqb
            | M::Pcmpeqw
            | M::Pcmpeqd
            | M::Pcmpgtb
            | M::Pcmpgtw
            | M::Pcmpgtd
            | M::Pminub
            | M::Pmaxub
            | M::Pminsw
            | M::Pmaxsw
            | M::Pavgb
            | M::Pavgw
            | M::Pmullw
            | M::Pmulhw
            | M::Pmulhuw
            | M::Pmuludq
            | M::Pmulld
            | M::Pmaddwd
            | M::Psadbw
            | M::Psllw
            | M::Pslld
            | M::Psllq
            | M::Psrlw
            | M::Psrld
            | M::Psrlq
            | M::Psraw
            | M::Psrad
            | M::Pslldq
            | M::Psrldq
    )
}

fn is_shuffle(m: M) -> bool {
    matches!(
        m,
        M::Pshufd
            | M::Pshuflw
            | M::Pshufhw
            | M::Pshufb
            | M::Palignr
            | M::Punpcklbw
            | M::Punpcklwd
            | M::Punpckldq
            | M::Punpcklqdq
            | M::Punpckhbw
            | M::Punpckhwd
            | M::Punpckhdq
            | M::Punpckhqdq
            | M::Unpcklps
            | M::Unpckhps
            | M::Unpcklpd
            | M::Unpckhpd
            | M::Shufps
            | M::Shufpd
            | M::Packsswb
            | M::Packssdw
            | M::Packuswb
            | M::Packusdw
            | M::Pmovzxbw
            | M::Pmovzxwd
            | M::Pmovzxdq
            | M::Pblendw
    )
}

/// Whether a memory operand must be aligned: where it has 16 bytes, unless the name says otherwise.
pub(super) fn wants_alignment(i: &Instruction) -> bool {
    let free = matches!(i.mnemonic(), M::Movups | M::Movupd | M::Movdqu | M::Lddqu);
    i.memory_size().size() == 16 && !free
}

/// Whether all of the first operand is written and nothing of it is read.
pub(super) fn only_writes(i: &Instruction) -> bool {
    matches!(
        i.mnemonic(),
        M::Movaps
            | M::Movapd
            | M::Movups
            | M::Movupd
            | M::Movdqa
            | M::Movdqu
            | M::Lddqu
            | M::Movd
            | M::Movq
            | M::Pshufd
            | M::Pshuflw
            | M::Pshufhw
            | M::Pmovzxbw
            | M::Pmovzxwd
            | M::Pmovzxdq
    )
}
