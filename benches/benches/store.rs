//! Throughput of the chunk store: put of new, known and zero chunks, get by codec.
#![allow(missing_docs)] // The macro makes an undocumented function.

use cas_store::{
    CaptureOptions, ChunkId, Compression, MAX_CHUNK_BYTES, PackSet, PreparedChunk, Store,
};
use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};

const CHUNKS: usize = 256;

/// Chunks that compress about as process memory does: records of 96 bytes, most of them seen before in the chunk.
fn data() -> Vec<Vec<u8>> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let mut chunk = |_| {
        let mut chunk: Vec<u8> = Vec::with_capacity(MAX_CHUNK_BYTES + 96);
        while chunk.len() < MAX_CHUNK_BYTES {
            let records = chunk.len() / 96;
            if records > 0 && next() % 4 != 0 {
                let at = (next() as usize % records) * 96;
                chunk.extend_from_within(at..at + 96);
            } else {
                (0..12).for_each(|_| chunk.extend_from_slice(&next().to_le_bytes()));
            }
        }
        chunk.truncate(MAX_CHUNK_BYTES);
        chunk
    };
    (0..CHUNKS).map(&mut chunk).collect()
}

fn put(c: &mut Criterion) {
    let data = data();
    let dir = tempfile::tempdir().unwrap();
    let mut group = c.benchmark_group("put");
    group
        .throughput(Throughput::Bytes((CHUNKS * MAX_CHUNK_BYTES) as u64))
        .sample_size(10);
    for (name, compression) in [
        ("new/raw", Compression::None),
        ("new/lz4", Compression::Lz4),
        ("new/zstd-1", Compression::Zstd { level: 1 }),
    ] {
        let store = Store::open(dir.path().join(name)).unwrap();
        let begin = || {
            let options = CaptureOptions {
                compression,
                ..CaptureOptions::default()
            };
            store.begin_capture(options).unwrap()
        };
        group.bench_function(name, |b| {
            b.iter_batched(
                begin,
                |capture| {
                    capture.put_batch(data.iter().map(Vec::as_slice)).unwrap();
                    capture
                },
                BatchSize::PerIteration,
            );
        });
    }
    let store = Store::open(dir.path().join("known")).unwrap();
    let capture = store.begin_capture(CaptureOptions::default()).unwrap();
    capture.put_batch(data.iter().map(Vec::as_slice)).unwrap();
    group.bench_function("known", |b| {
        b.iter(|| capture.put_batch(data.iter().map(Vec::as_slice)).unwrap());
    });
    let zero = vec![0; MAX_CHUNK_BYTES];
    group.bench_function("zero", |b| {
        b.iter(|| {
            (0..CHUNKS)
                .filter(|_| capture.put(&zero).unwrap().is_zero())
                .count()
        });
    });
    group.finish();
}

fn get(c: &mut Criterion) {
    let data = data();
    let dir = tempfile::tempdir().unwrap();
    let mut group = c.benchmark_group("get");
    group
        .throughput(Throughput::Bytes((CHUNKS * MAX_CHUNK_BYTES) as u64))
        .sample_size(20);
    for (name, compression) in [
        ("raw", Compression::None),
        ("lz4", Compression::Lz4),
        ("zstd-1", Compression::Zstd { level: 1 }),
    ] {
        let store = Store::open(dir.path().join(name)).unwrap();
        let capture = store.begin_capture(CaptureOptions::default()).unwrap();
        let ids: Vec<ChunkId> = data
            .iter()
            .map(|data| {
                let chunk = PreparedChunk::new(data, compression).unwrap();
                capture.append(&chunk).unwrap();
                chunk.id()
            })
            .collect();
        capture.seal().unwrap();
        let packs = PackSet::open([store.packs_dir()]);
        let mut buf = vec![0; MAX_CHUNK_BYTES];
        group.bench_function(name, |b| {
            b.iter(|| {
                ids.iter()
                    .map(|id| packs.get(id, &mut buf).unwrap())
                    .sum::<usize>()
            });
        });
    }
    group.finish();
}

criterion_group!(benches, put, get);
criterion_main!(benches);
