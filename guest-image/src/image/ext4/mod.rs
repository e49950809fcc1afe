//! Writes a file tree as an ext4 file system, from front to back.
//!
//! Everything is laid out before the first byte is written, so that the image
//! can go into a pipe or straight into chunks: no scratch file of its size
//! exists. The same tree gives the same bytes.
//!
//! # What it makes
//!
//! 4 KiB blocks, 32-byte group descriptors, whole block groups, each with its
//! metadata in front; extents, linear directories, extended attributes in the
//! inode or one block, a 32 MiB journal, metadata checksums, and a resize
//! inode whose reserved descriptor blocks let the kernel grow the file system
//! online to 1 TiB. Spec: Linux `Documentation/filesystems/ext4`, e2fsprogs.
//!
//! # Why it is here
//!
//! `mke2fs -d` needs the tree unpacked, which takes root where files have owners; the crates that write
//! ext4 from a stream make no journal and leave no room to grow.
//!
//! # What is not here
//!
//! No reading (that is [`file_system`](crate::file_system)), no indexed directories (the kernel reads linear ones and
//! `e2fsck -D` would index them), no quota, encryption or inline data.

mod attributes;
mod bytes;
mod checksum;
mod dir;
mod extent;
mod geometry;
mod identity;
mod inode;
mod layout;
mod resize;
mod slots;
mod superblock;
mod writer;

pub use attributes::AttributeError;
pub(crate) use attributes::{
    block_bytes as attribute_block_bytes, check as check_attributes, take_foreign,
};
pub(crate) use writer::Ext4Image;
pub(crate) use writer::symlink_block_bytes;

/// Why a tree cannot be made a file system.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Ext4Error {
    /// More than the largest supported size.
    #[error("its files need more than the 512 GiB that an image may have")]
    TooLarge,
    /// More than 65,000 names of one file.
    #[error("a file has more than 65000 hard links")]
    TooManyLinks,
}
