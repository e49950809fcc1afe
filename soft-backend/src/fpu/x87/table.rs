//! From instruction code to handler.

use super::arith::{self as a, ADD, DIV, DIVR, I16, I32, M32, M64, MUL, SUB, SUBR};
use super::compare as c;
use super::control::{fldcw, fnclex, fninit, fnstcw, fnstsw, nop};
use super::partial as p;
use super::transcendental as f;
use super::transfer as t;
use super::{Exec, X87Handler};
use iced_x86::Code;

const fn waiting(exec: Exec) -> X87Handler {
    X87Handler {
        exec,
        waiting: true,
        control: true,
    }
}

const fn immediate(exec: Exec) -> X87Handler {
    X87Handler {
        exec,
        waiting: false,
        control: true,
    }
}

fn control(code: Code) -> Option<X87Handler> {
    use Exec::{Load, LoadEnv, Reg, Restore, Save, StatusToAx, Store, StoreEnv};
    let (bytes, small) = (2, true);
    Some(match code {
        Code::Wait | Code::Fnop => waiting(Reg(nop)),
        Code::Feni | Code::Fdisi | Code::Fsetpm => waiting(Reg(nop)),
        Code::Fneni | Code::Fndisi | Code::Fnsetpm | Code::Frstpm => immediate(Reg(nop)),
        Code::Fninit => immediate(Reg(fninit)),
        Code::Finit => waiting(Reg(fninit)),
        Code::Fnclex => immediate(Reg(fnclex)),
        Code::Fclex => waiting(Reg(fnclex)),
        Code::Fldcw_m2byte => waiting(Load { bytes, run: fldcw }),
        Code::Fnstcw_m2byte => immediate(Store { bytes, run: fnstcw }),
        Code::Fstcw_m2byte => waiting(Store { bytes, run: fnstcw }),
        Code::Fnstsw_m2byte => immediate(Store { bytes, run: fnstsw }),
        Code::Fstsw_m2byte => waiting(Store { bytes, run: fnstsw }),
        Code::Fnstsw_AX => immediate(StatusToAx),
        Code::Fstsw_AX => waiting(StatusToAx),
        Code::Fldenv_m14byte => waiting(LoadEnv { small }),
        Code::Fldenv_m28byte => waiting(LoadEnv { small: false }),
        Code::Fnstenv_m14byte => immediate(StoreEnv { small }),
        Code::Fnstenv_m28byte => immediate(StoreEnv { small: false }),
        Code::Fstenv_m14byte => waiting(StoreEnv { small }),
        Code::Fstenv_m28byte => waiting(StoreEnv { small: false }),
        Code::Frstor_m94byte => waiting(Restore { small }),
        Code::Frstor_m108byte => waiting(Restore { small: false }),
        Code::Fnsave_m94byte => immediate(Save { small }),
        Code::Fnsave_m108byte => immediate(Save { small: false }),
        Code::Fsave_m94byte => waiting(Save { small }),
        Code::Fsave_m108byte => waiting(Save { small: false }),
        _ => return None,
    })
}

/// A handler that is neither a control instruction nor exempt from pending exceptions.
const fn data(exec: Exec) -> X87Handler {
    X87Handler {
        exec,
        waiting: true,
        control: false,
    }
}

/// The six operations in all their forms: operation, then register and memory codes.
macro_rules! arithmetic {
    ($code:expr, $($op:ident: $st0:ident $sti:ident $pop:ident $m32:ident $m64:ident $i32:ident $i16:ident;)*) => {
        match $code {
            $(
                Code::$st0 => Some(data(Exec::Reg(a::st0_sti::<$op>))),
                Code::$sti => Some(data(Exec::Reg(a::sti_st0::<$op>))),
                Code::$pop => Some(data(Exec::Reg(a::sti_st0_pop::<$op>))),
                Code::$m32 => Some(data(Exec::Load { bytes: 4, run: a::memory::<$op, M32> })),
                Code::$m64 => Some(data(Exec::Load { bytes: 8, run: a::memory::<$op, M64> })),
                Code::$i32 => Some(data(Exec::Load { bytes: 4, run: a::memory::<$op, I32> })),
                Code::$i16 => Some(data(Exec::Load { bytes: 2, run: a::memory::<$op, I16> })),
            )*
            _ => None,
        }
    };
}

fn arithmetic(code: Code) -> Option<X87Handler> {
    arithmetic!(code,
        ADD: Fadd_st0_sti Fadd_sti_st0 Faddp_sti_st0 Fadd_m32fp Fadd_m64fp Fiadd_m32int Fiadd_m16int;
        MUL: Fmul_st0_sti Fmul_sti_st0 Fmulp_sti_st0 Fmul_m32fp Fmul_m64fp Fimul_m32int Fimul_m16int;
        SUB: Fsub_st0_sti Fsub_sti_st0 Fsubp_sti_st0 Fsub_m32fp Fsub_m64fp Fisub_m32int Fisub_m16int;
        SUBR: Fsubr_st0_sti Fsubr_sti_st0 Fsubrp_sti_st0 Fsubr_m32fp Fsubr_m64fp Fisubr_m32int Fisubr_m16int;
        DIV: Fdiv_st0_sti Fdiv_sti_st0 Fdivp_sti_st0 Fdiv_m32fp Fdiv_m64fp Fidiv_m32int Fidiv_m16int;
        DIVR: Fdivr_st0_sti Fdivr_sti_st0 Fdivrp_sti_st0 Fdivr_m32fp Fdivr_m64fp Fidivr_m32int Fidivr_m16int;
    )
}

fn comparison(code: Code) -> Option<X87Handler> {
    use Exec::{Flags, Load, Reg};
    let exec = match code {
        Code::Fcom_st0_sti | Code::Fcom_st0_sti_DCD0 => Reg(c::fcom::<false, 0>),
        Code::Fcomp_st0_sti | Code::Fcomp_st0_sti_DCD8 | Code::Fcomp_st0_sti_DED0 => {
            Reg(c::fcom::<false, 1>)
        }
        Code::Fcompp => Reg(c::fcompp::<false>),
        Code::Fucom_st0_sti => Reg(c::fcom::<true, 0>),
        Code::Fucomp_st0_sti => Reg(c::fcom::<true, 1>),
        Code::Fucompp => Reg(c::fcompp::<true>),
        Code::Fcom_m32fp => Load {
            bytes: 4,
            run: c::fcom_memory::<M32, 0>,
        },
        Code::Fcomp_m32fp => Load {
            bytes: 4,
            run: c::fcom_memory::<M32, 1>,
        },
        Code::Fcom_m64fp => Load {
            bytes: 8,
            run: c::fcom_memory::<M64, 0>,
        },
        Code::Fcomp_m64fp => Load {
            bytes: 8,
            run: c::fcom_memory::<M64, 1>,
        },
        Code::Ficom_m32int => Load {
            bytes: 4,
            run: c::fcom_memory::<I32, 0>,
        },
        Code::Ficomp_m32int => Load {
            bytes: 4,
            run: c::fcom_memory::<I32, 1>,
        },
        Code::Ficom_m16int => Load {
            bytes: 2,
            run: c::fcom_memory::<I16, 0>,
        },
        Code::Ficomp_m16int => Load {
            bytes: 2,
            run: c::fcom_memory::<I16, 1>,
        },
        Code::Ftst => Reg(c::ftst),
        Code::Fxam => Reg(c::fxam),
        Code::Fcomi_st0_sti => Flags(c::fcomi::<false, false>),
        Code::Fcomip_st0_sti => Flags(c::fcomi::<false, true>),
        Code::Fucomi_st0_sti => Flags(c::fcomi::<true, false>),
        Code::Fucomip_st0_sti => Flags(c::fcomi::<true, true>),
        _ => return None,
    };
    Some(data(exec))
}

fn transfer(code: Code) -> Option<X87Handler> {
    use Exec::{Load, Reg, Store};
    let exec = match code {
        Code::Fld_m32fp => Load {
            bytes: 4,
            run: t::load::<M32>,
        },
        Code::Fld_m64fp => Load {
            bytes: 8,
            run: t::load::<M64>,
        },
        Code::Fld_m80fp => Load {
            bytes: 10,
            run: t::fld80,
        },
        Code::Fild_m16int => Load {
            bytes: 2,
            run: t::load::<I16>,
        },
        Code::Fild_m32int => Load {
            bytes: 4,
            run: t::load::<I32>,
        },
        Code::Fild_m64int => Load {
            bytes: 8,
            run: t::fild64,
        },
        Code::Fbld_m80bcd => Load {
            bytes: 10,
            run: t::fbld,
        },
        Code::Fst_m32fp => Store {
            bytes: 4,
            run: t::store_f32::<false>,
        },
        Code::Fstp_m32fp => Store {
            bytes: 4,
            run: t::store_f32::<true>,
        },
        Code::Fst_m64fp => Store {
            bytes: 8,
            run: t::store_f64::<false>,
        },
        Code::Fstp_m64fp => Store {
            bytes: 8,
            run: t::store_f64::<true>,
        },
        Code::Fstp_m80fp => Store {
            bytes: 10,
            run: t::store_f80,
        },
        Code::Fist_m16int => Store {
            bytes: 2,
            run: t::store_int::<16, false>,
        },
        Code::Fistp_m16int => Store {
            bytes: 2,
            run: t::store_int::<16, true>,
        },
        Code::Fist_m32int => Store {
            bytes: 4,
            run: t::store_int::<32, false>,
        },
        Code::Fistp_m32int => Store {
            bytes: 4,
            run: t::store_int::<32, true>,
        },
        Code::Fistp_m64int => Store {
            bytes: 8,
            run: t::store_int::<64, true>,
        },
        Code::Fisttp_m16int => Store {
            bytes: 2,
            run: t::store_truncated::<16>,
        },
        Code::Fisttp_m32int => Store {
            bytes: 4,
            run: t::store_truncated::<32>,
        },
        Code::Fisttp_m64int => Store {
            bytes: 8,
            run: t::store_truncated::<64>,
        },
        Code::Fbstp_m80bcd => Store {
            bytes: 10,
            run: t::fbstp,
        },
        Code::Fld_sti => Reg(t::fld_sti),
        Code::Fst_sti => Reg(t::fst_sti::<false>),
        Code::Fstpnce_sti => Reg(t::fstpnce),
        Code::Fstp_sti | Code::Fstp_sti_DFD0 | Code::Fstp_sti_DFD8 => Reg(t::fst_sti::<true>),
        Code::Fxch_st0_sti | Code::Fxch_st0_sti_DDC8 | Code::Fxch_st0_sti_DFC8 => Reg(t::fxch),
        Code::Ffree_sti => Reg(t::ffree::<false>),
        Code::Ffreep_sti => Reg(t::ffree::<true>),
        Code::Fincstp => Reg(t::fincstp),
        Code::Fdecstp => Reg(t::fdecstp),
        Code::Fld1 => Reg(t::fld1),
        Code::Fldz => Reg(t::fldz),
        Code::Fldl2t => Reg(t::load_constant::<0>),
        Code::Fldl2e => Reg(t::load_constant::<1>),
        Code::Fldpi => Reg(t::load_constant::<2>),
        Code::Fldlg2 => Reg(t::load_constant::<3>),
        Code::Fldln2 => Reg(t::load_constant::<4>),
        _ => return None,
    };
    Some(data(exec))
}

fn conditional_move(code: Code) -> Option<X87Handler> {
    const CF: u64 = 1;
    const PF: u64 = 4;
    const ZF: u64 = 64;
    const BE: u64 = CF | ZF;
    let run: super::CondMoveFn = match code {
        Code::Fcmovb_st0_sti => t::fcmov::<CF, false>,
        Code::Fcmove_st0_sti => t::fcmov::<ZF, false>,
        Code::Fcmovbe_st0_sti => t::fcmov::<BE, false>,
        Code::Fcmovu_st0_sti => t::fcmov::<PF, false>,
        Code::Fcmovnb_st0_sti => t::fcmov::<CF, true>,
        Code::Fcmovne_st0_sti => t::fcmov::<ZF, true>,
        Code::Fcmovnbe_st0_sti => t::fcmov::<BE, true>,
        Code::Fcmovnu_st0_sti => t::fcmov::<PF, true>,
        _ => return None,
    };
    Some(data(Exec::CondMove(run)))
}

fn function(code: Code) -> Option<X87Handler> {
    let run: super::RegFn = match code {
        Code::Fchs => p::fchs,
        Code::Fabs => p::fabs,
        Code::Fsqrt => a::fsqrt,
        Code::Frndint => p::frndint,
        Code::Fscale => p::fscale,
        Code::Fxtract => p::fxtract,
        Code::Fprem => p::fprem::<false>,
        Code::Fprem1 => p::fprem::<true>,
        Code::F2xm1 => f::f2xm1,
        Code::Fyl2x => f::fyl2x,
        Code::Fyl2xp1 => f::fyl2xp1,
        Code::Fpatan => f::fpatan,
        Code::Fsin => f::fsin,
        Code::Fcos => f::fcos,
        Code::Fsincos => f::fsincos,
        Code::Fptan => f::fptan,
        _ => return None,
    };
    Some(data(Exec::Reg(run)))
}

/// Handler of an x87 instruction; `None` if `code` is not one.
#[must_use]
pub fn lookup(code: Code) -> Option<X87Handler> {
    control(code)
        .or_else(|| arithmetic(code))
        .or_else(|| comparison(code))
        .or_else(|| transfer(code))
        .or_else(|| conditional_move(code))
        .or_else(|| function(code))
}
