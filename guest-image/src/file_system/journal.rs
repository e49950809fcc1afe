//! The journal: changes that are committed and not yet where they belong. It is replayed into a map, not onto the disk.
//!
//! A log of transactions, each with descriptors (which block of the file system each of the blocks behind it is a copy of),
//! revocations (earlier copies of a block are not to be used any more) and a commit. It goes around in its blocks. What
//! follows the last commit that is whole does not count. Layout: Linux `Documentation/filesystems/ext4/journal.rst`.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;

use super::bytes::{be16, be32};
use super::{DiskReader, FileSystem, FileSystemError, Kind};

const MAGIC: u32 = 0xc03b_3998;
const HEAD_BYTES: usize = 12;
/// Most blocks of a journal: four times what mke2fs makes for large disks.
const MAX_BLOCKS: u64 = 1 << 20;
/// Most pieces that it lies in.
const MAX_PIECES: usize = 1 << 16;
/// Most revocations in a log.
const MAX_REVOKED: usize = 1 << 22;
/// Length of the checksum at the end of descriptors and revocations.
const TAIL_BYTES: usize = 4;
const COMMIT_SUM_AT: usize = 16;
const UUID_BYTES: usize = 16;

mod block_type {
    pub(super) const DESCRIPTOR: u32 = 1;
    pub(super) const COMMIT: u32 = 2;
    pub(super) const SUPERBLOCK: u32 = 3;
    pub(super) const SUPERBLOCK_2: u32 = 4;
    pub(super) const REVOCATION: u32 = 5;
}

mod feature {
    pub(super) const REVOKE: u32 = 0x1;
    pub(super) const WIDE: u32 = 0x2;
    pub(super) const ASYNC_COMMIT: u32 = 0x4;
    pub(super) const SUMS_2: u32 = 0x8;
    pub(super) const SUMS_3: u32 = 0x10;
    pub(super) const KNOWN: u32 = REVOKE | WIDE | ASYNC_COMMIT | SUMS_2 | SUMS_3;
}

mod tag_flag {
    pub(super) const ESCAPED: u32 = 0x1;
    pub(super) const SAME_UUID: u32 = 0x2;
    pub(super) const LAST: u32 = 0x8;
}

/// The newest copies of blocks, by block of the file system.
#[derive(Debug, Default)]
pub(super) struct Journal(BTreeMap<u64, Copied>);

/// A block's copy in the journal.
#[derive(Debug, Clone, Copy)]
pub(super) struct Copied {
    /// Where it lies.
    pub(super) block: u64,
    /// It begins like a block of the journal itself, which its copy must not.
    escaped: bool,
}

impl Copied {
    /// Gives what was read at `within` in the copy the beginning that it lost.
    pub(super) fn unescape(&self, within: u64, buf: &mut [u8]) {
        if !self.escaped || within >= 4 {
            return;
        }
        let lost = MAGIC.to_be_bytes();
        // Below 4.
        let lost = &lost[within as usize..];
        let length = lost.len().min(buf.len());
        buf[..length].copy_from_slice(&lost[..length]);
    }
}

impl Journal {
    /// Reads a file system's journal, which no journal is replayed for yet.
    pub(super) fn load<D: DiskReader>(from: &FileSystem<D>) -> Result<Self, FileSystemError> {
        let log = Log::open(from)?;
        if log.start == 0 {
            return Ok(Self::default());
        }
        let mut scan = Scan::default();
        log.go_through(None, &mut scan)?;
        let mut replay = Replay {
            revoked: scan.revoked,
            copies: BTreeMap::new(),
        };
        log.go_through(Some(scan.end), &mut replay)?;
        Ok(Self(replay.copies))
    }

    pub(super) fn copy_of(&self, block: u64) -> Option<Copied> {
        self.0.get(&block).copied()
    }

    pub(super) fn has_any_of(&self, blocks: Range<u64>) -> bool {
        blocks.start < blocks.end && self.0.range(blocks).next().is_some()
    }
}

/// What becomes of the parts of the log.
trait Visitor {
    /// A copy of `to` lies in block `copy` of the file system.
    fn copy<D: DiskReader>(
        &mut self,
        log: &Log<'_, D>,
        sequence: u32,
        tag: &Tag,
        copy: u64,
    ) -> Result<(), FileSystemError>;
    /// Copies up to `sequence` of `block` do not count.
    fn revoke(&mut self, sequence: u32, block: u64) -> Result<(), FileSystemError>;
    /// A transaction is whole; `next` is the number behind it.
    fn commit(&mut self, next: u32);
}

/// The first time through: where the log ends, and what is revoked in it.
#[derive(Default)]
struct Scan {
    /// Number of the first transaction that is not whole.
    end: u32,
    revoked: HashMap<u64, u32>,
    /// Revoked by the transaction that is being read.
    pending: Vec<(u64, u32)>,
    /// How many revocations there were.
    count: usize,
}

impl Visitor for Scan {
    fn copy<D: DiskReader>(
        &mut self,
        _: &Log<'_, D>,
        _: u32,
        _: &Tag,
        _: u64,
    ) -> Result<(), FileSystemError> {
        Ok(())
    }

    fn revoke(&mut self, sequence: u32, block: u64) -> Result<(), FileSystemError> {
        self.count += 1;
        if self.count > MAX_REVOKED {
            return Err(wrong());
        }
        self.pending.push((block, sequence));
        Ok(())
    }

    fn commit(&mut self, next: u32) {
        self.end = next;
        self.revoked.extend(self.pending.drain(..));
    }
}

/// The second time: which copies are the newest ones.
struct Replay {
    revoked: HashMap<u64, u32>,
    copies: BTreeMap<u64, Copied>,
}

impl Visitor for Replay {
    fn copy<D: DiskReader>(
        &mut self,
        log: &Log<'_, D>,
        sequence: u32,
        tag: &Tag,
        copy: u64,
    ) -> Result<(), FileSystemError> {
        let revoked = self.revoked.get(&tag.block);
        if revoked.is_some_and(|last| !is_later(sequence, *last)) {
            return Ok(());
        }
        log.check_copy(sequence, tag, copy)?;
        self.copies.insert(
            tag.block,
            Copied {
                block: copy,
                escaped: tag.flags & tag_flag::ESCAPED != 0,
            },
        );
        Ok(())
    }

    fn revoke(&mut self, _: u32, _: u64) -> Result<(), FileSystemError> {
        Ok(())
    }

    fn commit(&mut self, _: u32) {}
}

/// Whether transaction `one` came after `other`; numbers go around.
fn is_later(one: u32, other: u32) -> bool {
    one.wrapping_sub(other).cast_signed() > 0
}

/// One entry of a descriptor.
struct Tag {
    block: u64,
    flags: u32,
    sum: u32,
}

/// The blocks of a journal.
struct Log<'a, D> {
    from: &'a FileSystem<D>,
    /// Each run: first block in the journal, first of the file system, how many.
    runs: Vec<(u64, u64, u64)>,
    first: u64,
    end: u64,
    start: u64,
    sequence: u32,
    features: u32,
    seed: u32,
}

impl<'a, D: DiskReader> Log<'a, D> {
    fn open(from: &'a FileSystem<D>) -> Result<Self, FileSystemError> {
        let inode = from.inode(from.superblock.journal)?;
        if inode.kind != Kind::File {
            return Err(wrong());
        }
        let size = from.block_bytes();
        let mut runs = Vec::new();
        for extent in from.extents(&inode)? {
            let extent = extent?;
            let Some(place) = from.place_of(&extent) else {
                return Err(wrong());
            };
            let blocks = extent.length_bytes / size;
            if runs.len() == MAX_PIECES {
                return Err(wrong());
            }
            runs.push((extent.offset_bytes / size, place.start / size, blocks));
        }
        let mut log = Self {
            from,
            runs,
            first: 0,
            end: 1,
            start: 0,
            sequence: 0,
            features: 0,
            seed: 0,
        };
        let head = log.read(0)?;
        let kind = be32(&head, 4);
        let blocks = u64::from(be32(&head, 0x10));
        let is_one = be32(&head, 0) == MAGIC
            && matches!(kind, block_type::SUPERBLOCK | block_type::SUPERBLOCK_2)
            && u64::from(be32(&head, 0x0c)) == size;
        if !is_one || blocks > (inode.size_bytes / size).min(MAX_BLOCKS) {
            return Err(wrong());
        }
        log.first = be32(&head, 0x14).into();
        log.end = blocks;
        log.sequence = be32(&head, 0x18);
        log.start = be32(&head, 0x1c).into();
        if kind == block_type::SUPERBLOCK_2 {
            log.features = be32(&head, 0x28);
            log.seed = !crc32c::crc32c(&head[0x30..0x40]);
        }
        if log.features & !feature::KNOWN != 0 {
            let what = format!("a journal with features {:#x}", log.features);
            return Err(FileSystemError::unsupported(what));
        }
        let in_log = log.first..log.end;
        if log.first == 0 || in_log.is_empty() || (log.start != 0 && !in_log.contains(&log.start)) {
            return Err(wrong());
        }
        Ok(log)
    }

    /// The block of the file system that is the journal's block `index`.
    fn place(&self, index: u64) -> Result<u64, FileSystemError> {
        let at = self.runs.partition_point(|(first, ..)| *first <= index);
        let run = at.checked_sub(1).and_then(|at| self.runs.get(at));
        match run {
            Some((first, block, blocks)) if index - first < *blocks => Ok(block + (index - first)),
            _ => Err(wrong()),
        }
    }

    fn read(&self, index: u64) -> Result<Vec<u8>, FileSystemError> {
        let mut bytes = vec![0; self.from.block_bytes() as usize];
        self.from.read_block(self.place(index)?, 0, &mut bytes)?;
        Ok(bytes)
    }

    fn has_sums(&self) -> bool {
        self.features & (feature::SUMS_2 | feature::SUMS_3) != 0
    }

    /// The block behind `index`, around the end.
    fn behind(&self, index: u64) -> u64 {
        match index + 1 < self.end {
            true => index + 1,
            false => self.first,
        }
    }

    /// Goes through the log until it ends, or up to the transaction `until`.
    fn go_through(
        &self,
        until: Option<u32>,
        visitor: &mut impl Visitor,
    ) -> Result<(), FileSystemError> {
        let (mut at, mut sequence) = (self.start, self.sequence);
        if until.is_none() {
            visitor.commit(sequence);
        }
        // Each block is looked at once, even in a log that bites its tail.
        let mut left = self.end - self.first;
        while left > 0 && until != Some(sequence) {
            let block = self.read(at)?;
            at = self.behind(at);
            left -= 1;
            if be32(&block, 0) != MAGIC || be32(&block, 8) != sequence {
                break;
            }
            match be32(&block, 4) {
                block_type::DESCRIPTOR if self.is_sound(&block, block.len() - TAIL_BYTES) => {
                    for tag in self.tags(&block)? {
                        if left == 0 {
                            return Ok(());
                        }
                        visitor.copy(self, sequence, &tag, self.place(at)?)?;
                        at = self.behind(at);
                        left -= 1;
                    }
                }
                block_type::REVOCATION if self.is_sound(&block, block.len() - TAIL_BYTES) => {
                    for block in self.revoked(&block)? {
                        visitor.revoke(sequence, block)?;
                    }
                }
                block_type::COMMIT if self.is_sound(&block, COMMIT_SUM_AT) => {
                    sequence = sequence.wrapping_add(1);
                    visitor.commit(sequence);
                }
                _ => break,
            }
        }
        Ok(())
    }

    /// Whether the checksum at `at` is that of the block.
    fn is_sound(&self, block: &[u8], at: usize) -> bool {
        if !self.has_sums() {
            return true;
        }
        let sum = update(self.seed, &block[..at]);
        let sum = update(sum, &[0; TAIL_BYTES]);
        update(sum, &block[at + TAIL_BYTES..]) == be32(block, at)
    }

    /// Refuses a copy that is not what was written: the guest's kernel would not mount the disk.
    fn check_copy(&self, sequence: u32, tag: &Tag, copy: u64) -> Result<(), FileSystemError> {
        if !self.has_sums() {
            return Ok(());
        }
        let mut bytes = vec![0; self.from.block_bytes() as usize];
        self.from.read_block(copy, 0, &mut bytes)?;
        let sum = update(update(self.seed, &sequence.to_be_bytes()), &bytes);
        let is_whole = self.features & feature::SUMS_3 != 0;
        let mask = if is_whole { u32::MAX } else { 0xffff };
        match sum & mask == tag.sum {
            true => Ok(()),
            false => Err(wrong()),
        }
    }

    fn tags(&self, block: &[u8]) -> Result<Vec<Tag>, FileSystemError> {
        let wide = self.features & feature::WIDE != 0;
        let third = self.features & feature::SUMS_3 != 0;
        let length = match (third, wide) {
            (true, _) => 16,
            (false, wide) => {
                8 + 4 * usize::from(wide) + 2 * usize::from(self.features & feature::SUMS_2 != 0)
            }
        };
        let tail = if self.has_sums() { TAIL_BYTES } else { 0 };
        let mut rest = &block[HEAD_BYTES..block.len() - tail];
        let mut tags = Vec::new();
        while let Some((tag, behind)) = rest.split_at_checked(length) {
            let high = if wide { u64::from(be32(tag, 8)) } else { 0 };
            let (flags, sum) = match third {
                true => (be32(tag, 4), be32(tag, 12)),
                false => (be16(tag, 6).into(), be16(tag, 4).into()),
            };
            tags.push(Tag {
                block: high << 32 | u64::from(be32(tag, 0)),
                flags,
                sum,
            });
            if flags & tag_flag::LAST != 0 {
                break;
            }
            rest = match flags & tag_flag::SAME_UUID {
                0 => behind.get(UUID_BYTES..).ok_or_else(wrong)?,
                _ => behind,
            };
        }
        Ok(tags)
    }

    fn revoked(&self, block: &[u8]) -> Result<Vec<u64>, FileSystemError> {
        let tail = if self.has_sums() { TAIL_BYTES } else { 0 };
        let end = be32(block, HEAD_BYTES) as usize;
        if end < HEAD_BYTES + 4 || end > block.len() - tail {
            return Err(wrong());
        }
        let list = &block[HEAD_BYTES + 4..end];
        Ok(match self.features & feature::WIDE {
            0 => list
                .chunks_exact(4)
                .map(|one| be32(one, 0).into())
                .collect(),
            _ => list
                .chunks_exact(8)
                .map(|one| u64::from(be32(one, 0)) << 32 | u64::from(be32(one, 4)))
                .collect(),
        })
    }
}

/// Goes on with a CRC-32C as Linux keeps it: not inverted at the end.
fn update(sum: u32, bytes: &[u8]) -> u32 {
    !crc32c::crc32c_append(!sum, bytes)
}

fn wrong() -> FileSystemError {
    FileSystemError::damaged("the journal")
}
