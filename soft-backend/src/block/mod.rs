//! The cache of decoded blocks, keyed by physical address and code width.
//!
//! A block is a run of instructions inside one page that ends with a branch (an instruction that
//! crosses a page end is a block of its own). Blocks remember their direct successors; a link is
//! valid while the vCPU's code context is the one it was made in. Memory is bounded ([`eviction`]).

mod eviction;

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use crate::cpu::{Cpu, Mode, R};
use crate::decode::op::Op;
use crate::decode::{DecodeError, MAX_LEN, decode, fall_through};
use crate::mem::{Lost, PAGE};
use crate::segments::CS;
use eviction::Room;

/// Most instructions in a block.
const MAX_OPS: usize = 64;
/// Bytes looked at for one block.
pub(crate) const WINDOW: usize = 320;
/// Entries of a vCPU's table of recent branch targets; a power of two.
const JUMP_ENTRIES: usize = 4096;

/// Number of a block in the cache.
pub(crate) type BlockId = u32;

/// A remembered successor.
#[derive(Clone, Copy)]
struct Link {
    context: u64,
    id: BlockId,
}

const NO_LINK: Link = Link {
    context: u64::MAX,
    id: 0,
};

/// Decoded code: what running it needs, in one cache line.
#[repr(align(64))]
pub(crate) struct Block {
    pub(crate) ops: Box<[Op]>,
    links: [Link; 2],
    /// Instructions (the closing operation is none).
    pub(crate) count: u32,
    /// The last two instructions run as one operation, which stands in the place of the first.
    pub(crate) fused: bool,
    /// It is one instruction that crosses a page end.
    crossing: bool,
}

const _: () = assert!(size_of::<Block>() == 64);

/// What is needed to find and drop a block.
#[derive(Clone, Copy)]
struct Place {
    key: u64,
    /// Physical page of the second half of an instruction that crosses a page end.
    second_page: Option<u64>,
    /// In which it was last looked up.
    generation: u32,
}

/// A hash for keys that are addresses.
#[derive(Default)]
pub(crate) struct AddressHasher(u64);

impl Hasher for AddressHasher {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        for b in bytes {
            self.write_u64(u64::from(*b));
        }
    }
    fn write_u64(&mut self, v: u64) {
        let h = (self.0 ^ v).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = h ^ h >> 29;
    }
}

type AddressMap<V> = HashMap<u64, V, BuildHasherDefault<AddressHasher>>;

/// The blocks of a machine.
pub(crate) struct CodeCache {
    pub(crate) blocks: Vec<Block>,
    /// Of the block of the same number.
    places: Vec<Place>,
    free: Vec<BlockId>,
    by_key: AddressMap<BlockId>,
    by_page: AddressMap<Vec<BlockId>>,
    room: Room,
    /// Where blocks are decoded, before they are stored in the space that they need.
    scratch: Vec<Op>,
    /// Changes when blocks were dropped or pages became code: other vCPUs then forget their links
    /// and write tags.
    pub(crate) epoch: u64,
}

/// A recent branch target of a vCPU.
#[derive(Clone, Copy)]
struct JumpEntry {
    rip: u64,
    context: u64,
    id: BlockId,
}

/// Recent branch targets.
pub(crate) struct JumpTable(Box<[JumpEntry]>);

impl JumpTable {
    pub(crate) fn new() -> Self {
        let none = JumpEntry {
            rip: 0,
            context: u64::MAX,
            id: 0,
        };
        JumpTable(vec![none; JUMP_ENTRIES].into_boxed_slice())
    }

    #[inline(always)]
    fn slot(rip: u64) -> usize {
        (rip ^ rip >> 12) as usize & (JUMP_ENTRIES - 1)
    }
}

/// In a key: the block has one instruction.
const SINGLE: u64 = 1 << 2;

fn key(pa: u64, mode: Mode, single: bool) -> u64 {
    pa << 3 | mode as u64 | if single { SINGLE } else { 0 }
}

/// Bytes of code from an address to the end of its page, at most a window.
struct Window {
    bytes: [u8; WINDOW],
    len: usize,
}

impl CodeCache {
    pub(crate) fn new() -> Self {
        Self::with_limit(eviction::MAX_BYTES)
    }

    /// With room for blocks of so many bytes.
    pub(crate) fn with_limit(limit: usize) -> Self {
        CodeCache {
            blocks: Vec::new(),
            places: Vec::new(),
            free: Vec::new(),
            by_key: AddressMap::default(),
            by_page: AddressMap::default(),
            room: Room::new(limit),
            scratch: Vec::new(),
            epoch: 0,
        }
    }

    /// The block at the vCPU's instruction pointer; `single` asks for one of one instruction.
    #[inline]
    pub(crate) fn find(&mut self, cpu: &mut Cpu, single: bool) -> R<BlockId> {
        let rip = cpu.rip;
        let e = &cpu.jumps.0[JumpTable::slot(rip)];
        if e.rip == rip && e.context == cpu.code_context && !single {
            return Ok(e.id);
        }
        self.find_slow(cpu, single)
    }

    #[inline(never)]
    fn find_slow(&mut self, cpu: &mut Cpu, single: bool) -> R<BlockId> {
        let rip = cpu.rip;
        let at = linear(cpu, rip);
        let single = cpu.code_breakpoint(at)? || single;
        let pa = cpu.fetch_page(at)?;
        let k = key(pa, cpu.mode, single);
        let id = match self.by_key.get(&k) {
            Some(id) => *id,
            None => self.build(cpu, at, pa, single)?,
        };
        let place = &mut self.places[id as usize];
        place.generation = self.room.generation;
        if let Some(second) = place.second_page {
            // The second page may be mapped elsewhere by now.
            let next = cpu.fetch_page((at & !(PAGE - 1)).wrapping_add(PAGE))?;
            if next & !(PAGE - 1) != second {
                self.drop_block(cpu, id);
                self.changed(cpu);
                return self.build(cpu, at, pa, single);
            }
            return Ok(id);
        }
        if !single {
            cpu.jumps.0[JumpTable::slot(rip)] = JumpEntry {
                rip,
                context: cpu.code_context,
                id,
            };
        }
        Ok(id)
    }

    /// The successor of `from` through link `n`, remembered for the next time.
    #[inline]
    pub(crate) fn follow(&mut self, cpu: &mut Cpu, from: BlockId, n: usize) -> R<BlockId> {
        let link = self.blocks[from as usize].links[n];
        if link.context == cpu.code_context {
            return Ok(link.id);
        }
        let before = self.epoch;
        let id = self.find(cpu, false)?;
        // A crossing block and one near a breakpoint must be looked up each time; a changed cache may
        // have dropped `from`.
        let lasting =
            !self.blocks[id as usize].crossing && self.places[id as usize].key & SINGLE == 0;
        if lasting && self.epoch == before {
            self.blocks[from as usize].links[n] = Link {
                context: cpu.code_context,
                id,
            };
        }
        Ok(id)
    }

    fn build(&mut self, cpu: &mut Cpu, at: u64, pa: u64, single: bool) -> R<BlockId> {
        self.make_room(cpu);
        let window = Self::window(cpu, pa)?;
        let limit = if single { 1 } else { MAX_OPS };
        let mut ops = std::mem::take(&mut self.scratch);
        ops.clear();
        let mut off = 0usize;
        while ops.len() < limit && off < window.len {
            match decode(&window.bytes[off..window.len], cpu.mode, off as u16) {
                Ok(d) => {
                    off += d.op.len as usize;
                    ops.push(d.op);
                    if d.ends {
                        break;
                    }
                }
                Err(_) => break,
            }
        }
        let (second_page, len) = if ops.is_empty() {
            let (op, second, first_len) = self.crossing(cpu, at, pa, &window)?;
            off = op.len as usize;
            ops.push(op);
            (Some(second), first_len)
        } else {
            (None, off as u64)
        };
        let count = ops.len() as u32;
        let fused = crate::decode::fuse(&mut ops);
        ops.push(fall_through(off as u16));
        let block = Block {
            ops: Box::from(ops.as_slice()),
            count,
            fused,
            links: [NO_LINK; 2],
            crossing: second_page.is_some(),
        };
        let place = Place {
            key: key(pa, cpu.mode, single),
            second_page,
            generation: self.room.generation,
        };
        self.scratch = ops;
        self.note_code(cpu, pa, len);
        if let Some(second) = second_page {
            self.note_code(cpu, second, off as u64 - len);
        }
        Ok(self.insert(block, place, pa))
    }

    fn window(cpu: &mut Cpu, pa: u64) -> R<Window> {
        let page = match cpu.ram.page(pa) {
            Ok(Some(page)) => page,
            // Nothing but RAM holds code.
            Ok(None) => return Err(cpu.gp(0)),
            Err(Lost) => return Err(cpu.memory_lost()),
        };
        let offset = pa & (PAGE - 1);
        let len = ((PAGE - offset) as usize).min(WINDOW);
        let mut w = Window {
            bytes: [0; WINDOW],
            len,
        };
        page.add(offset as usize).copy_out(&mut w.bytes[..len]);
        Ok(w)
    }

    /// Decodes an instruction whose bytes lie in two pages.
    fn crossing(&mut self, cpu: &mut Cpu, at: u64, _: u64, w: &Window) -> R<(Op, u64, u64)> {
        let mut bytes = [0; MAX_LEN];
        let first = w.len.min(MAX_LEN);
        bytes[..first].copy_from_slice(&w.bytes[..first]);
        if first == MAX_LEN {
            return Err(cpu.gp(0));
        }
        let second = cpu.fetch_page((at & !(PAGE - 1)).wrapping_add(PAGE))? & !(PAGE - 1);
        let next = Self::window(cpu, second)?;
        let more = MAX_LEN - first;
        bytes[first..].copy_from_slice(&next.bytes[..more]);
        match decode(&bytes, cpu.mode, 0) {
            Ok(d) => Ok((d.op, second, first as u64)),
            Err(DecodeError::Short | DecodeError::TooLong) => Err(cpu.gp(0)),
        }
    }

    /// One instruction, decoded for now only: for stores to the page they are in.
    pub(crate) fn decode_once(&mut self, cpu: &mut Cpu) -> R<Op> {
        let at = linear(cpu, cpu.rip);
        let pa = cpu.fetch_page(at)?;
        let w = Self::window(cpu, pa)?;
        match decode(&w.bytes[..w.len], cpu.mode, 0) {
            Ok(d) => Ok(d.op),
            Err(_) => self.crossing(cpu, at, pa, &w).map(|(op, _, _)| op),
        }
    }

    fn note_code(&mut self, cpu: &mut Cpu, pa: u64, len: u64) {
        if cpu.code_pages.note(pa, len)
            && let Ok(Some(page)) = cpu.ram.page(pa)
        {
            cpu.tlb.protect(page);
            self.epoch += 1;
            cpu.seen_epoch = self.epoch;
        }
    }

    fn insert(&mut self, block: Block, place: Place, pa: u64) -> BlockId {
        self.room.take(block.ops.len());
        let id = match self.free.pop() {
            Some(id) => {
                self.blocks[id as usize] = block;
                self.places[id as usize] = place;
                id
            }
            None => {
                self.blocks.push(block);
                self.places.push(place);
                (self.blocks.len() - 1) as BlockId
            }
        };
        self.by_key.insert(place.key, id);
        self.by_page.entry(pa >> 12).or_default().push(id);
        if let Some(second) = place.second_page {
            self.by_page.entry(second >> 12).or_default().push(id);
        }
        id
    }

    /// Drops a block; the caller has [`Self::changed`] follow.
    fn drop_block(&mut self, cpu: &Cpu, id: BlockId) {
        let b = &mut self.blocks[id as usize];
        if b.ops.is_empty() {
            return;
        }
        self.room.give_back(b.ops.len());
        b.ops = Box::new([]);
        let place = self.places[id as usize];
        let frames = [Some(place.key >> 15), place.second_page.map(|p| p >> 12)];
        self.by_key.remove(&place.key);
        for frame in frames.into_iter().flatten() {
            let Some(ids) = self.by_page.get_mut(&frame) else {
                continue;
            };
            ids.retain(|i| *i != id);
            if ids.is_empty() {
                self.by_page.remove(&frame);
                cpu.code_pages.forget(frame);
            }
        }
        self.free.push(id);
    }

    fn changed(&mut self, cpu: &mut Cpu) {
        self.epoch += 1;
        cpu.seen_epoch = self.epoch;
        cpu.forget_links();
    }

    /// Drops all blocks of a page.
    pub(crate) fn invalidate(&mut self, cpu: &mut Cpu, pfn: u64) {
        for id in self.by_page.remove(&pfn).unwrap_or_default() {
            self.drop_block(cpu, id);
        }
        cpu.code_pages.forget(pfn);
        self.changed(cpu);
    }

    /// Drops everything.
    pub(crate) fn clear(&mut self, cpu: &mut Cpu) {
        let pages: Vec<u64> = self.by_page.drain().map(|(p, _)| p).collect();
        for p in pages {
            cpu.code_pages.forget(p);
        }
        self.by_key.clear();
        self.blocks.clear();
        self.places.clear();
        self.free.clear();
        self.room.empty();
        self.changed(cpu);
    }

    /// Drops the blocks of pages that devices wrote to.
    #[cold]
    pub(crate) fn drop_stale(&mut self, cpu: &mut Cpu) {
        for pfn in cpu.code_pages.take_written() {
            self.invalidate(cpu, pfn);
        }
    }

    /// What a vCPU does when it gets its turn: catches up with changes by others.
    pub(crate) fn catch_up(&mut self, cpu: &mut Cpu) {
        if cpu.seen_epoch != self.epoch {
            cpu.seen_epoch = self.epoch;
            cpu.tlb.protect_all();
            cpu.forget_links();
        }
    }
}

/// The linear address of an instruction pointer.
fn linear(cpu: &Cpu, rip: u64) -> u64 {
    match cpu.mode {
        Mode::Bits64 => rip,
        _ => cpu.seg[CS].base.wrapping_add(rip) & 0xffff_ffff,
    }
}
