//! Packs of elsewhere: nothing is shared with a body that nobody has compared with its id.

mod common;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use cas_store::{
    CaptureOptions, ChunkId, FileBackend, PackId, PackSet, RECENT_PACKS, Store, pack_file_name,
};
use common::{capture, chunk, read};

/// A checkpoint's packs with one pack of these chunks, in a place of its own.
struct Elsewhere {
    dir: tempfile::TempDir,
    pack: PackId,
    ids: Vec<ChunkId>,
}

impl Elsewhere {
    fn new(seeds: std::ops::Range<u64>) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(dir.path().join("store")).unwrap();
        let capture = capture(&store);
        let ids: Vec<_> = seeds
            .map(|seed| capture.put(&chunk(seed, 9000)).unwrap())
            .collect();
        let sealed = capture.seal().unwrap();
        let packs = dir.path().join("packs");
        fs::create_dir(&packs).unwrap();
        let pack = sealed.packs()[0];
        // By bytes, as from another machine.
        let bytes = fs::read(store.packs_dir().join(pack_file_name(&pack))).unwrap();
        write_sealed(&packs.join(pack_file_name(&pack)), &bytes);
        Self { dir, pack, ids }
    }

    fn file(&self) -> PathBuf {
        self.dir
            .path()
            .join("packs")
            .join(pack_file_name(&self.pack))
    }

    fn set(&self) -> PackSet {
        PackSet::open([self.dir.path().join("packs")])
    }

    /// Changes the pack's first body, not its index.
    fn forge(&self) {
        let mut bytes = fs::read(self.file()).unwrap();
        for byte in &mut bytes[20..40] {
            *byte ^= 0x55;
        }
        fs::remove_file(self.file()).unwrap();
        write_sealed(&self.file(), &bytes);
    }
}

fn write_sealed(path: &Path, bytes: &[u8]) {
    fs::write(path, bytes).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o400)).unwrap();
}

/// The store's own capture of the same data has it whole.
fn honest_save_is_whole(store: &Store, seeds: std::ops::Range<u64>) {
    let capture = capture(store);
    let ids: Vec<_> = seeds
        .clone()
        .map(|seed| capture.put(&chunk(seed, 9000)).unwrap())
        .collect();
    let sealed = capture.seal().unwrap();
    for (id, seed) in ids.iter().zip(seeds) {
        assert_eq!(read(sealed.chunks(), id), chunk(seed, 9000));
    }
}

#[test]
fn a_hostile_pack_ruins_no_later_save() {
    let evil = Elsewhere::new(1..3);
    evil.forge();
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path().join("store")).unwrap();
    let hostile = capture(&store);
    let adopted = hostile.adopt(&evil.set(), &evil.ids).unwrap();
    // What is sound in it is taken, the rest is told.
    assert_eq!(adopted.missing.len(), 1);
    assert!(evil.ids.contains(&adopted.missing[0]));
    assert!(!hostile.contains(&adopted.missing[0]).unwrap());
    drop(hostile.seal().unwrap());
    let present = store.packs_dir().join(pack_file_name(&evil.pack));
    assert!(!present.exists());
    assert_eq!(
        fs::read_dir(dir.path().join("store/staging"))
            .unwrap()
            .count(),
        0
    );
    honest_save_is_whole(&store, 1..3);
}

#[test]
fn a_twin_that_came_first_gives_way_to_the_sound_pack() {
    let good = Elsewhere::new(1..3);
    let twin = Elsewhere::new(1..3);
    assert_eq!(good.pack, twin.pack, "packs are the same for the same data");
    twin.forge();
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path().join("store")).unwrap();
    // By an earlier version, or by hand.
    let there = store.packs_dir().join(pack_file_name(&twin.pack));
    fs::copy(twin.file(), &there).unwrap();
    let session = capture(&store);
    let adopted = session.adopt(&good.set(), &good.ids).unwrap();
    assert_eq!(adopted.missing, []);
    assert!(adopted.linked_bytes > 0);
    drop(session);
    assert_eq!(fs::read(&there).unwrap(), fs::read(good.file()).unwrap());
    honest_save_is_whole(&store, 1..3);

    // The same where the store writes such a pack itself.
    let store = Store::open(dir.path().join("second")).unwrap();
    let there = store.packs_dir().join(pack_file_name(&twin.pack));
    fs::copy(twin.file(), &there).unwrap();
    honest_save_is_whole(&store, 1..3);
    assert_eq!(fs::read(&there).unwrap(), fs::read(good.file()).unwrap());
}

#[test]
fn verification_is_recorded_and_is_about_the_very_file() {
    let good = Elsewhere::new(1..3);
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path().join("store")).unwrap();
    let linked = |store: &Store| {
        let session = capture(store);
        session.adopt(&good.set(), &good.ids).unwrap().linked_bytes
    };
    assert!(linked(&store) > 0);
    assert_eq!(linked(&store), 0, "known");
    assert!(capture(&store).contains(&good.ids[0]).unwrap());
    // Another file under that name was not verified.
    let there = store.packs_dir().join(pack_file_name(&good.pack));
    fs::remove_file(&there).unwrap();
    fs::copy(good.file(), &there).unwrap();
    let moved = dir.path().join("moved");
    fs::rename(&there, &moved).unwrap();
    write_sealed(&there, &fs::read(&moved).unwrap());
    assert!(!capture(&store).contains(&good.ids[0]).unwrap());
    assert_eq!(linked(&store), 0, "verified where it lies");
    assert!(capture(&store).contains(&good.ids[0]).unwrap());
    // A list that is gone, cut or nonsense costs another look and nothing else.
    for list in [&b""[..], b"nonsense\n\xff", &[b'x'; 1000]] {
        fs::write(dir.path().join("store/verified"), list).unwrap();
        assert!(!capture(&store).contains(&good.ids[0]).unwrap());
        linked(&store);
        assert!(capture(&store).contains(&good.ids[0]).unwrap());
    }
}

#[test]
fn what_others_can_change_is_copied() {
    let good = Elsewhere::new(1..3);
    fs::set_permissions(good.file(), fs::Permissions::from_mode(0o600)).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path().join("store")).unwrap();
    let session = capture(&store);
    let adopted = session.adopt(&good.set(), &good.ids).unwrap();
    assert_eq!((adopted.linked_bytes, adopted.missing.len()), (0, 0));
    assert!(adopted.copied_bytes > 0);
    drop(session);
    let target = dir.path().join("target");
    fs::create_dir(&target).unwrap();
    assert!(
        good.set()
            .pin_into(&target, &good.ids)
            .unwrap()
            .copied_bytes
            > 0
    );
    good.forge();
    for path in [target, store.packs_dir()] {
        assert_eq!(read(&PackSet::open([path]), &good.ids[0]), chunk(1, 9000));
    }
}

#[test]
fn a_pack_with_a_damaged_index_is_not_present() {
    let good = Elsewhere::new(1..3);
    let target = tempfile::tempdir().unwrap();
    let there = target.path().join(pack_file_name(&good.pack));
    let mut bytes = fs::read(good.file()).unwrap();
    let index = bytes.len() - 80;
    bytes[index] ^= 1;
    fs::write(&there, bytes).unwrap();
    good.set().pin_into(target.path(), &good.ids).unwrap();
    assert_eq!(
        read(&PackSet::open([target.path()]), &good.ids[0]),
        chunk(1, 9000)
    );
    // What is no file at all is not removed for it.
    let other = tempfile::tempdir().unwrap();
    fs::create_dir(other.path().join(pack_file_name(&good.pack))).unwrap();
    assert!(good.set().pin_into(other.path(), &good.ids).is_err());
}

#[test]
fn what_is_recent_is_what_came_last_whatever_its_time_says() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path().join("store")).unwrap();
    let time = |pack: &PackId, seconds: u64| {
        let time = std::time::UNIX_EPOCH + std::time::Duration::from_secs(seconds);
        let file = fs::File::open(store.packs_dir().join(pack_file_name(pack))).unwrap();
        file.set_modified(time).unwrap();
    };
    let save = |seed: u64| {
        let session = capture(&store);
        let id = session.put(&chunk(seed, 500)).unwrap();
        (id, session.seal().unwrap().packs()[0])
    };
    // Of long ago and dated far ahead, as a link of an attacker's would be.
    let count = RECENT_PACKS as u64;
    for seed in 100..100 + count {
        time(&save(seed).1, 4_000_000_000);
    }
    let (first, pack) = save(1);
    time(&pack, 1);
    assert!(capture(&store).contains(&first).unwrap());
    for seed in 200..200 + count - 1 {
        save(seed);
    }
    assert!(capture(&store).contains(&first).unwrap());
    save(300);
    assert!(!capture(&store).contains(&first).unwrap());
    let options = CaptureOptions {
        parents: vec![pack],
        ..CaptureOptions::default()
    };
    assert!(
        store
            .begin_capture(options)
            .unwrap()
            .contains(&first)
            .unwrap()
    );
}

#[test]
fn the_list_of_a_swept_store_does_not_grow_for_ever() {
    let memory = cas_store::testing::MemoryBackend::new();
    let store = common::open(&memory);
    for seed in 0..1100 {
        let session = capture(&store);
        session.put(&chunk(seed, 50)).unwrap();
        drop(session.seal().unwrap());
    }
    let len = || memory.stat(Path::new("/store/verified")).unwrap().len_bytes;
    let before = len();
    store.sweep(&common::chunks_of, false).unwrap();
    assert!(len() < before / 100, "{} of {before}", len());
}
