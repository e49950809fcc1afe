//! The disk layer: random writes, reads through layers, freezes. Files lie in the directory for
//! temporary files; ratios within one run are what counts.

use std::fs::File;
use std::hint::black_box;
use std::os::unix::fs::FileExt;

use cow_disk::{Base, BlockDevice, LayeredDisk, Overlay};
use criterion::{BatchSize, BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};

const DISK_BYTES: u64 = 1 << 30;
const BLOCK: usize = 4096;
const SPAN_BYTES: u64 = 64 << 20;

fn file() -> File {
    tempfile::tempfile().expect("a temporary file")
}

fn overlay() -> Overlay {
    Overlay::create(file(), DISK_BYTES).expect("a new overlay")
}

fn new_disk() -> LayeredDisk {
    LayeredDisk::new(Base::zeroes(), Vec::new(), overlay()).expect("a new disk")
}

/// Block offsets that jump about.
struct Jumps(u64);

impl Iterator for Jumps {
    type Item = u64;

    fn next(&mut self) -> Option<u64> {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        Some(self.0 % (SPAN_BYTES / BLOCK as u64) * BLOCK as u64)
    }
}

/// 4 KiB writes at random places: to a plain file, to granules that exist, to new ones.
fn random_writes(c: &mut Criterion) {
    let mut group = c.benchmark_group("cow_disk/random_write_4k");
    group.throughput(Throughput::Bytes(BLOCK as u64));
    let data = [0x5a; BLOCK];

    let plain = file();
    plain
        .write_all_at(&vec![1; SPAN_BYTES as usize], 0)
        .expect("fill");
    let mut jumps = Jumps(7);
    group.bench_function("plain_file", |b| {
        b.iter(|| plain.write_all_at(&data, jumps.next().unwrap_or(0)));
    });

    let disk = new_disk();
    disk.write_at(0, &vec![1; SPAN_BYTES as usize])
        .expect("fill");
    group.bench_function("existing_granule", |b| {
        b.iter(|| disk.write_at(jumps.next().unwrap_or(0), &data));
    });
    group.bench_function("existing_granule_512_bytes", |b| {
        b.iter(|| disk.write_at(jumps.next().unwrap_or(0) + 512, &data[..512]));
    });

    let mut disk = new_disk();
    let mut at = 0;
    group.bench_function("new_granule", |b| {
        b.iter(|| {
            // Every 16th granule: no two of them share a byte of the map.
            at += 16 * BLOCK as u64;
            if at >= DISK_BYTES {
                disk = new_disk();
                at = 0;
            }
            disk.write_at(at, &data)
        });
    });
    group.finish();
}

/// Sequential reads of a base's worth of data through layers that each hold a part of it.
fn reads_through_layers(c: &mut Criterion) {
    let mut group = c.benchmark_group("cow_disk/sequential_read");
    group.throughput(Throughput::Bytes(SPAN_BYTES));
    group.sample_size(20);
    let mut buf = vec![0; 1 << 20];

    let plain = file();
    plain
        .write_all_at(&vec![1; SPAN_BYTES as usize], 0)
        .expect("fill");
    group.bench_function("plain_file", |b| {
        b.iter(|| {
            for at in (0..SPAN_BYTES).step_by(buf.len()) {
                plain.read_exact_at(&mut buf, at).expect("read");
            }
            black_box(&buf);
        });
    });

    for layers in [1, 4, 16, 64] {
        let disk = new_disk();
        disk.write_at(0, &vec![1; SPAN_BYTES as usize])
            .expect("fill");
        let mut jumps = Jumps(9);
        for _ in 1..layers {
            disk.freeze(overlay()).expect("freeze");
            for at in jumps.by_ref().take(16) {
                disk.write_at(at, &[2; BLOCK]).expect("write");
            }
        }
        group.bench_with_input(BenchmarkId::new("layers", layers), &layers, |b, _| {
            b.iter(|| {
                for at in (0..SPAN_BYTES).step_by(buf.len()) {
                    disk.read_at(at, &mut buf).expect("read");
                }
                black_box(&buf);
            });
        });
    }
    group.finish();
}

/// A freeze of a top that holds little or much: the same.
fn freezes(c: &mut Criterion) {
    let mut group = c.benchmark_group("cow_disk/freeze");
    group.sample_size(20);
    for written_bytes in [BLOCK as u64, SPAN_BYTES] {
        group.bench_function(BenchmarkId::new("top_bytes", written_bytes), |b| {
            b.iter_batched(
                || {
                    let disk = new_disk();
                    disk.write_at(0, &vec![1; written_bytes as usize])
                        .expect("fill");
                    (disk, overlay())
                },
                |(disk, top)| (disk.freeze(top).expect("freeze"), disk),
                BatchSize::PerIteration,
            );
        });
    }
    group.finish();
}

criterion_group!(benches, random_writes, reads_through_layers, freezes);
criterion_main!(benches);
