//! From instruction code to handler.

use super::control::{fldcw, fnclex, fninit, fnstcw, fnstsw, nop};
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

/// Handler of an x87 instruction; `None` if `code` is not one.
#[must_use]
pub fn lookup(code: Code) -> Option<X87Handler> {
    control(code)
}
