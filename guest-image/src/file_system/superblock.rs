//! What a file system says of itself, and what lies where.

use super::bytes::{le16, le32};
use super::{DiskReader, FileSystemError};

/// Where it begins on the disk.
pub(super) const OFFSET_BYTES: u64 = 1024;
/// Its length.
pub(super) const BYTES: usize = 1024;

const MAGIC: u16 = 0xef53;
/// Blocks are at most 64 KiB.
const MAX_LOG_BLOCK_BYTES: u32 = 16;
const LEAST_LOG_BLOCK_BYTES: u32 = 10;
const LEAST_INODE_BYTES: usize = 128;
const LEAST_DESCRIPTOR_BYTES: usize = 32;

mod compatible {
    pub(super) const JOURNAL: u32 = 0x4;
    /// Two backups at most, in groups that the superblock names.
    pub(super) const SPARSE_SUPER_2: u32 = 0x200;
}

mod read_only {
    pub(super) const SPARSE_SUPER: u32 = 0x1;
}

mod incompatible {
    pub(super) const FILE_TYPE: u32 = 0x2;
    pub(super) const RECOVER: u32 = 0x4;
    pub(super) const META_GROUPS: u32 = 0x10;
    pub(super) const EXTENTS: u32 = 0x40;
    pub(super) const WIDE: u32 = 0x80;
    pub(super) const MULTIPLE_MOUNT: u32 = 0x100;
    pub(super) const FLEXIBLE_GROUPS: u32 = 0x200;
    pub(super) const ATTRIBUTE_INODES: u32 = 0x400;
    pub(super) const CHECKSUM_SEED: u32 = 0x2000;
    pub(super) const LARGE_DIRECTORIES: u32 = 0x4000;
    pub(super) const ENCRYPTION: u32 = 0x1_0000;
    pub(super) const CASE_FOLDING: u32 = 0x2_0000;
    /// What does not keep this reader from finding files. Encrypted ones are refused one by one.
    pub(super) const KNOWN: u32 = FILE_TYPE
        | RECOVER
        | META_GROUPS
        | EXTENTS
        | WIDE
        | MULTIPLE_MOUNT
        | FLEXIBLE_GROUPS
        | ATTRIBUTE_INODES
        | CHECKSUM_SEED
        | LARGE_DIRECTORIES
        | ENCRYPTION
        | CASE_FOLDING;
}

/// What is needed of a superblock, checked.
#[derive(Debug, Clone)]
pub(super) struct Superblock {
    log_block_bytes: u32,
    /// Blocks of the file system; all of them lie on the disk.
    pub(super) blocks: u64,
    first_block: u32,
    group_blocks: u32,
    /// Inodes of the file system.
    pub(super) inodes: u32,
    group_inodes: u32,
    /// Length of an inode, at most a block.
    pub(super) inode_bytes: usize,
    /// Length of a group's descriptor, at most a block.
    pub(super) descriptor_bytes: usize,
    /// The first group of blocks of descriptors that lie in their own groups.
    first_meta_group: Option<u32>,
    compatible: u32,
    read_only: u32,
    incompatible: u32,
    backups: [u32; 2],
    /// Inode of the journal.
    pub(super) journal: u32,
}

impl Superblock {
    pub(super) fn read(disk: &impl DiskReader) -> Result<Self, FileSystemError> {
        if disk.size_bytes() < OFFSET_BYTES + BYTES as u64 {
            return Err(FileSystemError::NotExt4);
        }
        let mut bytes = vec![0; BYTES];
        disk.read_at(OFFSET_BYTES, &mut bytes)?;
        Self::decode(&bytes, disk.size_bytes())
    }

    /// Decodes the superblock of a disk of that size.
    pub(super) fn decode(bytes: &[u8], disk_bytes: u64) -> Result<Self, FileSystemError> {
        let damaged = |what| Err(FileSystemError::damaged(what));
        if le16(bytes, 0x38) != MAGIC {
            return Err(FileSystemError::NotExt4);
        }
        let incompatible = le32(bytes, 0x60);
        let unknown = incompatible & !incompatible::KNOWN;
        if unknown != 0 || incompatible & incompatible::FILE_TYPE == 0 {
            return Err(FileSystemError::unsupported(format!(
                "a file system with features {incompatible:#x}"
            )));
        }
        let log_block_bytes = le32(bytes, 0x18).saturating_add(LEAST_LOG_BLOCK_BYTES);
        if log_block_bytes > MAX_LOG_BLOCK_BYTES {
            return damaged("the size of its blocks");
        }
        let block_bytes = 1usize << log_block_bytes;
        let wide = incompatible & incompatible::WIDE != 0;
        let high = if wide {
            u64::from(le32(bytes, 0x150))
        } else {
            0
        };
        let blocks = high << 32 | u64::from(le32(bytes, 0x04));
        if blocks > disk_bytes >> log_block_bytes {
            return damaged("a size beyond its disk's end");
        }
        // The first revision has no such fields.
        let is_dynamic = le32(bytes, 0x4c) > 0;
        let inode_bytes = if is_dynamic {
            le16(bytes, 0x58).into()
        } else {
            LEAST_INODE_BYTES
        };
        let descriptor_bytes = if wide {
            le16(bytes, 0xfe).into()
        } else {
            LEAST_DESCRIPTOR_BYTES
        };
        let (inodes, group_inodes) = (le32(bytes, 0x00), le32(bytes, 0x28));
        let (first_block, group_blocks) = (le32(bytes, 0x14), le32(bytes, 0x20));
        if !(LEAST_INODE_BYTES..=block_bytes).contains(&inode_bytes)
            || !block_bytes.is_multiple_of(inode_bytes)
        {
            return damaged("the size of its inodes");
        }
        if !(LEAST_DESCRIPTOR_BYTES..=block_bytes).contains(&descriptor_bytes) {
            return damaged("the size of its descriptors");
        }
        if group_inodes == 0 || group_blocks == 0 || u64::from(first_block) >= blocks {
            return damaged("the size of its groups");
        }
        let groups = (blocks - u64::from(first_block)).div_ceil(group_blocks.into());
        if u64::from(inodes) > groups * u64::from(group_inodes)
            || u64::from(inodes) > disk_bytes / LEAST_INODE_BYTES as u64
        {
            return damaged("the number of its inodes");
        }
        let meta_groups = incompatible & incompatible::META_GROUPS != 0;
        Ok(Self {
            log_block_bytes,
            blocks,
            first_block,
            group_blocks,
            inodes,
            group_inodes,
            inode_bytes,
            descriptor_bytes,
            first_meta_group: meta_groups.then(|| le32(bytes, 0x104)),
            compatible: le32(bytes, 0x5c),
            read_only: le32(bytes, 0x64),
            incompatible,
            backups: [le32(bytes, 0x24c), le32(bytes, 0x250)],
            journal: le32(bytes, 0xe0),
        })
    }

    pub(super) fn block_bytes(&self) -> u64 {
        1 << self.log_block_bytes
    }

    /// Whether changes lie in the journal only.
    pub(super) fn needs_recovery(&self) -> bool {
        self.compatible & compatible::JOURNAL != 0 && self.incompatible & incompatible::RECOVER != 0
    }

    /// The group of an inode, and its place in the group's table. `number` is one of the file system's.
    pub(super) fn place_of(&self, number: u32) -> (u32, u32) {
        let index = number.saturating_sub(1);
        (index / self.group_inodes, index % self.group_inodes)
    }

    /// The block of a group's descriptor, and where it begins in that.
    pub(super) fn descriptor_of(&self, group: u32) -> (u64, u64) {
        // A block holds at least one, and at most 2,048.
        let per_block = (self.block_bytes() / self.descriptor_bytes as u64) as u32;
        let (index, place) = (group / per_block, group % per_block);
        let within = u64::from(place) * self.descriptor_bytes as u64;
        let block = match self.first_meta_group {
            Some(first) if index >= first => {
                let first_group = index * per_block;
                let behind = u64::from(self.has_superblock(first_group));
                u64::from(self.first_block)
                    + u64::from(first_group) * u64::from(self.group_blocks)
                    + behind
            }
            _ => u64::from(self.first_block) + 1 + u64::from(index),
        };
        (block, within)
    }

    /// Whether a group begins with a copy of the superblock.
    fn has_superblock(&self, group: u32) -> bool {
        if group == 0 {
            return true;
        }
        if self.compatible & compatible::SPARSE_SUPER_2 != 0 {
            return self.backups.contains(&group);
        }
        if group <= 1 || self.read_only & read_only::SPARSE_SUPER == 0 {
            return true;
        }
        [3u32, 5, 7].into_iter().any(|base| {
            let mut rest = group;
            while rest > 1 && rest.is_multiple_of(base) {
                rest /= base;
            }
            rest == 1
        })
    }
}
