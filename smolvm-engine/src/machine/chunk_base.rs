//! Chunks of a store as the base of a disk.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use cas_store::{ChunkId, MAX_CHUNK_BYTES, ReadError};
use cow_disk::BaseReader;
use snapshot_format::map::MapError;
use snapshot_format::{ChunkRef, MapReader, MapRoot, NodeSource};

use super::base_map::BaseMap;
use super::{ChunkSource, is_damage, node_of};

/// Decoded chunks kept in memory; 64 KiB each.
const CACHED_CHUNKS: usize = 64;

/// Told about a chunk that is lost.
pub(crate) type OnDamage = Arc<dyn Fn(&ReadError) + Send + Sync>;

/// A disk's base given by a map of chunks, verified as they are read.
pub(crate) struct ChunkBase {
    size_bytes: u64,
    map: MapRoot,
    reader: MapReader<BaseNodes>,
    cache: Mutex<Cache>,
    on_damage: Option<OnDamage>,
}

/// The nodes of a base's map: those that it brought along, and chunks.
struct BaseNodes {
    base: BaseMap,
    chunks: ChunkSource,
}

impl NodeSource for BaseNodes {
    type Error = ReadError;

    fn node(&self, id: &ChunkRef) -> Result<Vec<u8>, ReadError> {
        match self.base.nodes().get(id) {
            Some(bytes) => Ok(bytes.to_vec()),
            None => node_of(|bytes| self.chunks.get(&ChunkId(id.0), bytes)),
        }
    }
}

/// The most recently used chunks, newest last.
#[derive(Default)]
struct Cache {
    entries: Vec<(u64, Arc<Vec<u8>>)>,
}

impl ChunkBase {
    /// A base with this map.
    pub(crate) fn new(chunks: ChunkSource, base: BaseMap) -> Self {
        Self {
            size_bytes: base.size_bytes(),
            map: *base.map(),
            reader: MapReader::new(BaseNodes { base, chunks }),
            cache: Mutex::default(),
            on_damage: None,
        }
    }

    /// Tells about chunks that are lost, before their reading fails.
    pub(crate) fn on_damage(mut self, on_damage: OnDamage) -> Self {
        self.on_damage = Some(on_damage);
        self
    }

    fn tell(&self, error: &ReadError) {
        if let Some(on_damage) = &self.on_damage
            && is_damage(error)
        {
            on_damage(error);
        }
    }

    fn read_chunk(&self, id: &ChunkId, bytes: &mut [u8]) -> io::Result<usize> {
        let read = self.reader.source().chunks.get(id, bytes);
        read.map_err(|error| {
            self.tell(&error);
            io::Error::other(error)
        })
    }

    fn chunk(&self, index: u64) -> io::Result<Option<Arc<Vec<u8>>>> {
        if let Some(chunk) = self.cached(index) {
            return Ok(Some(chunk));
        }
        let id = self.reader.get(&self.map, index).map_err(|error| {
            if let MapError::Source { source, .. } = &error {
                self.tell(source);
            }
            io::Error::other(error)
        })?;
        if id.is_zero() {
            return Ok(None);
        }
        let mut bytes = vec![0; MAX_CHUNK_BYTES];
        let length = self.read_chunk(&ChunkId(id.0), &mut bytes)?;
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
        self.size_bytes
    }
}
