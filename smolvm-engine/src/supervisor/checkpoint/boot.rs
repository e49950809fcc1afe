//! Kernel and initramfs of a point.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use cas_store::{Capture, MAX_CHUNK_BYTES, StoreError, for_all};
use snapshot_format::{Blob, BootBlobs, CheckpointId, ChunkRef, MapRoot, Point};

use super::Run;
use super::error::CheckpointError;
use crate::file_error::FileError;
use crate::machine::{MachineDir, MachineFile};
use crate::point::{read_point, record_file_name};
use crate::save::maps::Maps;

impl Run<'_> {
    /// Kernel and initramfs as chunks: those of the head, of the point that this run began at, or from the machine's files.
    pub(super) fn boot_blobs(
        &self,
        machine: &MachineFile,
        begun_at: Option<&Point>,
        capture: &Capture,
        maps: &Maps<'_>,
    ) -> Result<BootBlobs, CheckpointError> {
        let dir = &self.shared.dir;
        let head = machine.head.as_ref().and_then(|head| {
            let id = head.parse::<CheckpointId>().ok()?;
            read_point(&dir.records().join(record_file_name(&id)), Some(id)).ok()
        });
        if let Some(point) = head.as_ref().or(begun_at) {
            let boot = point.record().boot.clone();
            // It names the host, which a restored machine may have changed.
            let command_line = machine.command_line.clone();
            return Ok(BootBlobs {
                command_line,
                ..boot
            });
        }
        boot_blobs(dir, machine.command_line.clone(), capture, maps)
    }
}

/// Kernel and initramfs of a machine from its files.
pub(super) fn boot_blobs(
    dir: &MachineDir,
    command_line: String,
    capture: &Capture,
    maps: &Maps<'_>,
) -> Result<BootBlobs, CheckpointError> {
    Ok(BootBlobs {
        kernel: put_file(capture, maps, &dir.kernel())?,
        initramfs: put_file(capture, maps, &dir.initramfs())?,
        command_line,
    })
}

/// Stores a file's chunks, without reading all of it into memory.
fn put_file(capture: &Capture, maps: &Maps<'_>, path: &Path) -> Result<Blob, CheckpointError> {
    let unread = |source: io::Error| FileError::at("read", path)(source);
    let file = File::open(path).map_err(unread)?;
    let size = file.metadata().map_err(unread)?.len();
    let offsets: Vec<u64> = (0..size).step_by(MAX_CHUNK_BYTES).collect();
    let stored = for_all(&offsets, |at, buffer| {
        let length = (size - at).min(MAX_CHUNK_BYTES as u64) as usize;
        let bytes = &mut buffer[..length];
        file.read_exact_at(bytes, *at).map_err(unread)?;
        Ok(ChunkRef(capture.put(bytes)?.0))
    });
    let stored = stored.map_err(|failures| {
        failures.cause(|error| matches!(error, CheckpointError::Store(StoreError::CaptureFailed)))
    })?;
    let chunks = (0..).zip(stored).collect();
    Ok(Blob::new(size, maps.change(&MapRoot::ZEROS, &chunks)?))
}
