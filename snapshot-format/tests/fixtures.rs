//! Records as released versions wrote them. The files are never changed: whatever comes later must read them.

mod common;

use common::{full_nodes, full_record};
use snapshot_format::*;

const FULL: &[u8] = include_bytes!("fixtures/v1-full.record");
const MINIMAL: &[u8] = include_bytes!("fixtures/v1-minimal.record");

#[test]
fn version_1_with_every_field() {
    let point = Point::decode(FULL).unwrap();
    assert_eq!(point.record(), &full_record());
    assert_eq!(
        point.id().to_string(),
        "93ee6ff4ec9e287fff82470772552c09313a03decb8e8c2c21e8473b7ccba77c"
    );
    let host = &point.record().host;
    assert_eq!((host.arch, host.tsc_khz), (Arch::X86_64, 2_400_000));
    let nodes = full_nodes();
    let chunks = nodes.chunks(&point.record().memory[0].map).unwrap();
    assert_eq!(chunks.last(), Some(&(31, ChunkRef([3; 32]))));
    assert_eq!(point.record().taken.to_string(), "2026-09-28T03:01:05Z");
}

#[test]
fn version_1_without_anything() {
    let point = Point::decode(MINIMAL).unwrap();
    assert_eq!(point.record(), &PointRecord::default());
    assert_eq!(
        point.id().to_string(),
        "989bd6bd9bc7c248eec60615748bb551e21921e97a704aed80fd21d316a591c8"
    );
}

/// Writes the files anew: `cargo test -p snapshot-format --test fixtures -- --ignored`, as long as version 1 may change.
#[test]
#[ignore = "writes the fixtures"]
fn write_fixtures() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures");
    for (name, record) in [("full", full_record()), ("minimal", PointRecord::default())] {
        let path = format!("{folder}/v1-{name}.record");
        std::fs::write(path, record.encode().unwrap()).unwrap();
    }
}

/// As long as version 1 is what is written, its bytes stay these: ids depend on it.
#[test]
fn version_1_is_written_to_the_letter() {
    assert_eq!(FORMAT_VERSION, 1);
    assert_eq!(full_record().encode().unwrap(), FULL);
    assert_eq!(PointRecord::default().encode().unwrap(), MINIMAL);
}

/// Header, checksum and the first fields, read by `docs/format.md` and not by this crate.
#[test]
fn the_layout_is_the_documented_one() {
    assert_eq!(&FULL[..8], b"SMOLPREC");
    assert_eq!(&FULL[8..16], [1, 0, 0, 0, 0, 0, 0, 0]);
    let body_bytes = (FULL.len() - 28) as u64;
    assert_eq!(&FULL[16..24], body_bytes.to_le_bytes());
    let (before, checksum) = FULL.split_at(FULL.len() - 4);
    assert_eq!(checksum, crc32c_by_bits(before).to_le_bytes());
    // Machine name; seconds (four bytes are enough); nanoseconds.
    let mut expected = b"\x01\0\x06\0\0\0worker".to_vec();
    expected.extend([2, 0, 4, 0, 0, 0]);
    expected.extend(1_790_564_465u32.to_le_bytes());
    expected.extend([3, 0, 4, 0, 0, 0]);
    expected.extend(123_456_789u32.to_le_bytes());
    assert_eq!(&FULL[24..24 + expected.len()], expected);
    // The map of the first region: level 1, and the digest of a node that names two.
    let leaf = |names: &[(u8, u8)]| {
        let present = names.iter().fold(0u16, |bits, (at, _)| bits | 1 << at);
        let mut bytes = b"SMAP\0\0".to_vec();
        bytes.extend(present.to_le_bytes());
        names.iter().for_each(|(_, seed)| bytes.extend([*seed; 32]));
        *blake3::hash(&bytes).as_bytes()
    };
    let mut top = b"SMAP\x01\0\x03\0".to_vec();
    top.extend(leaf(&[(0, 1), (1, 2)]));
    top.extend(leaf(&[(15, 3)]));
    let mut map = vec![1, 0, 1, 0, 0, 0, 1, 2, 0, 32, 0, 0, 0];
    map.extend(blake3::hash(&top).as_bytes());
    assert!(FULL.windows(map.len()).any(|window| window == map));
}

/// The checksum, computed another way.
fn crc32c_by_bits(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(u32::MAX, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| {
            (crc >> 1) ^ (0x82f6_3b78 * (crc & 1))
        })
    })
}
