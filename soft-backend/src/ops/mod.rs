//! The instructions, by family. Each is a function over the vCPU and a pre-decoded operation.

pub(crate) mod alu;
pub(crate) mod bcd;
pub(crate) mod bit;
pub(crate) mod control;
pub(crate) mod convert;
pub(crate) mod far;
pub(crate) mod float;
pub(crate) mod io;
pub(crate) mod mov;
pub(crate) mod mul_div;
pub(crate) mod rotate;
pub(crate) mod shift;
pub(crate) mod simd;
pub(crate) mod stack;
pub(crate) mod string;
pub(crate) mod system;
pub(crate) mod tables;
pub(crate) mod xchg;

use crate::cpu::{Cpu, R};
use crate::decode::op::Op;
use crate::int::Int;

/// The source operand: register `src`, or memory.
#[inline(always)]
fn source<T: Int, const MEM: bool>(cpu: &mut Cpu, op: &Op) -> R<T> {
    if MEM {
        let at = cpu.ea::<T>(op, false)?;
        cpu.read(at)
    } else {
        Ok(cpu.get(op.src))
    }
}
