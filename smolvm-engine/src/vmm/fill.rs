//! Filling guest memory from a point's chunks.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use cas_store::{ChunkId, MAX_CHUNK_BYTES, ReadError};
use snapshot_format::{ChunkRef, PointRecord};
use thiserror::Error;
use vm_memory::{Bytes, GuestAddress, GuestMemoryError};
use vmm_core::ram::GuestRam;

use crate::chunk_source::ChunkSource;

/// Threads that read and verify chunks.
const FILL_THREADS: usize = 2;
/// How many chunks a thread takes at a time: some chunks take much longer than others.
const JOBS_AT_A_TIME: usize = 8;

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
    let next = AtomicUsize::new(0);
    let failure = Mutex::new(None);
    std::thread::scope(|scope| {
        for _ in 0..FILL_THREADS.min(jobs.len()) {
            let (jobs, next, failure) = (&jobs, &next, &failure);
            scope.spawn(move || {
                if let Err(error) = fill_some(ram, jobs, next, source) {
                    // The others have nothing left to do.
                    next.store(jobs.len(), Ordering::Relaxed);
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

/// Takes jobs from `next` on, some at a time, until none is left.
fn fill_some(
    ram: &GuestRam,
    jobs: &[Job],
    next: &AtomicUsize,
    source: &ChunkSource,
) -> Result<(), FillError> {
    let mut bytes = vec![0; MAX_CHUNK_BYTES];
    loop {
        let first = next.fetch_add(JOBS_AT_A_TIME, Ordering::Relaxed);
        let Some(rest) = jobs.get(first..).filter(|rest| !rest.is_empty()) else {
            return Ok(());
        };
        for (gpa, chunk) in rest.iter().take(JOBS_AT_A_TIME) {
            let length = source
                .get(&ChunkId(chunk.0), &mut bytes)
                .map_err(|source| FillError::Chunk { gpa: *gpa, source })?;
            ram.write_slice(&bytes[..length], GuestAddress(*gpa))?;
        }
    }
}
