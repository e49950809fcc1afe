//! The disk: base, sealed layers and a writable top.

use std::fs::{File, OpenOptions};
use std::path::Path;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use crate::base::Base;
use crate::block::{BlockDevice, check_range};
use crate::error::{DiskError, LayerError, OverlayError};
use crate::granule::GRANULE_BYTES;
use crate::layer::{Layer, LayerId, Sealed};
use crate::overlay::Overlay;
use crate::view::FrozenView;

/// The most sealed layers of a disk; each costs a look at its map in reads from below it.
pub const MAX_LAYERS: usize = 512;

/// A disk of copy-on-write layers; see the crate's documentation.
///
/// Locks and waits: requests run in parallel. [`freeze`](Self::freeze), [`rebase`](Self::rebase),
/// [`replace`](Self::replace) and the last step of [`flatten`](Self::flatten) wait for writes in
/// flight (never for a flush or a read) and hold back new requests for that long.
#[derive(Debug)]
pub struct LayeredDisk {
    /// A request that changes something holds this for reading while it runs, so that whoever
    /// holds it for writing sees each request wholly done or not begun.
    stack: RwLock<Arc<Stack>>,
    size_bytes: u64,
}

/// What a disk consists of at a moment.
#[derive(Debug, Clone)]
pub(crate) struct Stack {
    pub(crate) sealed: Sealed,
    pub(crate) top: Arc<Overlay>,
}

/// The former parts of a disk, after [`LayeredDisk::replace`].
#[derive(Debug)]
pub struct Replaced {
    /// The former base.
    pub base: Base,
    /// The former sealed layers, bottom to top, and above them the former top, sealed now.
    pub layers: Vec<Layer>,
}

impl LayeredDisk {
    /// Puts a disk together: a base, sealed layers from bottom to top, and the overlay that takes
    /// writes, which gives the disk its size. Layers and base may be smaller.
    ///
    /// # Errors
    ///
    /// Sizes that do not fit, too many layers, a top that is sealed or poisoned.
    pub fn new(base: Base, layers: Vec<Layer>, top: Overlay) -> Result<Self, LayerError> {
        let size_bytes = top.disk_bytes();
        let stack = check_stack(base, layers, top, size_bytes)?;
        Ok(Self {
            stack: RwLock::new(Arc::new(stack)),
            size_bytes,
        })
    }

    /// Opens a disk from open files: those of the sealed layers, bottom to top (reading is
    /// enough), and that of the top (reading and writing).
    ///
    /// # Errors
    ///
    /// A file is no sound overlay, or as for [`new`](Self::new).
    pub fn from_files(base: Base, sealed: Vec<File>, top: File) -> Result<Self, LayerError> {
        if sealed.len() > MAX_LAYERS {
            return Err(LayerError::TooMany { limit: MAX_LAYERS });
        }
        let top_index = sealed.len();
        let layers = sealed
            .into_iter()
            .enumerate()
            .map(|(index, file)| {
                Layer::open(file).map_err(|source| LayerError::Open { index, source })
            })
            .collect::<Result<Vec<_>, _>>()?;
        let top = Overlay::open(top).map_err(|source| LayerError::Open {
            index: top_index,
            source,
        })?;
        Self::new(base, layers, top)
    }

    /// As [`from_files`](Self::from_files), from paths.
    ///
    /// # Errors
    ///
    /// A path cannot be opened, or as for [`from_files`](Self::from_files).
    pub fn from_paths<P: AsRef<Path>>(
        base: Base,
        sealed: &[P],
        top: P,
    ) -> Result<Self, LayerError> {
        if sealed.len() > MAX_LAYERS {
            return Err(LayerError::TooMany { limit: MAX_LAYERS });
        }
        let open = |index, path: &Path, write| {
            let file = OpenOptions::new().read(true).write(write).open(path);
            file.map_err(|source| LayerError::Open {
                index,
                source: OverlayError::Io {
                    action: "open",
                    source,
                },
            })
        };
        let files = sealed
            .iter()
            .enumerate()
            .map(|(index, path)| open(index, path.as_ref(), false))
            .collect::<Result<Vec<_>, _>>()?;
        Self::from_files(base, files, open(sealed.len(), top.as_ref(), true)?)
    }

    /// Seals the top and puts an empty overlay in its place. Its cost does not depend on what the
    /// disk or the top holds. Every write is wholly in the view or wholly not.
    ///
    /// Nothing is synced: a later [`flush`](BlockDevice::flush) also covers what the sealed layer
    /// holds. If whatever the view was for fails, nothing needs to be undone: the layer stays in
    /// the disk until [`flatten`](Self::flatten) merges it.
    ///
    /// # Errors
    ///
    /// The new top has another size, is not empty, takes no writes; or the layers are too many.
    pub fn freeze(&self, new_top: Overlay) -> Result<FrozenView, LayerError> {
        self.check_empty(&new_top)?;
        check_top(&new_top)?;
        let new_top = Arc::new(new_top);
        let mut current = self.lock_for_change();
        let mut sealed = current.sealed.clone();
        if sealed.layers.len() >= MAX_LAYERS {
            return Err(LayerError::TooMany { limit: MAX_LAYERS });
        }
        sealed.layers.push(Layer::seal(Arc::clone(&current.top)));
        *current = Arc::new(Stack {
            sealed: sealed.clone(),
            top: new_top,
        });
        Ok(FrozenView::new(sealed, self.size_bytes))
    }

    /// The sealed layers, bottom to top.
    pub fn layers(&self) -> Vec<Layer> {
        self.current().sealed.layers.clone()
    }

    /// Swaps the base and drops the sealed layers up to and including `through`: for a base that
    /// holds the content of all those, such as the point that a view was saved as. Returns the
    /// dropped layers; their files are the caller's to remove, once it has made the new order of
    /// the disk durable.
    ///
    /// # Errors
    ///
    /// `through` is no sealed layer of the disk; the new base is larger than the disk.
    pub fn rebase(&self, new_base: Base, through: LayerId) -> Result<Vec<Layer>, LayerError> {
        check_base(&new_base, self.size_bytes)?;
        let mut current = self.lock_for_change();
        let mut dropped = current.sealed.layers.clone();
        let at = position(&dropped, through)?;
        let layers = dropped.split_off(at + 1);
        *current = Arc::new(Stack {
            sealed: Sealed {
                base: new_base,
                layers,
            },
            top: Arc::clone(&current.top),
        });
        Ok(dropped)
    }

    /// Swaps all parts of the disk at once, for going back to an earlier content in place. Returns
    /// the former parts, with the former top sealed.
    ///
    /// # Errors
    ///
    /// The new parts do not fit the disk's size, or as for [`new`](Self::new).
    pub fn replace(
        &self,
        base: Base,
        layers: Vec<Layer>,
        top: Overlay,
    ) -> Result<Replaced, LayerError> {
        let stack = check_stack(base, layers, top, self.size_bytes)?;
        let mut current = self.lock_for_change();
        let old = std::mem::replace(&mut *current, Arc::new(stack));
        drop(current);
        let mut layers = old.sealed.layers.clone();
        layers.push(Layer::seal(Arc::clone(&old.top)));
        Ok(Replaced {
            base: old.sealed.base.clone(),
            layers,
        })
    }

    /// What the disk consists of now. Its top may be sealed by the time it is used: for reads and
    /// syncs only.
    pub(crate) fn current(&self) -> Arc<Stack> {
        Arc::clone(&self.lock_for_request())
    }

    fn lock_for_request(&self) -> RwLockReadGuard<'_, Arc<Stack>> {
        self.stack.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for the writes in flight.
    pub(crate) fn lock_for_change(&self) -> RwLockWriteGuard<'_, Arc<Stack>> {
        self.stack.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Checks an overlay that is to be filled, or to become the top.
    pub(crate) fn check_empty(&self, overlay: &Overlay) -> Result<(), LayerError> {
        check_size(overlay, self.size_bytes)?;
        if !overlay.is_empty() {
            return Err(LayerError::NotEmpty);
        }
        Ok(())
    }
}

impl BlockDevice for LayeredDisk {
    fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    fn block_size_bytes(&self) -> u64 {
        GRANULE_BYTES
    }

    fn read_at(&self, offset_bytes: u64, buf: &mut [u8]) -> Result<(), DiskError> {
        check_range(offset_bytes, buf.len() as u64, self.size_bytes)?;
        let stack = self.current();
        let below = |offset_bytes, buf: &mut [u8]| stack.sealed.read(offset_bytes, buf);
        stack.top.read(offset_bytes, buf, &below)
    }

    fn write_at(&self, offset_bytes: u64, data: &[u8]) -> Result<(), DiskError> {
        check_range(offset_bytes, data.len() as u64, self.size_bytes)?;
        let stack = self.lock_for_request();
        let below = |offset_bytes, buf: &mut [u8]| stack.sealed.read(offset_bytes, buf);
        stack.top.write(offset_bytes, data, &below)
    }

    fn flush(&self) -> Result<(), DiskError> {
        // Not under the lock: a freeze must not wait for a disk to sync. What was answered before
        // this call lies in the layers that are current now.
        let stack = self.current();
        stack.sealed.layers.iter().try_for_each(Layer::sync)?;
        stack.top.flush()
    }

    fn discard(&self, offset_bytes: u64, len_bytes: u64) -> Result<(), DiskError> {
        check_range(offset_bytes, len_bytes, self.size_bytes)?;
        self.lock_for_request().top.discard(offset_bytes, len_bytes)
    }

    fn write_zeroes(&self, offset_bytes: u64, len_bytes: u64) -> Result<(), DiskError> {
        check_range(offset_bytes, len_bytes, self.size_bytes)?;
        let stack = self.lock_for_request();
        let below = |offset_bytes, buf: &mut [u8]| stack.sealed.read(offset_bytes, buf);
        stack.top.write_zeroes(offset_bytes, len_bytes, &below)
    }
}

/// Where the layer is.
pub(crate) fn position(layers: &[Layer], id: LayerId) -> Result<usize, LayerError> {
    layers
        .iter()
        .position(|layer| layer.id() == id)
        .ok_or(LayerError::Unknown { id })
}

fn check_stack(
    base: Base,
    layers: Vec<Layer>,
    top: Overlay,
    size_bytes: u64,
) -> Result<Stack, LayerError> {
    check_base(&base, size_bytes)?;
    check_size(&top, size_bytes)?;
    check_top(&top)?;
    if layers.len() > MAX_LAYERS {
        return Err(LayerError::TooMany { limit: MAX_LAYERS });
    }
    if let Some(layer) = layers.iter().find(|layer| layer.disk_bytes() > size_bytes) {
        return Err(LayerError::Size {
            overlay_bytes: layer.disk_bytes(),
            disk_bytes: size_bytes,
        });
    }
    Ok(Stack {
        sealed: Sealed { base, layers },
        top: Arc::new(top),
    })
}

fn check_base(base: &Base, disk_bytes: u64) -> Result<(), LayerError> {
    let base_bytes = base.size_bytes();
    if base_bytes > disk_bytes {
        return Err(LayerError::BaseTooLarge {
            base_bytes,
            disk_bytes,
        });
    }
    Ok(())
}

fn check_size(overlay: &Overlay, disk_bytes: u64) -> Result<(), LayerError> {
    let overlay_bytes = overlay.disk_bytes();
    if overlay_bytes != disk_bytes {
        return Err(LayerError::Size {
            overlay_bytes,
            disk_bytes,
        });
    }
    Ok(())
}

fn check_top(top: &Overlay) -> Result<(), LayerError> {
    if top.is_sealed() || top.is_poisoned() {
        return Err(LayerError::TopNotWritable);
    }
    Ok(())
}
