//! Bounded memory for decoded code: what was not run for a while makes room.
//!
//! Blocks carry the generation in which they were last looked up. Half way to the limit a new
//! generation begins and every link is forgotten, so code that still runs is looked up, and marked,
//! once more. At the limit what was not marked goes. Marking costs nothing on the way from block to
//! block, which is where the time is spent.

use super::{BlockId, CodeCache};
use crate::cpu::Cpu;

/// Memory that the blocks of a machine may take. 24 MiB hold about 60,000 blocks; Debian's boot
/// decodes 71,000 and spends 99 % of its time in 7,500 of them.
pub(super) const MAX_BYTES: usize = 24 << 20;
/// What a block takes besides its operations: itself, its place, its shares of the two maps and the
/// allocator's word.
const BLOCK_BYTES: usize = 152;

/// How much the blocks take, and when to do something about it.
pub(super) struct Room {
    /// What all blocks take.
    used: usize,
    limit: usize,
    /// Something is to be done from here on.
    threshold: usize,
    /// Of blocks that are looked up now.
    pub(super) generation: u32,
}

impl Room {
    pub(super) fn new(limit: usize) -> Self {
        let mut room = Room {
            used: 0,
            limit,
            threshold: 0,
            generation: 0,
        };
        room.rest();
        room
    }

    pub(super) fn take(&mut self, ops: usize) {
        self.used += cost(ops);
    }

    pub(super) fn give_back(&mut self, ops: usize) {
        self.used -= cost(ops);
    }

    /// Every block was dropped.
    pub(super) fn empty(&mut self) {
        self.used = 0;
        self.rest();
    }

    /// Half of what is free may be filled before marking begins.
    fn rest(&mut self) {
        self.threshold = self.used + self.limit.saturating_sub(self.used) / 2;
    }

    /// What is looked up from now until the limit stays.
    fn begin_generation(&mut self) {
        self.generation = self.generation.wrapping_add(1);
        self.threshold = self.limit;
    }
}

/// Bytes that a block with so many operations takes.
fn cost(ops: usize) -> usize {
    BLOCK_BYTES + ops * size_of::<crate::decode::op::Op>()
}

impl CodeCache {
    /// Makes sure that there is room for one more block.
    #[inline]
    pub(super) fn make_room(&mut self, cpu: &mut Cpu) {
        if self.room.used >= self.room.threshold {
            self.threshold_reached(cpu);
        }
    }

    #[cold]
    fn threshold_reached(&mut self, cpu: &mut Cpu) {
        if self.room.used < self.room.limit {
            self.room.begin_generation();
            self.forget_links(cpu);
            return;
        }
        let current = self.room.generation;
        let idle = |id: &BlockId| self.places[*id as usize].generation != current;
        let idle: Vec<BlockId> = (0..self.blocks.len() as BlockId).filter(idle).collect();
        for id in idle {
            self.drop_block(cpu, id);
        }
        if self.room.used > self.room.limit / 4 * 3 {
            // Nearly all of it is in use: a choice would cost more than decoding again.
            self.clear(cpu);
            return;
        }
        self.room.rest();
        self.changed(cpu);
    }

    /// What the blocks take.
    #[cfg(test)]
    pub(crate) fn used_bytes(&self) -> usize {
        self.room.used
    }

    /// Whether the 64-bit code at a physical address is decoded.
    #[cfg(test)]
    pub(crate) fn holds(&self, pa: u64) -> bool {
        let key = super::key(pa, crate::cpu::Mode::Bits64, false);
        self.by_key.contains_key(&key)
    }
}
