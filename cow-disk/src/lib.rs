//! Copy-on-write block layers: a disk that can be frozen at an instant while it is in use.
//!
//! # Model
//!
//! A [`LayeredDisk`] is a [`Base`] (a raw image, a reader of the caller's, or zeroes), sealed
//! [`Layer`]s above it, and a top [`Overlay`] that takes the writes. It is a [`BlockDevice`]:
//! requests of any offset and length, from any thread.
//!
//! - [`freeze`](LayeredDisk::freeze) seals the top, puts an empty overlay in its place and returns
//!   a [`FrozenView`]. Its cost does not depend on the size of anything, and each write is wholly
//!   before or wholly after it.
//! - The view reads the disk of that moment for as long as it is kept, and lists
//!   [what changed](FrozenView::changed_extents) relative to the base.
//! - [`rebase`](LayeredDisk::rebase) swaps the base for one that holds the content of layers, and
//!   drops those; [`flatten`](LayeredDisk::flatten) merges layers; [`replace`](LayeredDisk::replace)
//!   swaps everything.
//!
//! Layers are files in which granules of 4 KiB lie at their own place, sparse, with a map in front
//! that distinguishes "look below", "zero" and "here". All access goes through open files: nothing
//! here needs a path.
//!
//! # Durability
//!
//! A write that returned outlives the process, at once. It outlives a power loss after a
//! [`flush`](BlockDevice::flush), which syncs all layers that need it. Without a flush each 512-byte
//! sector holds its old or its new content, as on a real disk, on host file systems that write back
//! 4 KiB pages as a whole and never show stale blocks (ext4, XFS, btrfs with their defaults). After
//! a failed sync a layer is poisoned: it takes no write and no flush any more.
//!
//! Which layers make up a disk, in which order, is the caller's to record; so are the directory
//! entries of the files, and that nobody else opens them for writing.
//!
//! # Errors
//!
//! [`DiskError`] for requests, [`OverlayError`] for creating and opening a file, [`LayerError`] for
//! changing the layers. No content of a file makes this crate panic, loop or allocate without bound.
//!
//! # What is not here
//!
//! Chunks and stores (a caller gives them as a [`BaseReader`]), virtio, caching of any kind: the
//! host's page cache is the cache.
//!
//! # Example
//!
//! ```
//! use cow_disk::{Base, BlockDevice, LayeredDisk, Overlay};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let size_bytes = 1 << 30;
//! let top = Overlay::create(tempfile::tempfile()?, size_bytes)?;
//! let disk = LayeredDisk::new(Base::zeroes(), Vec::new(), top)?;
//! disk.write_at(5000, b"before")?;
//!
//! // From here on the view does not change, the disk goes on.
//! let view = disk.freeze(Overlay::create(tempfile::tempfile()?, size_bytes)?)?;
//! disk.write_at(5000, b"after!")?;
//! disk.flush()?;
//!
//! let mut buf = [0; 6];
//! view.read_at(5000, &mut buf)?;
//! assert_eq!(&buf, b"before");
//! assert_eq!(view.changed_extents()[0].offset_bytes, 4096);
//! disk.read_at(5000, &mut buf)?;
//! assert_eq!(&buf, b"after!");
//! # Ok(())
//! # }
//! ```

mod base;
mod block;
mod disk;
mod error;
mod extent;
mod file;
mod flatten;
mod granule;
mod header;
mod layer;
mod map;
mod overlay;
mod range_lock;
#[cfg(feature = "testing")]
pub mod testing;
mod view;

pub use base::{Base, BaseReader};
pub use block::BlockDevice;
pub use disk::{LayeredDisk, MAX_LAYERS, Replaced};
pub use error::{DiskError, LayerError, OverlayError};
pub use extent::{Extent, ExtentKind, changed_extents};
pub use file::OverlayFile;
pub use flatten::Flattened;
pub use granule::{GRANULE_BYTES, MAX_DISK_BYTES};
pub use header::{OVERLAY_MAGIC, OVERLAY_VERSION};
pub use layer::{Layer, LayerId};
pub use overlay::Overlay;
pub use view::FrozenView;
