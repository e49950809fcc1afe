//! Blocks of the second tier: which are translated, and how they hang together.

use super::{BlockId, CodeCache, WINDOW};
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
        there
            && u64::from(self.blocks[id as usize].count) < end.wrapping_sub(cpu.retired)
            && (self.places[id as usize].second_page.is_none() || next_page_is_known(cpu))
    }

    /// True if there is code now.
    #[cold]
    fn translate(&mut self, cpu: &mut Cpu, id: BlockId) -> bool {
        let (block, place) = (&self.blocks[id as usize], self.places[id as usize]);
        let Some(jit) = &mut self.jit else {
            return false;
        };
        let suits = place.key & KEY_LOW == Mode::Bits64 as u64;
        let pa = place.key >> 3;
        let Some((bytes, hosts)) = code(cpu, pa, place.second_page).filter(|_| suits) else {
            cpu.trap = Trap::None;
            jit.never(id);
            return false;
        };
        let candidate = Candidate {
            ops: &block.ops,
            bytes: &bytes,
            host: hosts[0].unwrap_or_default(),
            second: hosts[1],
            count: block.count,
            fused: block.fused,
            checks: block.checks,
        };
        jit.translate(id, &candidate);
        jit.has(id)
    }

    /// Runs a translated block and those that follow it.
    pub(crate) fn run_translated(&mut self, cpu: &mut Cpu, id: BlockId, end: u64) -> Left {
        let Some(jit) = &mut self.jit else {
            return Left::Before(id);
        };
        let left = jit.run(cpu, id, end);
        if let Left::Before(next) = left {
            let offset = self.places[next as usize].key >> 3 & (PAGE - 1);
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
        let page = |id: BlockId| self.places[id as usize].key >> 15;
        if self.places[to as usize].second_page.is_some() && page(from) == page(to) {
            // It looks by itself where its second half is.
            jit.link(from, n, to);
            return;
        }
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

/// In a key: code width, and whether the block has one instruction only.
const KEY_LOW: u64 = 7;

/// The code from an address on, over the page's end if its second half is there; also the host addresses of
/// both. `None` if it is not in memory.
fn code(cpu: &mut Cpu, pa: u64, second: Option<u64>) -> Option<(Vec<u8>, [Option<u64>; 2])> {
    let mut bytes = Vec::with_capacity(WINDOW);
    let mut hosts = [None; 2];
    for (at, host) in [Some(pa), second].into_iter().flatten().zip(&mut hosts) {
        let window = CodeCache::window(cpu, at).ok()?;
        bytes.extend_from_slice(&window.bytes[..window.len]);
        let page = cpu.ram.page(at).ok().flatten()?;
        *host = Some(page.addr() as u64 + (at & (PAGE - 1)));
    }
    Some((bytes, hosts))
}

/// Whether the page after that of the instruction pointer is one that code was fetched from.
fn next_page_is_known(cpu: &Cpu) -> bool {
    let next = (cpu.rip & !(PAGE - 1)).wrapping_add(PAGE);
    cpu.tlb.code(cpu.table, next).is_some()
}
