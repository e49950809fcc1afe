//! Reading the files of a disk: its ext4 file system, as a guest left it.
//!
//! # Model
//!
//! A [`FileSystem`] is opened over a [`DiskReader`], which it never writes to and which nobody may change meanwhile. A disk
//! that a running guest was using has changes that only its journal holds: they are replayed in memory, as the guest's kernel
//! would when it mounts the disk after a loss of power. From there on everything goes by [`Inode`]: the [root](FileSystem::root),
//! a [path](FileSystem::resolve), the [entries](FileSystem::entries) of a directory, the [data](FileReader) of a file.
//!
//! # Untrusted disks
//!
//! Whoever had the guest could write anything to its disk, and keep every checksum right: they are not looked at, but for those
//! that say where the journal ends. Instead everything that is read is checked where it is used. What does not fit is
//! [`FileSystemError::Damaged`], what is not known [`FileSystemError::Unsupported`]. Nothing that a disk holds makes a read panic
//! or go on without end: trees have a depth and rise strictly, a directory's entries and a link's target a length, and all
//! reads of one [`FileSystem`] together a bound that follows from the size that the disk really has
//! ([`FileSystemError::TooMuch`]). Memory is bounded by [`MAX_DIRECTORY_BYTES`] for what a call returns, and by the journal for
//! what is kept. Names and targets are bytes, and may be anything but `.`, `..` or a path.
//!
//! # What is not here
//!
//! Writing, extended attributes, encrypted files, data inside inodes, files without extents, fast commits of the journal, journals
//! on other disks. None of them is in a file system that an import made, unless the guest asked for it.
//!
//! # Errors
//!
//! [`FileSystemError`]. One in a file says nothing about others.

mod bytes;
mod contents;
mod directory;
mod error;
mod extents;
mod inode;
mod journal;
mod path;
mod superblock;

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::io;

use self::bytes::le32;
use self::journal::Journal;
use self::superblock::Superblock;

pub use self::contents::FileReader;
pub use self::directory::{Entry, MAX_DIRECTORY_BYTES};
pub use self::error::FileSystemError;
pub use self::extents::{Extent, Extents};
pub use self::inode::{Inode, Kind, MAX_TARGET_BYTES, Time};

/// Blocks that may be gone through per block of the disk: as often is a block of a file looked at, with room for what asks for
/// the same file again.
const WORK_PER_BLOCK: u64 = 8;
/// Directory entries that may be listed per inode of the file system.
const ENTRIES_PER_INODE: u64 = 16;
/// Groups whose tables' places are remembered.
const MAX_TABLES: usize = 1 << 16;
/// What may be done besides, however small the disk.
const LEAST_WORK: u64 = 1 << 20;

/// The bytes of a disk.
pub trait DiskReader {
    /// Fills `buf`; the range lies inside [`size_bytes`](Self::size_bytes).
    ///
    /// # Errors
    /// The bytes cannot be read, or are damaged.
    fn read_at(&self, offset_bytes: u64, buf: &mut [u8]) -> io::Result<()>;

    /// The size, which never changes.
    fn size_bytes(&self) -> u64;
}

/// An ext4 file system on a disk.
pub struct FileSystem<D> {
    disk: D,
    superblock: Superblock,
    journal: Journal,
    /// First block of the inode table of each group that was needed.
    tables: RefCell<HashMap<u32, u64>>,
    /// Blocks that may still be gone through.
    work: Cell<u64>,
    /// Directory entries that may still be listed.
    entries: Cell<u64>,
}

impl<D: DiskReader> FileSystem<D> {
    /// Opens the file system of a disk and replays its journal in memory.
    ///
    /// # Errors
    /// There is none, it is damaged, or needs what this reader does not know.
    pub fn open(disk: D) -> Result<Self, FileSystemError> {
        let superblock = Superblock::read(&disk)?;
        let mut opened = Self {
            work: Cell::default(),
            entries: Cell::default(),
            disk,
            superblock,
            journal: Journal::default(),
            tables: RefCell::default(),
        };
        opened.allow_work();
        if opened.superblock.needs_recovery() {
            // The journal's own inode is read as it is on the disk.
            opened.journal = Journal::load(&opened)?;
            opened.tables.borrow_mut().clear();
            opened.superblock = opened.replayed_superblock()?;
            opened.allow_work();
        }
        Ok(opened)
    }

    /// Size of a block in bytes: a power of two from 1 KiB to 64 KiB.
    pub fn block_bytes(&self) -> u64 {
        self.superblock.block_bytes()
    }

    /// The inode of the root directory.
    ///
    /// # Errors
    /// It is none.
    pub fn root(&self) -> Result<Inode, FileSystemError> {
        let root = self.inode(inode::ROOT)?;
        match root.kind {
            Kind::Directory => Ok(root),
            _ => Err(FileSystemError::damaged("the root directory")),
        }
    }

    /// An inode by its number.
    ///
    /// # Errors
    /// There is none of that number, or it is damaged.
    pub fn inode(&self, number: u32) -> Result<Inode, FileSystemError> {
        let beyond = || FileSystemError::damaged("the number of an inode");
        if number == 0 || number > self.superblock.inodes {
            return Err(beyond());
        }
        let (group, index) = self.superblock.place_of(number);
        let within = u64::from(index) * self.superblock.inode_bytes as u64;
        let block = self
            .table_of(group)?
            .checked_add(within / self.block_bytes());
        let mut bytes = vec![0; self.superblock.inode_bytes];
        self.read_block(
            block.ok_or_else(beyond)?,
            within % self.block_bytes(),
            &mut bytes,
        )?;
        Inode::decode(number, &bytes)
    }

    /// The same superblock, as the journal has it: the file system may have grown.
    fn replayed_superblock(&self) -> Result<Superblock, FileSystemError> {
        let mut bytes = vec![0; superblock::BYTES];
        let block_bytes = self.block_bytes();
        self.read_block(
            superblock::OFFSET_BYTES / block_bytes,
            superblock::OFFSET_BYTES % block_bytes,
            &mut bytes,
        )?;
        let replayed = Superblock::decode(&bytes, self.disk.size_bytes())?;
        match replayed.block_bytes() == block_bytes {
            true => Ok(replayed),
            false => Err(FileSystemError::damaged("the superblock in the journal")),
        }
    }

    /// The first block of a group's inode table.
    fn table_of(&self, group: u32) -> Result<u64, FileSystemError> {
        if let Some(table) = self.tables.borrow().get(&group) {
            return Ok(*table);
        }
        let (block, within) = self.superblock.descriptor_of(group);
        let mut bytes = vec![0; self.superblock.descriptor_bytes];
        self.read_block(block, within, &mut bytes)?;
        let low = u64::from(le32(&bytes, 0x08));
        let high = match self.superblock.descriptor_bytes {
            0x2c.. => u64::from(le32(&bytes, 0x28)),
            _ => 0,
        };
        let table = high << 32 | low;
        let mut tables = self.tables.borrow_mut();
        if tables.len() == MAX_TABLES {
            tables.clear();
        }
        tables.insert(group, table);
        Ok(table)
    }

    /// Reads within one block, as the journal has it if it does.
    fn read_block(&self, block: u64, within: u64, buf: &mut [u8]) -> Result<(), FileSystemError> {
        let outside = || FileSystemError::damaged("the number of a block");
        let end = within.checked_add(buf.len() as u64);
        if end.is_none_or(|end| end > self.block_bytes()) {
            return Err(outside());
        }
        let copy = self.journal.copy_of(block);
        let block = copy.map_or(block, |copy| copy.block);
        if block >= self.superblock.blocks {
            return Err(outside());
        }
        self.disk
            .read_at(block * self.block_bytes() + within, buf)?;
        if let Some(copy) = copy {
            copy.unescape(within, buf);
        }
        Ok(())
    }

    /// Reads from a run of `blocks` blocks.
    fn read_run(&self, first: u64, offset: u64, buf: &mut [u8]) -> Result<(), FileSystemError> {
        let size = self.block_bytes();
        let blocks = first + offset / size..first + (offset + buf.len() as u64).div_ceil(size);
        if blocks.end > self.superblock.blocks {
            return Err(FileSystemError::damaged("the number of a block"));
        }
        if !self.journal.has_any_of(blocks) {
            return Ok(self.disk.read_at(first * size + offset, buf)?);
        }
        let mut done = 0;
        while done < buf.len() {
            let at = offset + done as u64;
            let within = at % size;
            // Both are at most the length of `buf`.
            let length = (size - within).min((buf.len() - done) as u64) as usize;
            self.read_block(first + at / size, within, &mut buf[done..done + length])?;
            done += length;
        }
        Ok(())
    }

    /// Sets what may be done from now on.
    fn allow_work(&self) {
        let Superblock { blocks, inodes, .. } = self.superblock;
        self.work.set(blocks * WORK_PER_BLOCK + LEAST_WORK);
        self.entries
            .set(u64::from(inodes) * ENTRIES_PER_INODE + LEAST_WORK);
    }

    /// Counts blocks that are gone through.
    fn charge_blocks(&self, blocks: u64) -> Result<(), FileSystemError> {
        charge(&self.work, blocks)
    }

    /// Counts directory entries that are listed.
    fn charge_entries(&self, entries: u64) -> Result<(), FileSystemError> {
        charge(&self.entries, entries)
    }
}

fn charge(left: &Cell<u64>, amount: u64) -> Result<(), FileSystemError> {
    let rest = left.get().checked_sub(amount);
    left.set(rest.ok_or(FileSystemError::TooMuch)?);
    Ok(())
}

#[cfg(test)]
mod tests;
