//! The second tier: blocks that run often are translated to the host's code.
//!
//! Host and guest have the same instruction set, so most instructions are copied, with other registers and with a
//! probe of the TLB before each access to memory. Blocks, and the places where they may stop, are the interpreter's,
//! and so is the function and the operand of every instruction: what is not copied is called, and whatever goes
//! another way than the usual one (a miss in the TLB, a device, a fault, a store to code, a branch to code that is not
//! translated) is answered by running the interpreter's function for the whole instruction. Nothing of it has been
//! done by then. A machine is therefore the same, instruction for instruction, whatever is translated.
//!
//! Only 64-bit code is translated, and none runs while code breakpoints are armed or single instructions are asked for.
//! Memory for code is bounded; when it is full, everything is translated anew as it runs.

mod asm;
mod bits;
mod block;
mod choice;
mod control;
mod copy;
mod divide;
mod emit;
mod flags;
mod frame;
mod memory;
mod memory_operand;
mod registers;
mod shift;
mod stubs;
mod vector;

use std::ops::Range;

use iced_x86::InstructionInfoFactory;

use crate::cpu::{Cpu, Flow, Step, Trapped};
use crate::decode::op::Op;
use crate::mem::PAGE;
pub(crate) use frame::Frame;
use frame::Slow;
use memory::CodeMemory;
use stubs::{JUMP_ENTRIES, Stubs, jump_slot, status};

/// Memory for translated code.
const CODE_BYTES: usize = 16 << 20;
/// More than a block ever takes: 64 instructions of at most some 130 bytes, their ways out included.
const BLOCK_BYTES: usize = 32 << 10;
/// Runs after which a block is translated.
pub(crate) const THRESHOLD: u16 = 8;
/// In the place of a count: the block is not to be translated.
const NEVER: u16 = u16::MAX;

/// What is known of a block.
#[derive(Default)]
struct Native {
    /// Distance of its code from the start; zero if there is none.
    entry: u32,
    /// How often the interpreter ran it.
    runs: u16,
    body: Option<Box<Body>>,
}

/// A translated block.
struct Body {
    links: control::Links,
    /// Host address of the guest's code.
    host: u64,
    /// Its code that leaves for a dropped block.
    dead: usize,
    /// What its code refers to.
    _slows: Box<[Slow]>,
}

/// A block of the interpreter, to be translated.
pub(crate) struct Candidate<'a> {
    pub(crate) ops: &'a [Op],
    pub(crate) bytes: &'a [u8],
    /// Host address of its start.
    pub(crate) host: u64,
    /// And of the page that its only instruction ends in, if that is the next one.
    pub(crate) second: Option<u64>,
    pub(crate) count: u16,
    pub(crate) fused: bool,
    /// Events are looked at after it.
    pub(crate) checks: bool,
}

/// How a run of translated code ended.
pub(crate) enum Left {
    /// At an operation of a block, which ran to this.
    Op {
        block: u32,
        index: usize,
        step: Step,
    },
    /// Before a block, which uses the budget up.
    Before(u32),
    /// Before code that is to be looked up.
    Lost,
}

/// The translations of a machine's blocks.
pub(crate) struct Jit {
    memory: CodeMemory,
    stubs: Stubs,
    /// Where blocks may be.
    room: Range<usize>,
    next: usize,
    natives: Vec<Native>,
    /// Translated code by host address.
    jumps: Box<[[u64; 2]]>,
    threshold: u16,
    /// Blocks translated so far.
    translations: u64,
    info: InstructionInfoFactory,
}

impl Jit {
    /// Whether the host has such code and lets it run.
    pub(crate) fn is_possible() -> bool {
        Self::with_memory(THRESHOLD, 2 * BLOCK_BYTES).is_some()
    }

    /// `None` where the host has no such code, or does not let it run.
    pub(crate) fn new(threshold: u16) -> Option<Self> {
        Self::with_memory(threshold, CODE_BYTES)
    }

    /// With so many bytes of code.
    pub(crate) fn with_memory(threshold: u16, bytes: usize) -> Option<Self> {
        if !host_has_instructions() {
            return None;
        }
        let mut memory = match CodeMemory::new(bytes) {
            Ok(memory) => memory,
            Err(error) => {
                tracing::debug!(%error, "no memory for code: the software CPU interprets");
                return None;
            }
        };
        let (stubs, code) = Stubs::new(memory.base());
        memory.put(0, &code);
        let start = code.len().next_multiple_of(64);
        Some(Jit {
            room: start..memory.len(),
            next: start,
            memory,
            stubs,
            natives: Vec::new(),
            jumps: vec![[0; 2]; JUMP_ENTRIES].into_boxed_slice(),
            threshold,
            translations: 0,
            info: InstructionInfoFactory::new(),
        })
    }

    /// A block has come, or another one in the place of an earlier.
    pub(crate) fn added(&mut self, id: u32) {
        let at = id as usize;
        if at >= self.natives.len() {
            self.natives.resize_with(at + 1, Native::default);
        }
        self.natives[at] = Native::default();
    }

    /// A block has gone.
    pub(crate) fn dropped(&mut self, id: u32) {
        let Some(native) = self.natives.get_mut(id as usize) else {
            return;
        };
        let Native { entry, body, .. } = std::mem::take(native);
        let Some(body) = body else {
            return;
        };
        let known = &mut self.jumps[jump_slot(body.host)];
        if known[0] == body.host {
            *known = [0; 2];
        }
        // Code of its page may lead here still.
        let mut jump = vec![0xe9];
        jump.extend((body.dead as u32).wrapping_sub(entry + 5).to_le_bytes());
        self.memory.put(entry as usize, &jump);
    }

    /// Everything is to be translated anew.
    pub(crate) fn flush(&mut self) {
        for native in &mut self.natives {
            *native = Native::default();
        }
        self.jumps.fill([0; 2]);
        self.next = self.room.start;
    }

    /// The interpreter runs a block once more. True if it is to be translated.
    #[inline]
    pub(crate) fn warm(&mut self, id: u32) -> bool {
        let Some(native) = self.natives.get_mut(id as usize) else {
            return false;
        };
        if native.runs == NEVER {
            return false;
        }
        native.runs += 1;
        native.runs >= self.threshold
    }

    /// A block is none that can be translated.
    pub(crate) fn never(&mut self, id: u32) {
        if let Some(native) = self.natives.get_mut(id as usize) {
            native.runs = NEVER;
        }
    }

    /// Whether there is code of a block.
    #[inline]
    pub(crate) fn has(&self, id: u32) -> bool {
        self.natives.get(id as usize).is_some_and(|n| n.entry != 0)
    }

    /// How many blocks were translated.
    #[cfg(test)]
    pub(crate) fn translations(&self) -> u64 {
        self.translations
    }

    /// Translates a block, if that can be.
    pub(crate) fn translate(&mut self, id: u32, c: &Candidate<'_>) {
        if self.room.end - self.next < BLOCK_BYTES {
            self.flush();
        }
        let source = block::Source {
            id,
            ops: c.ops,
            bytes: c.bytes,
            offset: (c.host & (PAGE - 1)) as u16,
            second: c.second,
            count: c.count,
            fused: c.fused,
            checks: c.checks,
        };
        let base = self.memory.base() + self.next as u64;
        let done = source.translate(base, &self.stubs, &mut self.info);
        let native = &mut self.natives[id as usize];
        let Some(code) = done.filter(|code| code.bytes.len() <= BLOCK_BYTES) else {
            native.runs = NEVER;
            return;
        };
        self.translations += 1;
        let start = self.next;
        self.memory.put(start, &code.bytes);
        self.next = (start + code.bytes.len()).next_multiple_of(16);
        native.entry = start as u32;
        let from_start = |hole: asm::Hole| hole.moved(start);
        native.body = Some(Box::new(Body {
            links: code.links.map(|link| {
                link.map(|link| control::Link {
                    guard: link.guard.map(from_start),
                    jump: from_start(link.jump),
                })
            }),
            host: c.host,
            dead: start + code.dead,
            _slows: code.slows,
        }));
    }

    /// Lets a block's code go to that of another in its page without leaving.
    pub(crate) fn link(&mut self, from: u32, n: usize, to: u32) {
        let target = match self.natives.get(to as usize) {
            Some(native) if native.entry != 0 => native.entry,
            _ => return,
        };
        let body = self.natives.get_mut(from as usize);
        let Some(link) = body.and_then(|n| n.body.as_mut()).and_then(|b| b.links[n]) else {
            return;
        };
        let lead = |hole: asm::Hole, to: u32| {
            let from = hole.offset() as u64 + 4;
            (hole.offset(), asm::distance(from, to.into()))
        };
        let (at, distance) = lead(link.jump, target);
        self.memory.put(at, &distance);
        if let Some(guard) = link.guard {
            self.memory.put(guard.offset(), &[0; 4]);
        }
    }

    /// Runs the code of a block, and what follows it.
    pub(crate) fn run(&mut self, cpu: &mut Cpu, id: u32, end: u64) -> Left {
        let native = &self.natives[id as usize];
        let Some(body) = &native.body else {
            return Left::Before(id);
        };
        let entry = self.memory.base() + u64::from(native.entry);
        self.jumps[jump_slot(body.host)] = [body.host, entry];
        cpu.jit.jumps = self.jumps.as_ptr() as u64;
        cpu.jit.page = cpu.rip & !(PAGE - 1);
        cpu.jit.end = end;
        cpu.jit.budget = end.wrapping_sub(cpu.retired);
        cpu.refresh_frame();
        cpu.flags_to_frame();
        let why = self.stubs.enter(cpu, entry);
        let step = match why {
            status::INTERPRET | status::DEAD => {
                cpu.flags_from_frame();
                cpu.mxcsr_from_frame();
                cpu.retired = cpu.jit.end.wrapping_sub(cpu.jit.budget);
                if why == status::INTERPRET {
                    return Left::Before(cpu.jit.about as u32);
                }
                cpu.rip = cpu.jit.page + (cpu.jit.about & (PAGE - 1));
                return Left::Lost;
            }
            status::LINK0 => Ok(Flow::Link0),
            status::LINK1 => Ok(Flow::Link1),
            status::JUMP => Ok(Flow::Jump),
            status::CHECK => Ok(Flow::Check),
            _ => Err(Trapped),
        };
        let slow = stubs::slow_of(&cpu.jit);
        Left::Op {
            block: slow.block,
            index: slow.index.into(),
            step,
        }
    }
}

/// Instructions of x86-64-v2 are copied as they are.
fn host_has_instructions() -> bool {
    #[cfg(target_arch = "x86_64")]
    {
        std::arch::is_x86_feature_detected!("ssse3")
            && std::arch::is_x86_feature_detected!("sse4.1")
            && std::arch::is_x86_feature_detected!("sse4.2")
            && std::arch::is_x86_feature_detected!("popcnt")
    }
    #[cfg(not(target_arch = "x86_64"))]
    false
}
