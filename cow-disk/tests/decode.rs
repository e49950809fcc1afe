//! Overlay files that are damaged, foreign or hostile.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use cow_disk::testing::{MemoryFile, fuzz_overlay};
use cow_disk::{
    Base, BlockDevice, ExtentKind, GRANULE_BYTES, Layer, LayerError, LayeredDisk, MAX_DISK_BYTES,
    Overlay, OverlayError,
};
use proptest::prelude::*;

/// A header for a small disk as this version writes it, byte by byte (`docs/format.md`).
fn header(disk_bytes: u64) -> Vec<u8> {
    let file = Arc::new(MemoryFile::default());
    Overlay::create_shared(file.clone(), disk_bytes).unwrap();
    let mut bytes = vec![0; 60];
    cow_disk::OverlayFile::read_at(file.as_ref(), 0, &mut bytes).unwrap();
    bytes
}

/// The format of version 1 must stay readable: these bytes are written down, not computed.
#[test]
fn the_layout_is_the_documented_one() {
    let mut expected = Vec::new();
    expected.extend(b"smolvmOV");
    expected.extend([1, 0, 0, 0, 0, 0, 0, 0]);
    expected.extend([0, 0x10, 0, 0, 0, 0, 0, 0]);
    expected.extend([0, 0, 0x10, 0, 0, 0, 0, 0]);
    expected.extend([0, 0x10, 0, 0, 0, 0, 0, 0]);
    expected.extend([0, 0x10, 0, 0, 0, 0, 0, 0]);
    expected.extend([0, 0, 1, 0, 0, 0, 0, 0]);
    expected.extend(crc32c_by_bits(&expected).to_le_bytes());
    assert_eq!(header(1 << 20), expected);
}

/// The checksum, computed another way.
fn crc32c_by_bits(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(u32::MAX, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| {
            (crc >> 1) ^ (0x82f6_3b78 * (crc & 1))
        })
    })
}

#[test]
fn map_and_data_lie_where_documented() {
    let file = tempfile::tempfile().unwrap();
    let top = Overlay::create(file.try_clone().unwrap(), 1 << 20).unwrap();
    let disk = LayeredDisk::new(Base::zeroes(), Vec::new(), top).unwrap();
    disk.write_at(4096, &[7; 4096]).unwrap();
    disk.discard(3 * 4096, 4096).unwrap();
    disk.discard(5 * 4096, 4096).unwrap();
    disk.write_at(5 * 4096, &[9; 4096]).unwrap();
    let byte = |at| {
        let mut byte = [0];
        file.read_exact_at(&mut byte, at).unwrap();
        byte[0]
    };
    // Granule 1 tentative, granule 3 zero, granule 5 firm.
    assert_eq!((byte(4096), byte(4097)), (0b01_00_10_00, 0b00_00_11_00));
    assert_eq!((byte(65536 + 4096), byte(65536 + 5 * 4096)), (7, 9));
}

#[test]
fn a_short_file_is_told() {
    let file = tempfile::tempfile().unwrap();
    Overlay::create(file.try_clone().unwrap(), 1 << 20).unwrap();
    file.set_len(1 << 20).unwrap();
    let error = Overlay::open(file).unwrap_err();
    assert!(matches!(
        error,
        OverlayError::Truncated {
            size_bytes: 0x10_0000,
            needed_bytes: 0x11_0000
        }
    ));
    let error = Overlay::open(tempfile::tempfile().unwrap()).unwrap_err();
    assert!(matches!(error, OverlayError::Magic));
}

#[test]
fn a_used_file_is_not_overwritten() {
    let file = tempfile::tempfile().unwrap();
    file.write_all_at(b"precious", 0).unwrap();
    let error = Overlay::create(file.try_clone().unwrap(), 1 << 20).unwrap_err();
    assert!(matches!(error, OverlayError::NotEmpty { size_bytes: 8 }));
}

#[test]
fn the_largest_disk_takes_little_space() {
    let file = tempfile::tempfile().unwrap();
    let Ok(top) = Overlay::create(file, MAX_DISK_BYTES) else {
        panic!("this file system has a lower limit for the size of files");
    };
    let disk = LayeredDisk::new(Base::zeroes(), Vec::new(), top).unwrap();
    disk.write_at(MAX_DISK_BYTES - 10, &[7; 10]).unwrap();
    let mut buf = [0; 20];
    disk.read_at(MAX_DISK_BYTES - 20, &mut buf).unwrap();
    assert_eq!(buf[..10], [0; 10]);
    assert_eq!(buf[10..], [7; 10]);
    assert!(disk.read_at(MAX_DISK_BYTES - 10, &mut buf).is_err());
    let top = Overlay::create(tempfile::tempfile().unwrap(), MAX_DISK_BYTES).unwrap();
    let view = disk.freeze(top).unwrap();
    assert!(view.newest().stored_bytes().unwrap() < 64 << 10);
}

#[test]
fn the_wrong_files_are_named() {
    let good = || {
        let file = tempfile::tempfile().unwrap();
        Overlay::create(file.try_clone().unwrap(), 1 << 20).unwrap();
        file
    };
    let bad = tempfile::tempfile().unwrap();
    let files = vec![good(), bad, good()];
    let error = LayeredDisk::from_files(Base::zeroes(), files, good()).unwrap_err();
    assert!(matches!(error, LayerError::Open { index: 1, .. }));
    let larger = Overlay::create(tempfile::tempfile().unwrap(), 2 << 20).unwrap();
    let disk = LayeredDisk::from_files(Base::zeroes(), vec![good()], good()).unwrap();
    let error = disk.freeze(larger).unwrap_err();
    assert!(matches!(
        error,
        LayerError::Size {
            overlay_bytes: 0x20_0000,
            ..
        }
    ));
}

/// A disk grows by a larger top over smaller layers; what is new is zero.
#[test]
fn a_disk_grows() {
    let file = tempfile::tempfile().unwrap();
    let small = Overlay::create(file.try_clone().unwrap(), 1 << 20).unwrap();
    let disk = LayeredDisk::new(Base::zeroes(), Vec::new(), small).unwrap();
    disk.write_at(0, &[1; 1 << 20]).unwrap();
    drop(disk);
    let large = tempfile::tempfile().unwrap();
    Overlay::create(large.try_clone().unwrap(), 3 << 20).unwrap();
    let disk = LayeredDisk::from_files(Base::zeroes(), vec![file], large).unwrap();
    assert_eq!(disk.size_bytes(), 3 << 20);
    let mut buf = vec![9; 3 << 20];
    disk.read_at(0, &mut buf).unwrap();
    assert!(buf[..1 << 20].iter().all(|byte| *byte == 1));
    assert!(buf[1 << 20..].iter().all(|byte| *byte == 0));
}

/// What is discarded is given back to the host.
#[test]
fn stored_size_follows_what_is_written() {
    let file = tempfile::tempfile().unwrap();
    let stored = |file: &File| cow_disk::OverlayFile::stored_bytes(file).unwrap();
    let top = Overlay::create(file.try_clone().unwrap(), 64 << 20).unwrap();
    let disk = LayeredDisk::new(Base::zeroes(), Vec::new(), top).unwrap();
    disk.flush().unwrap();
    assert!(stored(&file) <= 64 << 10);
    disk.write_at(0, &vec![5; 8 << 20]).unwrap();
    disk.write_at(32 << 20, &vec![0; 8 << 20]).unwrap();
    disk.flush().unwrap();
    assert!((8 << 20..9 << 20).contains(&stored(&file)));
    disk.discard(0, 64 << 20).unwrap();
    disk.flush().unwrap();
    assert!(stored(&file) <= 128 << 10);
    let top = Overlay::create(tempfile::tempfile().unwrap(), 64 << 20).unwrap();
    let view = disk.freeze(top).unwrap();
    let extents = view.changed_extents();
    assert_eq!(extents.len(), 1);
    assert_eq!(
        (extents[0].kind, extents[0].len_bytes),
        (ExtentKind::Zeroed, 64 << 20)
    );
}

proptest! {
    #[test]
    fn any_bytes(input in prop::collection::vec(any::<u8>(), 0..200)) {
        fuzz_overlay(&input);
    }

    /// Good headers with damage, any map, and an end anywhere.
    #[test]
    fn nearly_good_bytes(
        granules in 1..3000u64,
        damage in prop::option::of((0..60usize, any::<u8>(), any::<bool>())),
        map in prop::collection::vec(any::<u8>(), 0..800),
        extra in 0..100_000usize,
    ) {
        let mut input = header(granules * GRANULE_BYTES);
        if let Some((at, xor, mend)) = damage {
            input[at] ^= xor;
            if mend {
                let checksum = crc32c_by_bits(&input[..56]);
                input[56..60].copy_from_slice(&checksum.to_le_bytes());
            }
        }
        input.resize(4096, 0);
        input.extend(map);
        input.resize(input.len() + extra, 0);
        fuzz_overlay(&input);
    }

    /// Whatever the map says, opening for writing and writing work.
    #[test]
    fn any_map_takes_writes(
        map in prop::collection::vec(any::<u8>(), 4),
        at in 0..60_000u64,
        byte: u8,
    ) {
        let mut input = header(16 * GRANULE_BYTES);
        input.resize(4096, 0);
        input.extend(&map);
        input.resize((64 << 10) + 16 * 4096, 0x5a);
        let file = Arc::new(MemoryFile::new(&input));
        let top = Overlay::open_shared(file.clone()).unwrap();
        let disk = LayeredDisk::new(Base::zeroes(), Vec::new(), top).unwrap();
        let mut expected: Vec<u8> = (0..16 * 4096usize)
            .map(|at| match map[at / 4096 / 4] >> (at / 4096 % 4 * 2) & 3 {
                0 | 1 => 0,
                _ => 0x5a,
            })
            .collect();
        disk.write_at(at, &[byte; 5000]).unwrap();
        expected[at as usize..at as usize + 5000].fill(byte);
        disk.flush().unwrap();
        let mut buf = vec![0; expected.len()];
        disk.read_at(0, &mut buf).unwrap();
        prop_assert!(buf == expected);
        let layer = Layer::open_shared(file).unwrap();
        let top = Overlay::create(MemoryFile::default(), 16 * GRANULE_BYTES).unwrap();
        let disk = LayeredDisk::new(Base::zeroes(), vec![layer], top).unwrap();
        disk.read_at(0, &mut buf).unwrap();
        prop_assert!(buf == expected);
    }
}
