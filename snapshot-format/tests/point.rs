//! Records as bytes: what one holds survives, what is damaged is refused.

mod common;

use common::{chunk, full_nodes, full_record};
use snapshot_format::*;

#[test]
fn every_field_survives() {
    let record = full_record();
    let bytes = record.encode().unwrap();
    assert_eq!(PointRecord::decode(&bytes).unwrap(), record);
    let empty = PointRecord::default();
    assert_eq!(
        PointRecord::decode(&empty.encode().unwrap()).unwrap(),
        empty
    );
}

#[test]
fn parts_name_memory_disks_kernel_and_initramfs_without_zeros() {
    let nodes = full_nodes();
    let reader = MapReader::new(&nodes);
    let parts = full_record();
    let chunks = parts.parts().flat_map(|part| {
        let found: Result<Vec<_>, _> = reader.data(&part.map).collect();
        found.unwrap().into_iter().map(|(_, chunk)| chunk)
    });
    assert_eq!(
        chunks.collect::<Vec<_>>(),
        (1..=7).map(chunk).collect::<Vec<_>>()
    );
}

#[test]
fn numbers_of_later_versions_survive() {
    let mut record = full_record();
    record.host.arch = Arch::from_number(77);
    record.host.backend = BackendKind::from_number(78);
    let again = PointRecord::decode(&record.encode().unwrap()).unwrap();
    assert_eq!(again, record);
    assert_eq!(again.host.arch.to_string(), "unknown (77)");
    for (word, number) in [("x86_64", 1), ("aarch64", 2)] {
        assert_eq!(word.parse(), Ok(Arch::from_number(number)));
        assert_eq!(Arch::from_number(number).to_string(), word);
    }
    let refused = "m68k".parse::<Arch>().unwrap_err();
    assert_eq!(
        refused.to_string(),
        "\"m68k\" is not one of: x86_64, aarch64"
    );
}

#[test]
fn readers_and_writers_give_the_same_id() {
    let mut file = Vec::new();
    let written = full_record().write_to(&mut file).unwrap();
    let point = Point::read_from(file.as_slice()).unwrap();
    assert_eq!(point.id(), written);
    assert_eq!(point.id(), CheckpointId(*blake3::hash(&file).as_bytes()));
    let (sealed, bytes) = Point::seal(full_record()).unwrap();
    assert_eq!((sealed, bytes), (point, file));
}

#[test]
fn every_cut_is_refused() {
    let bytes = full_record().encode().unwrap();
    for cut in 0..bytes.len() {
        assert!(PointRecord::decode(&bytes[..cut]).is_err(), "cut at {cut}");
    }
    let longer = [bytes.as_slice(), &[0]].concat();
    assert!(matches!(
        PointRecord::decode(&longer),
        Err(DecodeError::WrongLength { .. })
    ));
}

#[test]
fn every_flipped_bit_is_refused() {
    let bytes = full_record().encode().unwrap();
    for bit in 0..bytes.len() * 8 {
        let mut damaged = bytes.clone();
        damaged[bit / 8] ^= 1 << (bit % 8);
        assert!(PointRecord::decode(&damaged).is_err(), "bit {bit}");
    }
}
