//! Images: what a machine's root disk is made of.
//!
//! # Model
//!
//! An image lives in `$SMOLVM_HOME/images/NAME/`: `packs/` (the chunks of its
//! disk), `map` (which chunk lies where, [`ImageMap`]) and `image.json`. The
//! disk is an ext4 file system made from the source without privilege, with
//! owners, modes, times, attributes, devices and hard links as they were. It
//! has a journal, and the kernel can grow it while it is mounted.
//!
//! Archives are untrusted. They are applied to a tree in memory and their
//! contents go to one unlinked temporary file: no host path is ever made from
//! a name in an archive, and every size and number has a limit. Images carry
//! no machine-id, SSH host keys or random seed.
//!
//! # Errors
//!
//! [`ImageError`] names the archive and the entry; its
//! [`hint`](ImageError::hint) is the next command to type. An import appears
//! whole and durable, or not at all, and never replaces anything.
//!
//! # Not here
//!
//! Machines' disks (`cow-disk`), pulling from registries.
//!
//! # Example
//!
//! ```
//! use guest_image::image::{self, Image};
//! use guest_image::progress::Silent;
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let dir = tempfile::tempdir()?;
//! # let (home, root) = (dir.path().join("home"), dir.path().join("root"));
//! # std::fs::create_dir(&root)?;
//! let image = image::import(&home, "mine", &root, &Silent)?;
//! let map = image.map()?;
//! let mut first = vec![0; image::CHUNK_BYTES];
//! image.chunks().get(&map.chunks()[0], &mut first)?;
//! assert_eq!(&first[1024 + 0x38..][..2], [0x53, 0xef], "an ext4 superblock");
//! assert_eq!(Image::default_of(&home)?.name(), "mine");
//! # Ok(()) }
//! ```

mod blobs;
mod config;
pub(crate) mod contents;
mod debian;
mod error;
mod ext4;
mod foreign;
mod import;
mod layers;
mod left_out;
mod library;
mod manifest;
mod map;
mod prepare;
mod source;
mod spool;
mod tar;
pub(crate) mod tree;

pub use config::ImageConfig;
pub use error::{Choice, EntryError, ImageError};
pub use ext4::{AttributeError, Ext4Error};
pub use foreign::ForeignFormat;
pub use import::{build, import, import_stream, import_within};
pub use left_out::LeftOut;
pub use library::{DEFAULT_NAME, Image, ImageInfo, list, names, remove};
pub use map::{CHUNK_BYTES, ImageMap, MAX_CHUNKS, MapError};
pub use tar::TarError;
pub use tree::TreeError;

#[cfg(test)]
mod tests;
