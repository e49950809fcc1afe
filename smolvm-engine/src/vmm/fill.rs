//! Filling guest memory from a point's chunks.

use cas_store::{ChunkId, ReadError, for_all};
use snapshot_format::{CHUNK_BYTES, ChunkRef, MapReader, NodeSource, PointRecord, chunks_in};
use thiserror::Error;
use vm_memory::{Bytes, GuestAddress, GuestMemoryError};
use vmm_core::ram::GuestRam;

use crate::machine::{ChunkSource, MapReadError, node_of};

/// Why memory could not be filled.
#[derive(Debug, Error)]
pub(crate) enum FillError {
    #[error("memory at {gpa:#x}")]
    Chunk {
        gpa: u64,
        #[source]
        source: ReadError,
    },
    #[error("the map of memory from {gpa:#x} on")]
    Map {
        gpa: u64,
        #[source]
        source: MapReadError,
    },
    #[error("the point's memory does not fit the machine's")]
    Memory(#[from] GuestMemoryError),
    #[error("the point's memory regions are not those of the machine")]
    Layout,
}

/// Chunks that are listed at a time: 1 GiB of memory.
const JOBS_AT_A_TIME: usize = 16 << 10;

/// One chunk and its place in its region.
struct Job {
    index: u64,
    chunk: ChunkRef,
}

/// Writes all of the point's memory into `ram`, verified.
pub(super) fn fill(
    ram: &GuestRam,
    record: &PointRecord,
    source: &ChunkSource,
) -> Result<(), FillError> {
    let regions = ram.layout().regions();
    let same = regions.len() == record.memory.len()
        && regions.iter().zip(&record.memory).all(|(region, saved)| {
            region.start.0 == saved.start_gpa && region.bytes == saved.size_bytes
        });
    if !same {
        return Err(FillError::Layout);
    }
    let reader = MapReader::new(Nodes(source));
    for region in &record.memory {
        let chunks = chunks_in(region.size_bytes);
        let mut data = reader.data(&region.map);
        loop {
            let some: Result<Vec<Job>, MapReadError> = data
                .by_ref()
                .take(JOBS_AT_A_TIME)
                .map(|found| found.map(|(index, chunk)| Job { index, chunk }))
                .collect();
            let some = some.map_err(|source| FillError::Map {
                gpa: region.start_gpa,
                source,
            })?;
            if some.is_empty() {
                break;
            }
            if some.iter().any(|job| job.index >= chunks) {
                return Err(FillError::Layout);
            }
            fill_some(ram, region.start_gpa, &some, source)?;
        }
    }
    Ok(())
}

fn fill_some(
    ram: &GuestRam,
    start_gpa: u64,
    jobs: &[Job],
    source: &ChunkSource,
) -> Result<(), FillError> {
    let filled = for_all(jobs, |job, bytes| {
        let gpa = start_gpa + job.index * CHUNK_BYTES;
        let length = source
            .get(&ChunkId(job.chunk.0), bytes)
            .map_err(|source| FillError::Chunk { gpa, source })?;
        Ok(ram.write_slice(&bytes[..length], GuestAddress(gpa))?)
    });
    match filled {
        Ok(_) => Ok(()),
        Err(failures) => Err(failures.cause(|_| false)),
    }
}

/// Nodes of the point's maps.
struct Nodes<'a>(&'a ChunkSource);

impl NodeSource for Nodes<'_> {
    type Error = ReadError;

    fn node(&self, id: &ChunkRef) -> Result<Vec<u8>, ReadError> {
        node_of(|bytes| self.0.get(&ChunkId(id.0), bytes))
    }
}
