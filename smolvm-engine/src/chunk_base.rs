//! Chunks of a store as the base of a disk.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use cas_store::{ChunkId, MAX_CHUNK_BYTES, PackSet};
use cow_disk::BaseReader;

/// Decoded chunks kept in memory; 64 KiB each.
const CACHED_CHUNKS: usize = 64;

/// A disk's base given by a map of chunk ids, verified as they are read.
pub(crate) struct ChunkBase {
    packs: PackSet,
    chunks: Vec<ChunkId>,
    cache: Mutex<Cache>,
}

/// The most recently used chunks, newest last.
#[derive(Default)]
struct Cache {
    entries: Vec<(u64, Arc<Vec<u8>>)>,
}

impl ChunkBase {
    /// A base of these chunks, in disk order, read from `packs`.
    pub(crate) fn new(packs: PackSet, chunks: Vec<ChunkId>) -> Self {
        Self {
            packs,
            chunks,
            cache: Mutex::default(),
        }
    }

    fn chunk(&self, index: u64) -> io::Result<Option<Arc<Vec<u8>>>> {
        let id = self
            .chunks
            .get(index as usize)
            .copied()
            .unwrap_or(ChunkId::ZERO);
        if id.is_zero() {
            return Ok(None);
        }
        if let Some(chunk) = self.cached(index) {
            return Ok(Some(chunk));
        }
        let mut bytes = vec![0; MAX_CHUNK_BYTES];
        let length = self.packs.get(&id, &mut bytes).map_err(io::Error::other)?;
        // A short last chunk reads as zero behind its end.
        bytes[length..].fill(0);
        let chunk = Arc::new(bytes);
        self.remember(index, &chunk);
        Ok(Some(chunk))
    }

    fn cached(&self, index: u64) -> Option<Arc<Vec<u8>>> {
        let mut cache = self.cache.lock().unwrap_or_else(PoisonError::into_inner);
        let at = cache
            .entries
            .iter()
            .position(|(cached, _)| *cached == index)?;
        let entry = cache.entries.remove(at);
        let chunk = entry.1.clone();
        cache.entries.push(entry);
        Some(chunk)
    }

    fn remember(&self, index: u64, chunk: &Arc<Vec<u8>>) {
        let mut cache = self.cache.lock().unwrap_or_else(PoisonError::into_inner);
        if cache.entries.len() == CACHED_CHUNKS {
            cache.entries.remove(0);
        }
        cache.entries.push((index, chunk.clone()));
    }
}

impl BaseReader for ChunkBase {
    fn read_at(&self, offset_bytes: u64, buf: &mut [u8]) -> io::Result<()> {
        let chunk_bytes = MAX_CHUNK_BYTES as u64;
        let mut done = 0;
        while done < buf.len() {
            let offset = offset_bytes + done as u64;
            let within = (offset % chunk_bytes) as usize;
            let length = (MAX_CHUNK_BYTES - within).min(buf.len() - done);
            let target = &mut buf[done..done + length];
            match self.chunk(offset / chunk_bytes)? {
                Some(chunk) => target.copy_from_slice(&chunk[within..within + length]),
                None => target.fill(0),
            }
            done += length;
        }
        Ok(())
    }

    fn size_bytes(&self) -> u64 {
        self.chunks.len() as u64 * MAX_CHUNK_BYTES as u64
    }
}
