//! Chunks of a store as the base of a disk.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use cas_store::{ChunkId, MAX_CHUNK_BYTES, ReadError};
use cow_disk::BaseReader;

use super::{ChunkSource, is_damage};

/// Decoded chunks kept in memory; 64 KiB each.
const CACHED_CHUNKS: usize = 64;

/// Told about a chunk that is lost.
pub(crate) type OnDamage = Arc<dyn Fn(&ReadError) + Send + Sync>;

/// A disk's base given by a map of chunk ids, verified as they are read.
pub(crate) struct ChunkBase {
    source: ChunkSource,
    chunks: Vec<ChunkId>,
    cache: Mutex<Cache>,
    on_damage: Option<OnDamage>,
}

/// The most recently used chunks, newest last.
#[derive(Default)]
struct Cache {
    entries: Vec<(u64, Arc<Vec<u8>>)>,
}

impl ChunkBase {
    /// A base of these chunks, in disk order.
    pub(crate) fn new(source: ChunkSource, chunks: Vec<ChunkId>) -> Self {
        Self {
            source,
            chunks,
            cache: Mutex::default(),
            on_damage: None,
        }
    }

    /// Tells about chunks that are lost, before their reading fails.
    pub(crate) fn on_damage(mut self, on_damage: OnDamage) -> Self {
        self.on_damage = Some(on_damage);
        self
    }

    fn read_chunk(&self, id: &ChunkId, bytes: &mut [u8]) -> io::Result<usize> {
        self.source.get(id, bytes).map_err(|error| {
            if let Some(on_damage) = &self.on_damage
                && is_damage(&error)
            {
                on_damage(&error);
            }
            io::Error::other(error)
        })
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
        let length = self.read_chunk(&id, &mut bytes)?;
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
