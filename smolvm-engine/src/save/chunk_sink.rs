//! From the window into the store: chunks of memory are hashed, compressed and written.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use cas_store::{Capture, ChunkId, MAX_CHUNK_BYTES, PackSet, StoreError};
use snapshot_format::{ChunkMap, ChunkRef, MemoryRegion, Point};
use thiserror::Error;
use vmm_core::ram::{RamLayout, RamLayoutError};
use vmm_core::x86::ram_layout;

use super::disk_capture::{self, DiskCaptureError};
use crate::channel::capture::CapturedChunk;
use crate::on_threads::for_all;

/// Why chunks could not be stored.
#[derive(Debug, Error)]
pub(crate) enum SinkError {
    #[error("no shared memory for the capture")]
    Window(#[source] io::Error),
    #[error("the VMM names a chunk or a slot that does not exist")]
    Bounds,
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Layout(#[from] RamLayoutError),
    #[error(transparent)]
    Adopt(#[from] DiskCaptureError),
}

/// Takes a machine's memory in.
pub(crate) struct ChunkSink<'a> {
    capture: &'a Capture,
    layout: RamLayout,
    window: File,
    /// One entry per 64 KiB of memory, over all regions.
    chunks: Vec<ChunkRef>,
    /// Which entries came in this capture.
    fresh: Vec<bool>,
    seen_bytes: u64,
}

impl<'a> ChunkSink<'a> {
    /// A sink for memory of `memory_bytes` that is equal to `base` where nothing else comes.
    pub(crate) fn new(
        capture: &'a Capture,
        base: Option<&Point>,
        memory_bytes: u64,
    ) -> Result<Self, SinkError> {
        let layout = ram_layout(memory_bytes)?;
        let count = (layout.total_bytes() / MAX_CHUNK_BYTES as u64) as usize;
        let mut chunks = Vec::with_capacity(count);
        for region in base.iter().flat_map(|point| &point.record().memory) {
            chunks.extend(region.chunks.iter());
        }
        chunks.resize(count, ChunkRef::ZERO);
        let window = new_window().map_err(SinkError::Window)?;
        Ok(Self {
            capture,
            layout,
            window,
            fresh: vec![false; count],
            chunks,
            seen_bytes: 0,
        })
    }

    /// The memory that is shared with the VMM.
    pub(crate) fn window(&self) -> Result<File, SinkError> {
        self.window.try_clone().map_err(SinkError::Window)
    }

    /// Bytes of memory seen so far.
    pub(crate) fn seen_bytes(&self) -> u64 {
        self.seen_bytes
    }

    /// Takes chunks from the window; returns the slots that are free again.
    pub(crate) fn take(&mut self, batch: &[CapturedChunk]) -> Result<Vec<u32>, SinkError> {
        self.seen_bytes += (batch.len() * MAX_CHUNK_BYTES) as u64;
        let stored = for_all(batch, |chunk, bytes| self.store(*chunk, bytes));
        let stored = stored.map_err(|failures| {
            failures.cause(|error| matches!(error, SinkError::Store(StoreError::CaptureFailed)))
        })?;
        for (chunk, id) in stored {
            let index = usize::try_from(chunk).map_err(|_| SinkError::Bounds)?;
            *self.chunks.get_mut(index).ok_or(SinkError::Bounds)? = id;
            self.fresh[index] = true;
        }
        Ok(batch.iter().filter_map(|chunk| chunk.slot).collect())
    }

    /// Reads a chunk out of the window, into private memory first: the VMM may change it at any time. Stores it.
    fn store(
        &self,
        CapturedChunk { chunk, slot }: CapturedChunk,
        bytes: &mut [u8],
    ) -> Result<(u64, ChunkRef), SinkError> {
        let Some(slot) = slot else {
            return Ok((chunk, ChunkRef::ZERO));
        };
        let at = u64::from(slot) * MAX_CHUNK_BYTES as u64;
        self.window
            .read_exact_at(bytes, at)
            .map_err(|_| SinkError::Bounds)?;
        Ok((chunk, ChunkRef(self.capture.put(bytes)?.0)))
    }

    /// Brings in what did not change, from the machine's own packs, and returns the maps.
    pub(crate) fn finish(self, machine_packs: &PackSet) -> Result<Vec<MemoryRegion>, SinkError> {
        let unchanged: Vec<ChunkId> = self
            .chunks
            .iter()
            .zip(&self.fresh)
            .filter(|(chunk, fresh)| !**fresh && !chunk.is_zero())
            .map(|(chunk, _)| ChunkId(chunk.0))
            .collect();
        disk_capture::adopt(self.capture, machine_packs, unchanged)?;
        let mut chunks = self.chunks.into_iter();
        let regions = self.layout.regions().iter().map(|region| {
            let count = (region.bytes / MAX_CHUNK_BYTES as u64) as usize;
            let mut map = ChunkMap::new();
            chunks
                .by_ref()
                .take(count)
                .for_each(|chunk| map.push(chunk));
            MemoryRegion {
                start_gpa: region.start.0,
                size_bytes: region.bytes,
                chunks: map,
            }
        });
        Ok(regions.collect())
    }
}

#[cfg(target_os = "linux")]
fn new_window() -> io::Result<File> {
    use rustix::fs::{MemfdFlags, memfd_create};
    Ok(File::from(memfd_create(
        "smolvm-capture",
        MemfdFlags::CLOEXEC,
    )?))
}

#[cfg(not(target_os = "linux"))]
fn new_window() -> io::Result<File> {
    tempfile::tempfile()
}
