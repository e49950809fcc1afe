//! Freezing guest memory for a branch: what is copied while the machine stands, and what it costs to go on from it.
//!
//! Memory is 2 GiB, 400 MiB of which were written before the first freeze, as in a machine with a
//! few programs.

use std::hint::black_box;
use std::sync::Arc;

use criterion::{BatchSize, BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use vm_memory::{Bytes, GuestAddress};
use vmm_core::freeze::Freeze;
use vmm_core::hypervisor::Vm;
use vmm_core::ram::{CHUNK_BYTES, GuestRam, PAGE_BYTES, RamBacking, SharedRam};
use vmm_core::tracker::DirtyTracker;
use vmm_core::x86;

const RAM_BYTES: u64 = 2 << 30;
const USED_BYTES: u64 = 400 << 20;
const MIB: u64 = 1 << 20;

/// A VM whose vCPUs write nothing.
struct NoLog;

impl Vm for NoLog {}

struct Bed {
    ram: GuestRam,
    tracker: DirtyTracker,
}

impl Bed {
    fn over(ram: GuestRam) -> Self {
        let tracker = DirtyTracker::new(ram.clone(), Arc::new(NoLog));
        tracker.start().expect("tracking");
        Self { ram, tracker }
    }

    /// Memory that was frozen once.
    fn new() -> (Self, SharedRam) {
        let layout = x86::ram_layout(RAM_BYTES).expect("a layout");
        let bed = Self::over(GuestRam::new(layout, &RamBacking::Anonymous).expect("memory"));
        bed.write(USED_BYTES, PAGE_BYTES);
        let mut freeze = Freeze::begin(&bed.tracker).expect("a layer");
        freeze.copy_written().expect("copied");
        let shared = freeze.finish().expect("sealed");
        (bed, shared)
    }

    /// Writes pages of `bytes` in all, one in each `stride` bytes.
    fn write(&self, bytes: u64, stride: u64) {
        let page: Vec<u8> = (0..PAGE_BYTES).map(|i| (i * 7) as u8 | 1).collect();
        for index in 0..bytes / PAGE_BYTES {
            let at = GuestAddress(16 * MIB + index * stride);
            self.ram.write_slice(&page, at).expect("written");
        }
    }
}

/// The last round of copying, in the pause: contiguous pages, and one page in each chunk.
fn pause(c: &mut Criterion) {
    let mut group = c.benchmark_group("freeze/pause");
    let (bed, _shared) = Bed::new();
    let patterns = [
        (1, PAGE_BYTES),
        (8, PAGE_BYTES),
        (32, PAGE_BYTES),
        (1, CHUNK_BYTES),
        (8, CHUNK_BYTES),
    ];
    for (mib, stride) in patterns {
        let name = if stride == PAGE_BYTES {
            "contiguous"
        } else {
            "scattered"
        };
        group.throughput(Throughput::Bytes(mib * MIB));
        for precopied in [false, true] {
            let name = format!("{name}{}", if precopied { ", copied before" } else { "" });
            group.bench_function(BenchmarkId::new(name, format!("{mib} MiB")), |b| {
                b.iter_batched_ref(
                    || {
                        let mut freeze = Freeze::begin(&bed.tracker).expect("a layer");
                        bed.write(mib * MIB, stride);
                        if precopied {
                            freeze.copy_written().expect("copied");
                            bed.write(mib * MIB, stride);
                        }
                        freeze
                    },
                    |freeze| freeze.copy_written().expect("copied"),
                    BatchSize::PerIteration,
                );
            });
        }
    }
    group.finish();
}

/// Beyond the pause: sealing, and a new machine's memory over the layers.
fn go_on(c: &mut Criterion) {
    let mut group = c.benchmark_group("freeze/go_on");
    let (bed, shared) = Bed::new();
    group.bench_function("map", |b| {
        b.iter_with_large_drop(|| black_box(shared.map()))
    });
    // Every other chunk in another layer: as many mappings as there may be.
    bed.write(8 * MIB, 2 * CHUNK_BYTES);
    let mut freeze = Freeze::begin(&bed.tracker).expect("a layer");
    freeze.copy_written().expect("copied");
    let shared = freeze.finish().expect("sealed");
    let name = format!("map {} parts", shared.parts().len());
    group.bench_function(name, |b| b.iter_with_large_drop(|| black_box(shared.map())));
    group.bench_function("finish, 1 MiB", |b| {
        b.iter_batched(
            || {
                let mut freeze = Freeze::begin(&bed.tracker).expect("a layer");
                bed.write(MIB, PAGE_BYTES);
                freeze.copy_written().expect("copied");
                freeze
            },
            |freeze| freeze.finish().expect("sealed"),
            BatchSize::PerIteration,
        );
    });
    group.finish();
}

criterion_group! {
    name = benches;
    config = Criterion::default().sample_size(20);
    targets = pause, go_on
}
criterion_main!(benches);
