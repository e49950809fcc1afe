//! The entries of directories. Indexes are passed over: the blocks that they lie in are valid lists without any entries.

use super::bytes::{le16, le32};
use super::{DiskReader, FileSystem, FileSystemError, Inode, Kind};

/// Most bytes that the entries of one directory take in memory.
pub const MAX_DIRECTORY_BYTES: usize = 64 << 20;
/// What an entry takes besides its name.
const ENTRY_COST: usize = size_of::<Entry>() + 16;
/// Inode, length of the entry, length of the name, kind.
const HEAD_BYTES: usize = 8;

/// A name in a directory: never empty, `.`, `..` or a path; at most 255 bytes.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Entry {
    /// The name.
    pub name: Box<[u8]>,
    /// Number of the inode. What it says of itself counts, not what the directory says.
    pub inode: u32,
}

impl Entry {
    /// Bytes that it takes in memory.
    #[must_use]
    pub fn cost_bytes(&self) -> usize {
        self.name.len() + ENTRY_COST
    }
}

/// Told of each entry; whether to go on.
type Visit<'a> = &'a mut dyn FnMut(&[u8], u32) -> Result<bool, FileSystemError>;

impl<D: DiskReader> FileSystem<D> {
    /// The entries of a directory, sorted by name, each name once.
    ///
    /// # Errors
    /// It is none, is damaged, or has more than [`MAX_DIRECTORY_BYTES`] of them.
    pub fn entries(&self, directory: &Inode) -> Result<Vec<Entry>, FileSystemError> {
        let mut entries = Vec::new();
        let mut cost = 0;
        self.visit_entries(directory, &mut |name, inode| {
            let entry = Entry {
                name: name.into(),
                inode,
            };
            cost += entry.cost_bytes();
            entries.push(entry);
            match cost > MAX_DIRECTORY_BYTES {
                true => Err(FileSystemError::DirectoryTooLarge),
                false => Ok(true),
            }
        })?;
        entries.sort_unstable();
        entries.dedup_by(|one, other| one.name == other.name);
        Ok(entries)
    }

    /// The number of the inode that has this name in a directory.
    pub(super) fn look_up(&self, directory: &Inode, name: &[u8]) -> Result<u32, FileSystemError> {
        let mut found = None;
        self.visit_entries(directory, &mut |entry, inode| {
            if entry == name {
                found = Some(inode);
            }
            Ok(found.is_none())
        })?;
        found.ok_or(FileSystemError::NotFound)
    }

    /// Calls `visit` for every entry until that says `false`.
    fn visit_entries(&self, directory: &Inode, visit: Visit<'_>) -> Result<(), FileSystemError> {
        if directory.kind != Kind::Directory {
            return Err(FileSystemError::NotADirectory);
        }
        let mut block = vec![0; self.block_bytes() as usize];
        for extent in self.extents(directory)? {
            let extent = extent?;
            if !extent.length_bytes.is_multiple_of(self.block_bytes()) {
                return Err(wrong());
            }
            for index in 0..extent.length_bytes / self.block_bytes() {
                self.read(&extent, index * self.block_bytes(), &mut block)?;
                if !self.visit_block(&block, visit)? {
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    fn visit_block(&self, block: &[u8], visit: Visit<'_>) -> Result<bool, FileSystemError> {
        let mut rest = block;
        while !rest.is_empty() {
            if rest.len() < HEAD_BYTES {
                return Err(wrong());
            }
            let length = entry_length(le16(rest, 4), block.len());
            let name_end = HEAD_BYTES + usize::from(rest[6]);
            if length < HEAD_BYTES || length > rest.len() {
                return Err(wrong());
            }
            let (entry, behind) = rest.split_at(length);
            rest = behind;
            let inode = le32(entry, 0);
            if inode == 0 {
                continue;
            }
            let name = entry.get(HEAD_BYTES..name_end).ok_or_else(wrong)?;
            if name == b"." || name == b".." {
                continue;
            }
            if name.is_empty() || name.contains(&b'/') || name.contains(&0) {
                return Err(wrong());
            }
            self.charge_entries(1)?;
            if !visit(name, inode)? {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// Length of an entry: in blocks of 64 KiB the lowest two bits are the highest, and a whole block is written as 0 or all ones.
fn entry_length(coded: u16, block_bytes: usize) -> usize {
    match coded {
        0 | u16::MAX if block_bytes == 1 << 16 => block_bytes,
        coded => usize::from(coded & !3) | usize::from(coded & 3) << 16,
    }
}

fn wrong() -> FileSystemError {
    FileSystemError::damaged("a directory's list of entries")
}
