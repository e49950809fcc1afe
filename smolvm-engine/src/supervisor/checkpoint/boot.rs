//! Kernel and initramfs of a point.

use std::fs;
use std::path::Path;

use cas_store::{Capture, ChunkId, PackSet};
use snapshot_format::{Blob, BootBlobs, CheckpointId, ChunkMap, ChunkRef};

use super::super::disk_capture;
use super::Run;
use super::error::CheckpointError;
use crate::file_error::FileError;
use crate::machine::MachineFile;
use crate::point::{read_point, record_file_name};

impl Run<'_> {
    /// Kernel and initramfs as chunks: those of the head, or from the machine's files.
    pub(super) fn boot_blobs(
        &self,
        machine: &MachineFile,
        capture: &Capture,
        machine_packs: &PackSet,
    ) -> Result<BootBlobs, CheckpointError> {
        let dir = &self.shared.dir;
        if let Some(head) = &machine.head
            && let Ok(id) = head.parse::<CheckpointId>()
            && let Ok(point) = read_point(&dir.records().join(record_file_name(&id)), Some(id))
        {
            let boot = point.record().boot.clone();
            disk_capture::adopt(capture, machine_packs, boot_ids(&boot))?;
            // It names the host, which a restored machine may have changed.
            let command_line = machine.command_line.clone();
            return Ok(BootBlobs {
                command_line,
                ..boot
            });
        }
        Ok(BootBlobs {
            kernel: put_file(capture, &dir.kernel())?,
            initramfs: put_file(capture, &dir.initramfs())?,
            command_line: machine.command_line.clone(),
        })
    }
}

fn boot_ids(boot: &BootBlobs) -> Vec<ChunkId> {
    let blobs = [&boot.kernel, &boot.initramfs];
    blobs
        .iter()
        .flat_map(|blob| blob.chunks.data())
        .map(|chunk| ChunkId(chunk.0))
        .collect()
}

fn put_file(capture: &Capture, path: &Path) -> Result<Blob, CheckpointError> {
    let bytes = fs::read(path).map_err(FileError::at("read", path))?;
    let mut chunks = ChunkMap::new();
    for chunk in bytes.chunks(cas_store::MAX_CHUNK_BYTES) {
        chunks.push(ChunkRef(capture.put(chunk)?.0));
    }
    Ok(Blob::new(bytes.len() as u64, chunks))
}
