//! Memory that coding takes, counted by an allocator: in proportion to the bytes, whatever a record claims.

#![allow(unsafe_code)] // A global allocator is unsafe to implement.

use std::alloc::{GlobalAlloc, Layout, System};
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::atomic::{AtomicUsize, Ordering};

use snapshot_format::fields::FieldWriter;
use snapshot_format::limits::{MAX_DISK_BYTES, MAX_DISKS, MAX_MEMORY_BYTES};
use snapshot_format::*;

static NOW_BYTES: AtomicUsize = AtomicUsize::new(0);
static PEAK_BYTES: AtomicUsize = AtomicUsize::new(0);

/// Counts the bytes in use and their peak.
struct Counting;

// SAFETY: every call is passed on unchanged to the system's allocator, which keeps the contract.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let now = NOW_BYTES.fetch_add(layout.size(), Ordering::SeqCst) + layout.size();
        PEAK_BYTES.fetch_max(now, Ordering::SeqCst);
        // SAFETY: the caller keeps `alloc`'s contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        NOW_BYTES.fetch_sub(layout.size(), Ordering::SeqCst);
        // SAFETY: the caller keeps `dealloc`'s contract; the pointer came from `System`.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// What `work` gives, and the most bytes it had in use beyond those before it.
fn peak_of<T>(work: impl FnOnce() -> T) -> (T, usize) {
    let before = NOW_BYTES.load(Ordering::SeqCst);
    PEAK_BYTES.store(before, Ordering::SeqCst);
    let result = work();
    (
        result,
        PEAK_BYTES.load(Ordering::SeqCst).saturating_sub(before),
    )
}

/// One test, since allocations of other threads would be counted.
#[test]
fn memory_is_in_proportion_to_bytes() {
    largest_empty_machine();
    dense_map();
    hostile_bodies();
}

/// 1 TiB of memory and 64 disks of 8 TiB without data are a record of some kilobytes.
fn largest_empty_machine() {
    let disk = |number| DiskMap {
        name: format!("disk{number}"),
        size_bytes: MAX_DISK_BYTES,
        map: MapRoot::ZEROS,
    };
    let record = PointRecord {
        memory: vec![MemoryRegion {
            start_gpa: 0,
            size_bytes: MAX_MEMORY_BYTES,
            map: MapRoot::ZEROS,
        }],
        disks: (0..MAX_DISKS).map(disk).collect(),
        ..PointRecord::default()
    };
    let (bytes, peak) = peak_of(|| record.encode().unwrap());
    assert!(
        bytes.len() < 5_000 && peak < 20_000,
        "{} bytes, {peak} used",
        bytes.len()
    );
    let (decoded, peak) = peak_of(|| PointRecord::decode(&bytes).unwrap());
    assert!(peak < 100_000, "{peak} used");
    assert_eq!(decoded, record);
}

/// A million chunks: to read them all takes the memory of the nodes that are kept.
fn dense_map() {
    let chunks = (0..1u64 << 20).map(|index| {
        let mut name = [1; 32];
        name[..8].copy_from_slice(&index.to_le_bytes());
        (index, ChunkRef(name))
    });
    let mut nodes = MapNodes::new();
    let map = nodes.build(chunks).unwrap();
    let reader = MapReader::new(&nodes);
    let (count, peak) = peak_of(|| reader.data(&map).map(Result::unwrap).count());
    assert_eq!(count, 1 << 20);
    assert!(peak < 4 << 20, "{peak} used");
    let bytes_for = |changes: BTreeMap<u64, ChunkRef>| {
        let mut bytes = 0;
        let (changed, peak) = peak_of(|| {
            let write = &mut |node: &[u8]| {
                bytes += node.len();
                Ok::<_, Infallible>(ChunkRef::of_bytes(node))
            };
            reader.change(&map, &changes, write).unwrap()
        });
        assert_ne!(changed, map);
        assert!(peak < 1 << 20, "{peak} used");
        bytes
    };
    // 1 MiB of 64 GiB, in one piece and in sixteen as far apart as can be.
    let name = ChunkRef([9; 32]);
    let together = bytes_for((77_777..77_793).map(|index| (index, name)).collect());
    assert!(together < 4096, "{together} bytes");
    let scattered = bytes_for((0..16).map(|n| (n << 16 | 4_711, name)).collect());
    assert!(scattered < 48 << 10, "{scattered} bytes");
}

/// As many elements as fit a megabyte, of every list; and lengths that are not there.
fn hostile_bodies() {
    for number in 0..20 {
        let mut writer = FieldWriter::new();
        for _ in 0..1 << 17 {
            writer.bytes(number, &[]);
        }
        let bytes = testing::record_around(&writer.finish());
        let (_, peak) = peak_of(|| PointRecord::decode(&bytes).is_ok());
        // The largest element, a state record, is some 80 bytes for 6 in the record.
        assert!(peak < 40 * bytes.len(), "{peak} used for field {number}");
    }
}
