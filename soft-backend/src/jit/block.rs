//! The translation of one block.

use iced_x86::{Decoder, DecoderOptions, Instruction, InstructionInfoFactory};

use super::asm::{BUDGET, S0, cc};
use super::choice::{How, Plan, Writes, choose, touches_flags};
use super::control::Links;
use super::copy::Copy;
use super::emit::Emit;
use super::frame::Slow;
use super::stubs::Stubs;
use crate::cpu::Mode;
use crate::decode::decode;
use crate::decode::op::Op;
use crate::ops::{control, convert};

/// A block as the interpreter has it.
pub(super) struct Source<'a> {
    pub(super) id: u32,
    pub(super) ops: &'a [Op],
    /// The bytes from its start on.
    pub(super) bytes: &'a [u8],
    /// Of its start in the page.
    pub(super) offset: u16,
    pub(super) count: u16,
    pub(super) fused: bool,
}

/// A translated block.
pub(super) struct Code {
    pub(super) bytes: Vec<u8>,
    pub(super) slows: Box<[Slow]>,
    pub(super) links: Links,
    /// Where the code is that leaves for a dropped block.
    pub(super) dead: usize,
}

/// An instruction and the operation that stands for it.
struct Item {
    i: Instruction,
    op: usize,
    plan: Plan,
    next: i64,
    live: bool,
}

impl Source<'_> {
    /// The instructions, if they are still those that the interpreter decoded.
    fn items(&self) -> Option<Vec<Item>> {
        let mut items = Vec::with_capacity(self.count.into());
        let (mut off, mut op) = (0, 0);
        let count = usize::from(self.count);
        for n in 0..count {
            let bytes = self.bytes.get(off..)?;
            let here = decode(bytes, Mode::Bits64, off as u16).ok()?.op;
            let mut i = Instruction::default();
            Decoder::with_ip(64, bytes, off as u64, DecoderOptions::NONE).decode_out(&mut i);
            off += usize::from(here.len);
            if n < 32 && std::ptr::fn_addr_eq(here.run, convert::nop as crate::decode::op::OpFn) {
                continue;
            }
            let last = n + 1 == count;
            let pair = self.fused && n + 2 >= count;
            if !same(&here, self.ops.get(op)?, pair, last) {
                return None;
            }
            // What the interpreter does not know is no instruction, whatever the host makes of it.
            let unknown = std::ptr::fn_addr_eq(here.run, control::ud as crate::decode::op::OpFn);
            let plan = if unknown { Plan::CALL } else { choose(&i) };
            items.push(Item {
                i,
                op,
                plan,
                next: off as i64,
                live: true,
            });
            if !pair {
                op += 1;
            }
        }
        Some(items)
    }

    /// Translates the block; its code will be at `base`.
    pub(super) fn translate(
        &self,
        base: u64,
        stubs: &Stubs,
        info: &mut InstructionInfoFactory,
    ) -> Option<Code> {
        let mut items = self.items()?;
        let called = items.iter().filter(|item| called(item)).count();
        if 2 * called > items.len() {
            // The interpreter does it with less ado.
            return None;
        }
        let mut live = true;
        for item in items.iter_mut().rev() {
            item.live = live;
            if live && item.plan.writes == Writes::Carelessly {
                item.plan = Plan::CALL;
            }
            live = item.plan.live_before(live);
        }
        let slows: Box<[Slow]> = (0..self.ops.len()).map(|n| self.slow(n, &items)).collect();
        let mut e = Emit::new(base, stubs, &slows, self.offset.into());
        e.asm.imm(true, 5, BUDGET, self.count.into());
        let spent = e.asm.jcc(cc::LE);
        let links = self.body(&mut e, &items, info)?;
        e.detours();
        e.asm.bind(spent);
        e.asm.imm(true, 0, BUDGET, self.count.into());
        e.asm.mov_imm32(S0, self.id);
        e.asm.jmp_to(stubs.interpret);
        let dead = e.asm.bytes.len();
        e.asm.mov_imm32(S0, self.offset.into());
        e.asm.jmp_to(stubs.dead);
        let bytes = e.asm.bytes;
        Some(Code {
            bytes,
            slows,
            links,
            dead,
        })
    }

    fn slow(&self, n: usize, items: &[Item]) -> Slow {
        let quiet = items
            .iter()
            .filter(|item| item.op == n)
            .all(|item| !called(item) && !touches_flags(&item.i));
        Slow {
            op: &raw const self.ops[n] as usize,
            block: self.id,
            index: n as u16,
            offset: self.offset,
            count: self.count,
            flags: !quiet,
        }
    }

    fn body(
        &self,
        e: &mut Emit<'_>,
        items: &[Item],
        info: &mut InstructionInfoFactory,
    ) -> Option<Links> {
        for (n, item) in items.iter().enumerate() {
            let i = &item.i;
            let pair = self.fused && n + 2 == items.len();
            match item.plan.how {
                How::Nop => {}
                How::Copy | How::Vector | How::Product => {
                    let copy = Copy {
                        i,
                        plan: item.plan,
                        live: item.live,
                    };
                    if !e.copy(info, &copy) {
                        return None;
                    }
                }
                How::BitTest => {
                    if !e.bit_test(i, item.live) {
                        return None;
                    }
                }
                How::Widen => e.widen(i),
                How::Push => e.push(i),
                How::Pop => e.pop(i),
                How::Leave => e.leave_frame(),
                How::Call => {
                    e.call(item.op);
                    if pair {
                        // The function is that of the jump as well.
                        e.asm.raw(&[0x0f, 0x0b]);
                        return Some([None; 2]);
                    }
                }
                _ => return self.end(e, item),
            }
            e.finish(item.op);
        }
        let links = e.jump(items.last().map_or(0, |item| item.next));
        e.finish_end(self.ops.len() - 1);
        Some(links)
    }

    fn end(&self, e: &mut Emit<'_>, item: &Item) -> Option<Links> {
        let (i, next) = (&item.i, item.next);
        let links = match item.plan.how {
            How::Jcc => e.conditional(i, next),
            How::Loop => e.looping(i, next)?,
            How::Jmp => e.jump(i.near_branch64() as i64),
            How::JmpIndirect => e.jump_indirect(i),
            How::CallDirect => e.call_direct(i, next),
            How::CallIndirect => e.call_indirect(i, next),
            How::Ret => e.ret(i),
            _ => return None,
        };
        e.finish_end(item.op);
        Some(links)
    }
}

fn called(item: &Item) -> bool {
    item.plan.how == How::Call
}

/// Whether an operation is what was decoded; one of a fused pair has the parts of both.
fn same(decoded: &Op, op: &Op, pair: bool, last: bool) -> bool {
    let first = (decoded.imm, decoded.dst, decoded.src) == (op.imm, op.dst, op.src);
    let place = (decoded.disp, decoded.off, decoded.len) == (op.disp, op.off, op.len);
    if pair {
        return if last { place } else { first };
    }
    let memory = (decoded.base, decoded.index, decoded.scale, decoded.mem)
        == (op.base, op.index, op.scale, op.mem);
    let rest = (decoded.aux, decoded.tag) == (op.aux, op.tag);
    std::ptr::fn_addr_eq(decoded.run, op.run) && first && place && memory && rest
}
