//! The table of string instructions and of IN and OUT.

use iced_x86::{Mnemonic as M, OpKind};

use super::operand::by_width;
use super::{Build, Choice, OpFn as Run};
use crate::cpu::Mode;
use crate::ops::io;
use crate::ops::string::{self, ONCE, WHILE_EQUAL, WHILE_UNEQUAL};

/// The function for a string or port instruction, if it is one.
pub(super) fn choose(b: &mut Build<'_>) -> Option<Choice> {
    macro_rules! repeated {
        ($f:ident) => {
            repeated!($f, false)
        };
        ($f:ident, $scan:literal) => {{
            let w = element(b)?;
            operand(b);
            let repne = b.ins.has_repne_prefix();
            let run: Run = if b.ins.has_repe_prefix() || (repne && !$scan) {
                by_width!(w, |T| string::$f::<T, WHILE_EQUAL>)
            } else if repne {
                by_width!(w, |T| string::$f::<T, WHILE_UNEQUAL>)
            } else {
                by_width!(w, |T| string::$f::<T, ONCE>)
            };
            // Interrupted, a repeated instruction returns to itself: it stays in its block.
            Choice::next(run)
        }};
    }
    Some(match b.ins.mnemonic() {
        M::Movsb | M::Movsw | M::Movsd | M::Movsq => repeated!(movs),
        M::Stosb | M::Stosw | M::Stosd | M::Stosq => repeated!(stos),
        M::Lodsb | M::Lodsw | M::Lodsd | M::Lodsq => repeated!(lods),
        M::Scasb | M::Scasw | M::Scasd | M::Scasq => repeated!(scas, true),
        M::Cmpsb | M::Cmpsw | M::Cmpsd | M::Cmpsq => repeated!(cmps, true),
        M::Insb | M::Insw | M::Insd => repeated!(ins),
        M::Outsb | M::Outsw | M::Outsd => repeated!(outs),
        M::In => {
            let w = b.width(0);
            if b.is_reg(1) {
                Choice::next(by_width!(w, |T| io::input::<T, true>))
            } else {
                b.imm(1);
                Choice::next(by_width!(w, |T| io::input::<T, false>))
            }
        }
        M::Out => {
            let w = b.width(1);
            if b.is_reg(0) {
                Choice::end(by_width!(w, |T| io::output::<T, true>))
            } else {
                b.imm(0);
                Choice::end(by_width!(w, |T| io::output::<T, false>))
            }
        }
        _ => return None,
    })
}

/// Width of an element; `None` for the SSE instructions that share a mnemonic.
fn element(b: &Build<'_>) -> Option<usize> {
    let string = (0..b.ins.op_count()).any(|n| address_bytes(b.ins.op_kind(n)).is_some());
    string.then(|| b.ins.memory_size().size())
}

fn address_bytes(kind: OpKind) -> Option<usize> {
    Some(match kind {
        OpKind::MemorySegSI | OpKind::MemorySegDI | OpKind::MemoryESDI => 2,
        OpKind::MemorySegESI | OpKind::MemorySegEDI | OpKind::MemoryESEDI => 4,
        OpKind::MemorySegRSI | OpKind::MemorySegRDI | OpKind::MemoryESRDI => 8,
        _ => return None,
    })
}

/// Segment of the source and address size.
fn operand(b: &mut Build<'_>) {
    let bytes = (0..b.ins.op_count()).find_map(|n| address_bytes(b.ins.op_kind(n)));
    let fallback = if b.mode == Mode::Bits64 { 8 } else { 4 };
    b.kind(b.ins.memory_segment(), bytes.unwrap_or(fallback));
}
