//! The store alone: an image saved twice, shared chunks, a copy by hard links, a sweep.
//!
//! Run with `cargo run -p examples --example store_only`.
#![allow(clippy::print_stdout)] // An example talks to its reader.

use std::error::Error;

use cas_store::{CaptureOptions, ChunkId, MAX_CHUNK_BYTES, PackSet, PointId, Store};

/// A point of this example is the list of its chunk ids.
fn chunks_of(
    record: &[u8],
    visit: &mut dyn FnMut(ChunkId),
) -> Result<(), Box<dyn Error + Send + Sync>> {
    for id in record.chunks(32) {
        visit(ChunkId(id.try_into()?));
    }
    Ok(())
}

/// Saves `image` as the point `name`.
fn save(store: &Store, image: &[u8], name: u8) -> Result<Vec<ChunkId>, Box<dyn Error>> {
    let capture = store.begin_capture(CaptureOptions::default())?;
    let ids = capture.put_batch(image.chunks(MAX_CHUNK_BYTES))?;
    let sealed = capture.seal()?;
    let record: Vec<u8> = ids.iter().flat_map(|id| id.0).collect();
    // The packs are protected until `sealed` is dropped, so a sweep elsewhere cannot come in between.
    store.put_point(&PointId([name; 32]), &record, "saved by the example")?;
    let stats = sealed.stats();
    println!(
        "point {name}: {} KiB data, {} KiB shared, {} KiB written",
        stats.data_bytes >> 10,
        stats.shared_bytes >> 10,
        stats.written_bytes >> 10
    );
    Ok(ids)
}

/// Reads a whole image back. The zero chunk fills what it is given.
fn load(packs: &PackSet, ids: &[ChunkId], len: usize) -> Result<Vec<u8>, Box<dyn Error>> {
    let mut image = vec![0; len];
    for (id, part) in ids.iter().zip(image.chunks_mut(MAX_CHUNK_BYTES)) {
        packs.get(id, part)?;
    }
    Ok(image)
}

fn main() -> Result<(), Box<dyn Error>> {
    let home = tempfile::tempdir()?;
    let store = Store::open(home.path().join("store"))?;

    // 16 MiB, half of it zero, then a small change.
    let mut image = vec![0; 16 << 20];
    for (at, word) in image[..8 << 20].chunks_exact_mut(8).enumerate() {
        word.copy_from_slice(&(at as u64 / 16).to_le_bytes());
    }
    let first = save(&store, &image, 1)?;
    image[5 << 20..][..6].copy_from_slice(b"change");
    let second = save(&store, &image, 2)?;
    let changed = first.iter().zip(&second).filter(|(a, b)| a != b).count();
    println!("{changed} of {} chunks differ", second.len());

    // Hard links make a directory that needs no store.
    let copy = home.path().join("copy");
    std::fs::create_dir(&copy)?;
    let pinned = store.pin_into(&copy, &second)?;
    println!(
        "{} packs linked, {} bytes copied",
        pinned.packs.len(),
        pinned.copied_bytes
    );

    store.remove_point(&PointId([1; 32]))?;
    store.remove_point(&PointId([2; 32]))?;
    let swept = store.sweep(&chunks_of, false)?;
    println!(
        "sweep: {} removed, {} kept for their links",
        swept.removed_packs, swept.linked_packs
    );

    drop(store);
    std::fs::remove_dir_all(home.path().join("store"))?;
    let loaded = load(&PackSet::open([&copy]), &second, image.len())?;
    if loaded != image {
        return Err("the image differs".into());
    }
    println!("the image is whole without the store");
    Ok(())
}
