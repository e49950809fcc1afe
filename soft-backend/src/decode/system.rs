//! The table of system instructions.

use iced_x86::{Code as C, Mnemonic as M, Register};

use super::operand::by_width;
use super::{Build, Choice, OpFn as Run};
use crate::ops::{control, convert, mov, system, tables};
use crate::segments::{DS, ES, FS, GS, SS};

/// The function for a system instruction, if it is one.
pub(super) fn choose(b: &mut Build<'_>) -> Option<Choice> {
    Some(match b.ins.mnemonic() {
        M::Mov => control_moves(b)?,
        M::Nop | M::Reservednop | M::Endbr64 | M::Endbr32 => Choice::nothing(),
        // Shadow stacks do not exist here: the encodings are NOPs.
        M::Rdsspd | M::Rdsspq => Choice::nothing(),
        M::Prefetchnta
        | M::Prefetcht0
        | M::Prefetcht1
        | M::Prefetcht2
        | M::Prefetchw
        | M::Prefetch
        | M::Prefetchwt1
        | M::Prefetchit0
        | M::Prefetchit1 => Choice::nothing(),
        M::Mfence => Choice::next(convert::mfence),
        M::Lfence | M::Sfence => Choice::nothing(),
        M::Clflush | M::Clflushopt => {
            b.mem();
            Choice::next(convert::clflush)
        }
        M::Pause => Choice::end(system::pause),
        M::Hlt => Choice::end(system::hlt),
        M::Cli => Choice::next(system::cli),
        M::Sti => Choice::sti(),
        M::Clac => Choice::next(system::ac::<false>),
        M::Stac => Choice::next(system::ac::<true>),
        M::Clts => Choice::end(system::clts),
        M::Cpuid => Choice::next(system::cpuid),
        M::Rdtsc => Choice::next(system::rdtsc),
        M::Rdtscp => Choice::next(system::rdtscp),
        M::Rdmsr => Choice::next(system::rdmsr),
        M::Wrmsr => Choice::end(system::wrmsr),
        M::Rdpmc => Choice::end(control::gp),
        M::Swapgs => Choice::next(system::swapgs),
        M::Invlpg => {
            b.mem();
            Choice::end(system::invlpg)
        }
        M::Wbinvd | M::Invd => Choice::next(system::wbinvd),
        M::Vmcall | M::Vmmcall => Choice::next(system::hypercall),
        M::Rdfsbase | M::Rdgsbase | M::Wrfsbase | M::Wrgsbase => bases(b),
        M::Sgdt => table(b, tables::store::<false>),
        M::Sidt => table(b, tables::store::<true>),
        M::Lgdt => {
            b.op.aux = u8::from(b.ins.code() == C::Lgdt_m1632_16);
            table(b, tables::load::<false>)
        }
        M::Lidt => {
            b.op.aux = u8::from(b.ins.code() == C::Lidt_m1632_16);
            table(b, tables::load::<true>)
        }
        M::Sldt => word(b, 0),
        M::Str => word(b, 1),
        M::Smsw => word(b, 2),
        M::Lmsw => Choice::end(selector(b, tables::lmsw::<false>, tables::lmsw::<true>)),
        M::Lldt => Choice::next(selector(b, tables::lldt::<false>, tables::lldt::<true>)),
        M::Ltr => Choice::next(selector(b, tables::ltr::<false>, tables::ltr::<true>)),
        M::Verr => Choice::next(selector(
            b,
            tables::verify::<false, false>,
            tables::verify::<false, true>,
        )),
        M::Verw => Choice::next(selector(
            b,
            tables::verify::<true, false>,
            tables::verify::<true, true>,
        )),
        M::Lar => lar_lsl::<false>(b),
        M::Lsl => lar_lsl::<true>(b),
        M::Arpl => {
            b.src(1);
            let run: Run = if b.mem_or_dst(0) {
                tables::arpl::<true>
            } else {
                tables::arpl::<false>
            };
            Choice::next(run)
        }
        M::Les => far_load(b, ES),
        M::Lds => far_load(b, DS),
        M::Lss => far_load(b, SS),
        M::Lfs => far_load(b, FS),
        M::Lgs => far_load(b, GS),
        _ => return None,
    })
}

fn table(b: &mut Build<'_>, run: Run) -> Choice {
    b.mem();
    Choice::next(run)
}

fn word(b: &mut Build<'_>, what: u8) -> Choice {
    b.op.aux = what;
    if b.mem_or_dst(0) {
        return Choice::next(tables::word_m);
    }
    Choice::next(by_width!(b.width(0), |T| tables::word_r::<T>))
}

fn selector(b: &mut Build<'_>, reg: Run, mem: Run) -> Run {
    if b.mem_or_src(0) { mem } else { reg }
}

fn lar_lsl<const LIMIT: bool>(b: &mut Build<'_>) -> Choice {
    b.dst(0);
    let w = b.width(0);
    Choice::next(if b.mem_or_src(1) {
        by_width!(w, |T| tables::lar_lsl::<T, LIMIT, true>)
    } else {
        by_width!(w, |T| tables::lar_lsl::<T, LIMIT, false>)
    })
}

fn far_load(b: &mut Build<'_>, seg: usize) -> Choice {
    b.dst(0);
    b.mem();
    b.op.src = seg as u8;
    Choice::end(by_width!(b.width(0), |T| mov::load_far::<T>))
}

fn bases(b: &mut Build<'_>) -> Choice {
    b.dst(0);
    let w = b.width(0);
    let m = b.ins.mnemonic();
    b.op.aux = if matches!(m, M::Rdfsbase | M::Wrfsbase) {
        FS as u8
    } else {
        GS as u8
    };
    Choice::next(if matches!(m, M::Rdfsbase | M::Rdgsbase) {
        by_width!(w, |T| system::rd_base::<T>)
    } else {
        by_width!(w, |T| system::wr_base::<T>)
    })
}

/// MOV to and from control and debug registers.
fn control_moves(b: &mut Build<'_>) -> Option<Choice> {
    let (r0, r1) = (b.ins.op0_register(), b.ins.op1_register());
    let class = |r: Register| (r.is_cr(), r.is_dr());
    let run: Run = match (class(r0), class(r1)) {
        ((true, _), _) => system::to_cr,
        (_, (true, _)) => system::from_cr,
        ((_, true), _) => system::to_dr,
        (_, (_, true)) => system::from_dr,
        _ => return None,
    };
    b.dst(0);
    b.src(1);
    let writes = r0.is_cr() || r0.is_dr();
    Some(if writes {
        Choice::end(run)
    } else {
        Choice::next(run)
    })
}
