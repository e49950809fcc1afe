//! Superblock, group descriptors and the journal's own superblock.

use super::bytes::{high32, low16, low32, put16, put32};
use super::checksum::Checksum;
use super::geometry::INODE_BYTES;
use super::geometry::{BLOCK_BYTES, DESCRIPTOR_BYTES, GROUP_BLOCKS, GROUP_INODES, Geometry};
use super::inode::Inode;

/// The first inode that is not reserved; `lost+found` has it.
pub(super) const FIRST_INODE: u32 = 11;
/// The journal's inode.
pub(super) const JOURNAL_INODE: u32 = 8;

/// has_journal, ext_attr, resize_inode, dir_index.
const COMPATIBLE: u32 = 0x4 | 0x8 | 0x10 | 0x20;
/// filetype, extents, flex_bg.
const INCOMPATIBLE: u32 = 0x2 | 0x40 | 0x200;
/// sparse_super, large_file, huge_file, dir_nlink, extra_isize, metadata_csum.
const READ_ONLY_COMPATIBLE: u32 = 0x1 | 0x2 | 0x8 | 0x20 | 0x40 | 0x400;
/// User attributes and access lists are on by default.
const MOUNT_OPTIONS: u32 = 0x4 | 0x8;
/// Groups that the kernel adds together when it grows the file system.
const LOG_GROUPS_PER_FLEX: u8 = 4;

/// What the superblock says beyond the geometry.
pub(super) struct SuperblockInfo<'a> {
    pub(super) geometry: Geometry,
    pub(super) uuid: [u8; 16],
    pub(super) hash_seed: [u8; 16],
    pub(super) time_seconds: u32,
    pub(super) free_blocks: u32,
    pub(super) free_inodes: u32,
    pub(super) journal: &'a Inode,
}

impl SuperblockInfo<'_> {
    /// Encodes the copy that lies in `group`.
    pub(super) fn encode(&self, group: u32) -> [u8; 1024] {
        let mut out = [0; 1024];
        self.put_counts(&mut out);
        for (at, value) in [
            (0x2c, 0),                 // last mount
            (0x30, self.time_seconds), // last write
            (0x40, self.time_seconds), // last check
            (0x4c, 1),                 // revision: dynamic inode sizes
            (0x54, FIRST_INODE),
            (0x5c, COMPATIBLE),
            (0x60, INCOMPATIBLE),
            (0x64, READ_ONLY_COMPATIBLE),
            (0xe0, JOURNAL_INODE),
            (0x100, MOUNT_OPTIONS),
            (0x108, self.time_seconds), // creation
            (0x160, 1),                 // directory hashes take bytes as signed
        ] {
            put32(&mut out, at, value);
        }
        for (at, value) in [
            (0x36, 0xffff), // no check after so many mounts
            (0x38, 0xef53), // magic
            (0x3a, 1),      // clean
            (0x3c, 1),      // on errors: continue
            (0x58, INODE_BYTES as u16),
            (0x5a, group as u16),
            (0xce, self.geometry.reserved_gdt_blocks() as u16),
            (0x15c, 32), // inode space behind the first 128 bytes: least
            (0x15e, 32), // and wanted
        ] {
            put16(&mut out, at, value);
        }
        out[0x68..0x78].copy_from_slice(&self.uuid);
        out[0xec..0xfc].copy_from_slice(&self.hash_seed);
        out[0xfc] = 1; // directory hash: half MD4
        self.put_journal_backup(&mut out);
        out[0x174] = LOG_GROUPS_PER_FLEX;
        out[0x175] = 1; // checksums are CRC-32C
        let sum = Checksum::new().update(&out[..0x3fc]).value();
        put32(&mut out, 0x3fc, sum);
        out
    }

    fn put_counts(&self, out: &mut [u8]) {
        for (at, value) in [
            (0x00, self.geometry.groups * GROUP_INODES),
            (0x04, self.geometry.blocks()),
            (0x0c, self.free_blocks),
            (0x10, self.free_inodes),
            (0x18, 2), // log2 of the block size in KiB
            (0x1c, 2), // the same for clusters
            (0x20, GROUP_BLOCKS),
            (0x24, GROUP_BLOCKS),
            (0x28, GROUP_INODES),
        ] {
            put32(out, at, value);
        }
    }

    /// A copy of the journal inode's block map and size.
    fn put_journal_backup(&self, out: &mut [u8]) {
        out[0xfd] = 1;
        out[0x10c..0x148].copy_from_slice(&self.journal.block);
        put32(out, 0x148, high32(self.journal.size_bytes));
        put32(out, 0x14c, low32(self.journal.size_bytes));
    }
}

/// What a group's descriptor says.
#[derive(Debug, Clone, Copy)]
pub(super) struct GroupInfo {
    pub(super) free_blocks: u32,
    pub(super) free_inodes: u32,
    pub(super) directories: u32,
    pub(super) block_bitmap_sum: u32,
    pub(super) inode_bitmap_sum: u32,
}

impl GroupInfo {
    /// Encodes the descriptor of `group`.
    pub(super) fn encode(
        &self,
        group: u32,
        geometry: Geometry,
        seed: Checksum,
    ) -> [u8; DESCRIPTOR_BYTES] {
        /// The inode table is known to be zeros.
        const INODE_ZEROED: u16 = 4;
        let mut out = [0; DESCRIPTOR_BYTES];
        put32(&mut out, 0x00, geometry.block_bitmap(group));
        put32(&mut out, 0x04, geometry.block_bitmap(group) + 1);
        put32(&mut out, 0x08, geometry.inode_table(group));
        put16(&mut out, 0x0c, low16(self.free_blocks));
        put16(&mut out, 0x0e, low16(self.free_inodes));
        put16(&mut out, 0x10, low16(self.directories));
        put16(&mut out, 0x12, INODE_ZEROED);
        put16(&mut out, 0x18, low16(self.block_bitmap_sum));
        put16(&mut out, 0x1a, low16(self.inode_bitmap_sum));
        // Inodes are taken from the front: all free ones were never used.
        put16(&mut out, 0x1c, low16(self.free_inodes));
        let sum = seed.update32(group).update(&out).value();
        put16(&mut out, 0x1e, low16(sum));
        out
    }
}

/// The first block of an empty journal of so many blocks.
pub(super) fn journal_superblock(blocks: u32, uuid: [u8; 16]) -> Vec<u8> {
    const MAGIC: u32 = 0xc03b_3998;
    const TYPE_SUPERBLOCK_V2: u32 = 4;
    let mut out = vec![0; BLOCK_BYTES];
    let mut put = |at: usize, value: u32| out[at..at + 4].copy_from_slice(&value.to_be_bytes());
    put(0x00, MAGIC);
    put(0x04, TYPE_SUPERBLOCK_V2);
    put(0x0c, BLOCK_BYTES as u32);
    put(0x10, blocks);
    put(0x14, 1); // first block of the log
    put(0x18, 1); // first sequence number
    put(0x40, 1); // file systems that share it
    out[0x30..0x40].copy_from_slice(&uuid);
    out
}
