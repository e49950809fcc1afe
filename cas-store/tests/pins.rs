//! What a machine pins stays bounded, and is whole whatever is cut off.

mod common;

use std::path::Path;
use std::sync::Arc;

use cas_store::testing::{FaultBackend, MemoryBackend, Operation, Plan, Survivors};
use cas_store::{CaptureOptions, ChunkId, FileBackend, PackSet};
use common::{capture, chunk, chunks_of, read, set};

/// A machine's pins over many saves: each changes some of a few chunks, and the last ones are kept.
#[test]
fn pins_do_not_grow_over_many_saves() {
    const CHUNKS: usize = 60;
    const KEPT: usize = 4;
    let memory = MemoryBackend::new();
    memory.make_dirs(Path::new("/machine")).unwrap();
    let store = common::open(&memory);
    let machine = set(&memory, "/machine");
    let mut head: Vec<Vec<u8>> = (0..CHUNKS).map(|at| noise(at as u64)).collect();
    let mut points: Vec<Vec<ChunkId>> = Vec::new();
    let (mut most_packs, mut most_bytes, mut compactions) = (0, 0, 0);
    for save in 0..300u64 {
        for step in 0..12 {
            let at = (save * 7 + step * step) as usize % CHUNKS;
            head[at] = noise(1000 + save * 100 + step);
        }
        let options = CaptureOptions {
            parents: machine.packs().unwrap(),
            ..CaptureOptions::default()
        };
        let session = store.begin_capture(options).unwrap();
        let ids: Vec<_> = head.iter().map(|data| session.put(data).unwrap()).collect();
        let sealed = session.seal().unwrap();
        let lacking = machine.missing(&ids).unwrap();
        sealed.pin_into(Path::new("/machine"), &lacking).unwrap();
        points.push(ids);
        points.drain(..points.len().saturating_sub(KEPT));
        let needed: Vec<_> = points.iter().flatten().copied().collect();
        let kept = machine.keep_only(&needed).unwrap();
        if kept.is_sparse() {
            // A reader of before finds all chunks afterwards.
            let reader = set(&memory, "/machine");
            read(&reader, &needed[0]);
            let done = machine.compact(&needed, &|| true).unwrap();
            assert!(done.replaced_packs > 0 && done.removed_bytes > done.written_bytes);
            assert!(!machine.keep_only(&needed).unwrap().is_sparse());
            compactions += 1;
            for id in &needed {
                read(&reader, id);
            }
        }
        drop(sealed);
        store.sweep(&chunks_of, false).unwrap();
        if save >= 50 {
            most_packs = most_packs.max(machine.packs().unwrap().len());
            most_bytes = most_bytes.max(kept.live_bytes + kept.dead_bytes);
        }
    }
    let live: u64 = 65536 * (CHUNKS + KEPT * 12) as u64;
    assert!(compactions > 3, "{compactions}");
    assert!(most_packs < 64, "{most_packs}");
    assert!(most_bytes < 2 * live + (16 << 20), "{most_bytes} of {live}");
}

/// A chunk that does not compress.
fn noise(seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let byte = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 32) as u8
    };
    std::iter::repeat_with(byte).take(65536).collect()
}

#[test]
fn a_compaction_that_is_cut_off_or_stopped_loses_nothing() {
    let prepare = || {
        let memory = MemoryBackend::new();
        memory.make_dirs(Path::new("/machine")).unwrap();
        let store = common::open(&memory);
        let mut needed = Vec::new();
        for save in 0..6u64 {
            let session = capture(&store);
            let ids: Vec<_> = (0..4)
                .map(|at| session.put(&chunk(save * 10 + at, 3000)).unwrap())
                .collect();
            let sealed = session.seal().unwrap();
            sealed.pin_into(Path::new("/machine"), &ids).unwrap();
            needed.push((ids[0], save * 10));
        }
        (memory, needed)
    };
    let ids = |needed: &[(ChunkId, u64)]| needed.iter().map(|(id, _)| *id).collect::<Vec<_>>();
    let whole = |memory: &MemoryBackend, needed: &[(ChunkId, u64)], context: &str| {
        let machine = set(memory, "/machine");
        for (id, seed) in needed {
            assert_eq!(read(&machine, id), chunk(*seed, 3000), "{context}");
        }
    };
    let (memory, needed) = prepare();
    let machine = set(&memory, "/machine");
    let stopped = machine.compact(&ids(&needed), &|| false).unwrap();
    assert_eq!(stopped, cas_store::Compacted::default());
    assert_eq!(machine.packs().unwrap().len(), 6);
    let done = machine.compact(&ids(&needed), &|| true).unwrap();
    assert_eq!((done.replaced_packs, done.new_packs), (6, 1));
    whole(&memory, &needed, "done");

    for operation in [
        Operation::Sync,
        Operation::Rename,
        Operation::Write,
        Operation::Create,
    ] {
        for at in 0..12 {
            for survivors in [Survivors::OnlySynced, Survivors::Everything] {
                let (memory, needed) = prepare();
                let plan = Plan::Crash(operation, at);
                let dying = Arc::new(FaultBackend::new(memory.clone(), plan));
                let machine = PackSet::with_backend(dying, ["/machine"]);
                let context = format!("{operation:?} {at} {survivors:?}");
                let finished = machine.compact(&ids(&needed), &|| true).is_ok();
                let after = memory.after_crash(survivors);
                whole(&after, &needed, &context);
                // The next one leaves nothing behind.
                let machine = set(&after, "/machine");
                machine.keep_only(&ids(&needed)).unwrap();
                machine.compact(&ids(&needed), &|| true).unwrap();
                whole(&after, &needed, &context);
                let files = after.list(Path::new("/machine")).unwrap();
                assert_eq!(files.len(), 1, "{context}: {finished} {files:?}");
            }
        }
    }
    // A damaged chunk is left where it is, for whoever has it elsewhere.
    let (memory, needed) = prepare();
    let machine = set(&memory, "/machine");
    let pack = machine.info(&needed[0].0).unwrap().unwrap().pack;
    let path = Path::new("/machine").join(cas_store::pack_file_name(&pack));
    memory
        .damage(&path, |bytes| bytes[16..200].fill(0))
        .unwrap();
    machine.compact(&ids(&needed), &|| true).unwrap();
    assert!(memory.stat(&path).is_ok());
    whole(&memory, &needed[1..], "damaged");
}
