//! Trees as a guest that is not ours would send them: nothing leads out of the target.

use std::fs::{self};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use agent_protocol::codec::Bytes;
use agent_protocol::message::CopyReport;
use agent_protocol::tree::{
    Destination, Metadata, Ownership, ReceiveError, RootName, SpecialKind, TreeItem, TreeReceiver,
};

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

/// A receiver that makes a tree called `name` in or as `target`.
fn receiver(target: &Path, name: &str) -> TreeReceiver {
    TreeReceiver::new(Destination {
        target,
        root: RootName::new(name.as_bytes()).expect("a name"),
        ownership: Ownership::Mine,
    })
}

fn apply(target: &Path, items: Vec<TreeItem>) -> Result<CopyReport, ReceiveError> {
    apply_as("top", target, items)
}

fn apply_as(name: &str, target: &Path, items: Vec<TreeItem>) -> Result<CopyReport, ReceiveError> {
    let mut receiver = receiver(target, name);
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
            let items = vec![directory(b""), item];
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
    let report = apply_as("", &at("target"), items).expect("the rest is made");
    assert_eq!(report.problem_count, 2, "{report:?}");
    assert_eq!(fs::read_dir(at("outside")).expect("list").count(), 0);
}

/// The attack: `cp NAME:/data/report .` in a home directory, and a guest that sends something else.
#[test]
fn the_guest_has_no_say_in_what_its_tree_is_called() {
    let place = tempfile::tempdir().expect("temporary directory");
    let at = |name: &str| place.path().join(name);
    fs::create_dir(at(".ssh")).expect("directory");
    fs::write(at(".ssh/authorized_keys"), "mine").expect("write");
    let evil = || vec![file(b"authorized_keys"), data(0), end(4)];
    for name in [&b".ssh"[..], b"report", b"."] {
        let mut items = vec![directory(name)];
        items.extend(evil());
        let result = apply_as("report", place.path(), items);
        assert!(
            matches!(result, Err(ReceiveError::Invalid { .. })),
            "{result:?}"
        );
    }
    // No name: it still goes where the source says.
    let mut items = vec![directory(b"")];
    items.extend([directory(b".ssh")]);
    items.extend(evil());
    items.extend([
        TreeItem::EndDirectory,
        TreeItem::EndDirectory,
        TreeItem::End,
    ]);
    apply_as("report", place.path(), items).expect("made");
    assert!(at("report/.ssh/authorized_keys").exists());
    // Contents are taken only where they were asked for, and only from a directory.
    let result = apply_as("", place.path(), vec![file(b"")]);
    assert!(
        matches!(result, Err(ReceiveError::Invalid { .. })),
        "{result:?}"
    );
    assert_eq!(fs::read(at(".ssh/authorized_keys")).expect("read"), b"mine");
    assert_eq!(fs::read_dir(place.path()).expect("list").count(), 2);
}

#[test]
fn what_was_there_keeps_its_mode_and_the_umask_counts() {
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o077));
    let place = tempfile::tempdir().expect("temporary directory");
    let at = |name: &str| place.path().join(name);
    let mode = |name: &str| fs::metadata(at(name)).expect("stat").mode() & 0o7777;
    fs::create_dir_all(at("top/old")).expect("directories");
    for directory in ["top", "top/old"] {
        fs::set_permissions(at(directory), PermissionsExt::from_mode(0o700)).expect("mode");
    }
    let wide = |name: &[u8]| TreeItem::Directory {
        name: name.into(),
        meta: meta(0o1777),
    };
    let open = TreeItem::File {
        name: "file".into(),
        meta: meta(0o666),
        link: None,
    };
    let pipe = TreeItem::Special {
        name: "pipe".into(),
        meta: meta(0o666),
        kind: SpecialKind::Fifo,
        major: 0,
        minor: 0,
    };
    let items = vec![
        wide(b""),
        wide(b"old"),
        TreeItem::EndDirectory,
        wide(b"new"),
        TreeItem::EndDirectory,
        open,
        end(0),
        pipe,
        TreeItem::EndDirectory,
        TreeItem::End,
    ];
    apply(place.path(), items).expect("made");
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o022));
    assert_eq!((mode("top"), mode("top/old")), (0o700, 0o700));
    assert_eq!(mode("top/new"), 0o1700);
    assert_eq!((mode("top/file"), mode("top/pipe")), (0o600, 0o600));
}

/// A file from the stream, complete.
fn whole_file(name: &[u8], mode: u32) -> [TreeItem; 3] {
    let item = TreeItem::File {
        name: name.into(),
        meta: meta(mode),
        link: None,
    };
    [item, data(0), end(4)]
}

fn make_pipe(path: &Path) {
    let mode = rustix::fs::Mode::from_raw_mode(0o600);
    let kind = rustix::fs::FileType::Fifo;
    rustix::fs::mknodat(rustix::fs::CWD, path, kind, mode, 0).expect("fifo");
}

/// Whoever uses a pipe, a device or a socket by its name would lose it.
#[test]
fn what_is_no_file_is_not_replaced() {
    let place = tempfile::tempdir().expect("temporary directory");
    let at = |name: &str| place.path().join(name);
    let inode = |name: &str| fs::symlink_metadata(at(name)).expect("stat").ino();
    fs::create_dir(at("top")).expect("directory");
    make_pipe(&at("top/pipe"));
    make_pipe(&at("top/again"));
    let _socket = std::os::unix::net::UnixListener::bind(at("top/socket")).expect("socket");
    let before = ["top/pipe", "top/again", "top/socket"].map(inode);
    let mut items = vec![directory(b"")];
    items.extend(whole_file(b"pipe", 0o644));
    items.push(TreeItem::Symlink {
        name: "socket".into(),
        meta: meta(0o777),
        target: "x".into(),
    });
    // The same comes again.
    items.push(TreeItem::Special {
        name: "again".into(),
        meta: meta(0o600),
        kind: SpecialKind::Fifo,
        major: 0,
        minor: 0,
    });
    items.extend(whole_file(b"other", 0o644));
    items.extend([TreeItem::EndDirectory, TreeItem::End]);
    let report = apply(place.path(), items).expect("the rest is made");
    assert_eq!(report.problem_count, 2, "{report:?}");
    assert!(report.problems[0].contains("a named pipe"), "{report:?}");
    assert!(report.problems[1].contains("a socket"), "{report:?}");
    assert_eq!(["top/pipe", "top/again", "top/socket"].map(inode), before);
    assert_eq!(fs::read(at("top/other")).expect("read"), b"evil");
    // As the whole copy, into a directory and as it.
    for (target, name) in [(at("top"), "pipe"), (at("top/socket"), "x")] {
        match apply_as(name, &target, whole_file(b"", 0o644).into()) {
            Err(error @ ReceiveError::InTheWay { .. }) => {
                let path = if target.is_dir() {
                    target.join(name)
                } else {
                    target
                };
                let said = error.to_string();
                assert!(said.starts_with(path.to_str().expect("UTF-8")), "{said}");
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(["top/pipe", "top/again", "top/socket"].map(inode), before);
}

/// `cp NAME:/file /dev/stdout | less`, `cp NAME:/file /dev/null`.
#[test]
fn a_single_file_is_written_to_a_pipe() {
    use std::io::Read;
    let place = tempfile::tempdir().expect("temporary directory");
    let at = |name: &str| place.path().join(name);
    make_pipe(&at("pipe"));
    symlink(at("pipe"), at("link")).expect("symlink");
    let stream = || {
        vec![
            file(b""),
            data(3),
            data(100_000),
            end(100_010),
            TreeItem::End,
        ]
    };
    let result = apply(&at("link"), stream());
    assert!(
        matches!(result, Err(ReceiveError::InTheWay { .. })),
        "{result:?}"
    );
    // Holds the pipe open, so that the reader sees an end only when this is dropped.
    let mut options = fs::OpenOptions::new();
    let holder = options
        .read(true)
        .write(true)
        .open(at("pipe"))
        .expect("open");
    let mut reader = fs::File::open(at("pipe")).expect("open");
    let reading = std::thread::spawn(move || {
        let mut read = Vec::new();
        reader.read_to_end(&mut read).expect("read");
        read
    });
    let report = apply(&at("link"), stream()).expect("written");
    assert_eq!((report.entries, report.data_bytes), (1, 8));
    drop(holder);
    let read = reading.join().expect("reader");
    let mut wanted = vec![0; 100_010];
    wanted[3..7].copy_from_slice(b"evil");
    wanted[100_000..100_004].copy_from_slice(b"evil");
    assert!(read == wanted, "{} bytes", read.len());
    // Back in a pipe is nowhere.
    let holder = options
        .read(true)
        .write(true)
        .open(at("pipe"))
        .expect("open");
    let result = apply(&at("pipe"), vec![file(b""), data(3), data(0)]);
    assert!(
        matches!(result, Err(ReceiveError::Invalid { .. })),
        "{result:?}"
    );
    drop(holder);
    // `/dev/stdout` when it is a file: the link is not replaced.
    let open = fs::File::create(at("open")).expect("create");
    let number = std::os::fd::AsRawFd::as_raw_fd(&open);
    symlink(format!("/proc/self/fd/{number}"), at("stdout")).expect("symlink");
    let result = apply(&at("stdout"), stream());
    assert!(
        matches!(result, Err(ReceiveError::InTheWay { .. })),
        "{result:?}"
    );
    assert_eq!(open.metadata().expect("stat").len(), 0);
}

#[test]
fn a_file_that_is_replaced_hands_owner_and_mode_on() {
    let place = tempfile::tempdir().expect("temporary directory");
    let path = place.path().join("file");
    let privileged = rustix::process::geteuid().is_root();
    let owner = privileged.then_some(4242);
    for ownership in [
        Ownership::Mine,
        Ownership::Set(agent_protocol::message::Owner { uid: 0, gid: 0 }),
    ] {
        if !privileged && ownership != Ownership::Mine {
            continue;
        }
        fs::write(&path, "old").expect("write");
        std::os::unix::fs::chown(&path, owner, owner).expect("owner");
        fs::set_permissions(&path, PermissionsExt::from_mode(0o4640)).expect("mode");
        let before = fs::metadata(&path).expect("stat");
        let mut receiver = TreeReceiver::new(Destination {
            target: &path,
            root: RootName::new(b"f").expect("a name"),
            ownership,
        });
        for item in whole_file(b"", 0o777) {
            receiver.apply(item).expect("good");
        }
        let after = fs::metadata(&path).expect("stat");
        assert_eq!(fs::read(&path).expect("read"), b"evil");
        assert_ne!(before.ino(), after.ino());
        assert_eq!((before.uid(), before.gid()), (after.uid(), after.gid()));
        // What a guest sends runs as nobody else here.
        let kept = if ownership == Ownership::Mine {
            0o640
        } else {
            0o4640
        };
        assert_eq!(after.mode() & 0o7777, kept);
        assert_eq!(after.mtime(), 0);
        fs::remove_file(&path).expect("removed");
    }
}

/// The first name that comes of a file may be one that cannot be made.
#[test]
fn a_name_that_fails_takes_no_other_name_along() {
    let place = tempfile::tempdir().expect("temporary directory");
    let at = |name: &str| place.path().join("top").join(name);
    fs::create_dir_all(at("directory")).expect("directory");
    make_pipe(&at("pipe"));
    fs::write(at("third"), "old").expect("write");
    let mut items = vec![directory(b"")];
    for (link, first) in (0u64..).zip([&b"directory"[..], b"pipe"]) {
        let linked = TreeItem::File {
            name: first.into(),
            meta: meta(0o644),
            link: Some(link),
        };
        items.extend([linked, data(0), end(4)]);
    }
    let mut name = |name: &str, link| {
        items.push(TreeItem::HardLink {
            name: name.into(),
            link,
        });
    };
    name("pipe", 0);
    name("second", 0);
    name("third", 0);
    name("other", 1);
    items.push(directory(b"below"));
    items.push(TreeItem::HardLink {
        name: "fourth".into(),
        link: 0,
    });
    items.extend([
        TreeItem::EndDirectory,
        TreeItem::EndDirectory,
        TreeItem::End,
    ]);
    let report = apply(place.path(), items).expect("the rest is made");
    assert_eq!(report.problem_count, 3, "{report:?}");
    let inode = |name: &str| fs::metadata(at(name)).expect("stat").ino();
    for name in ["second", "third", "below/fourth", "other"] {
        assert_eq!(fs::read(at(name)).expect("read"), b"evil", "{name}");
    }
    assert_eq!(
        [inode("third"), inode("below/fourth")],
        [inode("second"); 2]
    );
    assert_ne!(inode("other"), inode("second"));
    let left = fs::read_dir(at(".")).expect("list").count();
    assert_eq!(left, 6, "temporary files are left");
}

/// However the copy is ended, `kill -9` included.
#[test]
fn a_file_has_no_name_before_it_is_whole() {
    let place = tempfile::tempdir().expect("temporary directory");
    let names = || fs::read_dir(place.path()).expect("list").count();
    let flags = rustix::fs::OFlags::TMPFILE | rustix::fs::OFlags::WRONLY;
    let mode = rustix::fs::Mode::from_raw_mode(0o600);
    if rustix::fs::open(place.path(), flags, mode).is_err() {
        use std::io::Write;
        let _ = writeln!(
            std::io::stderr(),
            "skipped: no nameless files in this file system"
        );
        return;
    }
    for there in 0..2 {
        let mut receiver = receiver(place.path(), "file");
        receiver.apply(file(b"")).expect("good");
        receiver.apply(data(0)).expect("good");
        assert_eq!(names(), there);
        receiver.apply(end(4)).expect("good");
        assert_eq!(names(), 1);
    }
}

/// Few bytes on the wire must not become much memory here.
#[test]
fn memory_is_bounded_however_cheap_the_items_are() {
    let place = tempfile::tempdir().expect("temporary directory");
    // Directories below one that cannot be made: a file is in the way.
    fs::create_dir(place.path().join("top")).expect("directory");
    fs::write(place.path().join("top/blocked"), b"").expect("write");
    let mut skipped = receiver(place.path(), "top");
    skipped.apply(directory(b"")).expect("good");
    skipped.apply(directory(b"blocked")).expect("passed over");
    let accepted = (0..100_000).take_while(|_| skipped.apply(directory(b"d")).is_ok());
    assert!(accepted.count() < 1000, "levels pile up");
    // Files with numbers, deep below long names.
    let mut linked = receiver(place.path(), "links");
    linked.apply(directory(b"")).expect("good");
    let long = [b'n'; 200];
    for _ in 0..200 {
        linked.apply(directory(&long)).expect("good");
    }
    let before = resident_bytes();
    for number in 0..5000u64 {
        let item = TreeItem::File {
            name: Bytes::from(&number.to_string()),
            meta: meta(0o644),
            link: Some(number),
        };
        linked.apply(item).expect("good");
        linked.apply(end(0)).expect("good");
    }
    // 5000 paths of 40 KiB would be 200 MiB.
    let grown = resident_bytes().saturating_sub(before);
    assert!(grown < 32 << 20, "{grown} bytes");
    // They are remembered all the same.
    let again = TreeItem::HardLink {
        name: "again".into(),
        link: 4999,
    };
    linked.apply(again).expect("good");
    assert_eq!(linked.finish().problem_count, 0);
}

fn resident_bytes() -> u64 {
    let status = fs::read_to_string("/proc/self/statm").expect("statm");
    let pages: u64 = status
        .split(' ')
        .nth(1)
        .expect("field")
        .parse()
        .expect("number");
    pages * 4096
}

/// Somebody who may write to the directory swaps what root has just made for a name of another file.
#[test]
fn a_swapped_pipe_gives_nobody_anything() {
    let place = tempfile::tempdir().expect("temporary directory");
    let at = |name: &str| place.path().join(name);
    fs::create_dir(at("top")).expect("directory");
    fs::write(at("secret"), "secret").expect("write");
    fs::set_permissions(at("secret"), PermissionsExt::from_mode(0o600)).expect("mode");
    let (top, secret) = (at("top"), at("secret"));
    let stop = Arc::new(AtomicBool::new(false));
    let stopped = Arc::clone(&stop);
    let attacker = std::thread::spawn(move || {
        let mut round = 0;
        while !stopped.load(Ordering::Relaxed) {
            let (pipe, other) = (top.join("pipe"), top.join("swap"));
            let _ = fs::remove_file(&other);
            let made = match round % 2 {
                0 => symlink(&secret, &other),
                _ => fs::hard_link(&secret, &other),
            };
            if made.is_ok() && pipe.exists() {
                let _ = fs::rename(&other, &pipe);
            }
            round += 1;
        }
    });
    for _ in 0..3000 {
        let mut receiver = TreeReceiver::new(Destination {
            target: place.path(),
            root: RootName::new(b"top").expect("a name"),
            ownership: Ownership::Keep,
        });
        let owner = rustix::process::geteuid().as_raw();
        let group = rustix::process::getegid().as_raw();
        receiver.apply(directory(b"")).expect("good");
        let pipe = TreeItem::Special {
            name: "pipe".into(),
            meta: Metadata {
                mode: 0o666,
                uid: owner,
                gid: group,
                ..Metadata::default()
            },
            kind: SpecialKind::Fifo,
            major: 0,
            minor: 0,
        };
        receiver.apply(pipe).expect("made, or a problem");
        let _ = fs::remove_file(at("top/pipe"));
    }
    stop.store(true, Ordering::Relaxed);
    attacker.join().expect("attacker");
    assert_eq!(
        fs::metadata(at("secret")).expect("stat").mode() & 0o7777,
        0o600
    );
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
        directory(b""),
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
        name: "".into(),
        meta: meta(0o10_000),
        link: None,
    };
    let cases = [
        vec![data(0)],
        vec![end(0)],
        vec![TreeItem::EndDirectory],
        vec![directory(b""), TreeItem::End],
        vec![file(b""), file(b"g")],
        vec![file(b""), TreeItem::End],
        vec![file(b""), data(far)],
        vec![file(b""), end(far)],
        vec![file(b""), end(0), file(b"g")],
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
    let deep = (0..300)
        .map(|depth| directory(if depth == 0 { b"" } else { b"d" }))
        .collect();
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
            let mut receiver = receiver(&place.path().join("target"), "top");
            receiver.apply(directory(b"")).expect("good");
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
