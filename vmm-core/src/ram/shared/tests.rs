use proptest::prelude::*;
use vm_memory::{Bytes, GuestAddress};

use super::*;
use crate::ram::MemoryRegion;

/// Where the second region begins.
const HIGH: u64 = 1 << 32;

fn layout(chunks: u64) -> RamLayout {
    let region = |start| MemoryRegion {
        start: Gpa(start),
        bytes: chunks * CHUNK_BYTES,
    };
    RamLayout::new(vec![region(0), region(HIGH)]).unwrap()
}

/// A memory whose used chunks lie all over one layer: chunk `n` is filled with `n + 1`, or with zeros where `zero` says so.
fn scattered(layout: &RamLayout, used: &[bool], zero: &[bool]) -> SharedRam {
    let file = sealed::new().unwrap();
    let chunks = layout.chunks();
    let offset = |index: usize| (index * 7 % chunks) as u64 * CHUNK_BYTES;
    for index in (0..chunks).filter(|index| used[*index]) {
        let byte = if zero[index] { 0 } else { index as u8 + 1 };
        let bytes = [byte; CHUNK_BYTES as usize];
        file.write_all_at(&bytes, offset(index)).unwrap();
    }
    sealed::seal(&file).unwrap();
    let file = Arc::new(file);
    let place = |index: usize| {
        used[index].then(|| Place {
            file: file.clone(),
            offset: offset(index),
        })
    };
    SharedRam {
        layout: layout.clone(),
        chunks: (0..chunks).map(place).collect(),
    }
}

/// The first byte of every chunk, as a guest reads it.
fn read(shared: &SharedRam) -> Vec<u8> {
    let ram = shared.map().unwrap();
    let mut bytes = [0; CHUNK_BYTES as usize];
    let chunks = 0..shared.layout.chunks();
    let read = chunks.map(|index| {
        let gpa = shared.layout.chunk_gpa(ChunkIndex(index)).unwrap();
        ram.read_slice(&mut bytes, GuestAddress(gpa.0)).unwrap();
        assert!(bytes.iter().all(|byte| *byte == bytes[0]), "chunk {index}");
        bytes[0]
    });
    read.collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]
    /// However scattered memory is, it goes into few runs, and holds what it held.
    #[test]
    fn merged_memory_has_few_runs_and_the_same_contents(
        used in prop::collection::vec(any::<bool>(), 64),
        zero in prop::collection::vec(prop::bool::weighted(0.2), 64),
        most in 1..20_usize,
        again in 1..20_usize,
    ) {
        // A step of 7 comes to each of 64 places.
        let layout = layout(32);
        let before = scattered(&layout, &used, &zero);
        let expected = read(&before);
        let merged = before.merged_into(most).unwrap();
        prop_assert!(merged.parts().len() <= most.max(2), "{:?}", merged.parts());
        prop_assert_eq!(merged.files().len(), usize::from(merged.used_bytes() > 0));
        // The host gives a hole room once it is read by way of a mapping.
        let nonzero = expected.iter().filter(|byte| **byte != 0).count() as u64;
        prop_assert_eq!(merged.held_bytes(), nonzero * CHUNK_BYTES);
        prop_assert_eq!(&read(&merged), &expected);
        // What was mapped only to save runs is not taken for data later, and the way to another process changes nothing.
        let files = merged.files();
        let files = files.iter().map(|file| file.try_clone().unwrap()).collect();
        let handed = SharedRam::from_parts(layout, files, &merged.parts()).unwrap();
        let merged = handed.merged_into(again).unwrap();
        prop_assert_eq!(&read(&merged), &expected);
        prop_assert!(merged.parts().len() <= again.max(2));
    }
}

/// A guest that uses every other chunk has more extents than a memory may have. One place serves for all of them here.
#[test]
fn memory_of_many_isolated_runs_is_mapped_all_the_same() {
    let layout = layout(MAX_EXTENTS as u64 / 2 + 32);
    let mut layer = Layer::new().unwrap();
    layer
        .put(ChunkIndex(0), &[7; CHUNK_BYTES as usize])
        .unwrap();
    let file = layer.seal().unwrap().file;
    let place = |index: usize| {
        let file = file.clone();
        index.is_multiple_of(2).then_some(Place { file, offset: 0 })
    };
    let chunks = (0..layout.chunks()).map(place).collect();
    let shared = SharedRam { layout, chunks };
    assert!(shared.map().is_err(), "it is too much for a memory");
    let mut layer = Layer::new().unwrap();
    let last = ChunkIndex(shared.layout.chunks() - 1);
    layer.put(last, &[8; CHUNK_BYTES as usize]).unwrap();
    let above = shared.with_layer(layer.seal().unwrap()).unwrap();
    assert!(above.extents() <= MAX_SHARED_EXTENTS);
    let ram = above.map().unwrap();
    for index in [0, 1, 2, 3, 4000, 4001, last.0 - 1, last.0] {
        let gpa = above.layout.chunk_gpa(ChunkIndex(index)).unwrap();
        let expected = match index {
            _ if index == last.0 => 8,
            _ if index.is_multiple_of(2) => 7,
            _ => 0,
        };
        let read: u8 = ram.read_obj(GuestAddress(gpa.0)).unwrap();
        assert_eq!(read, expected, "chunk {index}");
    }
}
