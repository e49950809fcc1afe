//! The disk's part of a capture: its base's chunks, and anew what the layers changed.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use cas_store::{Capture, MAX_CHUNK_BYTES, StoreError};
use cow_disk::{
    Base, BlockDevice, DiskError, ExtentKind, Layer, LayerError, LayeredDisk, Overlay,
    OverlayError, changed_extents,
};
use snapshot_format::verify::ROOT_DISK;
use snapshot_format::{ChunkRef, DiskMap};
use thiserror::Error;

use super::maps::{Maps, MapsError};
use crate::file_error::FileError;
use crate::machine::{BaseMap, BaseMapError, ChunkBase, ChunkSource, MachineDir, MachineFile};

/// Why the disk could not be captured.
#[derive(Debug, Error)]
pub(crate) enum DiskCaptureError {
    #[error(transparent)]
    Io(#[from] FileError),
    #[error(transparent)]
    Base(#[from] BaseMapError),
    #[error("a layer of the disk")]
    Overlay(#[from] OverlayError),
    #[error(transparent)]
    Layer(#[from] LayerError),
    #[error("the disk cannot be read")]
    Disk(#[from] DiskError),
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Maps(#[from] MapsError),
}

/// Stores the disk as it was when its top became what is last but one in `machine` now.
pub(crate) fn capture_disk(
    dir: &MachineDir,
    machine: &MachineFile,
    base: &BaseMap,
    capture: &Capture,
    maps: &Maps<'_>,
) -> Result<Vec<DiskMap>, DiskCaptureError> {
    let sealed = &machine.disk.layers[..machine.disk.layers.len() - 1];
    let layers: Result<Vec<Layer>, DiskCaptureError> = sealed
        .iter()
        .map(|name| open_layer(&dir.disk().join(name)))
        .collect();
    let layers = layers?;

    let size_bytes = machine.spec.disk_bytes;
    let changed = Changed::of(&layers);
    let disk = open_disk(dir, machine, base.clone(), layers)?;
    let mut changes = BTreeMap::new();
    let mut bytes = vec![0; MAX_CHUNK_BYTES];
    for index in changed.rewritten {
        let at = index * MAX_CHUNK_BYTES as u64;
        let length = size_bytes.saturating_sub(at).min(MAX_CHUNK_BYTES as u64) as usize;
        disk.read_at(at, &mut bytes[..length])?;
        changes.insert(index, ChunkRef(capture.put(&bytes[..length])?.0));
    }
    for range in changed.zeroed {
        let places = maps.data_places(base.map(), range)?;
        changes.extend(places.into_iter().map(|index| (index, ChunkRef::ZERO)));
    }
    Ok(vec![DiskMap {
        name: ROOT_DISK.to_owned(),
        size_bytes,
        map: maps.change(base.map(), &changes)?,
    }])
}

/// Whether the machine's disk, which nobody writes to, may differ from that of its head.
pub(crate) fn has_changes(
    dir: &MachineDir,
    machine: &MachineFile,
    head: &DiskMap,
) -> Result<bool, DiskCaptureError> {
    // A pause has another base than the head.
    let base = BaseMap::read(&dir.disk().join(&machine.disk.base))?;
    if *base.map() != head.map {
        return Ok(true);
    }
    for name in &machine.disk.layers {
        let layer = open_layer(&dir.disk().join(name))?;
        if !layer.changed_extents().is_empty() {
            return Ok(true);
        }
    }
    Ok(false)
}

/// The chunks that layers change.
struct Changed {
    /// To be read.
    rewritten: BTreeSet<u64>,
    /// Wholly zero now. A discard may cover the whole disk: such chunks are not counted one by one.
    zeroed: Vec<Range<u64>>,
}

impl Changed {
    fn of(layers: &[Layer]) -> Self {
        let chunk = MAX_CHUNK_BYTES as u64;
        let mut changed = Self {
            rewritten: BTreeSet::new(),
            zeroed: Vec::new(),
        };
        for extent in changed_extents(layers) {
            let touched = extent.offset_bytes / chunk..extent.end_bytes().div_ceil(chunk);
            let whole = extent.offset_bytes.div_ceil(chunk)..extent.end_bytes() / chunk;
            if extent.kind == ExtentKind::Data || whole.is_empty() {
                changed.rewritten.extend(touched);
            } else {
                changed.rewritten.extend(touched.start..whole.start);
                changed.rewritten.extend(whole.end..touched.end);
                changed.zeroed.push(whole);
            }
        }
        changed
    }
}

/// The sealed layers of a disk under an empty, nameless top: to be read, or merged.
pub(crate) fn open_disk(
    dir: &MachineDir,
    machine: &MachineFile,
    base: BaseMap,
    layers: Vec<Layer>,
) -> Result<LayeredDisk, DiskCaptureError> {
    let source = ChunkSource::new(&[dir.packs()], Vec::new());
    let reader = ChunkBase::new(source, base);
    let top = tempfile::tempfile_in(dir.disk())
        .map_err(FileError::at("create a file in", &dir.disk()))?;
    let top = Overlay::create(top, machine.spec.disk_bytes)?;
    Ok(LayeredDisk::new(
        Base::reader(Arc::new(reader)),
        layers,
        top,
    )?)
}

pub(crate) fn open_layer(path: &Path) -> Result<Layer, DiskCaptureError> {
    Ok(Layer::open(
        File::open(path).map_err(FileError::at("open", path))?,
    )?)
}
