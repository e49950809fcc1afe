//! From the window into the store: chunks of memory are hashed, compressed and written.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use cas_store::{Capture, MAX_CHUNK_BYTES, StoreError, for_all};
use snapshot_format::{CHUNK_BYTES, ChunkRef, MapRoot, MemoryRegion, Point};
use thiserror::Error;
use vmm_core::ram::{RamLayout, RamLayoutError};
use vmm_core::x86::ram_layout;

use super::maps::{Maps, MapsError};
use crate::channel::capture::CapturedChunk;
use crate::channel::memory_file::memory_file;

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
    Maps(#[from] MapsError),
}

/// Takes a machine's memory in.
pub(crate) struct ChunkSink<'a> {
    capture: &'a Capture,
    layout: RamLayout,
    window: File,
    /// What came, by number of 64 KiB over all regions.
    changes: BTreeMap<u64, ChunkRef>,
    /// Such numbers there are.
    count: u64,
    seen_bytes: u64,
}

impl<'a> ChunkSink<'a> {
    /// A sink for memory of `memory_bytes`.
    pub(crate) fn new(capture: &'a Capture, memory_bytes: u64) -> Result<Self, SinkError> {
        let layout = ram_layout(memory_bytes)?;
        Ok(Self {
            capture,
            window: memory_file("smolvm-capture").map_err(SinkError::Window)?,
            changes: BTreeMap::new(),
            count: layout.total_bytes() / CHUNK_BYTES,
            layout,
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
            if chunk >= self.count {
                return Err(SinkError::Bounds);
            }
            self.changes.insert(chunk, id);
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

    /// The maps of all regions: those of `base` where nothing came.
    pub(crate) fn finish(
        self,
        base: Option<&Point>,
        maps: &Maps<'_>,
    ) -> Result<Vec<MemoryRegion>, SinkError> {
        Ok(memory_regions(&self.layout, self.changes, base, maps)?)
    }
}

/// The maps of all regions, with these chunks by number of 64 KiB over all regions; those of `base` where there are none.
pub(crate) fn memory_regions(
    layout: &RamLayout,
    mut changes: BTreeMap<u64, ChunkRef>,
    base: Option<&Point>,
    maps: &Maps<'_>,
) -> Result<Vec<MemoryRegion>, MapsError> {
    let mut before = base.iter().flat_map(|point| &point.record().memory);
    let mut regions = Vec::new();
    let mut first = 0;
    for region in layout.regions() {
        let behind = first + region.bytes / CHUNK_BYTES;
        let later = changes.split_off(&behind);
        let here = std::mem::replace(&mut changes, later);
        let here = here.into_iter().map(|(index, id)| (index - first, id));
        let former = before.next().map_or(MapRoot::ZEROS, |region| region.map);
        regions.push(MemoryRegion {
            start_gpa: region.start.0,
            size_bytes: region.bytes,
            map: maps.change(&former, &here.collect())?,
        });
        first = behind;
    }
    Ok(regions)
}
