//! What several test files need.
#![allow(dead_code, unreachable_pub)] // Each test file uses some of it.

use std::error::Error;
use std::path::PathBuf;
use std::sync::Arc;

use cas_store::testing::MemoryBackend;
use cas_store::{Capture, CaptureOptions, ChunkId, MAX_CHUNK_BYTES, PackSet, Store};

/// Bytes without a zero that compress by about half: blocks of noise, each twice.
pub fn chunk(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut data = Vec::with_capacity(len + 128);
    while data.len() < len {
        let block: Vec<u8> = std::iter::repeat_with(|| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 32) as u8 | 1
        })
        .take(64)
        .collect();
        data.extend_from_slice(&block);
        data.extend_from_slice(&block);
    }
    data.truncate(len);
    data
}

/// A chunk's bytes.
pub fn read(set: &PackSet, id: &ChunkId) -> Vec<u8> {
    let mut buf = vec![0xaa; MAX_CHUNK_BYTES];
    let len = set.get(id, &mut buf).unwrap();
    buf.truncate(len);
    buf
}

/// The records of these tests are chunk ids one after the other.
pub fn record(ids: &[ChunkId]) -> Vec<u8> {
    ids.iter().flat_map(|id| id.0).collect()
}

/// What lists the chunks of such a record.
pub fn chunks_of(
    record: &[u8],
    visit: &mut dyn FnMut(ChunkId),
) -> Result<(), Box<dyn Error + Send + Sync>> {
    for id in record.chunks(32) {
        visit(ChunkId(id.try_into()?));
    }
    Ok(())
}

/// The store in `backend`.
pub fn open(backend: &MemoryBackend) -> Store {
    Store::open_with(Arc::new(backend.clone()), "/store").unwrap()
}

/// Puts a chunk of 3,000 bytes for each seed.
pub fn put(capture: &Capture, seeds: std::ops::Range<u64>) -> Vec<ChunkId> {
    seeds
        .map(|seed| capture.put(&chunk(seed, 3000)).unwrap())
        .collect()
}

/// A capture with the usual options.
pub fn capture(store: &Store) -> Capture {
    store.begin_capture(CaptureOptions::default()).unwrap()
}

/// The packs of one directory.
pub fn set(backend: &MemoryBackend, dir: impl Into<PathBuf>) -> PackSet {
    PackSet::with_backend(Arc::new(backend.clone()), [dir.into()])
}
