//! A sealed overlay, and the stack that a disk is read through.

use std::fmt;
use std::fs::File;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::base::Base;
use crate::error::{DiskError, OverlayError};
use crate::extent::{Extent, changed_extents};
use crate::file::OverlayFile;
use crate::overlay::Overlay;

/// Names a sealed layer within this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct LayerId(u64);

impl LayerId {
    fn next() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

impl fmt::Display for LayerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "#{}", self.0)
    }
}

/// A sealed overlay: its content does not change any more. Clones share it.
#[derive(Debug, Clone)]
pub struct Layer {
    id: LayerId,
    overlay: Arc<Overlay>,
}

impl Layer {
    /// Opens the file of a sealed layer; it may be open for reading only.
    ///
    /// # Errors
    ///
    /// The file is no overlay of a known version, is damaged, or cannot be read.
    pub fn open(file: File) -> Result<Self, OverlayError> {
        Self::open_shared(Arc::new(file))
    }

    /// As [`open`](Self::open), from any file that others share.
    ///
    /// # Errors
    ///
    /// As for [`open`](Self::open).
    pub fn open_shared(file: Arc<dyn OverlayFile>) -> Result<Self, OverlayError> {
        Ok(Self::seal(Arc::new(Overlay::open_sealed(file)?)))
    }

    /// Seals an overlay whose writes have ended.
    pub(crate) fn seal(overlay: Arc<Overlay>) -> Self {
        overlay.seal();
        Self {
            id: LayerId::next(),
            overlay,
        }
    }

    /// The layer's name within this process.
    pub fn id(&self) -> LayerId {
        self.id
    }

    /// The size of the disk that the layer was made for.
    pub fn disk_bytes(&self) -> u64 {
        self.overlay.disk_bytes()
    }

    /// What the file takes on its disk.
    ///
    /// # Errors
    ///
    /// When the system does not say.
    pub fn stored_bytes(&self) -> io::Result<u64> {
        self.overlay.stored_bytes()
    }

    /// What the layer changes, in order.
    pub fn changed_extents(&self) -> Vec<Extent> {
        changed_extents(std::slice::from_ref(self))
    }

    /// Makes all that was written to the layer before it was sealed durable.
    ///
    /// # Errors
    ///
    /// The sync failed, now or earlier.
    pub fn sync(&self) -> Result<(), DiskError> {
        self.overlay.flush()
    }

    pub(crate) fn overlay(&self) -> &Overlay {
        &self.overlay
    }
}

/// A base and the sealed layers above it, bottom to top.
#[derive(Debug, Clone)]
pub(crate) struct Sealed {
    pub(crate) base: Base,
    pub(crate) layers: Vec<Layer>,
}

impl Sealed {
    /// Reads through all layers.
    pub(crate) fn read(&self, offset_bytes: u64, buf: &mut [u8]) -> Result<(), DiskError> {
        self.read_level(self.layers.len(), offset_bytes, buf)
    }

    /// Reads through the lowest `level` layers. The depth of the recursion is bounded by
    /// [`MAX_LAYERS`](crate::MAX_LAYERS).
    fn read_level(&self, level: usize, offset_bytes: u64, buf: &mut [u8]) -> Result<(), DiskError> {
        match level {
            0 => self.base.read(offset_bytes, buf),
            level => {
                self.layers[level - 1]
                    .overlay
                    .read(offset_bytes, buf, &|offset_bytes, buf| {
                        self.read_level(level - 1, offset_bytes, buf)
                    })
            }
        }
    }
}
