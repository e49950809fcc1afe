//! Filling guest memory from a point's chunks: before the guest runs, or while it does.

use std::error::Error;
use std::sync::Arc;

use cas_store::{ChunkId, ReadError, for_all};
use snapshot_format::{CHUNK_BYTES, ChunkRef, MapReader, NodeSource, PointRecord, chunks_in};
use thiserror::Error;
use vm_memory::{Bytes, GuestAddress, GuestMemoryError};
use vmm_core::Gpa;
use vmm_core::ram::{BackgroundFill, ChunkIndex, FillSource, GuestRam, MemoryLost};

use crate::machine::{ChunkSource, MapReadError, OnDamage, is_damage, node_of};
use crate::phase::Phase;

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
    #[error(transparent)]
    Lost(#[from] MemoryLost),
    #[error("no threads to fill memory")]
    Threads(#[source] std::io::Error),
}

/// Chunks that are listed at a time: 1 GiB of memory.
const JOBS_AT_A_TIME: usize = 16 << 10;
/// Threads that fill memory ahead of the guest.
const BACKGROUND_THREADS: usize = 2;
/// How much nicer those are than the guest's vCPUs.
const NICENESS: i32 = 10;

/// One chunk and where it belongs.
struct Job {
    gpa: u64,
    chunk: ChunkRef,
}

/// Writes all of the point's memory into `ram`, verified.
pub(super) fn fill(
    ram: &GuestRam,
    record: &PointRecord,
    source: &ChunkSource,
) -> Result<(), FillError> {
    each_part(ram, record, source, |jobs| {
        let filled = for_all(&jobs, |job, bytes| {
            let gpa = job.gpa;
            let length = source
                .get(&ChunkId(job.chunk.0), bytes)
                .map_err(|source| FillError::Chunk { gpa, source })?;
            Ok(ram.write_slice(&bytes[..length], GuestAddress(gpa))?)
        });
        match filled {
            Ok(_) => Ok(()),
            Err(failures) => Err(failures.cause(|_| false)),
        }
    })
}

/// Lets all of the point's memory come when it is used, verified, and the rest of it in the background. `on_damage` is
/// told of a chunk that is lost before the machine ends.
pub(super) fn fill_while_it_runs(
    ram: &GuestRam,
    record: &PointRecord,
    source: ChunkSource,
    on_damage: OnDamage,
) -> Result<BackgroundFill, FillError> {
    let layout = ram.layout();
    let mut chunks = vec![None; layout.chunks()];
    let mut absent = Vec::new();
    each_part(ram, record, &source, |jobs| {
        for Job { gpa, chunk } in jobs {
            let index = layout.chunk_at(Gpa(gpa)).ok_or(FillError::Layout)?;
            chunks[index.0] = Some(chunk);
            absent.push(index);
        }
        Ok(())
    })?;
    let memory = PointMemory {
        chunks,
        source,
        on_damage,
    };
    ram.begin_fill(absent, Arc::new(memory));
    ram.fill_in_background(&[], BACKGROUND_THREADS, give_way)
        .map_err(FillError::Threads)
}

/// The calling thread works when the guest leaves something over.
fn give_way() {
    if let Err(error) = rustix::process::nice(NICENESS) {
        tracing::debug!(%error, "memory is filled at the guest's own priority");
    }
    Phase::FillBegun.reached();
}

/// Calls `work` with all chunks of the point's memory that are not zero, some at a time.
fn each_part(
    ram: &GuestRam,
    record: &PointRecord,
    source: &ChunkSource,
    mut work: impl FnMut(Vec<Job>) -> Result<(), FillError>,
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
        let (chunks, start) = (chunks_in(region.size_bytes), region.start_gpa);
        let mut data = reader.data(&region.map);
        loop {
            let some = data.by_ref().take(JOBS_AT_A_TIME).map(|found| {
                let failed = |source| FillError::Map { gpa: start, source };
                let (index, chunk) = found.map_err(failed)?;
                if index >= chunks {
                    return Err(FillError::Layout);
                }
                let gpa = start + index * CHUNK_BYTES;
                Ok(Job { gpa, chunk })
            });
            let some: Vec<Job> = some.collect::<Result<_, _>>()?;
            if some.is_empty() {
                break;
            }
            work(some)?;
        }
    }
    Ok(())
}

/// A point's memory, for a guest that runs while it is filled.
struct PointMemory {
    chunks: Vec<Option<ChunkRef>>,
    source: ChunkSource,
    on_damage: OnDamage,
}

impl FillSource for PointMemory {
    fn read_chunk(
        &self,
        chunk: ChunkIndex,
        into: &mut [u8],
    ) -> Result<(), Box<dyn Error + Send + Sync>> {
        let Some(Some(id)) = self.chunks.get(chunk.0) else {
            into.fill(0);
            return Ok(());
        };
        let length = self.source.get(&ChunkId(id.0), into).inspect_err(|error| {
            if is_damage(error) {
                (self.on_damage)(error);
            }
        })?;
        into[length..].fill(0);
        Ok(())
    }
}

/// Nodes of the point's maps.
pub(super) struct Nodes<'a>(pub(super) &'a ChunkSource);

impl NodeSource for Nodes<'_> {
    type Error = ReadError;

    fn node(&self, id: &ChunkRef) -> Result<Vec<u8>, ReadError> {
        node_of(|bytes| self.0.get(&ChunkId(id.0), bytes))
    }
}
