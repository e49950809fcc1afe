//! The cache of decoded blocks, keyed by physical address and code width.
//!
//! A block is a run of instructions inside one page that ends with a branch (an instruction that
//! crosses a page end is a block of its own). Blocks remember their direct successors, and vCPUs recent targets
//! of other branches. What is remembered names a block and the code it stands for ([`CodeAddress`]): it holds
//! for every address space, and no flush drops it. A link inside a page needs no more than the block
//! to be there; any other is followed if the TLB's execute tag leads to that code. Memory is
//! bounded ([`eviction`]).

mod eviction;
mod translated;

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use crate::cpu::state::BLOCK_IP;
use crate::cpu::{Cpu, Mode, R};
use crate::decode::op::Op;
use crate::decode::{DecodeError, MAX_LEN, What, decode, fall_through};
use crate::jit::Jit;
use crate::mem::{Lost, PAGE, raw::HostPtr};
use crate::ops::system;
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

/// Which code a block is: the host address of its first byte and the code width.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct CodeAddress(u64);

impl CodeAddress {
    /// That of a block which must be looked up each time, or is none any more.
    const NONE: Self = CodeAddress(u64::MAX);

    #[inline(always)]
    fn new(host: HostPtr, mode: Mode) -> Self {
        CodeAddress((host.addr() as u64) << 2 | mode as u64)
    }

    fn is_in_page_of(self, other: Self) -> bool {
        self.0 / (PAGE << 2) == other.0 / (PAGE << 2)
    }
}

/// A remembered successor.
#[derive(Clone, Copy)]
struct Link {
    at: CodeAddress,
    id: BlockId,
    /// In the same page, so wherever that is mapped.
    near: bool,
}

const NO_LINK: Link = Link {
    at: CodeAddress::NONE,
    id: BlockId::MAX,
    near: false,
};

/// Decoded code: what running it needs, in one cache line.
#[repr(align(64))]
pub(crate) struct Block {
    pub(crate) ops: Box<[Op]>,
    links: [Link; 2],
    at: CodeAddress,
    /// Which of its first 32 instructions do nothing and have no operation.
    idle: u32,
    /// Instructions (the closing operation is none).
    count: u16,
    /// The last two instructions run as one operation, which stands in the place of the first.
    fused: bool,
    /// Events are looked at after it.
    pub(crate) checks: bool,
}

impl Block {
    /// How many instructions come before that of operation `i`.
    #[cold]
    pub(crate) fn instructions_before(&self, i: usize) -> u64 {
        let (mut n, mut idle) = (i as u32, self.idle);
        while idle != 0 && idle.trailing_zeros() <= n {
            n += 1;
            idle &= idle - 1;
        }
        u64::from(n)
    }

    /// How many instructions have run when operation `i` ends the run of the block.
    #[inline(always)]
    pub(crate) fn instructions_to(&self, i: usize) -> u64 {
        // The last one, its fused twin, and the closing operation.
        if i + 2 + usize::from(self.fused) >= self.ops.len() {
            u64::from(self.count)
        } else {
            self.instructions_before(i) + 1
        }
    }
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
    /// The second tier, where there is one.
    pub(crate) jit: Option<Jit>,
    /// Changes when blocks were dropped or pages became code: other vCPUs then forget their links
    /// and write tags.
    pub(crate) epoch: u64,
}

/// Recent branch targets of a vCPU.
pub(crate) struct JumpTable(Box<[BlockId; JUMP_ENTRIES]>);

impl JumpTable {
    pub(crate) fn new() -> Self {
        JumpTable(Box::new([BlockId::MAX; JUMP_ENTRIES]))
    }

    #[inline(always)]
    fn slot(at: CodeAddress) -> usize {
        (at.0 >> 2 ^ at.0 >> 14) as usize & (JUMP_ENTRIES - 1)
    }

    fn clear(&mut self) {
        self.0.fill(BlockId::MAX);
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

/// A block in the making.
struct Body {
    ops: Vec<Op>,
    count: u16,
    idle: u32,
    /// The last operation is an STI that goes on with the next instruction.
    sti: bool,
    /// The instruction after an STI is in the block, and ends it.
    after_sti: bool,
}

impl Body {
    /// In the space of an earlier one.
    fn new(mut ops: Vec<Op>) -> Self {
        ops.clear();
        Body {
            ops,
            count: 0,
            idle: 0,
            sti: false,
            after_sti: false,
        }
    }

    /// Adds an instruction. True if it must be the last.
    fn add(&mut self, op: Op, what: What, single: bool) -> bool {
        self.after_sti = std::mem::take(&mut self.sti);
        if what == What::Nothing && !single && self.count < 32 {
            self.idle |= 1 << self.count;
        } else {
            self.ops.push(op);
        }
        self.count += 1;
        self.after_sti
    }

    /// STI holds interrupts back for one instruction. That one is better in the same block than in one of its
    /// own; true if it shall follow.
    fn goes_on_after_sti(&mut self, what: What, single: bool) -> bool {
        match self.ops.last_mut() {
            Some(last) if what == What::Sti && !single => {
                last.run = system::sti_goes_on;
                self.sti = true;
                true
            }
            _ => false,
        }
    }

    /// STI whose next instruction is in the next page or block ends this one after all.
    fn finish_sti(&mut self) {
        if let Some(last) = self.ops.last_mut()
            && self.sti
        {
            last.run = system::sti_ends;
        }
    }
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
            jit: None,
            epoch: 0,
        }
    }

    /// The block at the vCPU's instruction pointer; `single` asks for one of one instruction.
    #[inline]
    pub(crate) fn find(&mut self, cpu: &mut Cpu, single: bool) -> R<BlockId> {
        if let Some(at) = code_address(cpu)
            && !single
        {
            let id = cpu.jumps.0[JumpTable::slot(at)];
            if self.is_at(id, at) {
                return Ok(id);
            }
        }
        self.find_slow(cpu, single)
    }

    /// Whether a remembered block is there still.
    #[inline(always)]
    fn is_at(&self, id: BlockId, at: CodeAddress) -> bool {
        let block = self.blocks.get(id as usize);
        block.is_some_and(|b| b.at == at)
    }

    #[inline(never)]
    fn find_slow(&mut self, cpu: &mut Cpu, single: bool) -> R<BlockId> {
        let at = linear(cpu, cpu.rip);
        let single = cpu.code_breakpoint(at)? || single;
        let pa = cpu.fetch(at)?;
        let k = key(pa, cpu.mode, single);
        let id = match self.by_key.get(&k) {
            Some(id) => *id,
            None => self.build(cpu, at, pa, single)?,
        };
        let place = &mut self.places[id as usize];
        place.generation = self.room.generation;
        if let Some(second) = place.second_page {
            // The second page may be mapped elsewhere by now.
            let next = cpu.fetch((at & !(PAGE - 1)).wrapping_add(PAGE))?;
            if next & !(PAGE - 1) != second {
                self.drop_block(cpu, id);
                self.changed(cpu);
                return self.build(cpu, at, pa, single);
            }
            return Ok(id);
        }
        let at = self.blocks[id as usize].at;
        if at != CodeAddress::NONE {
            cpu.jumps.0[JumpTable::slot(at)] = id;
        }
        Ok(id)
    }

    /// The successor of `from` through link `n`, remembered for the next time.
    #[inline]
    pub(crate) fn follow(&mut self, cpu: &mut Cpu, from: BlockId, n: usize) -> R<BlockId> {
        let link = self.blocks[from as usize].links[n];
        let leads_there = if link.near && !cpu.debug.watches_code() {
            true
        } else {
            code_address(cpu) == Some(link.at)
        };
        let id = if leads_there && self.is_at(link.id, link.at) {
            link.id
        } else {
            self.follow_slow(cpu, from, n)?
        };
        self.link_translated(from, n, id);
        Ok(id)
    }

    #[inline(never)]
    fn follow_slow(&mut self, cpu: &mut Cpu, from: BlockId, n: usize) -> R<BlockId> {
        let before = self.epoch;
        let id = self.find(cpu, false)?;
        let at = self.blocks[id as usize].at;
        // A changed cache may have dropped `from`.
        if at != CodeAddress::NONE && self.epoch == before {
            let same_page = (cpu.rip ^ cpu.regs[usize::from(BLOCK_IP)]) < PAGE
                && self.blocks[from as usize].at.is_in_page_of(at);
            self.blocks[from as usize].links[n] = Link {
                at,
                id,
                near: cpu.code64() && same_page,
            };
        }
        Ok(id)
    }

    fn build(&mut self, cpu: &mut Cpu, at: u64, pa: u64, single: bool) -> R<BlockId> {
        self.make_room(cpu);
        let window = Self::window(cpu, pa)?;
        let limit = if single { 1 } else { MAX_OPS };
        let mut body = Body::new(std::mem::take(&mut self.scratch));
        let mut off = 0usize;
        while body.ops.len() < limit && off < window.len {
            let Ok(d) = decode(&window.bytes[off..window.len], cpu.mode, off as u16) else {
                break;
            };
            off += d.op.len as usize;
            if body.add(d.op, d.what, single) || d.ends && !body.goes_on_after_sti(d.what, single) {
                break;
            }
        }
        let (second_page, len) = if body.count == 0 {
            let (op, second, first_len) = self.crossing(cpu, at, pa, &window)?;
            off = op.len as usize;
            body.add(op, What::Plain, true);
            (Some(second), first_len)
        } else {
            (None, off as u64)
        };
        body.finish_sti();
        let fused = crate::decode::fuse(&mut body.ops);
        body.ops.push(fall_through(off as u16));
        let block = Block {
            ops: Box::from(body.ops.as_slice()),
            count: body.count,
            idle: body.idle,
            fused,
            checks: body.after_sti,
            links: [NO_LINK; 2],
            at: match cpu.ram.page(pa) {
                Ok(Some(page)) if !single && second_page.is_none() => {
                    CodeAddress::new(page.add((pa & (PAGE - 1)) as usize), cpu.mode)
                }
                _ => CodeAddress::NONE,
            },
        };
        let place = Place {
            key: key(pa, cpu.mode, single),
            second_page,
            generation: self.room.generation,
        };
        self.scratch = body.ops;
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
        let second = cpu.fetch((at & !(PAGE - 1)).wrapping_add(PAGE))? & !(PAGE - 1);
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
        let pa = cpu.fetch(at)?;
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
        if let Some(jit) = &mut self.jit {
            jit.added(id);
        }
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
        if let Some(jit) = &mut self.jit {
            jit.dropped(id);
        }
        b.ops = Box::new([]);
        b.at = CodeAddress::NONE;
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
    }

    /// Forgets every successor and recent target: what runs on is looked up once more.
    fn forget_links(&mut self, cpu: &mut Cpu) {
        for block in &mut self.blocks {
            block.links = [NO_LINK; 2];
        }
        cpu.jumps.clear();
        self.flush_translated();
        self.changed(cpu);
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
        self.flush_translated();
        self.changed(cpu);
    }

    /// Drops the blocks of pages whose memory others than vCPUs changed: devices, or a return to a saved state.
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
            cpu.jumps.clear();
        }
    }
}

/// Which code the instruction pointer leads to, as far as the TLB knows.
#[inline(always)]
fn code_address(cpu: &Cpu) -> Option<CodeAddress> {
    let host = cpu.tlb.code(cpu.table, linear(cpu, cpu.rip))?;
    Some(CodeAddress::new(host, cpu.mode))
}

/// The linear address of an instruction pointer.
#[inline(always)]
fn linear(cpu: &Cpu, rip: u64) -> u64 {
    match cpu.mode {
        Mode::Bits64 => rip,
        _ => cpu.seg[CS].base.wrapping_add(rip) & 0xffff_ffff,
    }
}
