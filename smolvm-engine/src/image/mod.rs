//! Images: what a machine's root disk is made of.

pub(crate) mod contents;
mod error;
mod ext4;
mod map;
mod spool;
mod tar;
pub(crate) mod tree;

pub use error::{EntryError, ImageError};
pub use ext4::Ext4Error;
pub use map::{CHUNK_BYTES, ImageMap, MAX_CHUNKS, MapError};
pub use tar::TarError;
pub use tree::TreeError;

#[cfg(test)]
mod ext4_tests;
