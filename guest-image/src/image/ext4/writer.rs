//! From a tree to the blocks of a file system.

use std::io;

use super::Ext4Error;
use super::attributes::{self, Placement};
use super::checksum::Checksum;
use super::dir::{self, DirEntry};
use super::extent;
use super::geometry::{Allocator, BLOCK_BYTES, GROUP_BLOCKS, Geometry};
use super::identity::identity;
use super::layout::{Layout, entry_type, inode_tables};
use super::slots::{Slots, inode_number, number};
use crate::image::spool::Spool;
use crate::image::tree::{Kind, Meta, NodeId, Tree};

pub(super) const LOST_AND_FOUND: &[u8] = b"lost+found";
/// Journal of 32 MiB, what mke2fs gives to file systems of 1 to 8 GiB.
pub(super) const JOURNAL_BLOCKS: u64 = 8192;
/// Targets shorter than this lie in the inode.
pub(super) const SHORT_SYMLINK_BYTES: usize = 60;

/// Memory that the writer holds for a target that does not lie in the inode.
pub(crate) fn symlink_block_bytes(target: &[u8]) -> usize {
    if target.len() < SHORT_SYMLINK_BYTES {
        0
    } else {
        BLOCK_BYTES
    }
}

/// Blocks at one place of the image.
#[derive(Debug)]
pub(crate) struct Segment {
    /// The first block.
    pub(crate) block: u32,
    pub(crate) payload: Payload,
}

/// Where the bytes of a segment come from.
#[derive(Debug)]
pub(crate) enum Payload {
    /// Whole blocks.
    Bytes(Vec<u8>),
    /// Blocks of the spool.
    Spool { first: u64, blocks: u32 },
    /// Blocks of a directory, encoded when they are needed.
    Directory {
        slot: usize,
        first: u32,
        blocks: u32,
    },
}

impl Payload {
    pub(super) fn blocks(&self) -> u32 {
        match self {
            Self::Bytes(bytes) => (bytes.len() / BLOCK_BYTES) as u32,
            Self::Spool { blocks, .. } | Self::Directory { blocks, .. } => *blocks,
        }
    }
}

/// A laid out file system, ready to be read from front to back.
pub(crate) struct Ext4Image<'a> {
    tree: &'a Tree,
    spool: &'a Spool,
    slots: Slots,
    seed: Checksum,
    geometry: Geometry,
    segments: Vec<Segment>,
}

impl<'a> Ext4Image<'a> {
    /// Lays `tree` out, whose contents are in `spool`. A `lost+found` is
    /// added if the tree has none.
    ///
    /// # Errors
    ///
    /// [`Ext4Error`] where ext4 or this writer cannot hold the tree.
    pub(crate) fn new(tree: &'a mut Tree, spool: &'a Spool) -> Result<Self, Ext4Error> {
        let found = tree.lookup(LOST_AND_FOUND);
        if found.is_none_or(|id| tree.children(id).is_none()) {
            tree.remove(LOST_AND_FOUND);
            let meta = Meta {
                mode: 0o700,
                mtime: tree.newest(),
                ..Meta::default()
            };
            // The name is short and the root a directory: only a full tree
            // refuses it, and that one is too large.
            tree.insert(
                LOST_AND_FOUND,
                meta,
                Kind::Dir(std::collections::BTreeMap::new()),
            )
            .map_err(|_| Ext4Error::TooLarge)?;
        }
        let tree = &*tree;
        let slots = number(tree)?;
        let needed: u64 = slots
            .slots
            .iter()
            .map(|slot| blocks_needed(tree, slot.node))
            .sum();
        let last_inode = u64::from(inode_number(slots.slots.len() as u32 - 1));
        let geometry = Geometry::for_contents(needed + JOURNAL_BLOCKS + 1, last_inode)?;
        let identity = identity(tree, &slots);
        let layout = Layout {
            tree,
            slots: &slots,
            geometry,
            uuid: identity.uuid,
            seed: Checksum::new().update(&identity.uuid),
            allocator: Allocator::new(geometry),
            segments: Vec::new(),
            tables: inode_tables(geometry, last_inode as u32),
        };
        let seed = layout.seed;
        let mut segments = layout.build(&identity)?;
        segments.sort_by_key(|segment| segment.block);
        Ok(Self {
            tree,
            spool,
            slots,
            seed,
            geometry,
            segments,
        })
    }

    /// Size of the file system.
    pub(crate) fn size_bytes(&self) -> u64 {
        u64::from(self.geometry.blocks()) * BLOCK_BYTES as u64
    }

    /// Calls `sink` for each chunk of `chunk_bytes` (a divisor of 128 MiB and
    /// multiple of 4096) in order, with `None` for one that is all holes.
    pub(crate) fn for_each_chunk<E: From<io::Error>>(
        &self,
        chunk_bytes: usize,
        mut sink: impl FnMut(Option<&[u8]>) -> Result<(), E>,
    ) -> Result<(), E> {
        let per_chunk = (chunk_bytes / BLOCK_BYTES) as u32;
        let mut buffer = vec![0; chunk_bytes];
        let mut directory = (usize::MAX, Vec::new());
        let mut next = 0;
        for start in (0..self.geometry.blocks()).step_by(per_chunk as usize) {
            let end = start + per_chunk;
            let mut at = next;
            let mut touched = false;
            while let Some(segment) = self.segments.get(at).filter(|s| s.block < end) {
                if !touched {
                    buffer.fill(0);
                    touched = true;
                }
                let segment_end = segment.block + segment.payload.blocks();
                let (from, to) = (segment.block.max(start), segment_end.min(end));
                let out = &mut buffer
                    [(from - start) as usize * BLOCK_BYTES..(to - start) as usize * BLOCK_BYTES];
                self.read_segment(&segment.payload, from - segment.block, out, &mut directory)?;
                at += 1;
                if segment_end <= end {
                    next = at;
                }
            }
            sink(touched.then_some(&buffer))?;
        }
        Ok(())
    }

    /// Copies blocks of a payload from its block `skip` on.
    fn read_segment(
        &self,
        payload: &Payload,
        skip: u32,
        out: &mut [u8],
        cache: &mut (usize, Vec<u8>),
    ) -> io::Result<()> {
        let copy = |bytes: &[u8], first: u32, out: &mut [u8]| {
            let at = first as usize * BLOCK_BYTES;
            out.copy_from_slice(&bytes[at..at + out.len()]);
        };
        match payload {
            Payload::Bytes(bytes) => copy(bytes, skip, out),
            Payload::Spool { first, .. } => {
                self.spool.read_blocks(first + u64::from(skip), out)?;
            }
            Payload::Directory { slot, first, .. } => {
                if cache.0 != *slot {
                    *cache = (*slot, self.encode_directory(*slot));
                }
                copy(&cache.1, first + skip, out);
            }
        }
        Ok(())
    }

    fn encode_directory(&self, slot: usize) -> Vec<u8> {
        let own = inode_number(slot as u32);
        let parent = inode_number(self.slots.slots[slot].parent);
        let dots = [(&b"."[..], own), (b"..", parent)];
        let dots = dots.map(|(name, inode)| DirEntry {
            name,
            inode,
            file_type: 2,
        });
        let children = self.tree.children(self.slots.slots[slot].node);
        let names = children.into_iter().flatten().map(|(name, id)| DirEntry {
            name,
            inode: inode_number(self.slots.by_node[id.index()]),
            file_type: entry_type(&self.tree.node(*id).kind),
        });
        dir::encode(dots.into_iter().chain(names), self.seed.for_inode(own))
    }
}

/// An upper bound for the blocks of one node.
fn blocks_needed(tree: &Tree, id: NodeId) -> u64 {
    let node = tree.node(id);
    let (data, pieces) = match &node.kind {
        Kind::Dir(children) => (dir::blocks_needed(children.keys().map(Vec::len)), 1),
        Kind::File(content) => (
            content.runs.iter().map(|r| r.blocks).sum(),
            content.runs.len(),
        ),
        Kind::Symlink(target) => (u64::from(target.len() >= SHORT_SYMLINK_BYTES), 1),
        _ => (0, 0),
    };
    let splits = data / u64::from(GROUP_BLOCKS / 2) + 2;
    let leaves = extent::leaf_blocks(pieces + splits as usize) as u64;
    let in_block = matches!(attributes::place(&node.meta.xattrs), Placement::InBlock);
    data + leaves + u64::from(in_block)
}
