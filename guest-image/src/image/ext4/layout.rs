//! Handing out blocks: every inode, directory, file and table to its place.

use super::attributes::{self, Placement};
use super::bytes::put32;
use super::checksum::Checksum;
use super::dir;
use super::extent::{self, Extent, MAX_EXTENTS};
use super::geometry::{
    Allocator, BLOCK_BYTES, DESCRIPTOR_BYTES, GROUP_BLOCKS, GROUP_INODES, Geometry, INODE_BYTES,
    Span,
};
use super::identity::Identity;
use super::inode::{
    Inode, S_IFBLK, S_IFCHR, S_IFDIR, S_IFIFO, S_IFLNK, S_IFREG, S_IFSOCK, encode_device,
};
use super::slots::{MAX_LINKS, Slot, Slots, inode_number};
use super::superblock::{GroupInfo, JOURNAL_INODE, SuperblockInfo, journal_superblock};
use super::writer::{JOURNAL_BLOCKS, Payload, SHORT_SYMLINK_BYTES, Segment};
use super::{Ext4Error, resize};
use crate::image::spool::{Content, Run};
use crate::image::tree::{Kind, Meta, Timestamp, Tree};

/// Zeroed tables for the inodes up to `last`, as long as they are used.
pub(super) fn inode_tables(geometry: Geometry, last: u32) -> Vec<Vec<u8>> {
    let table = |group: u32| {
        let used = last.saturating_sub(group * GROUP_INODES).min(GROUP_INODES);
        vec![0; (used as usize * INODE_BYTES).next_multiple_of(BLOCK_BYTES)]
    };
    (0..geometry.groups).map(table).collect()
}

pub(super) fn entry_type(kind: &Kind) -> u8 {
    match kind {
        Kind::File(_) => 1,
        Kind::Dir(_) => 2,
        Kind::Char(_) => 3,
        Kind::Block(_) => 4,
        Kind::Fifo => 5,
        Kind::Socket => 6,
        Kind::Symlink(_) => 7,
    }
}

/// The state while blocks are handed out.
pub(super) struct Layout<'a> {
    pub(super) tree: &'a Tree,
    pub(super) slots: &'a Slots,
    pub(super) geometry: Geometry,
    pub(super) uuid: [u8; 16],
    pub(super) seed: Checksum,
    pub(super) allocator: Allocator,
    pub(super) segments: Vec<Segment>,
    pub(super) tables: Vec<Vec<u8>>,
}

impl Layout<'_> {
    pub(super) fn build(mut self, identity: &Identity) -> Result<Vec<Segment>, Ext4Error> {
        let journal = self.journal(identity.time)?;
        let double_indirect = self.allocator.take_one()?;
        let (resize, segments) = resize::build(self.geometry, double_indirect, identity.time);
        self.segments.extend(segments);
        self.put_inode(JOURNAL_INODE, &journal);
        self.put_inode(resize::RESIZE_INODE, &resize);
        for slot in 0..self.slots.slots.len() {
            let inode = self.inode(slot)?;
            self.put_inode(inode_number(slot as u32), &inode);
        }
        self.metadata(identity, &journal);
        Ok(self.segments)
    }

    fn journal(&mut self, time: Timestamp) -> Result<Inode, Ext4Error> {
        let meta = Meta {
            mode: 0o600,
            mtime: time,
            ..Meta::default()
        };
        let mut inode = Inode::new(S_IFREG, &meta);
        inode.size_bytes = JOURNAL_BLOCKS * BLOCK_BYTES as u64;
        let run = [Run {
            logical: 0,
            spool: 0,
            blocks: JOURNAL_BLOCKS,
        }];
        let extents = self.allocate(&run)?;
        let payload = Payload::Bytes(journal_superblock(JOURNAL_BLOCKS as u32, self.uuid));
        self.segments.push(Segment {
            block: extents[0].0.span.first,
            payload,
        });
        self.set_extents(&mut inode, JOURNAL_INODE, &extents)?;
        Ok(inode)
    }

    /// Finds room for the runs of a file. Each piece comes with the block of
    /// the source that it begins with.
    fn allocate(&mut self, runs: &[Run]) -> Result<Vec<(Extent, u64)>, Ext4Error> {
        let mut extents = Vec::new();
        for run in runs {
            let mut done = 0;
            while done < run.blocks {
                let span = self.allocator.take(run.blocks - done)?;
                let logical = u32::try_from(run.logical + done).map_err(|_| Ext4Error::TooLarge)?;
                extents.push((Extent { logical, span }, run.spool + done));
                done += u64::from(span.blocks);
            }
        }
        if extents.len() > MAX_EXTENTS {
            return Err(Ext4Error::TooLarge);
        }
        Ok(extents)
    }

    fn set_extents(
        &mut self,
        inode: &mut Inode,
        number: u32,
        extents: &[(Extent, u64)],
    ) -> Result<(), Ext4Error> {
        let extents: Vec<Extent> = extents.iter().map(|(extent, _)| *extent).collect();
        let mut leaves = Vec::new();
        for _ in 0..extent::leaf_blocks(extents.len()) {
            leaves.push(self.allocator.take_one()?);
        }
        let (root, blocks) = extent::encode(&extents, &leaves, self.seed.for_inode(number));
        for (block, bytes) in leaves.iter().zip(blocks) {
            self.segments.push(Segment {
                block: *block,
                payload: Payload::Bytes(bytes),
            });
        }
        inode.block = root;
        inode.extents = true;
        let data: u64 = extents
            .iter()
            .map(|extent| u64::from(extent.span.blocks))
            .sum();
        inode.blocks += data + leaves.len() as u64;
        Ok(())
    }

    fn inode(&mut self, slot: usize) -> Result<Inode, Ext4Error> {
        let Slot { node, links, .. } = self.slots.slots[slot];
        let tree = self.tree;
        let node = tree.node(node);
        let number = inode_number(slot as u32);
        let file_type = match &node.kind {
            Kind::Dir(_) => S_IFDIR,
            Kind::File(_) => S_IFREG,
            Kind::Symlink(_) => S_IFLNK,
            Kind::Char(_) => S_IFCHR,
            Kind::Block(_) => S_IFBLK,
            Kind::Fifo => S_IFIFO,
            Kind::Socket => S_IFSOCK,
        };
        let mut inode = Inode::new(file_type, &node.meta);
        inode.links = if links > MAX_LINKS { 1 } else { links as u16 };
        match &node.kind {
            Kind::Dir(children) => self.directory(&mut inode, slot, children.keys())?,
            Kind::File(content) => self.file(&mut inode, number, content)?,
            Kind::Symlink(target) => self.symlink(&mut inode, number, target)?,
            Kind::Char(device) | Kind::Block(device) => inode.block = encode_device(*device),
            Kind::Fifo | Kind::Socket => {}
        }
        self.attributes(&mut inode, &node.meta)?;
        Ok(inode)
    }

    fn directory<'n>(
        &mut self,
        inode: &mut Inode,
        slot: usize,
        names: impl Iterator<Item = &'n Vec<u8>>,
    ) -> Result<(), Ext4Error> {
        let blocks = dir::blocks_needed(names.map(Vec::len));
        inode.size_bytes = blocks * BLOCK_BYTES as u64;
        let extents = self.allocate(&[Run {
            logical: 0,
            spool: 0,
            blocks,
        }])?;
        for (Extent { logical, span }, _) in &extents {
            let payload = Payload::Directory {
                slot,
                first: *logical,
                blocks: span.blocks,
            };
            self.segments.push(Segment {
                block: span.first,
                payload,
            });
        }
        self.set_extents(inode, inode_number(slot as u32), &extents)
    }

    fn file(&mut self, inode: &mut Inode, number: u32, content: &Content) -> Result<(), Ext4Error> {
        inode.size_bytes = content.size_bytes;
        let extents = self.allocate(&content.runs)?;
        for (
            Extent {
                span:
                    Span {
                        first: block,
                        blocks,
                    },
                ..
            },
            first,
        ) in &extents
        {
            let payload = Payload::Spool {
                first: *first,
                blocks: *blocks,
            };
            self.segments.push(Segment {
                block: *block,
                payload,
            });
        }
        self.set_extents(inode, number, &extents)
    }

    fn symlink(&mut self, inode: &mut Inode, number: u32, target: &[u8]) -> Result<(), Ext4Error> {
        inode.mode = S_IFLNK | 0o777;
        inode.size_bytes = target.len() as u64;
        if target.len() < SHORT_SYMLINK_BYTES {
            inode.block[..target.len()].copy_from_slice(target);
            return Ok(());
        }
        let extents = self.allocate(&[Run {
            logical: 0,
            spool: 0,
            blocks: 1,
        }])?;
        let mut bytes = vec![0; BLOCK_BYTES];
        bytes[..target.len()].copy_from_slice(target);
        let payload = Payload::Bytes(bytes);
        self.segments.push(Segment {
            block: extents[0].0.span.first,
            payload,
        });
        self.set_extents(inode, number, &extents)
    }

    fn attributes(&mut self, inode: &mut Inode, meta: &Meta) -> Result<(), Ext4Error> {
        match attributes::place(&meta.xattrs) {
            Placement::None => {}
            Placement::InInode(bytes) => inode.attributes = bytes,
            Placement::InBlock => {
                let block = self.allocator.take_one()?;
                let bytes = attributes::encode_block(&meta.xattrs, block, self.seed);
                self.segments.push(Segment {
                    block,
                    payload: Payload::Bytes(bytes),
                });
                inode.attribute_block = block;
                inode.blocks += 1;
            }
        }
        Ok(())
    }

    fn put_inode(&mut self, number: u32, inode: &Inode) {
        let group = (number - 1) / GROUP_INODES;
        let at = ((number - 1) % GROUP_INODES) as usize * INODE_BYTES;
        let bytes = inode.encode(number, self.seed);
        self.tables[group as usize][at..at + INODE_BYTES].copy_from_slice(&bytes);
    }

    /// Bitmaps, inode tables, descriptors and superblocks.
    fn metadata(&mut self, identity: &Identity, journal: &Inode) {
        let geometry = self.geometry;
        let last = inode_number(self.slots.slots.len() as u32 - 1);
        let mut descriptors = vec![0; geometry.gdt_blocks() as usize * BLOCK_BYTES];
        let (mut free_blocks, mut free_inodes) = (0, 0);
        let directories = self.directories_per_group();
        for group in 0..geometry.groups {
            let used_blocks = self.allocator.used_in(group);
            let used_inodes = last.saturating_sub(group * GROUP_INODES).min(GROUP_INODES);
            let block_bitmap = bitmap(used_blocks, GROUP_BLOCKS);
            let inode_bitmap = bitmap(used_inodes, GROUP_INODES);
            let info = GroupInfo {
                free_blocks: GROUP_BLOCKS - used_blocks,
                free_inodes: GROUP_INODES - used_inodes,
                directories: directories[group as usize],
                block_bitmap_sum: self.seed.update(&block_bitmap).value(),
                inode_bitmap_sum: self
                    .seed
                    .update(&inode_bitmap[..GROUP_INODES as usize / 8])
                    .value(),
            };
            free_blocks += info.free_blocks;
            free_inodes += info.free_inodes;
            let at = group as usize * DESCRIPTOR_BYTES;
            descriptors[at..at + DESCRIPTOR_BYTES]
                .copy_from_slice(&info.encode(group, geometry, self.seed));
            let mut front = block_bitmap;
            front.extend(inode_bitmap);
            front.append(&mut self.tables[group as usize]);
            let block = geometry.block_bitmap(group);
            self.segments.push(Segment {
                block,
                payload: Payload::Bytes(front),
            });
        }
        let superblock = SuperblockInfo {
            geometry,
            uuid: identity.uuid,
            hash_seed: identity.hash_seed,
            time_seconds: identity.time.seconds as u32,
            free_blocks,
            free_inodes,
            journal,
        };
        self.superblocks(&superblock, &descriptors);
    }

    fn superblocks(&mut self, superblock: &SuperblockInfo<'_>, descriptors: &[u8]) {
        let groups = self.geometry.backup_groups();
        for group in std::iter::once(0).chain(groups) {
            let mut bytes = vec![0; BLOCK_BYTES];
            // The first block has room for a boot loader in front.
            let at = if group == 0 { 1024 } else { 0 };
            bytes[at..at + 1024].copy_from_slice(&superblock.encode(group));
            bytes.extend_from_slice(descriptors);
            let block = group * GROUP_BLOCKS;
            self.segments.push(Segment {
                block,
                payload: Payload::Bytes(bytes),
            });
        }
    }

    fn directories_per_group(&self) -> Vec<u32> {
        let mut counts = vec![0; self.geometry.groups as usize];
        for (index, slot) in self.slots.slots.iter().enumerate() {
            if self.tree.children(slot.node).is_some() {
                counts[((inode_number(index as u32) - 1) / GROUP_INODES) as usize] += 1;
            }
        }
        counts
    }
}

/// One block of bitmap: the first `used` of `total` bits and all beyond
/// `total` are set.
fn bitmap(used: u32, total: u32) -> Vec<u8> {
    let mut out = vec![0; BLOCK_BYTES];
    for word in 0..BLOCK_BYTES / 4 {
        let bits = (0..32u32).fold(0, |bits, bit| {
            let at = word as u32 * 32 + bit;
            if at < used || at >= total {
                bits | 1 << bit
            } else {
                bits
            }
        });
        put32(&mut out, 4 * word, bits);
    }
    out
}
