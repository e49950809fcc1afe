//! Directories and files that are not the store's: they are never changed, and keep it from nothing.

mod common;

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use cas_store::{CaptureOptions, PointId, Store, StoreError};
use common::chunk;

const SESSION: &str = "0123456789abcdef";

/// Every file below `dir` with its content; links are not followed.
fn tree(dir: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(dir).unwrap() {
        let entry = entry.unwrap();
        let kind = entry.file_type().unwrap();
        if kind.is_dir() {
            found.insert(entry.path(), Vec::new());
            found.extend(tree(&entry.path()));
        } else {
            let content = if kind.is_file() {
                fs::read(entry.path()).unwrap()
            } else {
                b"a link".to_vec()
            };
            found.insert(entry.path(), content);
        }
    }
    found
}

fn save(store: &Store) {
    let capture = store.begin_capture(CaptureOptions::default()).unwrap();
    capture.put(&chunk(1, 1000)).unwrap();
    capture.seal().unwrap();
}

#[test]
fn a_directory_of_the_user_does_not_become_a_store() {
    let dir = tempfile::tempdir().unwrap();
    let elsewhere = dir.path().join("elsewhere");
    type Prepare = fn(&Path, &Path);
    let prepare: [(&str, Prepare); 4] = [
        ("notes", |at, _| fs::write(at.join("notes"), "x").unwrap()),
        ("staging", |at, _| {
            fs::create_dir_all(at.join("staging/sub")).unwrap();
            fs::write(at.join("staging/0123456789abcdef-0.tmp"), "x").unwrap();
        }),
        ("link", |at, elsewhere| {
            symlink(elsewhere, at.join("staging")).unwrap();
        }),
        ("old-store", |at, _| {
            for part in ["packs", "points", "lineage", "pins", "staging"] {
                fs::create_dir(at.join(part)).unwrap();
            }
            fs::write(at.join("staging/mine"), "x").unwrap();
        }),
    ];
    fs::create_dir(&elsewhere).unwrap();
    fs::write(elsewhere.join("0123456789abcdef-0.tmp"), "precious").unwrap();
    for (name, prepare) in prepare {
        let at = dir.path().join(name);
        fs::create_dir(&at).unwrap();
        prepare(&at, &elsewhere);
        let before = tree(dir.path());
        let error = Store::open(&at).unwrap_err();
        assert!(matches!(error, StoreError::NotEmpty { .. }), "{error:?}");
        let error = Store::open_existing(&at).unwrap_err();
        assert!(matches!(error, StoreError::NotAStore { .. }), "{error:?}");
        assert_eq!(tree(dir.path()), before, "{name}");
    }
}

#[test]
fn a_creation_that_was_cut_off_is_taken_up() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("packs")).unwrap();
    fs::create_dir(dir.path().join("pins")).unwrap();
    fs::write(dir.path().join(".tmp-0123456789abcdef"), "cas").unwrap();
    save(&Store::open(dir.path()).unwrap());
    assert!(!dir.path().join(".tmp-0123456789abcdef").exists());
    Store::open_existing(dir.path()).unwrap();
    // The owner of a directory says that nothing else is in it.
    fs::remove_file(dir.path().join("cas-store.marker")).unwrap();
    assert!(Store::open(dir.path()).is_err());
    save(&Store::open_own(dir.path()).unwrap());
    Store::open(dir.path()).unwrap();
}

#[test]
fn what_is_absent_unreadable_or_of_a_later_version_is_told_as_that() {
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path().join("store");
    Store::open(&at).unwrap();
    let marker = at.join("cas-store.marker");
    fs::remove_file(&marker).unwrap();
    fs::write(&marker, "cas-store directory 2\n").unwrap();
    let error = Store::open_existing(&at).unwrap_err();
    assert!(matches!(error, StoreError::Malformed { .. }), "{error:?}");
    // A link in the marker's place is not followed.
    fs::rename(&marker, dir.path().join("moved")).unwrap();
    symlink(dir.path().join("moved"), &marker).unwrap();
    assert!(Store::open(&at).is_err());
    let file = dir.path().join("file");
    fs::write(&file, "x").unwrap();
    for error in [Store::open(&file), Store::open_existing(&file)] {
        let error = error.unwrap_err();
        assert!(matches!(error, StoreError::NotAStore { .. }), "{error:?}");
    }
    assert_eq!(fs::read(&file).unwrap(), b"x");
}

#[test]
fn parts_that_are_links_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let elsewhere = dir.path().join("elsewhere");
    fs::create_dir(&elsewhere).unwrap();
    fs::write(elsewhere.join(format!("{SESSION}-0.tmp")), "precious").unwrap();
    for part in ["packs", "points", "lineage", "pins", "staging"] {
        let at = dir.path().join(format!("store-{part}"));
        Store::open(&at).unwrap();
        fs::remove_dir(at.join(part)).unwrap();
        symlink(&elsewhere, at.join(part)).unwrap();
        assert!(Store::open(&at).is_err(), "{part}");
        assert_eq!(tree(&elsewhere).len(), 1);
    }
    // A link to the whole store is the user's own way of naming it.
    Store::open(dir.path().join("store")).unwrap();
    symlink(dir.path().join("store"), dir.path().join("name")).unwrap();
    save(&Store::open(dir.path().join("name")).unwrap());
}

/// What a dead session of this name staged at `staged`, written into its list.
fn record_outside(store: &Path, name: &str, staged: &Path) {
    let meta = fs::symlink_metadata(staged).unwrap();
    let hex: String = staged
        .as_os_str()
        .as_encoded_bytes()
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    let line = format!("{} {} {hex}\n", meta.dev(), meta.ino());
    fs::write(store.join("pins").join(format!("{name}.outside")), line).unwrap();
    fs::write(store.join("pins").join(format!("{name}.lock")), "").unwrap();
}

#[test]
fn only_what_a_session_made_is_removed() {
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path().join("store");
    Store::open(&at).unwrap();
    let kept = [
        "notes",
        "x-0.tmp",
        "0123456789abcdef-x.tmp",
        "0123456789abcdef",
    ];
    for name in kept {
        fs::write(at.join("staging").join(name), "mine").unwrap();
    }
    fs::create_dir(at.join("staging").join(format!("{SESSION}-1.tmp"))).unwrap();
    symlink("notes", at.join("staging").join(format!("{SESSION}-2.tmp"))).unwrap();
    fs::write(at.join("staging").join(format!("{SESSION}-3.tmp")), "dead").unwrap();
    fs::write(at.join("pins/notes.lock"), "mine").unwrap();
    // A directory that is named like a staged one, but by a list that does not know it.
    let other = dir.path().join(".a.staging-0123456789abcdef");
    let renamed = dir.path().join("precious");
    for path in [&other, &renamed] {
        fs::create_dir(path).unwrap();
        fs::write(path.join("file"), "mine").unwrap();
    }
    record_outside(&at, "00000000000000aa", &renamed);
    record_outside(&at, SESSION, &renamed);
    let list = at.join("pins").join(format!("{SESSION}.outside"));
    let hex = |path: &Path| {
        let bytes = path.as_os_str().as_encoded_bytes();
        bytes
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect::<String>()
    };
    fs::write(&list, format!("1 1 {}\nnonsense\n", hex(&other))).unwrap();

    let store = Store::open(&at).unwrap();
    assert!(store.leftovers().is_empty(), "{:?}", store.leftovers());
    for path in [&other, &renamed] {
        assert!(path.join("file").exists());
    }
    let mut left: Vec<_> = fs::read_dir(at.join("staging"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    left.sort();
    let mut expected = kept.map(str::to_owned).to_vec();
    expected.extend([format!("{SESSION}-1.tmp"), format!("{SESSION}-2.tmp")]);
    expected.sort();
    assert_eq!(left, expected);
    let pins = fs::read_dir(at.join("pins")).unwrap().count();
    assert_eq!(pins, 1, "the user's own");
    save(&store);
}

#[test]
fn a_staged_directory_that_somebody_builds_in_stays() {
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path().join("store");
    Store::open(&at).unwrap();
    let files = std::sync::Arc::new(cas_store::OsBackend);
    let target = dir.path().join("x.checkpoint");
    let staging = durable_files::Staging::create_beside(files, &target).unwrap();
    record_outside(&at, SESSION, staging.path());
    Store::open(&at).unwrap();
    assert!(staging.path().exists());
}

#[test]
fn what_cannot_be_removed_keeps_nobody_from_anything() {
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path().join("store");
    Store::open(&at).unwrap();
    let closed = dir.path().join("closed");
    let staged = closed.join(".x.checkpoint.staging-0123456789abcdef");
    let free = dir.path().join(".y.checkpoint.staging-0123456789abcdef");
    fs::create_dir_all(&staged).unwrap();
    fs::create_dir(&free).unwrap();
    record_outside(&at, SESSION, &staged);
    record_outside(&at, "00000000000000bb", &free);
    // A lock that is a link is no session's.
    symlink("elsewhere", at.join("pins/00000000000000cc.lock")).unwrap();
    fs::set_permissions(&closed, fs::Permissions::from_mode(0o500)).unwrap();
    // Root may remove anything: then only the link is left.
    let root = fs::write(closed.join("probe"), "").is_ok();
    let store = Store::open(&at).unwrap();
    let left: Vec<_> = store.leftovers().iter().map(|left| &left.path).collect();
    let mut expected = vec![
        at.canonicalize()
            .unwrap()
            .join("pins/00000000000000cc.lock"),
    ];
    if !root {
        expected.push(staged.clone());
    }
    assert_eq!(left.len(), expected.len(), "{left:?}");
    assert!(expected.iter().all(|path| left.contains(&path)), "{left:?}");
    assert!(!free.exists());
    save(&store);
    // Later it can be.
    fs::set_permissions(&closed, fs::Permissions::from_mode(0o700)).unwrap();
    fs::remove_file(at.join("pins/00000000000000cc.lock")).unwrap();
    let store = Store::open(&at).unwrap();
    assert!(store.leftovers().is_empty() && !staged.exists());
}

#[test]
fn nothing_is_saved_into_a_store_of_somebody_else() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    drop(Store::open(&path).unwrap());
    // To root, an ordinary user; to that one, root.
    let foreign = match fs::metadata(&path).unwrap().uid() {
        0 => {
            std::os::unix::fs::chown(&path, Some(65534), None).unwrap();
            path
        }
        _ => PathBuf::from("/"),
    };
    let before = tree_of_root(&foreign, dir.path());
    let error = Store::open(&foreign).unwrap_err();
    assert!(matches!(error, StoreError::Foreign { .. }), "{error}");
    assert_eq!(tree_of_root(&foreign, dir.path()), before);
    if foreign.starts_with(dir.path()) {
        // It can still be read.
        Store::open_existing(&foreign).unwrap().points().unwrap();
    }
}

#[test]
fn a_line_that_cannot_be_read_hides_no_other() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path().join("store")).unwrap();
    let (one, other) = (PointId([1; 32]), PointId([2; 32]));
    for id in [&one, &other] {
        store.put_point(id, b"record", "line").unwrap();
    }
    let line = dir.path().join(format!("store/lineage/{one}.line"));
    fs::remove_file(&line).unwrap();
    fs::create_dir(&line).unwrap();
    let points = store.points().unwrap();
    let found: Vec<_> = points.iter().map(|p| (p.id, p.meta.as_str())).collect();
    assert_eq!(found, [(one, ""), (other, "line")]);
}

#[test]
fn who_keeps_a_record_locked_is_not_waited_for_without_end() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path().join("store")).unwrap();
    let id = PointId([7; 32]);
    store.put_point(&id, b"record", "line").unwrap();
    // Whoever may read it may lock it.
    let reader = fs::File::open(store.record_path(&id)).unwrap();
    reader.lock().unwrap();
    let error = store.use_point(&id).unwrap_err();
    let StoreError::Io { source, .. } = &error else {
        panic!("{error}");
    };
    let held = durable_files::LockHeld::in_error(source).unwrap();
    if cfg!(target_os = "linux") {
        let holder = held.holder.as_ref().unwrap();
        assert_eq!(holder.pid, std::process::id());
    }
    drop(reader);
    assert!(store.use_point(&id).unwrap().is_some());
}

/// What lies in a store that the test made; of another place nothing is asked.
fn tree_of_root(store: &Path, ours: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    match store.starts_with(ours) {
        true => tree(store),
        false => BTreeMap::new(),
    }
}
