//! Block groups: how many, and what lies where in them.

use super::Ext4Error;

pub(super) const BLOCK_BYTES: usize = crate::image::spool::BLOCK_BYTES;
/// Blocks in a group: what one block of bitmap covers.
pub(super) const GROUP_BLOCKS: u32 = 8 * BLOCK_BYTES as u32;
/// Inodes in a group: one for each 16 KiB, as mke2fs has it.
pub(super) const GROUP_INODES: u32 = 8192;
pub(super) const INODE_BYTES: usize = 256;
pub(super) const INODES_PER_BLOCK: u32 = (BLOCK_BYTES / INODE_BYTES) as u32;
const INODE_TABLE_BLOCKS: u32 = GROUP_INODES / INODES_PER_BLOCK;
/// Descriptor blocks in use plus reserved: 64 × 128 groups = 1 TiB.
const GDT_AND_RESERVED_BLOCKS: u32 = 64;
pub(super) const DESCRIPTOR_BYTES: usize = 32;
const GROUPS_PER_GDT_BLOCK: u32 = (BLOCK_BYTES / DESCRIPTOR_BYTES) as u32;
/// Largest image: 4096 groups, 512 GiB.
const MAX_GROUPS: u32 = 4096;
/// Blocks left free at least, so that a guest can begin to work.
const SPARE_BLOCKS: u64 = 2048;
/// Inodes left free at least.
const SPARE_INODES: u64 = 1024;

/// The division of a file system into groups.
#[derive(Debug, Clone, Copy)]
pub(super) struct Geometry {
    /// Number of groups, all of full size.
    pub(super) groups: u32,
}

impl Geometry {
    /// The smallest file system for so many data blocks and inodes.
    pub(super) fn for_contents(data_blocks: u64, inodes: u64) -> Result<Self, Ext4Error> {
        let mut capacity = 0u64;
        for groups in 1..=MAX_GROUPS {
            capacity += u64::from(GROUP_BLOCKS - metadata_blocks(groups - 1));
            let inode_capacity = u64::from(groups) * u64::from(GROUP_INODES);
            if capacity >= data_blocks + SPARE_BLOCKS && inode_capacity >= inodes + SPARE_INODES {
                return Ok(Self { groups });
            }
        }
        Err(Ext4Error::TooLarge)
    }

    /// Blocks of the whole file system.
    pub(super) fn blocks(self) -> u32 {
        self.groups * GROUP_BLOCKS
    }

    /// Blocks of group descriptors in use.
    pub(super) fn gdt_blocks(self) -> u32 {
        self.groups.div_ceil(GROUPS_PER_GDT_BLOCK)
    }

    /// Blocks reserved behind them for growth.
    pub(super) fn reserved_gdt_blocks(self) -> u32 {
        GDT_AND_RESERVED_BLOCKS - self.gdt_blocks()
    }

    /// The groups other than 0 that hold copies of superblock and descriptors.
    pub(super) fn backup_groups(self) -> impl Iterator<Item = u32> {
        (1..self.groups).filter(|group| has_superblock(*group))
    }

    /// The block of a group's block bitmap; the inode bitmap follows it.
    pub(super) fn block_bitmap(self, group: u32) -> u32 {
        group * GROUP_BLOCKS + metadata_blocks(group) - INODE_TABLE_BLOCKS - 2
    }

    /// The first block of a group's inode table.
    pub(super) fn inode_table(self, group: u32) -> u32 {
        self.block_bitmap(group) + 2
    }

    /// The first block of a group that can hold data.
    pub(super) fn first_data_block(self, group: u32) -> u32 {
        group * GROUP_BLOCKS + metadata_blocks(group)
    }
}

/// Blocks of metadata at the front of a group. Descriptors in use and reserved
/// together always take the same space.
fn metadata_blocks(group: u32) -> u32 {
    let copies = if has_superblock(group) {
        1 + GDT_AND_RESERVED_BLOCKS
    } else {
        0
    };
    copies + 2 + INODE_TABLE_BLOCKS
}

/// The sparse_super rule: groups 0, 1 and the powers of 3, 5 and 7.
pub(super) fn has_superblock(group: u32) -> bool {
    let power_of = |base: u32| {
        let mut rest = group;
        while rest > 1 && rest.is_multiple_of(base) {
            rest /= base;
        }
        rest == 1
    };
    group <= 1 || power_of(3) || power_of(5) || power_of(7)
}

/// Hands out data blocks from front to back.
#[derive(Debug)]
pub(super) struct Allocator {
    geometry: Geometry,
    group: u32,
    next: u32,
}

/// Blocks that lie together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Span {
    pub(super) first: u32,
    pub(super) blocks: u32,
}

impl Allocator {
    pub(super) fn new(geometry: Geometry) -> Self {
        Self {
            geometry,
            group: 0,
            next: geometry.first_data_block(0),
        }
    }

    /// At most `want` blocks that lie together, at least one.
    pub(super) fn take(&mut self, want: u64) -> Result<Span, Ext4Error> {
        if self.next == (self.group + 1) * GROUP_BLOCKS {
            if self.group + 1 == self.geometry.groups {
                return Err(Ext4Error::TooLarge);
            }
            self.group += 1;
            self.next = self.geometry.first_data_block(self.group);
        }
        let left = (self.group + 1) * GROUP_BLOCKS - self.next;
        let blocks = u32::try_from(want).unwrap_or(u32::MAX).min(left);
        let span = Span {
            first: self.next,
            blocks,
        };
        self.next += blocks;
        Ok(span)
    }

    /// One block.
    pub(super) fn take_one(&mut self) -> Result<u32, Ext4Error> {
        Ok(self.take(1)?.first)
    }

    /// Blocks of a group that are used, counted from its front: allocation
    /// leaves no gaps.
    pub(super) fn used_in(&self, group: u32) -> u32 {
        match group.cmp(&self.group) {
            std::cmp::Ordering::Less => GROUP_BLOCKS,
            std::cmp::Ordering::Equal => self.next - group * GROUP_BLOCKS,
            std::cmp::Ordering::Greater => metadata_blocks(group),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_lie_where_sparse_super_puts_them() {
        let with: Vec<u32> = (0..100).filter(|g| has_superblock(*g)).collect();
        assert_eq!(with, [0, 1, 3, 5, 7, 9, 25, 27, 49, 81]);
    }

    #[test]
    fn size_follows_contents() {
        assert_eq!(Geometry::for_contents(10, 10).unwrap().groups, 1);
        assert_eq!(Geometry::for_contents(10, 8000).unwrap().groups, 2);
        assert_eq!(Geometry::for_contents(40_000, 10).unwrap().groups, 2);
        assert!(Geometry::for_contents(1 << 40, 10).is_err());
    }
}
