//! Memory that coding takes, counted by an allocator: in proportion to the bytes, whatever a record claims.

#![allow(unsafe_code)] // A global allocator is unsafe to implement.

use std::alloc::{GlobalAlloc, Layout, System};
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

/// A record whose memory is 64 GiB of different chunks.
fn dense() -> PointRecord {
    let size_bytes: u64 = 64 << 30;
    let mut chunks = ChunkMap::new();
    for index in 1..=chunks_in(size_bytes) {
        let mut name = [0; 32];
        name[..8].copy_from_slice(&index.to_le_bytes());
        chunks.push(ChunkRef(name));
    }
    PointRecord {
        memory: vec![MemoryRegion {
            start_gpa: 0,
            size_bytes,
            chunks,
        }],
        ..PointRecord::default()
    }
}

/// One test, since allocations of other threads would be counted.
#[test]
fn memory_is_in_proportion_to_bytes() {
    largest_empty_machine();
    dense_machine();
    hostile_bodies();
}

/// 1 TiB of memory and 64 disks of 8 TiB without data are a record of some kilobytes.
fn largest_empty_machine() {
    let disk = |number| DiskMap {
        name: format!("disk{number}"),
        size_bytes: MAX_DISK_BYTES,
        chunks: ChunkMap::zeros(MAX_DISK_BYTES),
    };
    let record = PointRecord {
        memory: vec![MemoryRegion {
            start_gpa: 0,
            size_bytes: MAX_MEMORY_BYTES,
            chunks: ChunkMap::zeros(MAX_MEMORY_BYTES),
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
    assert_eq!(
        decoded.disks[63].chunks.get(134_217_727),
        Some(ChunkRef::ZERO)
    );
}

/// A million chunks: 32 bytes each, copied once.
fn dense_machine() {
    let record = dense();
    let (bytes, peak) = peak_of(|| record.encode().unwrap());
    let refs_bytes = 32 << 20;
    assert!(bytes.len() < refs_bytes + 1_000);
    // The buffer grows by doubling.
    assert!(peak < 4 * refs_bytes, "{peak} used");
    let (decoded, peak) = peak_of(|| PointRecord::decode(&bytes).unwrap());
    assert!(peak < refs_bytes + 1_000_000, "{peak} used");
    assert_eq!(decoded.all_chunks().count(), 1 << 20);
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
    let mut map = FieldWriter::new();
    map.nested(8, |region| {
        region.bytes(3, &[0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff]);
    });
    let bytes = testing::record_around(&map.finish());
    let (result, peak) = peak_of(|| PointRecord::decode(&bytes));
    let source = MapError::Truncated { offset: 0 };
    assert_eq!(
        result,
        Err(DecodeError::Map {
            part: "memory region",
            source
        })
    );
    assert!(peak < 1_000, "{peak} used");
}
