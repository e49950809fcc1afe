//! Linear directories.

use super::bytes::{put16, put32};
use super::checksum::Checksum;
use super::geometry::BLOCK_BYTES;

/// The checksum entry at the end of each block.
const TAIL_BYTES: usize = 12;
const TAIL_TYPE: u8 = 0xde;
const USABLE_BYTES: usize = BLOCK_BYTES - TAIL_BYTES;

/// One name.
#[derive(Debug, Clone, Copy)]
pub(super) struct DirEntry<'a> {
    pub(super) name: &'a [u8],
    pub(super) inode: u32,
    /// `file_type` of the entry (1 file, 2 directory, ...).
    pub(super) file_type: u8,
}

/// Blocks that a directory with these name lengths needs, in this order,
/// after `.` and `..`.
pub(super) fn blocks_needed(name_lengths: impl Iterator<Item = usize>) -> u64 {
    let (mut blocks, mut used) = (1, 0);
    for len in [1, 2].into_iter().chain(name_lengths) {
        let record = record_bytes(len);
        if used + record > USABLE_BYTES {
            blocks += 1;
            used = 0;
        }
        used += record;
    }
    blocks
}

/// Encodes a directory; `entries` begins with `.` and `..`.
pub(super) fn encode<'a>(
    entries: impl Iterator<Item = DirEntry<'a>>,
    inode_seed: Checksum,
) -> Vec<u8> {
    let mut out = Vec::new();
    let mut block = vec![0; BLOCK_BYTES];
    let (mut used, mut last) = (0, 0);
    for entry in entries {
        let record = record_bytes(entry.name.len());
        if used + record > USABLE_BYTES {
            finish(&mut block, last, inode_seed);
            out.append(&mut block);
            block = vec![0; BLOCK_BYTES];
            used = 0;
        }
        put32(&mut block, used, entry.inode);
        put16(&mut block, used + 4, record as u16);
        block[used + 6] = entry.name.len() as u8;
        block[used + 7] = entry.file_type;
        block[used + 8..used + 8 + entry.name.len()].copy_from_slice(entry.name);
        last = used;
        used += record;
    }
    finish(&mut block, last, inode_seed);
    out.append(&mut block);
    out
}

/// Lets the last record reach to the tail and adds the checksum.
fn finish(block: &mut [u8], last: usize, inode_seed: Checksum) {
    put16(block, last + 4, (USABLE_BYTES - last) as u16);
    put16(block, USABLE_BYTES + 4, TAIL_BYTES as u16);
    block[USABLE_BYTES + 7] = TAIL_TYPE;
    let sum = inode_seed.update(&block[..USABLE_BYTES]).value();
    put32(block, USABLE_BYTES + 8, sum);
}

fn record_bytes(name_len: usize) -> usize {
    (8 + name_len).next_multiple_of(4)
}
