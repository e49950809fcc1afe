//! The store on the real file system.

mod common;

use std::io::ErrorKind;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use cas_store::{
    CaptureOptions, CheckLevel, ChunkId, Compression, MAX_CHUNK_BYTES, PackSet, PointId, ReadError,
    Store, StoreError,
};
use common::{chunk, chunks_of, read};

fn files_in(dir: &Path) -> usize {
    std::fs::read_dir(dir).unwrap().count()
}

#[test]
fn what_was_sealed_is_read_back_by_another_opening() {
    let dir = tempfile::tempdir().unwrap();
    let data: Vec<_> = (0..20)
        .map(|seed| chunk(seed, 1 + seed as usize * 3000))
        .collect();
    let store = Store::open(dir.path()).unwrap();
    let capture = store
        .begin_capture(CaptureOptions {
            max_pack_chunks: 7,
            ..CaptureOptions::default()
        })
        .unwrap();
    let ids = capture.put_batch(data.iter().map(Vec::as_slice)).unwrap();
    assert_eq!(
        store.chunks().packs().unwrap(),
        [],
        "nothing is visible before the seal"
    );
    let sealed = capture.seal().unwrap();
    assert_eq!(sealed.packs().len(), 3);

    let again = Store::open(dir.path()).unwrap();
    for (id, data) in ids.iter().zip(&data) {
        assert!(&read(again.chunks(), id) == data);
        assert!(&read(sealed.chunks(), id) == data);
    }
    drop(sealed);
    assert_eq!(
        files_in(&dir.path().join("pins")) + files_in(&dir.path().join("staging")),
        0
    );
}

#[test]
fn zero_chunks_take_no_room() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path()).unwrap();
    let capture = store.begin_capture(CaptureOptions::default()).unwrap();
    assert_eq!(capture.put(&[0; MAX_CHUNK_BYTES]).unwrap(), ChunkId::ZERO);
    let sealed = capture.seal().unwrap();
    assert_eq!(
        (sealed.packs().len(), sealed.stats()),
        (0, Default::default())
    );
    assert_eq!(read(store.chunks(), &ChunkId::ZERO), [0; MAX_CHUNK_BYTES]);
}

#[test]
fn duplicates_are_stored_once_and_counted() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path()).unwrap();
    let (one, two) = (chunk(1, 65536), chunk(2, 65536));
    let first = store.begin_capture(CaptureOptions::default()).unwrap();
    let id = first.put(&one).unwrap();
    first.put(&one).unwrap();
    let first = first.seal().unwrap();
    assert_eq!(first.stats().data_bytes, 131_072);
    assert_eq!(first.stats().shared_bytes, 65_536);
    let on_disk: u64 = std::fs::read_dir(dir.path().join("packs"))
        .unwrap()
        .map(|entry| entry.unwrap().metadata().unwrap().len())
        .sum();
    assert_eq!(first.stats().written_bytes, on_disk);
    assert!(on_disk < 50_000, "lz4 is the default: {on_disk}");

    let second = store.begin_capture(CaptureOptions::default()).unwrap();
    second.put(&one).unwrap();
    second.put(&two).unwrap();
    assert!(second.reference(&id).unwrap());
    assert!(!second.reference(&ChunkId::of(b"elsewhere")).unwrap());
    let second = second.seal().unwrap();
    assert_eq!(second.stats().shared_bytes, 131_072);
    let mut count = 0;
    store.chunks().for_each_chunk(|_, _| count += 1).unwrap();
    assert_eq!(count, 2);
}

#[test]
fn a_dropped_capture_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path()).unwrap();
    let capture = store.begin_capture(CaptureOptions::default()).unwrap();
    capture.put(&chunk(1, 65536)).unwrap();
    assert_eq!(files_in(&dir.path().join("staging")), 1);
    drop(capture);
    for part in ["staging", "pins", "packs"] {
        assert_eq!(files_in(&dir.path().join(part)), 0, "{part}");
    }
}

#[test]
fn everything_is_for_the_user_alone_and_packs_are_read_only() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("store");
    let store = Store::open(&root).unwrap();
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    let capture = store.begin_capture(CaptureOptions::default()).unwrap();
    capture.put(b"some").unwrap();
    for part in ["staging", "pins"] {
        for entry in std::fs::read_dir(root.join(part)).unwrap() {
            assert_eq!(mode(&entry.unwrap().path()), 0o600);
        }
    }
    let sealed = capture.seal().unwrap();
    let pack = store
        .packs_dir()
        .join(cas_store::pack_file_name(&sealed.packs()[0]));
    assert_eq!(mode(&pack), 0o400);
    store
        .put_point(&PointId([1; 32]), b"record", "line")
        .unwrap();
    assert_eq!(mode(&store.record_path(&PointId([1; 32]))), 0o400);
    for part in ["", "packs", "points", "lineage", "pins", "staging"] {
        assert_eq!(mode(&root.join(part)), 0o700, "{part}");
    }
}

#[test]
fn packs_travel_by_link_and_stand_alone() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path().join("store")).unwrap();
    let capture = store.begin_capture(CaptureOptions::default()).unwrap();
    let ids = [
        capture.put(&chunk(1, 9000)).unwrap(),
        capture.put(&chunk(2, 9000)).unwrap(),
    ];
    let sealed = capture.seal().unwrap();
    let target = dir.path().join("x.checkpoint/packs");
    std::fs::create_dir_all(&target).unwrap();
    let pinned = sealed.pin_into(&target, &ids).unwrap();
    assert_eq!(pinned.packs, sealed.packs());
    assert!(pinned.linked_bytes > 0 && pinned.copied_bytes == 0);
    assert_eq!(
        sealed.pin_into(&target, &ids).unwrap().linked_bytes,
        0,
        "already there"
    );
    let unknown = ChunkId::of(b"unknown");
    let error = sealed.pin_into(&target, &[unknown]).unwrap_err();
    assert!(matches!(error, StoreError::Read(ReadError::NotFound { chunk }) if chunk == unknown));
    drop((sealed, store));
    std::fs::remove_dir_all(dir.path().join("store")).unwrap();
    assert_eq!(read(&PackSet::open([&target]), &ids[1]), chunk(2, 9000));

    // And into another store, whose next capture shares them.
    let other = Store::open(dir.path().join("other")).unwrap();
    let capture = other.begin_capture(CaptureOptions::default()).unwrap();
    let unknown = ChunkId::of(b"unknown");
    let adopted = capture
        .adopt(
            &PackSet::open([&target]),
            &[ids[0], ids[1], unknown, ChunkId::ZERO],
        )
        .unwrap();
    assert_eq!(adopted.missing, [unknown]);
    assert_eq!(adopted.linked_bytes, pinned.linked_bytes);
    assert!(capture.reference(&ids[0]).unwrap());
    capture.put(&chunk(1, 9000)).unwrap();
    assert_eq!(capture.seal().unwrap().packs(), []);
}

#[test]
fn sweep_keeps_what_points_links_and_sessions_need() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path().join("store")).unwrap();
    let put = |seed| {
        let capture = store.begin_capture(CaptureOptions::default()).unwrap();
        let id = capture.put(&chunk(seed, 5000)).unwrap();
        (id, capture.seal().unwrap())
    };
    // First, since a running capture also pins the packs that it looks for duplicates in.
    let (_held, _sealed) = put(4);
    let (kept, sealed) = put(1);
    store
        .put_point(&PointId([1; 32]), kept.as_bytes(), "a point")
        .unwrap();
    drop(sealed);
    let (linked, sealed) = put(2);
    let outside = dir.path().join("outside");
    std::fs::create_dir(&outside).unwrap();
    sealed.pin_into(&outside, &[linked]).unwrap();
    drop(sealed);
    let (garbage, sealed) = put(3);
    drop(sealed);

    let dry = store.sweep(&chunks_of, true).unwrap();
    assert_eq!(files_in(&store.packs_dir()), 4);
    let report = store.sweep(&chunks_of, false).unwrap();
    assert_eq!(dry.removed_bytes, report.removed_bytes);
    assert_eq!((report.packs, report.removed_packs), (4, 1));
    assert_eq!((report.pinned_packs, report.linked_packs), (1, 1));
    assert_eq!(files_in(&store.packs_dir()), 3);
    assert!(matches!(
        store.chunks().get(&garbage, &mut [0; 5000]),
        Err(ReadError::NotFound { .. })
    ));
    read(store.chunks(), &kept);

    // Points and links go, their packs follow.
    assert!(store.remove_point(&PointId([1; 32])).unwrap());
    std::fs::remove_dir_all(&outside).unwrap();
    assert_eq!(store.sweep(&chunks_of, false).unwrap().removed_packs, 2);
    assert_eq!(store.points().unwrap().len(), 1, "the line stays");
}

#[test]
fn a_failing_record_reader_removes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path()).unwrap();
    store
        .begin_capture(CaptureOptions::default())
        .unwrap()
        .put(b"x")
        .unwrap();
    let capture = store.begin_capture(CaptureOptions::default()).unwrap();
    capture.put(b"garbage").unwrap();
    drop(capture.seal().unwrap());
    store.put_point(&PointId([2; 32]), b"?", "").unwrap();
    let error = store.sweep(
        &|_: &[u8], _: &mut dyn FnMut(ChunkId)| Err("unreadable".into()),
        false,
    );
    assert!(matches!(error, Err(StoreError::Record { .. })));
    assert_eq!(files_in(&store.packs_dir()), 1);
}

#[test]
fn points_are_listed_with_what_became_of_their_directories() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path().join("store")).unwrap();
    let checkpoint = dir.path().join("a.checkpoint");
    std::fs::create_dir(&checkpoint).unwrap();
    let id = PointId([7; 32]);
    store.put_point(&id, b"record", "the line").unwrap();
    store
        .register_directory(&id, &checkpoint, "the line")
        .unwrap();
    let state = || store.points().unwrap()[0].directory.clone().unwrap().state;
    assert_eq!(state(), cas_store::DirectoryState::Present);
    assert_eq!(store.point_record(&id).unwrap().unwrap(), b"record");
    std::fs::rename(&checkpoint, dir.path().join("b.checkpoint")).unwrap();
    assert_eq!(state(), cas_store::DirectoryState::Gone);
    std::fs::create_dir(&checkpoint).unwrap();
    assert_eq!(state(), cas_store::DirectoryState::Replaced);
    store.put_point(&id, b"record", "the line").unwrap();
    assert_eq!(
        state(),
        cas_store::DirectoryState::Replaced,
        "the directory is not forgotten"
    );
    assert!(store.put_point(&id, b"", "two\nlines").is_err());
}

#[test]
fn a_damaged_chunk_is_an_error_unless_another_pack_has_it() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path().join("store")).unwrap();
    let data = chunk(1, 65536);
    let options = || CaptureOptions {
        compression: Compression::None,
        ..CaptureOptions::default()
    };
    let capture = store.begin_capture(options()).unwrap();
    let id = capture.put(&data).unwrap();
    let sealed = capture.seal().unwrap();
    let pack = store
        .packs_dir()
        .join(cas_store::pack_file_name(&sealed.packs()[0]));
    let copy = dir.path().join("copy");
    std::fs::create_dir(&copy).unwrap();
    std::fs::copy(&pack, copy.join(pack.file_name().unwrap())).unwrap();
    let mut bytes = std::fs::read(&pack).unwrap();
    bytes[5000] ^= 1;
    std::fs::remove_file(&pack).unwrap();
    std::fs::write(&pack, &bytes).unwrap();

    let fresh = PackSet::open([store.packs_dir()]);
    let error = fresh.get(&id, &mut vec![0; 65536]).unwrap_err();
    assert!(matches!(error, ReadError::DamagedChunk { chunk, .. } if chunk == id));
    assert_eq!(read(&PackSet::open([store.packs_dir(), copy]), &id), data);
    assert_eq!(std::fs::metadata(&pack).unwrap().nlink(), 1);
}

#[test]
fn looking_at_a_store_changes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("store");
    let error = Store::open_existing(&root).unwrap_err();
    assert!(
        matches!(&error, StoreError::Io { source, .. } if source.kind() == ErrorKind::NotFound),
        "{error:?}"
    );
    assert!(!root.exists());
    std::fs::create_dir(&root).unwrap();
    let error = Store::open_existing(&root).unwrap_err();
    assert!(matches!(error, StoreError::NotAStore { .. }));
    assert_eq!(files_in(&root), 0);

    let store = Store::open(&root).unwrap();
    store.put_point(&PointId([1; 32]), b"", "line").unwrap();
    std::fs::remove_file(root.join("lock")).unwrap();
    std::fs::write(root.join("staging/0123-0.tmp"), "a dead session's").unwrap();
    let list = || {
        let parts = ["", "packs", "points", "lineage", "pins", "staging"];
        parts.map(|part| files_in(&root.join(part)))
    };
    let before = list();
    let looked = Store::open_existing(&root).unwrap();
    assert_eq!(looked.points().unwrap()[0].meta, "line");
    assert!(
        looked
            .check(CheckLevel::Full, &chunks_of, &mut |_, _| {})
            .unwrap()
            .is_clean()
    );
    assert!(!looked.chunks().contains(&ChunkId::of(b"x")).unwrap());
    assert_eq!(list(), before);
    // A damaged line does not hide the others.
    let line = root
        .join("lineage")
        .join(format!("{}.line", PointId([1; 32])));
    std::fs::remove_file(&line).unwrap();
    std::fs::write(&line, "?").unwrap();
    store.put_point(&PointId([2; 32]), b"", "second").unwrap();
    let metas: Vec<_> = looked
        .points()
        .unwrap()
        .into_iter()
        .map(|point| point.meta)
        .collect();
    assert_eq!(metas, ["", "second"]);
}

#[test]
fn a_relative_store_stays_where_it_was_opened() {
    let error = Store::open_existing("does-not-exist").unwrap_err();
    assert!(matches!(error, StoreError::Io { path, .. } if path.is_absolute()));
}
