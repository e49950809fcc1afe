//! x87: operands for the functions of [`crate::fpu::x87`].

use std::sync::LazyLock;

use iced_x86::Code;

use crate::cpu::state::cr0;
use crate::cpu::{Cpu, Flow, R, Step};
use crate::decode::op::{MEM_FLAT, Op};
use crate::fpu::x87::{ENV32_BYTES, EnvFormat, Exec, X87Handler, lookup};

static HANDLERS: LazyLock<Vec<X87Handler>> =
    LazyLock::new(|| all_forms().map(|(_, h)| h).collect());
static NUMBERS: LazyLock<std::collections::HashMap<Code, u16>> = LazyLock::new(|| {
    all_forms()
        .enumerate()
        .map(|(i, (code, _))| (code, i as u16))
        .collect()
});

fn all_forms() -> impl Iterator<Item = (Code, X87Handler)> {
    Code::values().filter_map(|code| lookup(code).map(|h| (code, h)))
}

/// The number of a handler, for [`Op::tag`].
pub(crate) fn number(code: Code) -> Option<u16> {
    NUMBERS.get(&code).copied()
}

/// Whether the form is one that leaves the last-instruction pointers alone.
fn address(cpu: &mut Cpu, op: &Op, bytes: u64, write: bool) -> R<u64> {
    if op.mem == MEM_FLAT {
        Ok(cpu.offset(op))
    } else {
        cpu.ea_general(op, bytes, write)
    }
}

fn pending(cpu: &mut Cpu) -> R<()> {
    // Without CR0.NE the error would go to a PIC, which the machine does not have.
    if cpu.fp.x87_pending() && cpu.cr0 & cr0::NE != 0 {
        return Err(cpu.raise(16, None));
    }
    Ok(())
}

/// FWAIT.
pub(crate) fn wait(cpu: &mut Cpu, _: &Op) -> Step {
    if cpu.cr0 & (cr0::MP | cr0::TS) == cr0::MP | cr0::TS {
        return Err(cpu.raise(7, None));
    }
    pending(cpu)?;
    Ok(Flow::Next)
}

/// Runs any x87 instruction; `tag` is its handler, `imm` the FOP value, `dst` the `i` of `ST(i)`.
pub(crate) fn run(cpu: &mut Cpu, op: &Op) -> Step {
    let h = &HANDLERS[op.tag as usize];
    if cpu.cr0 & (cr0::EM | cr0::TS) != 0 {
        return Err(cpu.raise(7, None));
    }
    if h.waiting {
        pending(cpu)?;
    }
    let data = execute(cpu, op, h)?;
    if !h.control {
        let rip = cpu.ip(op);
        cpu.fp.set_last_instruction(op.imm as u16, rip, data);
    }
    Ok(Flow::Next)
}

/// Executes; gives the address of the memory operand, if any.
fn execute(cpu: &mut Cpu, op: &Op, h: &X87Handler) -> R<Option<u64>> {
    match h.exec {
        Exec::Reg(f) => f(&mut cpu.fp, op.dst),
        Exec::Load { bytes, run } => {
            let at = address(cpu, op, u64::from(bytes), false)?;
            let v = cpu.read_wide(at, bytes)?;
            run(&mut cpu.fp, v);
            return Ok(Some(at));
        }
        Exec::Store { bytes, run } => {
            let at = address(cpu, op, u64::from(bytes), true)?;
            cpu.probe_write(at, u64::from(bytes))?;
            let before = cpu.fp.x87.clone();
            if let Some(v) = run(&mut cpu.fp)
                && let Err(t) = cpu.write_wide(at, bytes, v)
            {
                cpu.fp.x87 = before;
                return Err(t);
            }
            return Ok(Some(at));
        }
        Exec::Flags(f) => {
            let flags = f(&mut cpu.fp, op.dst);
            cpu.lazy.set_bits(u64::from(flags));
        }
        Exec::CondMove(f) => {
            let flags = cpu.rflags();
            f(&mut cpu.fp, op.dst, flags);
        }
        Exec::StatusToAx => {
            let v = cpu.fp.status_word();
            cpu.set(0, v);
        }
        Exec::StoreEnv { small } => {
            let format = format(cpu, small);
            let image = cpu.fp.store_env(format);
            let n = format.env_bytes();
            let at = address(cpu, op, n as u64, true)?;
            cpu.write_bytes(at, &image[..n])?;
            cpu.fp.mask_all();
        }
        Exec::LoadEnv { small } => {
            let format = format(cpu, small);
            let n = format.env_bytes();
            let at = address(cpu, op, n as u64, false)?;
            let mut image = [0; ENV32_BYTES];
            cpu.read_bytes(at, &mut image[..n])?;
            cpu.fp.load_env(&image, format);
        }
        Exec::Save { small } => {
            let format = format(cpu, small);
            let image = cpu.fp.save(format);
            let n = format.save_bytes();
            let at = address(cpu, op, n as u64, true)?;
            cpu.write_bytes(at, &image[..n])?;
            cpu.fp.fninit();
        }
        Exec::Restore { small } => {
            let format = format(cpu, small);
            let n = format.save_bytes();
            let at = address(cpu, op, n as u64, false)?;
            let mut image = [0; ENV32_BYTES + 80];
            cpu.read_bytes(at, &mut image[..n])?;
            cpu.fp.restore(&image, format);
        }
    }
    Ok(None)
}

fn format(cpu: &Cpu, small: bool) -> EnvFormat {
    EnvFormat {
        small,
        real: !cpu.protected(),
    }
}
