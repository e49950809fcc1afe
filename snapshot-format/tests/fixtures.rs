//! Records as released versions wrote them. The files are never changed: whatever comes later must read them.

mod common;

use common::full_record;
use snapshot_format::*;

const FULL: &[u8] = include_bytes!("fixtures/v1-full.record");
const MINIMAL: &[u8] = include_bytes!("fixtures/v1-minimal.record");

#[test]
fn version_1_with_every_field() {
    let point = Point::decode(FULL).unwrap();
    assert_eq!(point.record(), &full_record());
    assert_eq!(
        point.id().to_string(),
        "975a18475c8db1a636866bbd7fcdb6db8ec9ca8fb5e6473b2076ed1cde4f5c17"
    );
    let host = &point.record().host;
    assert_eq!(
        (host.architecture.as_str(), host.tsc_khz),
        ("x86_64", 2_400_000)
    );
    assert_eq!(
        point.record().memory[0].chunks.get(31),
        Some(ChunkRef([3; 32]))
    );
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
    // The first region: 0 zero chunks and 2 with data, then 29 and 1.
    let mut map = vec![0, 0, 0, 0, 2, 0, 0, 0];
    map.extend([[1; 32], [2; 32]].concat());
    map.extend([29, 0, 0, 0, 1, 0, 0, 0]);
    map.extend([3; 32]);
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
