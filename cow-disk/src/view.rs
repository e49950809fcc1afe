//! A disk as it was at a freeze.

use std::io;

use crate::base::BaseReader;
use crate::block::check_range;
use crate::error::DiskError;
use crate::extent::{Extent, changed_extents};
use crate::layer::{Layer, Sealed};

/// The content of a disk at the moment of a [`freeze`](crate::LayeredDisk::freeze), unchanging and
/// readable while the disk goes on, whatever happens to its layers there.
///
/// Usable as the base of another disk, as it is a [`BaseReader`].
#[derive(Debug, Clone)]
pub struct FrozenView {
    sealed: Sealed,
    size_bytes: u64,
}

impl FrozenView {
    pub(crate) fn new(sealed: Sealed, size_bytes: u64) -> Self {
        Self { sealed, size_bytes }
    }

    /// The size of the disk.
    pub fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    /// The layers that the view reads, bottom to top; the last is the one that was sealed by the
    /// freeze.
    pub fn layers(&self) -> &[Layer] {
        &self.sealed.layers
    }

    /// The layer that was sealed by the freeze.
    ///
    /// # Panics
    ///
    /// Never: a freeze always seals one.
    pub fn newest(&self) -> &Layer {
        &self.sealed.layers[self.sealed.layers.len() - 1]
    }

    /// Fills `buf` from the view.
    ///
    /// # Errors
    ///
    /// Out of bounds, or a base or layer cannot be read.
    pub fn read_at(&self, offset_bytes: u64, buf: &mut [u8]) -> Result<(), DiskError> {
        check_range(offset_bytes, buf.len() as u64, self.size_bytes)?;
        self.sealed.read(offset_bytes, buf)
    }

    /// What all layers together change relative to the base, in order.
    pub fn changed_extents(&self) -> Vec<Extent> {
        changed_extents(&self.sealed.layers)
    }
}

impl BaseReader for FrozenView {
    fn read_at(&self, offset_bytes: u64, buf: &mut [u8]) -> io::Result<()> {
        Self::read_at(self, offset_bytes, buf).map_err(io::Error::other)
    }

    fn size_bytes(&self) -> u64 {
        self.size_bytes
    }
}
