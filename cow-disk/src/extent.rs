//! What layers change.

use crate::granule::{GRANULE_BYTES, Source};
use crate::layer::Layer;

/// How a range of a disk differs from what lies below.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExtentKind {
    /// Written: to be read from the view or disk. (After a crash it may be equal to what lies
    /// below, where writes were lost that no flush had covered.)
    Data,
    /// Discarded or zeroed: reads as zero.
    Zeroed,
}

/// A range of a disk, of whole granules.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    /// First byte.
    pub offset_bytes: u64,
    /// Length.
    pub len_bytes: u64,
    /// How it differs.
    pub kind: ExtentKind,
}

impl Extent {
    /// The first byte after the extent.
    pub fn end_bytes(&self) -> u64 {
        self.offset_bytes + self.len_bytes
    }
}

/// What the layers (bottom to top) together change, in order, neighbours of one kind merged.
#[must_use]
pub fn changed_extents(layers: &[Layer]) -> Vec<Extent> {
    let end = layers
        .iter()
        .map(|layer| layer.overlay().disk_bytes())
        .max()
        .unwrap_or(0)
        / GRANULE_BYTES;
    let mut extents: Vec<Extent> = Vec::new();
    let mut at = 0;
    while at < end {
        let (kind, run_end) = changed_run(layers, at, end);
        if let Some(kind) = kind {
            let offset_bytes = at * GRANULE_BYTES;
            let len_bytes = (run_end - at) * GRANULE_BYTES;
            match extents.last_mut() {
                Some(last) if last.kind == kind && last.end_bytes() == offset_bytes => {
                    last.len_bytes += len_bytes;
                }
                _ => extents.push(Extent {
                    offset_bytes,
                    len_bytes,
                    kind,
                }),
            }
        }
        at = run_end;
    }
    extents
}

/// How the granule `at` is changed, and up to where the same answer holds.
fn changed_run(layers: &[Layer], at: u64, end: u64) -> (Option<ExtentKind>, u64) {
    let mut end = end;
    for layer in layers.iter().rev() {
        let (source, run_end) = layer.overlay().source_run(at..end);
        end = run_end;
        match source {
            Source::Below => {}
            Source::Zero => return (Some(ExtentKind::Zeroed), end),
            Source::Data | Source::Unverified => return (Some(ExtentKind::Data), end),
        }
    }
    (None, end)
}
