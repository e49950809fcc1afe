//! The resize inode: owner of the descriptor blocks reserved for growth.

use super::bytes::put32;
use super::geometry::{BLOCK_BYTES, GROUP_BLOCKS, Geometry};
use super::inode::{Inode, S_IFREG};
use super::writer::{Payload, Segment};
use crate::image::tree::{Meta, Timestamp};

/// The number of the resize inode.
pub(super) const RESIZE_INODE: u32 = 7;
/// Where the double indirect block stands among the 15 of `i_block`.
const DOUBLE_INDIRECT: usize = 13;
const POINTERS: u64 = BLOCK_BYTES as u64 / 4;

/// Makes the inode and the blocks it consists of: `double_indirect` points to
/// each reserved block of group 0, which lists its copies in other groups.
pub(super) fn build(
    geometry: Geometry,
    double_indirect: u32,
    time: Timestamp,
) -> (Inode, Vec<Segment>) {
    let mut segments = Vec::new();
    let mut top = vec![0; BLOCK_BYTES];
    let mut blocks = 1;
    for index in 0..geometry.reserved_gdt_blocks() {
        let slot = geometry.gdt_blocks() + index;
        let primary = 1 + slot;
        put32(&mut top, 4 * slot as usize, primary);
        let mut copies = vec![0; BLOCK_BYTES];
        let mut count = 0;
        for group in geometry.backup_groups() {
            put32(&mut copies, 4 * count, primary + group * GROUP_BLOCKS);
            count += 1;
        }
        blocks += 1 + count as u64;
        segments.push(Segment {
            block: primary,
            payload: Payload::Bytes(copies),
        });
    }
    segments.push(Segment {
        block: double_indirect,
        payload: Payload::Bytes(top),
    });
    let meta = Meta {
        mode: 0o600,
        mtime: time,
        ..Meta::default()
    };
    let mut inode = Inode::new(S_IFREG, &meta);
    inode.blocks = blocks;
    inode.size_bytes = (12 + POINTERS + POINTERS * POINTERS) * BLOCK_BYTES as u64;
    put32(&mut inode.block, 4 * DOUBLE_INDIRECT, double_indirect);
    (inode, segments)
}
