//! Trees in and out of the guest, and hostile streams of them.

mod common;

use std::fs::{self, File};
use std::io::Write;
use std::ops::ControlFlow;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, PermissionsExt, symlink};
use std::path::Path;

use agent_protocol::client::ClientError;
use agent_protocol::codec::Bytes;
use agent_protocol::message::{CopyIn, CopyReport};
use agent_protocol::tree::{
    Metadata, Ownership, ReceiveError, SendError, SpecialKind, TreeItem, TreeReceiver,
};
use common::{Machine, Noise};
use rustix::fs::{CWD, Mode, Timespec, Timestamps};

fn copy_in(machine: &Machine, source: &Path, target: &Path) -> Result<CopyReport, ClientError> {
    let target = Bytes::from(target.as_os_str().as_bytes());
    let request = CopyIn {
        target,
        owner: None,
    };
    machine
        .connect()
        .copy_in(source, request, &mut |_| ControlFlow::Continue(()))
}

fn copy_out(machine: &Machine, source: &Path, target: &Path) -> Result<CopyReport, ClientError> {
    machine
        .connect()
        .copy_out(source.as_os_str().as_bytes(), target, &mut |_| ())
}

fn set_time(path: &Path, seconds: i64) {
    let time = Timespec {
        tv_sec: seconds,
        tv_nsec: 123_456_789,
    };
    let times = Timestamps {
        last_access: time,
        last_modification: time,
    };
    rustix::fs::utimensat(CWD, path, &times, rustix::fs::AtFlags::SYMLINK_NOFOLLOW).expect("time");
}

/// A tree with one of everything.
fn make_tree(root: &Path) {
    use std::ffi::OsStr;
    let odd = OsStr::from_bytes(b"odd \xff\n\x1b[31m'\"$()");
    fs::create_dir_all(root.join("deep/er").join(odd)).expect("directories");
    fs::create_dir(root.join("empty")).expect("directory");
    fs::write(root.join("empty-file"), b"").expect("write");
    fs::write(root.join("deep/er").join(odd).join(odd), b"odd").expect("write");
    fs::write(root.join("big"), Noise::new(3).bytes(5_000_001)).expect("write");
    fs::write(root.join("script"), b"#!/bin/sh\n").expect("write");
    fs::set_permissions(root.join("script"), PermissionsExt::from_mode(0o751)).expect("mode");
    fs::set_permissions(root.join("empty"), PermissionsExt::from_mode(0o1777)).expect("mode");
    fs::hard_link(root.join("script"), root.join("deep/second-name")).expect("link");
    symlink("../no/such/thing", root.join("dangling")).expect("symlink");
    symlink(odd, root.join("deep/odd-link")).expect("symlink");
    let sparse = File::create(root.join("sparse")).expect("create");
    sparse.write_all_at(b"start", 0).expect("write");
    sparse.write_all_at(b"middle", 64 << 20).expect("write");
    sparse.set_len(256 << 20).expect("length");
    let fifo = Mode::from_raw_mode(0o620);
    rustix::fs::mknodat(CWD, root.join("pipe"), rustix::fs::FileType::Fifo, fifo, 0).expect("fifo");
    for (path, seconds) in [
        ("big", 1_000_000_000),
        ("dangling", 1),
        ("deep", -5),
        ("pipe", 7),
    ] {
        set_time(&root.join(path), seconds);
    }
}

/// Everything about the entries below `root`, sorted.
fn listing(root: &Path) -> Vec<String> {
    fn walk(root: &Path, path: &Path, lines: &mut Vec<String>) {
        let mut entries: Vec<_> = fs::read_dir(path)
            .expect("list")
            .map(|e| e.expect("entry"))
            .collect();
        entries.sort_by_key(|entry| entry.file_name());
        for entry in entries {
            let path = entry.path();
            let meta = fs::symlink_metadata(&path).expect("stat");
            let content = if meta.is_file() {
                format!(
                    "{:x?}",
                    fs::read(&path)
                        .expect("read")
                        .chunks(4096)
                        .map(sum)
                        .collect::<Vec<_>>()
                )
            } else if meta.is_symlink() {
                format!("{:?}", fs::read_link(&path).expect("read link"))
            } else {
                String::new()
            };
            let time = if meta.is_dir() && path != root.join("deep") {
                None // set when its entries were made, by this test
            } else {
                Some((meta.mtime(), meta.mtime_nsec()))
            };
            let size = if meta.is_dir() { 0 } else { meta.len() };
            let name = path.strip_prefix(root).expect("below");
            lines.push(format!(
                "{name:?} {:o} {} {} {size} {} {time:?} {content}",
                meta.mode(),
                meta.uid(),
                meta.gid(),
                if meta.is_dir() { 0 } else { meta.nlink() },
            ));
            if meta.is_dir() {
                walk(root, &path, lines);
            }
        }
    }
    let mut lines = Vec::new();
    walk(root, root, &mut lines);
    lines
}

fn sum(bytes: &[u8]) -> u64 {
    bytes.iter().fold(7, |sum, &byte| {
        sum.wrapping_mul(31).wrapping_add(byte.into())
    })
}

#[test]
fn a_tree_survives_the_way_in_and_out() {
    let machine = Machine::new();
    let place = tempfile::tempdir().expect("temporary directory");
    let at = |name: &str| place.path().join(name);
    fs::create_dir(at("source")).expect("directory");
    make_tree(&at("source"));
    let wanted = listing(&at("source"));
    assert_eq!(wanted.len(), 13, "one of everything");

    let report = copy_in(&machine, &at("source"), &at("guest")).expect("in");
    assert_eq!(report.problems, Vec::<String>::new());
    assert_eq!(listing(&at("guest")), wanted);
    let report = copy_out(&machine, &at("guest"), &at("back")).expect("out");
    assert_eq!(report.problem_count, 0);
    assert_eq!(listing(&at("back")), wanted);
    assert!(report.data_bytes < 32 << 20, "holes were sent: {report:?}");
    let blocks = fs::metadata(at("back/sparse")).expect("stat").blocks();
    assert!(blocks * 512 < 32 << 20, "holes were filled");
    let (a, b) = (
        fs::metadata(at("back/script")),
        fs::metadata(at("back/deep/second-name")),
    );
    assert_eq!(a.expect("stat").ino(), b.expect("stat").ino());
    assert!(
        fs::symlink_metadata(at("back/pipe"))
            .expect("stat")
            .file_type()
            .is_fifo()
    );

    // Into a directory that is there, twice: the second time everything is replaced.
    fs::create_dir(at("into")).expect("directory");
    for _ in 0..2 {
        copy_in(&machine, &at("source"), &at("into")).expect("in");
        assert_eq!(listing(&at("into/source")), wanted);
    }
    // Contents only.
    copy_in(&machine, &at("source/."), &at("into")).expect("in");
    assert!(at("into/deep/er").is_dir() && at("into/big").is_file());
    copy_out(&machine, &at("guest/."), &at("fresh")).expect("out");
    assert_eq!(listing(&at("fresh")), wanted);
}

#[test]
fn files_go_as_or_into_and_replace() {
    let machine = Machine::new();
    let place = tempfile::tempdir().expect("temporary directory");
    let at = |name: &str| place.path().join(name);
    fs::write(at("one"), b"new").expect("write");
    fs::create_dir(at("directory")).expect("directory");
    copy_in(&machine, &at("one"), &at("named")).expect("as");
    assert_eq!(fs::read(at("named")).expect("read"), b"new");
    copy_in(&machine, &at("one"), &at("directory")).expect("into");
    assert_eq!(fs::read(at("directory/one")).expect("read"), b"new");
    // A link that stands where the file goes is replaced, what it points to is not touched.
    fs::write(at("precious"), b"old").expect("write");
    symlink(at("precious"), at("link")).expect("symlink");
    copy_in(&machine, &at("one"), &at("link")).expect("replaced");
    assert_eq!(fs::read(at("precious")).expect("read"), b"old");
    assert_eq!(fs::read(at("link")).expect("read"), b"new");
    assert!(fs::read_dir(place.path()).expect("list").all(|entry| {
        !entry
            .expect("entry")
            .file_name()
            .to_string_lossy()
            .starts_with(".smolvm")
    }));
    // A file of /proc has no size and contents all the same.
    copy_out(&machine, Path::new("/proc/self/status"), &at("status")).expect("out");
    assert!(
        fs::read_to_string(at("status"))
            .expect("read")
            .contains("Pid:")
    );
}

#[test]
fn what_cannot_be_copied_is_said() {
    let machine = Machine::new();
    let place = tempfile::tempdir().expect("temporary directory");
    let at = |name: &str| place.path().join(name);
    assert!(matches!(
        copy_in(&machine, &at("missing"), &at("x")),
        Err(ClientError::Send(SendError::Source { .. }))
    ));
    match copy_out(&machine, &at("missing"), &at("x")) {
        Err(ClientError::Agent { message, .. }) => {
            assert!(
                message.contains("missing") && message.contains("No such file"),
                "{message}"
            );
        }
        other => panic!("{other:?}"),
    }
    fs::write(at("file"), b"x").expect("write");
    match copy_in(&machine, &at("file"), &at("no/such/directory")) {
        Err(ClientError::Agent { message, .. }) => {
            assert!(message.contains("no/such"), "{message}")
        }
        other => panic!("{other:?}"),
    }
    fs::create_dir_all(at("tree/sub")).expect("directories");
    let _socket = std::os::unix::net::UnixListener::bind(at("tree/socket")).expect("socket");
    fs::write(at("tree/sub/file"), b"x").expect("write");
    let report = copy_in(&machine, &at("tree"), &at("copy")).expect("the rest is copied");
    assert_eq!(report.problem_count, 1);
    assert!(report.problems[0].contains("socket"), "{report:?}");
    assert!(at("copy/sub/file").exists());
    // A file stands where a directory should be made.
    fs::create_dir(at("over")).expect("directory");
    fs::write(at("over/sub"), b"in the way").expect("write");
    let report = copy_in(&machine, &at("tree/."), &at("over")).expect("the rest is copied");
    assert!(
        report
            .problems
            .iter()
            .any(|problem| problem.starts_with("sub")),
        "{report:?}"
    );
    assert_eq!(fs::read(at("over/sub")).expect("read"), b"in the way");
}

#[test]
fn an_early_failure_and_a_stop_leave_no_half_file() {
    let machine = Machine::new();
    let place = tempfile::tempdir().expect("temporary directory");
    let at = |name: &str| place.path().join(name);
    fs::write(at("big"), Noise::new(1).bytes(64 << 20)).expect("write");
    let target = Bytes::from(at("copy").as_os_str().as_bytes());
    let mut sent = 0;
    let request = CopyIn {
        target,
        owner: None,
    };
    let result = machine
        .connect()
        .copy_in(&at("big"), request, &mut |bytes| {
            sent += bytes;
            if sent > 8 << 20 {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            }
        });
    assert!(
        matches!(result, Err(ClientError::Send(SendError::Stopped))),
        "{result:?}"
    );
    // The agent refuses at the first item while the client has much to send.
    assert!(copy_in(&machine, &at("big"), Path::new("/proc/no/such")).is_err());
    let names: Vec<_> = fs::read_dir(place.path())
        .expect("list")
        .map(|e| e.expect("entry").file_name())
        .collect();
    assert_eq!(names, ["big"]);
}

#[test]
fn hundred_mebibytes_through_a_copy() {
    let machine = Machine::new();
    let place = tempfile::tempdir().expect("temporary directory");
    let at = |name: &str| place.path().join(name);
    let mut file = File::create(at("source")).expect("create");
    let mut noise = Noise::new(11);
    for _ in 0..100 {
        file.write_all(&noise.bytes(1 << 20)).expect("write");
    }
    copy_in(&machine, &at("source"), &at("guest")).expect("in");
    copy_out(&machine, &at("guest"), &at("back")).expect("out");
    assert!(fs::read(at("source")).expect("read") == fs::read(at("back")).expect("read"));
}

fn meta(mode: u32) -> Metadata {
    Metadata {
        mode,
        ..Metadata::default()
    }
}

fn directory(name: &[u8]) -> TreeItem {
    TreeItem::Directory {
        name: name.into(),
        meta: meta(0o755),
    }
}

fn file(name: &[u8]) -> TreeItem {
    TreeItem::File {
        name: name.into(),
        meta: meta(0o644),
        link: None,
    }
}

fn data(offset: u64) -> TreeItem {
    TreeItem::Data {
        offset,
        data: Bytes::from("evil"),
    }
}

fn end(size_bytes: u64) -> TreeItem {
    TreeItem::FileEnd { size_bytes }
}

fn apply(target: &Path, items: Vec<TreeItem>) -> Result<CopyReport, ReceiveError> {
    let mut receiver = TreeReceiver::new(target, Ownership::Mine);
    for item in items {
        receiver.apply(item)?;
    }
    Ok(receiver.finish())
}

#[test]
fn nothing_leads_out_of_the_target() {
    let place = tempfile::tempdir().expect("temporary directory");
    let at = |name: &str| place.path().join(name);
    fs::create_dir(at("outside")).expect("directory");
    fs::create_dir(at("target")).expect("directory");
    symlink(at("outside"), at("target/way-out")).expect("symlink");
    let long = vec![b'x'; 256];
    for name in [&b".."[..], b".", b"", b"a/b", b"/etc", b"a\0b", &long] {
        for item in [directory(name), file(name)] {
            let items = vec![directory(b"top"), item];
            let result = apply(&at("target"), items);
            assert!(
                matches!(result, Err(ReceiveError::Invalid { .. })),
                "{name:?}: {result:?}"
            );
        }
    }
    // Through a link that was there, and through one that the stream makes.
    let made = TreeItem::Symlink {
        name: "made".into(),
        meta: meta(0o777),
        target: Bytes::from(at("outside").as_os_str().as_bytes()),
    };
    let inside = |name: &str| {
        vec![
            directory(name.as_bytes()),
            file(b"f"),
            data(0),
            end(4),
            TreeItem::EndDirectory,
        ]
    };
    let mut items = vec![directory(b"")];
    items.extend(inside("way-out"));
    items.push(made);
    items.extend(inside("made"));
    items.extend([TreeItem::EndDirectory, TreeItem::End]);
    let report = apply(&at("target"), items).expect("the rest is made");
    assert_eq!(report.problem_count, 2, "{report:?}");
    assert_eq!(fs::read_dir(at("outside")).expect("list").count(), 0);
}

#[test]
fn privileges_of_the_guest_mean_nothing_here() {
    let place = tempfile::tempdir().expect("temporary directory");
    let target = place.path().join("target");
    let device = TreeItem::Special {
        name: "disk".into(),
        meta: meta(0o666),
        kind: SpecialKind::BlockDevice,
        major: 254,
        minor: 0,
    };
    let program = TreeItem::File {
        name: "root-shell".into(),
        meta: meta(0o6755),
        link: None,
    };
    let items = vec![
        directory(b"t"),
        device,
        program,
        end(0),
        TreeItem::EndDirectory,
        TreeItem::End,
    ];
    let report = apply(&target, items).expect("the rest is made");
    assert_eq!(report.problem_count, 1);
    let mode = fs::metadata(target.join("root-shell"))
        .expect("stat")
        .mode();
    assert_eq!(mode & 0o7777, 0o755);
    assert!(!target.join("disk").exists());
}

#[test]
fn streams_that_break_the_rules_are_refused() {
    let place = tempfile::tempdir().expect("temporary directory");
    let far = u64::MAX - 1;
    let bad_mode = TreeItem::File {
        name: "f".into(),
        meta: meta(0o10_000),
        link: None,
    };
    let cases = [
        vec![data(0)],
        vec![end(0)],
        vec![TreeItem::EndDirectory],
        vec![directory(b"d"), TreeItem::End],
        vec![file(b"f"), file(b"g")],
        vec![file(b"f"), TreeItem::End],
        vec![file(b"f"), data(far)],
        vec![file(b"f"), end(far)],
        vec![file(b"f"), end(0), file(b"g")],
        vec![bad_mode],
    ];
    for items in cases {
        let shown = format!("{items:?}");
        let result = apply(&place.path().join("t"), items);
        assert!(
            matches!(result, Err(ReceiveError::Invalid { .. })),
            "{shown}: {result:?}"
        );
        let _ = fs::remove_dir_all(place.path().join("t"));
        let _ = fs::remove_file(place.path().join("t"));
    }
    let deep = (0..300).map(|_| directory(b"d")).collect();
    assert!(matches!(
        apply(&place.path().join("deep"), deep),
        Err(ReceiveError::Invalid { .. })
    ));
    assert_eq!(
        fs::read_dir(place.path()).expect("list").count(),
        1,
        "temporary files are left"
    );
}

mod hostile {
    //! Whatever a stream does, nothing appears outside the target.

    use super::*;
    use proptest::prelude::*;

    fn name() -> impl Strategy<Value = Bytes> {
        prop_oneof![
            8 => prop::sample::select(vec!["a", "b", "c", "link"]).prop_map(Bytes::from),
            1 => prop::sample::select(vec!["..", ".", "", "a/b", "/x", "../../x"]).prop_map(Bytes::from),
            1 => prop::collection::vec(any::<u8>(), 0..300).prop_map(Bytes::from),
        ]
    }

    fn item() -> impl Strategy<Value = TreeItem> {
        let metadata = || {
            (0u32..0o20_000, any::<i32>()).prop_map(|(mode, seconds)| Metadata {
                mode: if mode > 0o7777 { mode } else { mode | 0o700 },
                mtime_seconds: seconds.into(),
                ..Metadata::default()
            })
        };
        let target = prop::sample::select(vec!["..", "../outside", "/", "a"]).prop_map(Bytes::from);
        prop_oneof![
            3 => (name(), metadata()).prop_map(|(name, meta)| TreeItem::Directory { name, meta }),
            2 => Just(TreeItem::EndDirectory),
            3 => (name(), metadata(), prop::option::of(0u64..4))
                .prop_map(|(name, meta, link)| TreeItem::File { name, meta, link }),
            3 => (0u64..100_000, prop::collection::vec(any::<u8>(), 0..100))
                .prop_map(|(offset, data)| TreeItem::Data { offset, data: data.into() }),
            4 => (0u64..100_000).prop_map(|size_bytes| TreeItem::FileEnd { size_bytes }),
            1 => Just(TreeItem::FileBroken { message: "broken".into() }),
            2 => (name(), metadata(), target)
                .prop_map(|(name, meta, target)| TreeItem::Symlink { name, meta, target }),
            2 => (name(), 0u64..4).prop_map(|(name, link)| TreeItem::HardLink { name, link }),
            1 => Just(TreeItem::Problem { message: "x".repeat(5000) }),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]
        #[test]
        fn streams_stay_inside(items in prop::collection::vec(item(), 0..60)) {
            let place = tempfile::tempdir().expect("temporary directory");
            fs::create_dir(place.path().join("outside")).expect("directory");
            fs::create_dir(place.path().join("target")).expect("directory");
            let mut receiver = TreeReceiver::new(&place.path().join("target"), Ownership::Mine);
            receiver.apply(directory(b"top")).expect("good");
            for item in items {
                // Most streams break a rule somewhere; what counts is what they leave.
                if receiver.apply(item).is_err() {
                    break;
                }
            }
            drop(receiver);
            prop_assert_eq!(fs::read_dir(place.path().join("outside")).expect("list").count(), 0);
            prop_assert_eq!(fs::read_dir(place.path()).expect("list").count(), 2);
            prop_assert_eq!(fs::read_dir(place.path().join("target")).expect("list").count(), 1);
        }
    }
}
