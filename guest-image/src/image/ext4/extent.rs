//! Extent trees of depth 0 and 1.

use super::bytes::{high32, low32, put16, put32};
use super::checksum::Checksum;
use super::geometry::{BLOCK_BYTES, Span};

const MAGIC: u16 = 0xf30a;
const HEADER_BYTES: usize = 12;
const ENTRY_BYTES: usize = 12;
/// Extents that fit into the inode itself.
const IN_INODE: usize = 4;
/// Extents in a leaf block; the checksum needs the last four bytes.
const PER_LEAF: usize = (BLOCK_BYTES - HEADER_BYTES - 4) / ENTRY_BYTES;
/// Most extents of a file: four leaves.
pub(super) const MAX_EXTENTS: usize = IN_INODE * PER_LEAF;

/// A piece of a file and where it lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Extent {
    /// First block within the file.
    pub(super) logical: u32,
    pub(super) span: Span,
}

/// Leaf blocks that so many extents need beside the inode.
pub(super) fn leaf_blocks(extents: usize) -> usize {
    if extents <= IN_INODE {
        0
    } else {
        extents.div_ceil(PER_LEAF)
    }
}

/// The inode's 60 bytes and the leaf blocks of a file whose extents are
/// `extents` (at most [`MAX_EXTENTS`]) and whose leaves lie at `leaves`.
pub(super) fn encode(
    extents: &[Extent],
    leaves: &[u32],
    inode_seed: Checksum,
) -> ([u8; 60], Vec<Vec<u8>>) {
    let mut root = [0; 60];
    if leaves.is_empty() {
        put_header(&mut root, extents.len(), IN_INODE, 0);
        put_extents(&mut root[HEADER_BYTES..], extents);
        return (root, Vec::new());
    }
    put_header(&mut root, leaves.len(), IN_INODE, 1);
    let mut blocks = Vec::new();
    for (index, (part, leaf)) in extents.chunks(PER_LEAF).zip(leaves).enumerate() {
        let entry = &mut root[HEADER_BYTES + index * ENTRY_BYTES..][..ENTRY_BYTES];
        put32(entry, 0, part[0].logical);
        put32(entry, 4, *leaf);
        let mut block = vec![0; BLOCK_BYTES];
        put_header(&mut block, part.len(), PER_LEAF, 0);
        put_extents(&mut block[HEADER_BYTES..], part);
        let tail = HEADER_BYTES + PER_LEAF * ENTRY_BYTES;
        let sum = inode_seed.update(&block[..tail]).value();
        put32(&mut block, tail, sum);
        blocks.push(block);
    }
    (root, blocks)
}

fn put_header(out: &mut [u8], entries: usize, max: usize, depth: u16) {
    put16(out, 0, MAGIC);
    put16(out, 2, entries as u16);
    put16(out, 4, max as u16);
    put16(out, 6, depth);
}

fn put_extents(out: &mut [u8], extents: &[Extent]) {
    for (extent, entry) in extents.iter().zip(out.chunks_exact_mut(ENTRY_BYTES)) {
        let start = u64::from(extent.span.first);
        put32(entry, 0, extent.logical);
        // At most a group, hence below the 32,768 of an initialised extent.
        put16(entry, 4, extent.span.blocks as u16);
        put16(entry, 6, high32(start) as u16);
        put32(entry, 8, low32(start));
    }
}
