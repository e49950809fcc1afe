//! On-disk inodes.

use super::bytes::{high16, high32, low16, low32, put16, put32};
use super::checksum::Checksum;
use super::geometry::INODE_BYTES;
use crate::image::tree::{Device, Meta, Timestamp};

/// `i_flags`: the block map is an extent tree.
const FLAG_EXTENTS: u32 = 0x8_0000;
/// Bytes in use behind the first 128.
const EXTRA_BYTES: u16 = 32;
/// Where attributes kept in the inode begin.
pub(super) const ATTRIBUTES_AT: usize = 128 + EXTRA_BYTES as usize;

/// File types in `i_mode`.
pub(super) const S_IFIFO: u16 = 0x1000;
pub(super) const S_IFCHR: u16 = 0x2000;
pub(super) const S_IFDIR: u16 = 0x4000;
pub(super) const S_IFBLK: u16 = 0x6000;
pub(super) const S_IFREG: u16 = 0x8000;
pub(super) const S_IFLNK: u16 = 0xa000;
pub(super) const S_IFSOCK: u16 = 0xc000;

/// An inode before it is encoded.
#[derive(Debug, Clone)]
pub(super) struct Inode {
    /// Type and permissions.
    pub(super) mode: u16,
    pub(super) uid: u32,
    pub(super) gid: u32,
    pub(super) size_bytes: u64,
    pub(super) time: Timestamp,
    pub(super) links: u16,
    /// Blocks in use, of 4 KiB.
    pub(super) blocks: u64,
    /// Whether `block` is an extent tree.
    pub(super) extents: bool,
    /// Extent tree, short link target or device number.
    pub(super) block: [u8; 60],
    /// Block of attributes, 0 for none.
    pub(super) attribute_block: u32,
    /// Attributes kept in the inode.
    pub(super) attributes: Vec<u8>,
}

impl Inode {
    /// An empty inode of the type `file_type` with a file's attributes.
    pub(super) fn new(file_type: u16, meta: &Meta) -> Self {
        Self {
            mode: file_type | (meta.mode & 0o7777),
            uid: meta.uid,
            gid: meta.gid,
            size_bytes: 0,
            time: meta.mtime,
            links: 1,
            blocks: 0,
            extents: false,
            block: [0; 60],
            attribute_block: 0,
            attributes: Vec::new(),
        }
    }

    /// Encodes the inode of that number.
    pub(super) fn encode(&self, number: u32, seed: Checksum) -> [u8; INODE_BYTES] {
        let mut out = [0; INODE_BYTES];
        put16(&mut out, 0x00, self.mode);
        put16(&mut out, 0x02, low16(self.uid));
        put32(&mut out, 0x04, low32(self.size_bytes));
        let (seconds, extra) = encode_time(self.time);
        // Access, change, modification and creation are all the one known.
        for (at, extra_at) in [(0x08, 0x8c), (0x0c, 0x84), (0x10, 0x88), (0x90, 0x94)] {
            put32(&mut out, at, seconds);
            put32(&mut out, extra_at, extra);
        }
        put16(&mut out, 0x18, low16(self.gid));
        put16(&mut out, 0x1a, self.links);
        let sectors = self.blocks * 8;
        put32(&mut out, 0x1c, low32(sectors));
        put32(&mut out, 0x20, if self.extents { FLAG_EXTENTS } else { 0 });
        out[0x28..0x64].copy_from_slice(&self.block);
        put32(&mut out, 0x68, self.attribute_block);
        put32(&mut out, 0x6c, high32(self.size_bytes));
        put16(&mut out, 0x74, high32(sectors) as u16);
        put16(&mut out, 0x78, high16(self.uid));
        put16(&mut out, 0x7a, high16(self.gid));
        put16(&mut out, 0x80, EXTRA_BYTES);
        out[ATTRIBUTES_AT..ATTRIBUTES_AT + self.attributes.len()].copy_from_slice(&self.attributes);
        let sum = seed.for_inode(number).update(&out).value();
        put16(&mut out, 0x7c, low16(sum));
        put16(&mut out, 0x82, high16(sum));
        out
    }
}

/// A device number as `i_block` holds it: the old form where it fits.
pub(super) fn encode_device(device: Device) -> [u8; 60] {
    let Device { major, minor } = device;
    let mut block = [0; 60];
    if major < 256 && minor < 256 {
        put32(&mut block, 0, major << 8 | minor);
    } else {
        put32(
            &mut block,
            4,
            minor & 0xff | (major & 0xfff) << 8 | (minor & 0xfff00) << 12,
        );
    }
    block
}

/// Seconds, and nanoseconds with two more bits of seconds. Times outside of
/// 1901 to 2446 are moved to the nearer end.
fn encode_time(time: Timestamp) -> (u32, u32) {
    const FIRST: i64 = -(1 << 31);
    const LAST: i64 = FIRST + (1 << 34) - 1;
    let seconds = time.seconds.clamp(FIRST, LAST);
    let low = (seconds & 0xffff_ffff) as u32;
    // The kernel reads the low word as signed and adds the epoch bits.
    let epoch = ((seconds - FIRST) >> 32) as u32;
    (low, time.nanoseconds << 2 | epoch)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_decode_as_the_kernel_reads_them() {
        for seconds in [
            -(1i64 << 31),
            -1,
            0,
            1 << 31,
            (1 << 32) + 5,
            (1 << 34) - (1 << 31) - 1,
        ] {
            let (low, extra) = encode_time(Timestamp {
                seconds,
                nanoseconds: 999_999_999,
            });
            let decoded = i64::from(low.cast_signed()) + (i64::from(extra & 3) << 32);
            assert_eq!(decoded, seconds);
            assert_eq!(extra >> 2, 999_999_999);
        }
    }
}
