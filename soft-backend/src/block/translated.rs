//! Blocks of the second tier: which are translated, and how they hang together.

use super::{BlockId, CodeAddress, CodeCache};
use crate::cpu::{Cpu, Mode, Trap};
use crate::jit::{Candidate, Jit, Left};
use crate::mem::PAGE;

impl CodeCache {
    /// Whether what the vCPU runs now may be translated code.
    #[inline]
    pub(crate) fn translates(&self, cpu: &Cpu) -> bool {
        self.jit.is_some() && cpu.mode == Mode::Bits64 && !cpu.debug.watches_code()
    }

    /// Whether there is code of a block, which is made if it has run often enough. A block that may use the budget
    /// up is the interpreter's.
    #[inline]
    pub(crate) fn is_translated(&mut self, cpu: &mut Cpu, id: BlockId, end: u64) -> bool {
        let Some(jit) = &mut self.jit else {
            return false;
        };
        let there = jit.has(id) || jit.warm(id) && self.translate(cpu, id);
        there && u64::from(self.blocks[id as usize].count) < end.wrapping_sub(cpu.retired)
    }

    /// True if there is code now.
    #[cold]
    fn translate(&mut self, cpu: &mut Cpu, id: BlockId) -> bool {
        let (block, place) = (&self.blocks[id as usize], self.places[id as usize]);
        let Some(jit) = &mut self.jit else {
            return false;
        };
        let suits = block.at != CodeAddress::NONE && block.at.0 & 3 == Mode::Bits64 as u64;
        let window = match Self::window(cpu, place.key >> 3) {
            Ok(window) if suits && !block.checks => window,
            _ => {
                cpu.trap = Trap::None;
                jit.never(id);
                return false;
            }
        };
        let candidate = Candidate {
            ops: &block.ops,
            bytes: &window.bytes[..window.len],
            offset: (block.at.host() & (PAGE - 1)) as u16,
            count: block.count,
            fused: block.fused,
        };
        jit.translate(id, &candidate);
        jit.has(id)
    }

    /// Runs a translated block and those that follow it.
    pub(crate) fn run_translated(&mut self, cpu: &mut Cpu, id: BlockId, end: u64) -> Left {
        let Some(jit) = &mut self.jit else {
            return Left::Before(id);
        };
        let left = jit.run(cpu, id, self.blocks[id as usize].at.host(), end);
        if let Left::Before(next) = left {
            let offset = self.blocks[next as usize].at.host() & (PAGE - 1);
            cpu.rip = cpu.translated_page() + offset;
        }
        left
    }

    /// Remembers a successor in translated code, if the interpreter's link is one that always holds.
    #[inline]
    pub(super) fn link_translated(&mut self, from: BlockId, n: usize, to: BlockId) {
        let Some(jit) = self.jit.as_mut().filter(|jit| jit.has(from) && jit.has(to)) else {
            return;
        };
        let link = self.blocks[from as usize].links[n];
        if link.near && link.id == to && self.blocks[to as usize].at == link.at {
            jit.link(from, n, to);
        }
    }

    /// No block has code any more.
    pub(super) fn flush_translated(&mut self) {
        if let Some(jit) = &mut self.jit {
            jit.flush();
        }
    }

    /// The same, its blocks translated after so many runs, where that can be.
    pub(crate) fn translating(mut self, after: Option<u16>) -> Self {
        self.jit = after.and_then(Jit::new);
        self
    }

    /// How many blocks were translated.
    #[cfg(test)]
    pub(crate) fn translations(&self) -> u64 {
        self.jit.as_ref().map_or(0, Jit::translations)
    }
}
