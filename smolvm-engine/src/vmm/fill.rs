//! Filling guest memory from a point's chunks.

use cas_store::{ChunkId, MAX_CHUNK_BYTES, ReadError};
use snapshot_format::{ChunkRef, PointRecord};
use thiserror::Error;
use vm_memory::{Bytes, GuestAddress, GuestMemoryError};
use vmm_core::ram::GuestRam;

use crate::machine::ChunkSource;
use crate::on_threads::for_all;

/// Why memory could not be filled.
#[derive(Debug, Error)]
pub(crate) enum FillError {
    #[error("memory at {gpa:#x}")]
    Chunk {
        gpa: u64,
        #[source]
        source: ReadError,
    },
    #[error("the point's memory does not fit the machine's")]
    Memory(#[from] GuestMemoryError),
    #[error("the point's memory regions are not those of the machine")]
    Layout,
}

/// One chunk and where it belongs.
type Job = (u64, ChunkRef);

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
    let jobs: Vec<Job> = record
        .memory
        .iter()
        .flat_map(|region| {
            let start = region.start_gpa;
            region
                .chunks
                .iter_data()
                .map(move |(index, chunk)| (start + index * MAX_CHUNK_BYTES as u64, chunk))
        })
        .collect();
    let filled = for_all(&jobs, |(gpa, chunk), bytes| {
        let length = source
            .get(&ChunkId(chunk.0), bytes)
            .map_err(|source| FillError::Chunk { gpa: *gpa, source })?;
        Ok(ram.write_slice(&bytes[..length], GuestAddress(*gpa))?)
    });
    match filled {
        Ok(_) => Ok(()),
        Err(failures) => Err(failures.cause(|_| false)),
    }
}
