//! The disk's part of a capture: its base's chunks, and anew what the layers changed.

use std::collections::BTreeSet;
use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use cas_store::{Capture, ChunkId, MAX_CHUNK_BYTES, PackSet, StoreError};
use cow_disk::{
    Base, BlockDevice, DiskError, Layer, LayerError, LayeredDisk, Overlay, OverlayError,
};
use snapshot_format::verify::ROOT_DISK;
use snapshot_format::{ChunkMap, ChunkRef, DiskMap};
use thiserror::Error;

use crate::file_error::FileError;
use crate::image::{ImageMap, MapError};
use crate::machine::{ChunkBase, ChunkSource, MachineDir, MachineFile};

/// Why the disk could not be captured.
#[derive(Debug, Error)]
pub(crate) enum DiskCaptureError {
    #[error(transparent)]
    Io(#[from] FileError),
    #[error("the disk's base")]
    Map(#[from] MapError),
    #[error("a layer of the disk")]
    Overlay(#[from] OverlayError),
    #[error(transparent)]
    Layer(#[from] LayerError),
    #[error("the disk cannot be read")]
    Disk(#[from] DiskError),
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("{count} chunks are in none of the machine's packs")]
    Missing { count: usize },
}

/// Stores the disk as it was when its top became what is last but one in `machine` now.
pub(crate) fn capture_disk(
    dir: &MachineDir,
    machine: &MachineFile,
    capture: &Capture,
    machine_packs: &PackSet,
) -> Result<Vec<DiskMap>, DiskCaptureError> {
    let base_path = dir.disk().join(&machine.disk.base);
    let base =
        ImageMap::decode(&std::fs::read(&base_path).map_err(FileError::at("read", &base_path))?)?;
    let sealed = &machine.disk.layers[..machine.disk.layers.len() - 1];
    let layers: Result<Vec<Layer>, DiskCaptureError> = sealed
        .iter()
        .map(|name| open_layer(&dir.disk().join(name)))
        .collect();
    let layers = layers?;

    let changed = changed_chunks(&layers);
    let disk = open_disk(dir, machine, &base, layers)?;
    let count = machine.spec.disk_bytes.div_ceil(MAX_CHUNK_BYTES as u64);
    let mut map = ChunkMap::new();
    let mut unchanged = Vec::new();
    let mut bytes = vec![0; MAX_CHUNK_BYTES];
    for index in 0..count {
        if changed.contains(&index) {
            let at = index * MAX_CHUNK_BYTES as u64;
            let length = (machine.spec.disk_bytes - at).min(MAX_CHUNK_BYTES as u64) as usize;
            disk.read_at(at, &mut bytes[..length])?;
            map.push(ChunkRef(capture.put(&bytes[..length])?.0));
        } else {
            let id = base
                .chunks()
                .get(index as usize)
                .copied()
                .unwrap_or(ChunkId::ZERO);
            map.push(ChunkRef(id.0));
            if !id.is_zero() {
                unchanged.push(id);
            }
        }
    }
    adopt(capture, machine_packs, unchanged)?;
    let size_bytes = machine.spec.disk_bytes;
    Ok(vec![DiskMap {
        name: ROOT_DISK.to_owned(),
        size_bytes,
        chunks: map,
    }])
}

/// Whether the machine's disk, which nobody writes to, may differ from its base.
pub(crate) fn has_changes(
    dir: &MachineDir,
    machine: &MachineFile,
) -> Result<bool, DiskCaptureError> {
    for name in &machine.disk.layers {
        let layer = open_layer(&dir.disk().join(name))?;
        if !layer.changed_extents().is_empty() {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Makes chunks of the machine's packs part of the capture.
pub(crate) fn adopt(
    capture: &Capture,
    machine_packs: &PackSet,
    ids: Vec<ChunkId>,
) -> Result<(), DiskCaptureError> {
    let adopted = capture.adopt(machine_packs, &ids)?;
    let mut missing = adopted.missing.len();
    for id in &ids {
        if !capture.reference(id)? {
            missing += 1;
        }
    }
    if missing > 0 {
        return Err(DiskCaptureError::Missing { count: missing });
    }
    Ok(())
}

/// Numbers of the chunks that some layer changed.
fn changed_chunks(layers: &[Layer]) -> BTreeSet<u64> {
    let chunk = MAX_CHUNK_BYTES as u64;
    let extents = layers.iter().flat_map(Layer::changed_extents);
    extents
        .flat_map(|extent| extent.offset_bytes / chunk..extent.end_bytes().div_ceil(chunk))
        .collect()
}

/// The sealed layers of a disk under an empty, nameless top: to be read, or merged.
pub(crate) fn open_disk(
    dir: &MachineDir,
    machine: &MachineFile,
    base: &ImageMap,
    layers: Vec<Layer>,
) -> Result<LayeredDisk, DiskCaptureError> {
    let source = ChunkSource::new(&[dir.packs()], Vec::new());
    let reader = ChunkBase::new(source, base.chunks().to_vec());
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
