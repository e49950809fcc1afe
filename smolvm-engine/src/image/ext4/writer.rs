//! From a tree to the blocks of a file system.

use std::collections::VecDeque;
use std::io;
use std::time::{SystemTime, UNIX_EPOCH};

use super::attributes::{self, Placement};
use super::bytes::put32;
use super::checksum::Checksum;
use super::dir::{self, DirEntry};
use super::extent::{self, Extent, MAX_EXTENTS};
use super::geometry::{
    Allocator, BLOCK_BYTES, DESCRIPTOR_BYTES, GROUP_BLOCKS, GROUP_INODES, Geometry, INODE_BYTES,
    Span,
};
use super::inode::{
    Inode, S_IFBLK, S_IFCHR, S_IFDIR, S_IFIFO, S_IFLNK, S_IFREG, S_IFSOCK, encode_device,
};
use super::superblock::{
    FIRST_INODE, GroupInfo, JOURNAL_INODE, SuperblockInfo, journal_superblock,
};
use super::{Ext4Error, resize};
use crate::image::spool::{Content, Run, Spool};
use crate::image::tree::{Kind, Meta, NodeId, Timestamp, Tree};

const ROOT_INODE: u32 = 2;
const LOST_AND_FOUND: &[u8] = b"lost+found";
/// Journal of 32 MiB, what mke2fs gives to file systems of 1 to 8 GiB.
const JOURNAL_BLOCKS: u64 = 8192;
/// `EXT4_LINK_MAX`; directories with more say 1.
const MAX_LINKS: u32 = 65000;
/// Targets shorter than this lie in the inode.
const SHORT_SYMLINK_BYTES: usize = 60;

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
    fn blocks(&self) -> u32 {
        match self {
            Self::Bytes(bytes) => (bytes.len() / BLOCK_BYTES) as u32,
            Self::Spool { blocks, .. } | Self::Directory { blocks, .. } => *blocks,
        }
    }
}

/// A tree numbered with inodes.
struct Slots {
    slots: Vec<Slot>,
    /// Slot of each node, `NONE` for nodes no longer in the tree.
    by_node: Vec<u32>,
}

const NONE: u32 = u32::MAX;

/// One inode to be written.
#[derive(Debug, Clone, Copy)]
struct Slot {
    node: NodeId,
    links: u32,
    /// Of a directory: the slot of its parent.
    parent: u32,
}

/// The number of the inode in a slot: the root has its own, the others follow
/// the reserved ones.
fn inode_number(slot: u32) -> u32 {
    if slot == 0 {
        ROOT_INODE
    } else {
        FIRST_INODE + slot - 1
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

/// Numbers all nodes that have a name, directories before their contents,
/// `lost+found` first.
fn number(tree: &Tree) -> Result<Slots, Ext4Error> {
    let root = Slot {
        node: NodeId::ROOT,
        links: 2,
        parent: 0,
    };
    let mut slots = Slots {
        slots: vec![root],
        by_node: vec![NONE; tree.node_count()],
    };
    slots.by_node[0] = 0;
    if let Some(id) = tree.lookup(LOST_AND_FOUND) {
        slots.add(tree, id, 0);
    }
    let mut directories = VecDeque::from([0u32]);
    while let Some(parent) = directories.pop_front() {
        let children = tree.children(slots.slots[parent as usize].node);
        for id in children.into_iter().flatten().map(|(_, id)| *id) {
            let is_dir = tree.children(id).is_some();
            match slots.by_node[id.index()] {
                NONE => slots.add(tree, id, parent),
                slot if !is_dir => slots.slots[slot as usize].links += 1,
                _ => {}
            }
            let slot = slots.by_node[id.index()];
            if is_dir {
                slots.slots[parent as usize].links += 1;
                directories.push_back(slot);
            } else if slots.slots[slot as usize].links > MAX_LINKS {
                return Err(Ext4Error::TooManyLinks);
            }
        }
    }
    Ok(slots)
}

impl Slots {
    fn add(&mut self, tree: &Tree, node: NodeId, parent: u32) {
        let links = if tree.children(node).is_some() { 2 } else { 1 };
        self.by_node[node.index()] = self.slots.len() as u32;
        self.slots.push(Slot {
            node,
            links,
            parent,
        });
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

/// What tells this file system from others: a function of the tree.
struct Identity {
    uuid: [u8; 16],
    hash_seed: [u8; 16],
    time: Timestamp,
}

fn identity(tree: &Tree, slots: &Slots) -> Identity {
    let mut hasher = blake3::Hasher::new_derive_key("smolvm ext4 identity v1");
    for (index, slot) in slots.slots.iter().enumerate() {
        let Meta {
            mode,
            uid,
            gid,
            mtime,
            xattrs,
        } = &tree.node(slot.node).meta;
        let mut text = format!(
            "{index} {} {mode} {uid} {gid} {mtime:?} {xattrs:?}",
            slot.links
        );
        if let Kind::File(content) = &tree.node(slot.node).kind {
            text += &format!(" {}", content.size_bytes);
        }
        hasher.update(text.as_bytes());
        for name in tree
            .children(slot.node)
            .into_iter()
            .flatten()
            .map(|(name, _)| name)
        {
            hasher
                .update(&(name.len() as u64).to_le_bytes())
                .update(name);
        }
    }
    let mut bytes = [[0; 16]; 2];
    hasher.finalize_xof().fill(bytes.as_flattened_mut());
    let [mut uuid, hash_seed] = bytes;
    // RFC 9562: version 8 (custom), variant 10.
    uuid[6] = uuid[6] & 0x0f | 0x80;
    uuid[8] = uuid[8] & 0x3f | 0x80;
    // A file from the future must not make the file system one.
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |d| d.as_secs() as i64);
    let seconds = tree.newest().seconds.clamp(1, now.max(1));
    Identity {
        uuid,
        hash_seed,
        time: Timestamp {
            seconds,
            nanoseconds: 0,
        },
    }
}

/// Zeroed tables for the inodes up to `last`, as long as they are used.
fn inode_tables(geometry: Geometry, last: u32) -> Vec<Vec<u8>> {
    let table = |group: u32| {
        let used = last.saturating_sub(group * GROUP_INODES).min(GROUP_INODES);
        vec![0; (used as usize * INODE_BYTES).next_multiple_of(BLOCK_BYTES)]
    };
    (0..geometry.groups).map(table).collect()
}

fn entry_type(kind: &Kind) -> u8 {
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
struct Layout<'a> {
    tree: &'a Tree,
    slots: &'a Slots,
    geometry: Geometry,
    uuid: [u8; 16],
    seed: Checksum,
    allocator: Allocator,
    segments: Vec<Segment>,
    tables: Vec<Vec<u8>>,
}

impl Layout<'_> {
    fn build(mut self, identity: &Identity) -> Result<Vec<Segment>, Ext4Error> {
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
