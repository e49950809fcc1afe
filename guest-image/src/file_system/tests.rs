//! Disks made by the importer and by e2fsprogs, read back and compared with what went in; journals that e2fsck replays, too; and
//! disks with anything in them.

use std::collections::{BTreeMap, HashSet};
use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use super::*;
use crate::image;
use crate::progress::Silent;

mod hostile;
mod journals;

/// What is hashed at once: holes are of whole such blocks.
const HASHED_BYTES: usize = 512;

/// A disk in memory, some bytes of which are others.
struct Memory<'a> {
    bytes: &'a [u8],
    changed: BTreeMap<u64, u8>,
}

impl<'a> Memory<'a> {
    fn new(bytes: &'a [u8]) -> Self {
        Self {
            bytes,
            changed: BTreeMap::new(),
        }
    }
}

impl DiskReader for Memory<'_> {
    fn read_at(&self, offset_bytes: u64, buf: &mut [u8]) -> io::Result<()> {
        let start = usize::try_from(offset_bytes).unwrap();
        // A read beyond the end is a fault of the reader.
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

/// A file as it is found.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Found {
    kind: Kind,
    mode: u32,
    owner: (u32, u32),
    size_bytes: u64,
    modified: Time,
    /// Data or target, by its digest.
    content: Option<blake3::Hash>,
}

/// Reads everything that is there, each file whole. What cannot be read is left out.
fn read_all<D: DiskReader>(files: &FileSystem<D>) -> BTreeMap<Vec<u8>, Found> {
    let mut all = BTreeMap::new();
    let Ok(root) = files.root() else {
        return all;
    };
    let (mut left, mut seen) = (vec![(Vec::new(), root)], HashSet::new());
    while let Some((path, inode)) = left.pop() {
        if inode.kind == Kind::Directory && seen.insert(inode.number) {
            for entry in files.entries(&inode).into_iter().flatten() {
                let path = [&path[..], b"/", &entry.name].concat();
                assert!(!entry.name.contains(&b'/') && !entry.name.is_empty());
                if let Ok(inode) = files.inode(entry.inode) {
                    left.push((path, inode));
                }
            }
        }
        let content = match inode.kind {
            Kind::File => hash_of(files, &inode).ok(),
            Kind::Symlink => files
                .target(&inode)
                .ok()
                .map(|target| blake3::hash(&target)),
            _ => None,
        };
        let found = Found {
            kind: inode.kind,
            mode: inode.mode,
            owner: (inode.uid, inode.gid),
            // What a file system says of directories depends on it.
            size_bytes: if inode.kind == Kind::Directory {
                0
            } else {
                inode.size_bytes
            },
            modified: inode.modified,
            content,
        };
        all.insert(path, found);
    }
    all
}

/// The digest of a file's data, read twice: by extents, and from front to back.
fn hash_of<D: DiskReader>(
    files: &FileSystem<D>,
    inode: &Inode,
) -> Result<blake3::Hash, FileSystemError> {
    let mut hasher = blake3::Hasher::new();
    let mut reader = files.reader(inode)?;
    let mut end = 0;
    for extent in files.extents(inode)? {
        let extent = extent?;
        assert!(extent.offset_bytes >= end && extent.length_bytes > 0);
        end = extent.end_bytes();
        assert!(end <= inode.size_bytes);
        let mut done = 0;
        while done < extent.length_bytes {
            let length = (extent.length_bytes - done).min(200 * HASHED_BYTES as u64) as usize;
            let (mut one, mut other) = (vec![0; length], vec![1; length]);
            files.read(&extent, done, &mut one)?;
            reader.read(extent.offset_bytes + done, &mut other)?;
            assert!(one == other);
            hash_nonzero(&mut hasher, extent.offset_bytes + done, &one);
            done += length as u64;
        }
    }
    Ok(hasher.finalize())
}

/// Adds everything that is not zero, with its place; `at` is a multiple of [`HASHED_BYTES`].
fn hash_nonzero(hasher: &mut blake3::Hasher, at: u64, bytes: &[u8]) {
    for (at, bytes) in (at..).step_by(HASHED_BYTES).zip(bytes.chunks(HASHED_BYTES)) {
        if bytes.iter().any(|byte| *byte != 0) {
            hasher.update(&at.to_le_bytes()).update(bytes);
        }
    }
}

/// What a directory of this host holds, as [`read_all`] should find it.
fn expected(root: &Path) -> BTreeMap<Vec<u8>, Found> {
    let mut all = BTreeMap::new();
    let mut left = vec![PathBuf::new()];
    while let Some(path) = left.pop() {
        let here = root.join(&path);
        let metadata = fs::symlink_metadata(&here).unwrap();
        let file_type = metadata.file_type();
        let mut content = None;
        let kind = if file_type.is_dir() {
            left.extend(
                fs::read_dir(&here)
                    .unwrap()
                    .map(|entry| path.join(entry.unwrap().file_name())),
            );
            Kind::Directory
        } else if file_type.is_symlink() {
            let target = fs::read_link(&here).unwrap();
            content = Some(blake3::hash(target.as_os_str().as_encoded_bytes()));
            Kind::Symlink
        } else {
            let mut hasher = blake3::Hasher::new();
            hash_nonzero(&mut hasher, 0, &fs::read(&here).unwrap());
            content = Some(hasher.finalize());
            Kind::File
        };
        let found = Found {
            kind,
            mode: metadata.mode() & 0o7777,
            owner: (metadata.uid(), metadata.gid()),
            size_bytes: if kind == Kind::Directory {
                0
            } else {
                metadata.size()
            },
            modified: Time {
                seconds: metadata.mtime(),
                nanos: metadata.mtime_nsec() as u32,
            },
            content,
        };
        let mut name = path.as_os_str().as_encoded_bytes().to_vec();
        if !name.is_empty() {
            name.insert(0, b'/');
        }
        all.insert(name, found);
    }
    all
}

/// Noise that no hole resembles.
fn noise(seed: u64, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    let mut hasher = blake3::Hasher::new();
    hasher.update(&seed.to_le_bytes());
    hasher.finalize_xof().fill(&mut bytes);
    bytes
}

/// A tree with all that a file system can make difficult, large files where there is room.
fn make_tree(root: &Path, large: bool) {
    fs::create_dir_all(root.join("a/b/c")).unwrap();
    fs::write(root.join("a/empty"), b"").unwrap();
    fs::write(root.join("a/b/small"), noise(1, 777)).unwrap();
    fs::write(root.join("a/b/blocks"), noise(2, 3 * 4096)).unwrap();
    fs::write(root.join("a/b/c/x\ny\\z \u{fc}"), b"odd").unwrap();
    fs::hard_link(root.join("a/b/small"), root.join("a/b/c/again")).unwrap();
    symlink("b/small", root.join("a/short")).unwrap();
    symlink("/a/b", root.join("jump")).unwrap();
    symlink("../jump/../b/c", root.join("a/winding")).unwrap();
    symlink("loop", root.join("loop")).unwrap();
    symlink("t/".repeat(300), root.join("long")).unwrap();
    fs::set_permissions(root.join("a/b/blocks"), fs::Permissions::from_mode(0o4751)).unwrap();
    let many = root.join("many");
    fs::create_dir(&many).unwrap();
    for number in 0..if large { 600 } else { 100 } {
        fs::write(
            many.join(format!("a rather long name of a file {number:05}")),
            [1],
        )
        .unwrap();
    }
    let sparse = fs::File::create(root.join("sparse")).unwrap();
    for number in 0..if large { 400 } else { 40 } {
        sparse
            .write_all_at(&noise(number, 3000), number * 20_000)
            .unwrap();
    }
    sparse.set_len(30_000_000).unwrap();
    if large {
        fs::write(root.join("large"), noise(3, 3_000_001)).unwrap();
    }
}

/// Runs one of e2fsprogs, if it is there.
fn tool(program: &str, arguments: &[&str], image: &Path) -> Option<String> {
    let mut command = Command::new(program);
    command.args(arguments).arg(image);
    command.env("PATH", "/usr/sbin:/sbin:/usr/bin:/bin");
    match command.output() {
        Ok(output) => Some(String::from_utf8_lossy(&output.stdout).into_owned()),
        Err(_) => {
            writeln!(io::stderr(), "skipped: e2fsprogs is not installed").unwrap();
            None
        }
    }
}

/// A file system of `megabytes` that mke2fs made of a directory.
fn made_by_mke2fs(root: &Path, image: &Path, options: &[&str], megabytes: u64) -> Option<()> {
    fs::File::create(image)
        .unwrap()
        .set_len(megabytes << 20)
        .unwrap();
    let root = root.to_str().unwrap();
    let arguments = [&["-q", "-F", "-t", "ext4", "-d", root], options].concat();
    tool("mke2fs", &arguments, image)?;
    Some(())
}

fn check_tree(bytes: &[u8], root: &Path) {
    let files = FileSystem::open(Memory::new(bytes)).unwrap();
    let mut found = read_all(&files);
    found.remove(&b"/lost+found"[..]);
    let mut expected = expected(root);
    for all in [&mut found, &mut expected] {
        // mke2fs sets the times of directories to now, and keeps no parts of a second in old inodes.
        for one in all.values_mut() {
            let is_directory = one.kind == Kind::Directory;
            one.modified.seconds *= i64::from(!is_directory);
            one.modified.nanos = 0;
        }
        // The root's owner and mode are not always taken over.
        all.remove(&b""[..]);
    }
    assert_eq!(
        found.keys().collect::<Vec<_>>(),
        expected.keys().collect::<Vec<_>>()
    );
    for (path, one) in &expected {
        assert_eq!(found[path], *one, "{}", String::from_utf8_lossy(path));
    }
}

#[test]
fn a_disk_of_the_importer_is_read_back() {
    let place = tempfile::tempdir().unwrap();
    let (home, root) = (place.path().join("home"), place.path().join("root"));
    make_tree(&root, true);
    let image = image::import(&home, "i", &root, &Silent).unwrap();
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
    let files = FileSystem::open(Memory::new(&bytes)).unwrap();
    let (mut found, expected) = (read_all(&files), expected(&root));
    // Directories that each image gets.
    found.retain(|path, _| path.is_empty() || expected.contains_key(path));
    assert_eq!(found.len(), expected.len());
    for (path, one) in &expected {
        let same = found[path].modified.nanos == one.modified.nanos || one.kind == Kind::Directory;
        assert!(same, "{}", String::from_utf8_lossy(path));
        assert_eq!(
            found[path].content,
            one.content,
            "{}",
            String::from_utf8_lossy(path)
        );
    }
}

#[test]
fn disks_of_all_shapes_are_read_back() {
    let place = tempfile::tempdir().unwrap();
    let (root, image) = (place.path().join("root"), place.path().join("image"));
    make_tree(&root, true);
    for (options, megabytes) in [
        (&["-b", "4096"][..], 64),
        (&["-b", "4096", "-O", "^64bit,^metadata_csum"], 64),
        (&["-b", "1024", "-O", "meta_bg,^resize_inode"], 64),
        (
            &[
                "-b",
                "1024",
                "-g",
                "1024",
                "-O",
                "64bit,meta_bg,^resize_inode",
            ],
            64,
        ),
        (&["-b", "2048", "-O", "sparse_super2,^has_journal"], 64),
        (&["-b", "65536", "-O", "^has_journal"], 128),
        (&["-b", "4096", "-I", "128", "-O", "^metadata_csum"], 64),
        (&["-b", "4096", "-I", "1024", "-O", "bigalloc"], 128),
    ] {
        if made_by_mke2fs(&root, &image, options, megabytes).is_none() {
            return;
        }
        check_tree(&fs::read(&image).unwrap(), &root);
        // Directories with an index.
        tool("e2fsck", &["-fyD"], &image);
        check_tree(&fs::read(&image).unwrap(), &root);
    }
}

#[test]
fn paths_lead_where_the_guest_would_go() {
    let place = tempfile::tempdir().unwrap();
    let (root, image) = (place.path().join("root"), place.path().join("image"));
    make_tree(&root, false);
    if made_by_mke2fs(&root, &image, &["-b", "1024"], 8).is_none() {
        return;
    }
    let bytes = fs::read(&image).unwrap();
    let files = FileSystem::open(Memory::new(&bytes)).unwrap();
    let number = |path: &str| files.resolve(path.as_bytes()).map(|inode| inode.number);
    let small = number("/a/b/small").unwrap();
    for path in [
        "a/b/small",
        "//a/./b//small",
        "/jump/small",
        "/a/b/c/again",
        "/../../a/b/c/../small",
        "/jump/../b/small",
        "/a/winding/again",
    ] {
        assert_eq!(number(path).unwrap(), small, "{path}");
    }
    for path in ["/", "", "/.", "/a/..", "/jump/../.."] {
        assert_eq!(number(path).unwrap(), inode::ROOT, "{path}");
    }
    assert_eq!(number("/jump/").unwrap(), number("/a/b").unwrap());
    assert_eq!(number("/a/winding/.").unwrap(), number("/a/b/c").unwrap());
    assert_ne!(number("/jump").unwrap(), number("/a/b").unwrap());
    assert_ne!(number("/a/short").unwrap(), small);
    for path in ["/nothing", "/a/nothing/x", "/a/b/smal", "/jump/nothing"] {
        assert!(
            matches!(number(path), Err(FileSystemError::NotFound)),
            "{path}"
        );
    }
    for path in ["/a/b/small/x", "/a/b/small/", "/a/short/", "/a/b/small/."] {
        assert!(
            matches!(number(path), Err(FileSystemError::NotADirectory)),
            "{path}"
        );
    }
    assert!(matches!(
        number("/loop/x"),
        Err(FileSystemError::TooManyLinks)
    ));
    let link = files.resolve(b"/loop").unwrap();
    assert_eq!(files.target(&link).unwrap(), b"loop");
    let long = "a/../".repeat(9000);
    assert!(number(&long).is_err());
}
