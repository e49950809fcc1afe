//! Merging sealed layers while the disk is in use.

use std::ops::ControlFlow;
use std::sync::Arc;

use crate::disk::{LayeredDisk, Stack, position};
use crate::error::LayerError;
use crate::extent::{ExtentKind, changed_extents};
use crate::layer::{Layer, LayerId, Sealed};
use crate::overlay::Overlay;

/// Bytes copied at a time.
const COPY_BYTES: usize = 1 << 20;

/// What a [`LayeredDisk::flatten`] did.
#[derive(Debug)]
pub struct Flattened {
    /// The layer that took their place.
    pub merged: Layer,
    /// The layers it replaces. Their files are the caller's to remove, once it has made the new
    /// order of the disk durable; until then the old order is as good.
    pub replaced: Vec<Layer>,
}

impl LayeredDisk {
    /// Merges the sealed layers from the lowest up to and including `through` into an empty
    /// overlay, which takes their place. The disk is in use meanwhile, and may be frozen.
    ///
    /// `progress` is told the bytes done and in all, and may stop the work. The merged layer is
    /// durable before it is used, and the old layers stay sound: a crash at any moment leaves
    /// either order of layers complete.
    ///
    /// # Errors
    ///
    /// `through` is no sealed layer; `into` does not fit or is not empty; reading or writing fails;
    /// a rebase or another flatten took the layers away meanwhile. The disk is then as before.
    pub fn flatten(
        &self,
        through: LayerId,
        into: Overlay,
        progress: &mut dyn FnMut(u64, u64) -> ControlFlow<()>,
    ) -> Result<Flattened, LayerError> {
        self.check_empty(&into)?;
        let sealed = self.current().sealed.clone();
        let at = position(&sealed.layers, through)?;
        let source = Sealed {
            base: sealed.base,
            layers: sealed.layers[..=at].to_vec(),
        };
        copy(&source, &into, progress)?;
        into.flush()?;
        let merged = Layer::seal(Arc::new(into));
        self.put_in_place(&source.layers, &merged)?;
        Ok(Flattened {
            merged,
            replaced: source.layers,
        })
    }

    /// Replaces the lowest layers, if they are still those that were merged.
    fn put_in_place(&self, merged_from: &[Layer], merged: &Layer) -> Result<(), LayerError> {
        let mut current = self.lock_for_change();
        let layers = &current.sealed.layers;
        let lowest = layers.iter().take(merged_from.len()).map(Layer::id);
        if !lowest.eq(merged_from.iter().map(Layer::id)) {
            return Err(LayerError::Changed);
        }
        let mut new_layers = vec![merged.clone()];
        new_layers.extend_from_slice(&layers[merged_from.len()..]);
        *current = Arc::new(Stack {
            sealed: Sealed {
                base: current.sealed.base.clone(),
                layers: new_layers,
            },
            top: Arc::clone(&current.top),
        });
        Ok(())
    }
}

/// Copies what the layers change.
fn copy(
    source: &Sealed,
    into: &Overlay,
    progress: &mut dyn FnMut(u64, u64) -> ControlFlow<()>,
) -> Result<(), LayerError> {
    let extents = changed_extents(&source.layers);
    let total = extents.iter().map(|extent| extent.len_bytes).sum();
    let mut done = 0;
    let mut buf = vec![0; COPY_BYTES];
    for extent in extents {
        let mut at = extent.offset_bytes;
        while at < extent.end_bytes() {
            if progress(done, total).is_break() {
                return Err(LayerError::Interrupted);
            }
            let len = match extent.kind {
                ExtentKind::Zeroed => {
                    into.discard(at, extent.len_bytes)?;
                    extent.len_bytes
                }
                ExtentKind::Data => {
                    let len = (extent.end_bytes() - at).min(COPY_BYTES as u64);
                    let part = &mut buf[..len as usize];
                    source.read(at, part)?;
                    // Whole granules: nothing is ever copied up from below.
                    into.write(at, part, &|offset_bytes, buf| {
                        source.base.read(offset_bytes, buf)
                    })?;
                    len
                }
            };
            at += len;
            done += len;
        }
    }
    Ok(())
}
