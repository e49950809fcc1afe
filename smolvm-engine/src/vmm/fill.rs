//! Filling guest memory from a point's chunks.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use cas_store::{ChunkId, MAX_CHUNK_BYTES, ReadError};
use snapshot_format::{ChunkRef, PointRecord};
use thiserror::Error;
use vm_memory::{Bytes, GuestAddress, GuestMemoryError};
use vmm_core::ram::GuestRam;

use crate::chunk_source::ChunkSource;

/// Threads that read and verify chunks.
const FILL_THREADS: usize = 2;

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
    let failed = AtomicBool::new(false);
    let failure = Mutex::new(None);
    std::thread::scope(|scope| {
        for part in jobs.chunks(jobs.len().div_ceil(FILL_THREADS).max(1)) {
            let (failed, failure) = (&failed, &failure);
            scope.spawn(move || {
                if let Err(error) = fill_part(ram, part, source, failed) {
                    failed.store(true, Ordering::Relaxed);
                    *failure.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
                }
            });
        }
    });
    match failure.into_inner().unwrap_or_else(PoisonError::into_inner) {
        Some(error) => Err(error),
        None => Ok(()),
    }
}

fn fill_part(
    ram: &GuestRam,
    jobs: &[Job],
    source: &ChunkSource,
    failed: &AtomicBool,
) -> Result<(), FillError> {
    let mut bytes = vec![0; MAX_CHUNK_BYTES];
    for (gpa, chunk) in jobs {
        if failed.load(Ordering::Relaxed) {
            return Ok(());
        }
        let length = source
            .get(&ChunkId(chunk.0), &mut bytes)
            .map_err(|source| FillError::Chunk { gpa: *gpa, source })?;
        ram.write_slice(&bytes[..length], GuestAddress(*gpa))?;
    }
    Ok(())
}
