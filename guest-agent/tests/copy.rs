//! Trees in and out of the guest.

mod common;

use std::fs::{self, File};
use std::io::Write;
use std::ops::ControlFlow;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, PermissionsExt, symlink};
use std::path::Path;

use agent_protocol::client::ClientError;
use agent_protocol::message::CopyReport;
use agent_protocol::tree::{ReceiveError, SendError};
use common::{Machine, Noise};
use rustix::fs::{CWD, Mode, Timespec, Timestamps};

fn copy_in(machine: &Machine, source: &Path, target: &Path) -> Result<CopyReport, ClientError> {
    let target = target.as_os_str().as_bytes();
    machine
        .connect()
        .copy_in(source, target, None, &mut |_| ControlFlow::Continue(()))
}

fn copy_out(machine: &Machine, source: &Path, target: &Path) -> Result<CopyReport, ClientError> {
    machine
        .connect()
        .copy_out(source.as_os_str().as_bytes(), target, &mut |_| {
            ControlFlow::Continue(())
        })
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
    rustix::process::umask(Mode::from_raw_mode(0o022));
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
    // On the host the umask counts, as for whatever else its user makes.
    let masked: Vec<String> = wanted
        .iter()
        .map(|line| line.replace("\"empty\" 41777", "\"empty\" 41755"))
        .collect();
    assert_ne!(masked, wanted);
    for (made, wanted) in listing(&at("back")).iter().zip(&masked) {
        let end = wanted.len().min(120);
        assert!(
            made == wanted,
            "{} is {}",
            &wanted[..end],
            &made[..made.len().min(120)]
        );
    }
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

    // Into a directory that is there, twice: the second time all but the directories is replaced.
    fs::create_dir(at("into")).expect("directory");
    copy_in(&machine, &at("source"), &at("into")).expect("in");
    assert!(listing(&at("into/source")) == wanted);
    copy_in(&machine, &at("source"), &at("into")).expect("in");
    // Its entries were made anew, so its time is another.
    set_time(&at("into/source/deep"), -5);
    assert!(listing(&at("into/source")) == wanted);
    // Contents only.
    copy_in(&machine, &at("source/."), &at("into")).expect("in");
    assert!(at("into/deep/er").is_dir() && at("into/big").is_file());
    copy_out(&machine, &at("guest/."), &at("fresh")).expect("out");
    assert!(listing(&at("fresh")) == masked);
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
    // A directory that is not there, said as such.
    match copy_in(&machine, &at("file"), &at("absent/")) {
        Err(ClientError::Agent { message, .. }) => {
            assert!(message.contains("there is no directory"), "{message}")
        }
        other => panic!("{other:?}"),
    }
    for target in ["absent/", "absent/.", "absent//."] {
        assert!(matches!(
            copy_out(&machine, &at("file"), &at(target)),
            Err(ClientError::Receive(ReceiveError::NoDirectory { .. }))
        ));
    }
    assert!(!at("absent").exists());
    assert!(copy_out(&machine, &at("file"), &at("file/.")).is_err());
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
    let target = at("copy");
    let mut sent = 0;
    let result = machine.connect().copy_in(
        &at("big"),
        target.as_os_str().as_bytes(),
        None,
        &mut |bytes| {
            sent += bytes;
            if sent > 8 << 20 {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            }
        },
    );
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
