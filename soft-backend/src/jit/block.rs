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
use crate::decode::op::Op;
use crate::decode::{What, decode};

/// A block as the interpreter has it.
pub(super) struct Source<'a> {
    pub(super) id: u32,
    pub(super) ops: &'a [Op],
    /// The bytes from its start on.
    pub(super) bytes: &'a [u8],
    /// Of its start in the page.
    pub(super) offset: u16,
    /// Host address of the page that it ends in, if that is the next one.
    pub(super) second: Option<u64>,
    pub(super) count: u16,
    pub(super) fused: bool,
    /// It ends in the run loop, which looks at events.
    pub(super) checks: bool,
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
            let decoded = decode(bytes, Mode::Bits64, off as u16).ok()?;
            let here = decoded.op;
            let mut i = Instruction::default();
            Decoder::with_ip(64, bytes, off as u64, DecoderOptions::NONE).decode_out(&mut i);
            off += usize::from(here.len);
            // As the block's maker has it; an instruction over a page's end is alone.
            if n < 32 && decoded.what == What::Nothing && self.second.is_none() {
                continue;
            }
            let last = n + 1 == count;
            let pair = self.fused && n + 2 >= count;
            let mut op_here = *self.ops.get(op)?;
            if decoded.what == What::Sti {
                // One of its two forms.
                op_here.run = here.run;
            }
            if !same(&here, &op_here, pair, last) {
                return None;
            }
            // What the interpreter does not know is no instruction, whatever the host makes of it.
            let plan = match decoded.what {
                What::Unknown => Plan::CALL,
                _ => choose(&i),
            };
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
        if self.checks && self.fused {
            return None;
        }
        let mut live = true;
        for item in items.iter_mut().rev() {
            item.live = live;
            if live && item.plan.writes == Writes::Carelessly {
                item.plan = item.plan.careful(&item.i);
            }
            live = item.plan.live_before(live);
        }
        let slows: Box<[Slow]> = (0..self.ops.len()).map(|n| self.slow(n, &items)).collect();
        let mut e = Emit::new(base, stubs, &slows, self.offset.into());
        let elsewhere = self.second.map(|host| e.check_second_page(host));
        e.asm.imm(true, 5, BUDGET, self.count.into());
        let spent = e.asm.jcc(cc::LE);
        let links = self.body(&mut e, &items, info)?;
        e.detours();
        e.asm.bind(spent);
        e.asm.imm(true, 0, BUDGET, self.count.into());
        e.asm.mov_imm32(S0, self.id);
        e.asm.jmp_to(stubs.interpret);
        for hole in elsewhere.into_iter().flatten() {
            e.asm.bind(hole);
        }
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
            if self.checks && item.plan.how.ends() {
                return Some(e.leave_by(item.op));
            }
            match item.plan.how {
                How::Nop => {}
                How::Copy | How::Vector | How::Float | How::Product => {
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
                    if !e.bit_test(info, i, item.live) {
                        return None;
                    }
                }
                How::Shift => {
                    if !e.shift_with_flags(i) {
                        return None;
                    }
                }
                How::CompareExchange => {
                    if !e.compare_exchange(i, item.live) {
                        return None;
                    }
                }
                How::Scan => e.scan(i, item.live),
                How::Multiply => e.multiply(i, item.live),
                How::Divide => e.divide(i),
                How::PushMemory => e.push_memory(i),
                How::Widen => e.widen(i),
                How::Push => e.push(i),
                How::Pop => e.pop(i),
                How::Leave => e.leave_frame(),
                How::Call => {
                    e.call(item.op);
                    if pair {
                        // The function is that of the jump as well.
                        e.never();
                        return Some([None; 2]);
                    }
                }
                _ => return self.end(e, item),
            }
            e.finish(item.op);
        }
        if self.checks {
            return Some(e.leave_by(self.ops.len() - 1));
        }
        e.store_mxcsr();
        let links = e.jump(items.last().map_or(0, |item| item.next));
        e.finish_end(self.ops.len() - 1);
        Some(links)
    }

    fn end(&self, e: &mut Emit<'_>, item: &Item) -> Option<Links> {
        let (i, next) = (&item.i, item.next);
        e.store_mxcsr();
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
