//! Trees that an import made disks of: copied out of them and compared, also where the disks are damaged on purpose.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::ops::ControlFlow;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;

use agent_protocol::message::CopyReport;
use agent_protocol::tree::{Destination, Ownership, RootName, TreeReceiver};
use guest_image::file_system::{DiskReader, FileSystem};
use guest_image::image;
use snapshot_format::{MapNodes, MapReader, MapRoot};

use super::maps::changed_chunks;
use super::*;
use crate::progress::Silent;

/// A disk in memory, some bytes of which are others.
#[derive(Clone)]
struct Disk<'a> {
    bytes: &'a [u8],
    changed: BTreeMap<u64, u8>,
}

impl DiskReader for Disk<'_> {
    fn read_at(&self, offset_bytes: u64, buf: &mut [u8]) -> io::Result<()> {
        let start = usize::try_from(offset_bytes).unwrap();
        buf.copy_from_slice(&self.bytes[start..start + buf.len()]);
        let range = offset_bytes..offset_bytes + buf.len() as u64;
        for (at, byte) in self.changed.range(range) {
            buf[(at - offset_bytes) as usize] = *byte;
        }
        Ok(())
    }

    fn size_bytes(&self) -> u64 {
        self.bytes.len() as u64
    }
}

fn disk(bytes: &[u8]) -> Disk<'_> {
    Disk {
        bytes,
        changed: BTreeMap::new(),
    }
}

/// A disk with this tree.
fn import(place: &Path, name: &str) -> Vec<u8> {
    let home = place.join("home");
    let image = image::import(&home, name, &place.join(name), &Silent).unwrap();
    let (map, chunks) = (image.map().unwrap(), image.chunks());
    let mut bytes = vec![0; map.size_bytes() as usize];
    for (chunk, to) in map
        .chunks()
        .iter()
        .zip(bytes.chunks_mut(image::CHUNK_BYTES))
    {
        if !chunk.is_zero() {
            chunks.get(chunk, to).unwrap();
        }
    }
    bytes
}

fn tree(root: &Path) {
    fs::create_dir_all(root.join("data/deep/er")).unwrap();
    fs::write(root.join("data/file"), "contents\n").unwrap();
    fs::write(root.join("data/empty"), "").unwrap();
    fs::write(root.join("data/deep/er/large"), vec![7; 300_000]).unwrap();
    fs::hard_link(root.join("data/file"), root.join("data/deep/again")).unwrap();
    symlink("../file", root.join("data/deep/link")).unwrap();
    symlink("/etc/passwd", root.join("data/out")).unwrap();
    fs::set_permissions(root.join("data/file"), fs::Permissions::from_mode(0o640)).unwrap();
    let sparse = fs::File::create(root.join("data/sparse")).unwrap();
    sparse.set_len(50_000_000).unwrap();
}

fn copy<D: DiskReader>(
    files: &FileSystem<D>,
    from: &str,
    to: &Path,
) -> Result<CopyReport, SendFailure> {
    let root = RootName::of_source(Path::new(from));
    let mut receiver = TreeReceiver::new(Destination {
        target: to,
        root,
        ownership: Ownership::Mine,
    });
    let inode = files.resolve(from.as_bytes())?;
    send_files(files, &inode, &mut receiver, &|_| ControlFlow::Continue(()))?;
    Ok(receiver.finish())
}

/// Lines as `checkpoint-diff` prints them.
fn compare<D: DiskReader>(
    from: &FileSystem<D>,
    to: &FileSystem<D>,
    chunks: &ChangedChunks,
) -> Vec<String> {
    let mut lines = Vec::new();
    let mut visit = |difference| {
        lines.push(match difference {
            Difference::Added { path, .. } => format!("A {path}"),
            Difference::Removed { path, .. } => format!("D {path}"),
            Difference::Changed { path, changed, .. } => {
                let Changed {
                    content,
                    mode,
                    owner,
                } = changed;
                let what = [(content, 'c'), (mode, 'm'), (owner, 'o')];
                let what: String = what.iter().filter(|(is, _)| *is).map(|(_, c)| c).collect();
                format!("M {path} {what}")
            }
            Difference::Unknown { path, reason } => format!("? {path}: {reason}"),
        });
        ControlFlow::Continue(())
    };
    let files = Files { from, to, chunks };
    let done = compare_files(&files, &mut visit, &|_| ());
    assert!(done.is_ok_and(|done| done.is_continue()));
    lines
}

/// As if all of a disk of so many bytes had changed.
fn all_of(bytes: u64) -> ChangedChunks {
    let mut nodes = MapNodes::new();
    let all = (0..bytes >> 16).map(|at| (at, snapshot_format::ChunkRef([1; 32])));
    let map = nodes.build(all).unwrap();
    let reader = MapReader::new(&nodes);
    changed_chunks((&reader, &MapRoot::ZEROS), (&reader, &map)).unwrap()
}

/// More than any disk here has.
fn anywhere() -> ChangedChunks {
    all_of(1 << 30)
}

#[test]
fn what_comes_out_is_what_went_in() {
    let place = tempfile::tempdir().unwrap();
    tree(&place.path().join("one"));
    let bytes = import(place.path(), "one");
    let files = FileSystem::open(disk(&bytes)).unwrap();
    let out = place.path().join("out");
    let report = copy(&files, "/data", &out).unwrap();
    assert_eq!(report.problems, Vec::<String>::new());
    assert_eq!(report.entries, 10);
    let (from, to) = (place.path().join("one/data"), &out);
    for name in ["file", "empty", "deep/er/large", "deep/again", "sparse"] {
        let (one, other) = (from.join(name), to.join(name));
        assert!(
            fs::read(&one).unwrap() == fs::read(&other).unwrap(),
            "{name}"
        );
        let (one, other) = (fs::metadata(one).unwrap(), fs::metadata(other).unwrap());
        assert_eq!(
            (one.mtime(), one.mtime_nsec()),
            (other.mtime(), other.mtime_nsec()),
            "{name}"
        );
    }
    let inode = |name: &str| fs::metadata(to.join(name)).unwrap().ino();
    assert_eq!(inode("file"), inode("deep/again"));
    assert_eq!(
        fs::metadata(to.join("file")).unwrap().mode() & 0o7777,
        0o640
    );
    assert!(fs::metadata(to.join("sparse")).unwrap().blocks() < 100);
    for (name, target) in [("deep/link", "../file"), ("out", "/etc/passwd")] {
        assert_eq!(fs::read_link(to.join(name)).unwrap(), Path::new(target));
    }
    // Into a directory it goes under its own name, the contents of a directory without one; a file as a file.
    copy(&files, "/data/deep", &out).unwrap();
    assert!(out.join("deep/er/large").exists());
    copy(&files, "/data/deep/.", &out).unwrap();
    assert!(out.join("er/large").exists());
    copy(&files, "/data/out", &out.join("renamed")).unwrap();
    assert_eq!(
        fs::read_link(out.join("renamed")).unwrap(),
        Path::new("/etc/passwd")
    );
}

#[test]
fn a_comparison_says_what_changed() {
    let place = tempfile::tempdir().unwrap();
    let root = |name: &str| place.path().join(name);
    tree(&root("one"));
    tree(&root("two"));
    let two = root("two/data");
    fs::write(two.join("file"), "CONTENTS\n").unwrap();
    fs::set_permissions(two.join("empty"), fs::Permissions::from_mode(0o755)).unwrap();
    fs::remove_file(two.join("deep/link")).unwrap();
    fs::create_dir(two.join("deep/link")).unwrap();
    fs::write(two.join("deep/link/inside"), "").unwrap();
    fs::remove_file(two.join("out")).unwrap();
    symlink("/etc/shadow", two.join("out")).unwrap();
    fs::create_dir_all(two.join("new/er\n")).unwrap();
    fs::write(two.join("new/er\n/f"), "").unwrap();
    fs::rename(two.join("deep/er"), two.join("deep/es")).unwrap();
    let (one, two) = (import(place.path(), "one"), import(place.path(), "two"));
    let (one, two) = (
        FileSystem::open(disk(&one)).unwrap(),
        FileSystem::open(disk(&two)).unwrap(),
    );
    let forward = [
        "M /data/deep/again c",
        "D /data/deep/er/",
        "D /data/deep/er/large",
        "A /data/deep/es/",
        "A /data/deep/es/large",
        "D /data/deep/link",
        "A /data/deep/link/",
        "A /data/deep/link/inside",
        "M /data/empty m",
        "M /data/file c",
        "A /data/new/",
        "A /data/new/er\n/",
        "A /data/new/er\n/f",
        "M /data/out c",
    ];
    assert_eq!(compare(&one, &two, &anywhere()), forward);
    let back: Vec<String> = compare(&two, &one, &anywhere());
    let signs = |lines: &[String], sign| lines.iter().filter(|line| line.starts_with(sign)).count();
    let forward = forward.map(str::to_owned);
    for (one, other) in [("A", "D"), ("D", "A"), ("M", "M")] {
        assert_eq!(signs(&back, one), signs(&forward, other));
    }
    for same in [&one, &two] {
        assert_eq!(compare(same, same, &anywhere()), Vec::<String>::new());
        assert_eq!(
            compare(same, same, &ChangedChunks::default()),
            Vec::<String>::new()
        );
    }
}

#[test]
fn only_what_lies_in_changed_chunks_is_read() {
    let place = tempfile::tempdir().unwrap();
    tree(&place.path().join("one"));
    let bytes = import(place.path(), "one");
    let one = FileSystem::open(disk(&bytes)).unwrap();
    // A byte of a file's data, which no metadata tells of.
    let at = bytes
        .windows(300)
        .position(|bytes| bytes == [7; 300])
        .unwrap();
    let mut other = disk(&bytes);
    other.changed.insert(at as u64 + 200_000, 8);
    let other = FileSystem::open(other).unwrap();
    let size = bytes.len() as u64;
    assert_eq!(
        compare(&one, &other, &all_of(size)),
        ["M /data/deep/er/large c"]
    );
    assert_eq!(
        compare(&one, &other, &ChangedChunks::default()),
        Vec::<String>::new()
    );
}

#[test]
fn chunks_that_differ_are_counted_and_found() {
    let mut nodes = MapNodes::new();
    let chunk = |byte: u8| snapshot_format::ChunkRef([byte; 32]);
    let one = nodes
        .build([
            (0, chunk(1)),
            (1, chunk(2)),
            (70, chunk(3)),
            (9000, chunk(4)),
        ])
        .unwrap();
    let other = nodes
        .build([
            (0, chunk(1)),
            (1, chunk(5)),
            (2, chunk(6)),
            (9000, chunk(4)),
            (9001, chunk(7)),
        ])
        .unwrap();
    let reader = MapReader::new(&nodes);
    for maps in [[&one, &other], [&other, &one]] {
        let changed = changed_chunks((&reader, maps[0]), (&reader, maps[1])).unwrap();
        assert_eq!(changed.bytes(), 4 << 16);
        let touched: Vec<u64> = (0..9100)
            .filter(|at| changed.touch(&(at * 65_536 + 100..at * 65_536 + 101)))
            .collect();
        assert_eq!(touched, [1, 2, 70, 9001]);
        assert!(changed.touch(&(0..65_537)) && !changed.touch(&(0..65_536)));
        assert!(changed.touch(&(196_607..196_608)) && !changed.touch(&(196_608..200_000)));
    }
    let same = changed_chunks((&reader, &one), (&reader, &one)).unwrap();
    assert_eq!((same.bytes(), same.touch(&(0..1 << 40))), (0, false));
    // A node that is lost is an error, wherever it lies.
    let empty = MapNodes::new();
    let lost = MapReader::new(&empty);
    assert!(changed_chunks((&lost, &one), (&reader, &other)).is_err());
    assert!(changed_chunks((&reader, &one), (&lost, &other)).is_err());
}

#[test]
fn processes_that_began_or_ended_are_named() {
    let list = |processes: &[(u32, &str)]| snapshot_format::ProcessList {
        processes: processes
            .iter()
            .map(|(pid, command)| snapshot_format::GuestProcess {
                pid: *pid,
                parent_pid: 1,
                command: (*command).to_owned(),
            })
            .collect(),
        unlisted: 0,
    };
    let one = list(&[(1, "init"), (30, "sleep"), (40, "sh")]);
    let two = list(&[(1, "init"), (40, "python3"), (50, "sleep")]);
    let lines: Vec<String> = compare_processes(&one, &two)
        .into_iter()
        .map(|one| {
            format!(
                "{}{} {}",
                if one.began { '+' } else { '-' },
                one.pid,
                one.command
            )
        })
        .collect();
    assert_eq!(lines, ["-30 sleep", "+40 python3", "-40 sh", "+50 sleep"]);
    assert!(compare_processes(&one, &one).is_empty());
}

/// A directory that is in itself, or in two others, is gone into once.
#[test]
fn circles_end() {
    let place = tempfile::tempdir().unwrap();
    tree(&place.path().join("one"));
    let bytes = import(place.path(), "one");
    let files = FileSystem::open(disk(&bytes)).unwrap();
    let number = |path: &str| files.resolve(path.as_bytes()).unwrap().number;
    let (deep, er) = (number("/data/deep"), number("/data/deep/er"));
    // The entry `er` of `deep` becomes `deep` itself.
    let entry = [&er.to_le_bytes()[..], &[12, 0, 2, 2], b"er"].concat();
    let at = bytes.windows(10).position(|bytes| bytes == entry).unwrap();
    let mut circle = disk(&bytes);
    for (at, byte) in (at as u64..).zip(deep.to_le_bytes()) {
        circle.changed.insert(at, byte);
    }
    let circle = FileSystem::open(circle).unwrap();
    let report = copy(&circle, "/data", &place.path().join("out")).unwrap();
    assert_eq!(report.problem_count, 1, "{:?}", report.problems);
    assert!(
        report.problems[0].contains("a directory with two names"),
        "{:?}",
        report.problems
    );
    assert!(place.path().join("out/deep/again").exists());
    let lines = compare(&circle, &circle, &anywhere());
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert!(lines[0].starts_with("? /data/deep/er: "), "{lines:?}");
}

/// A disk that cannot be read at one place, once.
struct Faulty<'a> {
    disk: Disk<'a>,
    fails_at: std::cell::Cell<Option<u64>>,
}

impl DiskReader for &Faulty<'_> {
    fn read_at(&self, offset_bytes: u64, buf: &mut [u8]) -> io::Result<()> {
        let read = offset_bytes..offset_bytes + buf.len() as u64;
        if self.fails_at.get().is_some_and(|at| read.contains(&at)) {
            self.fails_at.set(None);
            return Err(io::ErrorKind::InvalidData.into());
        }
        self.disk.read_at(offset_bytes, buf)
    }

    fn size_bytes(&self) -> u64 {
        self.disk.size_bytes()
    }
}

#[test]
fn a_name_that_fails_takes_no_other_name_of_the_file_along() {
    let place = tempfile::tempdir().unwrap();
    let data = place.path().join("one/data");
    fs::create_dir_all(&data).unwrap();
    fs::write(data.join("a"), "first of two names").unwrap();
    fs::hard_link(data.join("a"), data.join("b")).unwrap();
    fs::write(data.join("c"), "another file").unwrap();
    fs::hard_link(data.join("c"), data.join("d")).unwrap();
    let bytes = import(place.path(), "one");
    let text = b"first of two names";
    let at = bytes.windows(text.len()).position(|part| part == text);
    let faulty = Faulty {
        disk: disk(&bytes),
        fails_at: std::cell::Cell::new(None),
    };
    let files = FileSystem::open(&faulty).unwrap();
    faulty.fails_at.set(at.map(|at| at as u64));
    let out = place.path().join("out");
    let report = copy(&files, "/data", &out).unwrap();
    assert_eq!(report.problem_count, 1, "{report:?}");
    let read = |name: &str| fs::read(out.join(name)).ok();
    let names = [read("a"), read("b")];
    assert!(names.contains(&Some(text.to_vec())) && names.contains(&None));
    assert_eq!(
        [read("c"), read("d")],
        [(); 2].map(|()| Some(b"another file".to_vec()))
    );
    let inode = |name: &str| fs::metadata(out.join(name)).unwrap().ino();
    assert_eq!(inode("c"), inode("d"));
}

#[test]
fn a_copy_can_be_given_up() {
    let place = tempfile::tempdir().unwrap();
    tree(&place.path().join("one"));
    let bytes = import(place.path(), "one");
    let files = FileSystem::open(disk(&bytes)).unwrap();
    let out = place.path().join("large");
    let mut receiver = TreeReceiver::new(Destination {
        target: &out,
        root: RootName::of_source(Path::new("large")),
        ownership: Ownership::Mine,
    });
    let inode = files.resolve(b"/data/deep/er/large").unwrap();
    let stopped = send_files(&files, &inode, &mut receiver, &|_| ControlFlow::Break(()));
    assert!(matches!(
        stopped,
        Err(SendFailure::Receive(
            agent_protocol::tree::ReceiveError::Stopped
        ))
    ));
    drop(receiver);
    assert!(!out.exists());
    assert_eq!(fs::read_dir(place.path().join("one")).unwrap().count(), 1);
}

/// Whatever a disk holds, what is copied stays where it was told to go, and nothing panics or hangs.
#[test]
fn damaged_disks_are_copied_and_compared_as_far_as_they_go() {
    let place = tempfile::tempdir().unwrap();
    tree(&place.path().join("one"));
    let bytes = import(place.path(), "one");
    let sound = FileSystem::open(disk(&bytes)).unwrap();
    // Zeros, and the data of the large file, are no metadata.
    let is_metadata = |block: &[u8]| block.iter().any(|byte| ![0, 7].contains(byte));
    let blocks: Vec<u64> = (0..)
        .zip(bytes.chunks(4096))
        .filter(|(_, block)| is_metadata(block))
        .map(|(at, _)| at)
        .collect();
    let outside = place.path().join("outside");
    fs::create_dir(&outside).unwrap();
    let (mut copied, mut differed) = (0, 0);
    for seed in 0..300u64 {
        let mut noise = blake3::Hasher::new();
        noise.update(&seed.to_le_bytes());
        let mut noise = noise.finalize_xof();
        let mut next = |limit: u64| {
            let mut bytes = [0; 8];
            noise.fill(&mut bytes);
            u64::from_le_bytes(bytes) % limit
        };
        let mut damaged = disk(&bytes);
        for _ in 0..1 + next(40) {
            let at = blocks[next(blocks.len() as u64) as usize] * 4096 + next(4096);
            // Names that lead elsewhere, too.
            let byte = [0, 1, 0xff, b'/', b'.', next(256) as u8][next(6) as usize];
            damaged.changed.insert(at, byte);
        }
        let Ok(damaged) = FileSystem::open(damaged) else {
            continue;
        };
        let out = outside.join("out");
        let files = Files {
            from: &sound,
            to: &damaged,
            chunks: &anywhere(),
        };
        let mut count = 0;
        let mut visit = |_| {
            count += 1;
            ControlFlow::Continue(())
        };
        let compared = compare_files(&files, &mut visit, &|_| ());
        differed += usize::from(compared.is_err() || count > 0);
        copied += usize::from(copy(&damaged, "/data", &out).is_ok_and(|report| report.entries > 0));
        let beside: Vec<_> = fs::read_dir(&outside)
            .unwrap()
            .map(|entry| entry.unwrap().file_name())
            .collect();
        assert!(beside.iter().all(|name| name == "out"), "{beside:?}");
        if out.is_dir() {
            fs::remove_dir_all(&out).unwrap();
        } else if out.symlink_metadata().is_ok() {
            fs::remove_file(&out).unwrap();
        }
    }
    assert!(
        copied > 20 && differed > 20,
        "{copied} copied, {differed} differed"
    );
}
