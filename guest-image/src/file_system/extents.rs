//! Where a file's data lies on the disk.

use std::ops::Range;

use super::bytes::{le16, le32};
use super::{DiskReader, FileSystem, FileSystemError, Inode};

const MAGIC: u16 = 0xf30a;
const ENTRY_BYTES: usize = 12;
/// Levels of nodes below the inode.
const MAX_DEPTH: u16 = 5;
/// Most blocks of an extent. Longer ones were reserved and never written.
const MAX_WRITTEN: u16 = 0x8000;

/// A run of a file's data that lies together on the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    /// Where it belongs in the file.
    pub offset_bytes: u64,
    /// Its length, at least 1. It ends where the file does.
    pub length_bytes: u64,
    /// Its first block.
    block: u64,
}

impl Extent {
    /// Where it ends in the file.
    #[must_use]
    pub fn end_bytes(&self) -> u64 {
        self.offset_bytes + self.length_bytes
    }
}

/// The written extents of a file in rising order; holes lie between them. Ends after an error.
pub struct Extents<'a, D> {
    from: &'a FileSystem<D>,
    /// Nodes that are not done, topmost first.
    stack: Vec<Node>,
    /// Everything before has been passed.
    next: u64,
    size_bytes: u64,
}

struct Node {
    bytes: Vec<u8>,
    depth: u16,
    entries: usize,
    /// The entry to go on with.
    at: usize,
    /// Blocks of the file below it.
    range: Range<u64>,
}

impl Node {
    fn new(bytes: Vec<u8>, range: Range<u64>) -> Result<Self, FileSystemError> {
        let (entries, depth) = (le16(&bytes, 2).into(), le16(&bytes, 6));
        let fits = (entries + 1) * ENTRY_BYTES <= bytes.len();
        if le16(&bytes, 0) != MAGIC || depth > MAX_DEPTH || !fits {
            return Err(wrong());
        }
        Ok(Self {
            bytes,
            depth,
            entries,
            at: 0,
            range,
        })
    }

    fn entry(&self, at: usize) -> Option<&[u8]> {
        let from = (at + 1) * ENTRY_BYTES;
        (at < self.entries).then(|| self.bytes.get(from..from + ENTRY_BYTES))?
    }

    /// The next entry with the blocks of the file that it may cover.
    fn advance(&mut self) -> Option<([u8; ENTRY_BYTES], Range<u64>)> {
        let entry: [u8; ENTRY_BYTES] = self.entry(self.at)?.try_into().ok()?;
        let end = match self.entry(self.at + 1) {
            Some(next) => u64::from(le32(next, 0)),
            None => self.range.end,
        };
        self.at += 1;
        Some((entry, le32(&entry, 0).into()..end))
    }
}

fn wrong() -> FileSystemError {
    FileSystemError::damaged("a file's list of extents")
}

impl<D: DiskReader> FileSystem<D> {
    /// Where the data of a file, directory or long link lies.
    ///
    /// # Errors
    /// It is a file of a kind that this reader does not know.
    pub fn extents(&self, inode: &Inode) -> Result<Extents<'_, D>, FileSystemError> {
        let root = inode.extents_root()?.to_vec();
        let all = 0..u64::from(u32::MAX) + 1;
        Ok(Extents {
            from: self,
            stack: vec![Node::new(root, all)?],
            next: 0,
            size_bytes: inode.size_bytes,
        })
    }

    /// Reads data of an extent, from `offset_bytes` in it; `buf` ends where the extent does, or before.
    ///
    /// # Errors
    /// The disk cannot be read.
    pub fn read(
        &self,
        extent: &Extent,
        offset_bytes: u64,
        buf: &mut [u8],
    ) -> Result<(), FileSystemError> {
        self.read_run(extent.block, offset_bytes, buf)
    }

    /// The bytes of the disk on which an extent lies; `None` where the journal has newer ones of some of them.
    #[must_use]
    pub fn place_of(&self, extent: &Extent) -> Option<Range<u64>> {
        let blocks = extent.length_bytes.div_ceil(self.block_bytes());
        let range = extent.block..extent.block + blocks;
        let is_old = self.journal.has_any_of(range.clone());
        (!is_old).then(|| range.start * self.block_bytes()..range.end * self.block_bytes())
    }
}

impl<D: DiskReader> Extents<'_, D> {
    fn advance(&mut self) -> Result<Option<Extent>, FileSystemError> {
        while let Some(node) = self.stack.last_mut() {
            let depth = node.depth;
            let within = node.range.clone();
            let Some((entry, range)) = node.advance() else {
                self.stack.pop();
                continue;
            };
            // Strictly rising, so that no tree is gone through twice.
            if range.start < within.start || range.end > within.end || range.is_empty() {
                return Err(wrong());
            }
            if range.start * self.from.block_bytes() >= self.size_bytes {
                // Reserved behind the end of the file.
                self.stack.clear();
                return Ok(None);
            }
            if depth > 0 {
                self.enter(&entry, depth - 1, range)?;
            } else if let Some(extent) = self.extent(&entry, range)? {
                return Ok(Some(extent));
            }
        }
        Ok(None)
    }

    fn enter(
        &mut self,
        entry: &[u8],
        depth: u16,
        range: Range<u64>,
    ) -> Result<(), FileSystemError> {
        let block = u64::from(le16(entry, 8)) << 32 | u64::from(le32(entry, 4));
        let mut bytes = vec![0; self.from.block_bytes() as usize];
        self.from.charge_blocks(1)?;
        self.from.read_block(block, 0, &mut bytes)?;
        let node = Node::new(bytes, range)?;
        if node.depth != depth || node.entries == 0 {
            return Err(wrong());
        }
        self.stack.push(node);
        Ok(())
    }

    fn extent(
        &mut self,
        entry: &[u8],
        range: Range<u64>,
    ) -> Result<Option<Extent>, FileSystemError> {
        let length = le16(entry, 4);
        let is_written = length <= MAX_WRITTEN;
        let blocks = u64::from(if is_written {
            length
        } else {
            length - MAX_WRITTEN
        });
        let block = u64::from(le16(entry, 6)) << 32 | u64::from(le32(entry, 8));
        let on_disk = block > 0 && block + blocks <= self.from.superblock.blocks;
        if blocks == 0 || range.start < self.next || range.start + blocks > range.end || !on_disk {
            return Err(wrong());
        }
        self.next = range.start + blocks;
        if !is_written {
            return Ok(None);
        }
        self.from.charge_blocks(blocks)?;
        let size = self.from.block_bytes();
        let offset_bytes = range.start * size;
        let end_bytes = (self.next * size).min(self.size_bytes);
        Ok(Some(Extent {
            offset_bytes,
            length_bytes: end_bytes - offset_bytes,
            block,
        }))
    }
}

impl<D: DiskReader> Iterator for Extents<'_, D> {
    type Item = Result<Extent, FileSystemError>;

    fn next(&mut self) -> Option<Self::Item> {
        let next = self.advance();
        if next.is_err() {
            self.stack.clear();
        }
        next.transpose()
    }
}
