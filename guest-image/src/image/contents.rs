//! The tree of an image together with its file contents, and how archives and
//! directories are put into it.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use durable_files::FileError;

use super::error::{EntryError, ImageError};
use super::ext4;
use super::left_out::LeftOut;
use super::spool::{BLOCK_BYTES, HostFile, Spool};
use super::tar::{TarEntry, TarKind, TarReader};
use super::tree::{Device, Kind, Meta, NodeId, Timestamp, Tree, Xattrs};
use crate::budget::Budget;
use crate::progress::Phase;

/// Prefix of whiteouts in the layers of an image.
const WHITEOUT: &[u8] = b".wh.";
/// Name that makes a directory opaque.
const OPAQUE: &[u8] = b".wh..wh..opq";
/// Prefix of bookkeeping names of old layer formats.
const WHITEOUT_META: &[u8] = b".wh..wh.";
/// Most extended attributes read from one file of a directory.
const MAX_XATTR_LIST_BYTES: usize = 64 * 1024;

/// A tree and its contents.
pub(crate) struct Contents {
    pub(crate) tree: Tree,
    pub(crate) spool: Spool,
    pub(crate) left_out: LeftOut,
}

/// Whether names with the whiteout prefix remove files or are files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Whiteouts {
    /// A layer of an image.
    Apply,
    /// A plain archive.
    Keep,
}

impl Contents {
    /// Nothing yet; contents will be spooled on the file system of `dir`, and
    /// `budget` pays.
    pub(crate) fn new(dir: &Path, budget: Arc<Budget>) -> Result<Self, ImageError> {
        let spool =
            Spool::create_in(dir).map_err(FileError::at("make a temporary file in", dir))?;
        Ok(Self {
            tree: Tree::new(budget),
            spool,
            left_out: LeftOut::default(),
        })
    }

    /// Puts an uncompressed archive on top of what is there. Returns the number
    /// of its entries.
    pub(crate) fn add_tar(
        &mut self,
        input: impl Read,
        archive: &str,
        whiteouts: Whiteouts,
        phase: &Phase<'_>,
    ) -> Result<u64, ImageError> {
        self.tree.next_layer();
        let mut entries = 0;
        // Layers are protected by their digest; their writers do not all add
        // an end marker.
        let mut tar = TarReader::new(input, whiteouts == Whiteouts::Keep);
        let damaged = |source| ImageError::Archive {
            archive: archive.into(),
            source,
        };
        while let Some(entry) = tar.next_entry().map_err(damaged)? {
            phase.advance(entry.size_bytes);
            entries += 1;
            self.add_entry(&mut tar, &entry, whiteouts)
                .map_err(|source| ImageError::Entry {
                    archive: archive.into(),
                    entry: printable(&entry.path),
                    source,
                })?;
        }
        Ok(entries)
    }

    fn add_entry<R: Read>(
        &mut self,
        tar: &mut TarReader<R>,
        entry: &TarEntry,
        whiteouts: Whiteouts,
    ) -> Result<(), EntryError> {
        let trimmed = entry.path.strip_suffix(b"/").unwrap_or(&entry.path);
        let slash = trimmed.iter().rposition(|b| *b == b'/');
        let (parent, name) = slash.map_or((&b""[..], trimmed), |at| {
            (&trimmed[..at], &trimmed[at + 1..])
        });
        if whiteouts == Whiteouts::Apply && name.starts_with(WHITEOUT) {
            if name == OPAQUE {
                self.tree.opaque(parent)?;
            } else if !name.starts_with(WHITEOUT_META) {
                let removed = [parent, b"/", &name[WHITEOUT.len()..]].concat();
                self.tree.whiteout(&removed)?;
            }
            return Ok(());
        }
        for key in &entry.not_read {
            self.left_out.add(key);
        }
        let meta = Meta {
            mode: entry.mode,
            uid: entry.uid,
            gid: entry.gid,
            mtime: entry.mtime,
            xattrs: entry.xattrs.clone(),
        };
        let kind = match &entry.kind {
            TarKind::HardLink(target) => return Ok(self.tree.hard_link(&entry.path, target)?),
            TarKind::File => {
                let sparse = entry.is_sparse();
                let mut content = tar.content(entry);
                let spooled = self.spool.append(&mut *content, entry.size_bytes, sparse);
                Kind::File(spooled.map_err(EntryError::Content)?)
            }
            TarKind::Symlink(target) => Kind::Symlink(target.clone()),
            TarKind::Char(device) => Kind::Char(*device),
            TarKind::Block(device) => Kind::Block(*device),
            TarKind::Dir => Kind::Dir(BTreeMap::new()),
            TarKind::Fifo => Kind::Fifo,
        };
        self.insert(&entry.path, meta, kind)
    }

    /// Puts a file into the tree after checking what ext4 could not store.
    /// Attributes that Linux does not keep are left out.
    fn insert(&mut self, path: &[u8], mut meta: Meta, kind: Kind) -> Result<(), EntryError> {
        for name in ext4::take_foreign(&mut meta.xattrs) {
            self.left_out.add(&String::from_utf8_lossy(&name));
        }
        ext4::check_attributes(&meta.xattrs)?;
        Ok(self.tree.insert(path, meta, kind)?)
    }

    /// Puts the tree below the host directory `root` on top of what is there,
    /// with the owners, modes and attributes that it shows. Other file systems
    /// mounted below it are not entered.
    pub(crate) fn add_directory(
        &mut self,
        root: &Path,
        phase: &Phase<'_>,
    ) -> Result<(), ImageError> {
        self.tree.next_layer();
        let top = fs::symlink_metadata(root).map_err(FileError::at("read", root))?;
        let mut links: BTreeMap<(u64, u64), Vec<u8>> = BTreeMap::new();
        let mut todo: Vec<PathBuf> = vec![PathBuf::new()];
        while let Some(relative) = todo.pop() {
            let path = root.join(&relative);
            let stat = fs::symlink_metadata(&path).map_err(FileError::at("read", &path))?;
            let name = relative.as_os_str().as_bytes().to_vec();
            let result = match links.get(&(stat.dev(), stat.ino())) {
                Some(first) => self.tree.hard_link(&name, first).map_err(EntryError::from),
                None => self.add_host_file(&path, &name, &stat),
            };
            result.map_err(|source| ImageError::Entry {
                archive: root.display().to_string(),
                entry: printable(&name),
                source,
            })?;
            phase.advance(if stat.is_file() { stat.len() } else { 0 });
            if stat.is_dir() && stat.dev() == top.dev() {
                for entry in fs::read_dir(&path).map_err(FileError::at("list", &path))? {
                    let entry = entry.map_err(FileError::at("list", &path))?;
                    todo.push(relative.join(entry.file_name()));
                }
            } else if !stat.is_dir() && stat.nlink() > 1 {
                links.entry((stat.dev(), stat.ino())).or_insert(name);
            }
        }
        Ok(())
    }

    fn add_host_file(
        &mut self,
        path: &Path,
        name: &[u8],
        stat: &fs::Metadata,
    ) -> Result<(), EntryError> {
        let meta = Meta {
            mode: (stat.mode() & 0o7777) as u16,
            uid: stat.uid(),
            gid: stat.gid(),
            mtime: Timestamp {
                seconds: stat.mtime(),
                nanoseconds: u32::try_from(stat.mtime_nsec()).unwrap_or(0),
            },
            xattrs: host_xattrs(path).map_err(EntryError::Content)?,
        };
        let file_type = stat.file_type();
        let device = Device {
            major: rustix::fs::major(stat.rdev()),
            minor: rustix::fs::minor(stat.rdev()),
        };
        let kind = if file_type.is_dir() {
            Kind::Dir(BTreeMap::new())
        } else if file_type.is_symlink() {
            let target = fs::read_link(path).map_err(EntryError::Content)?;
            Kind::Symlink(target.into_os_string().into_vec())
        } else if file_type.is_char_device() {
            Kind::Char(device)
        } else if file_type.is_block_device() {
            Kind::Block(device)
        } else if file_type.is_fifo() {
            Kind::Fifo
        } else if file_type.is_socket() {
            Kind::Socket
        } else {
            self.host_content(path, stat).map_err(EntryError::Content)?
        };
        self.insert(name, meta, kind)
    }

    fn host_content(&mut self, path: &Path, stat: &fs::Metadata) -> io::Result<Kind> {
        // What was a file may be a link or a pipe by now: neither is followed.
        let flags = rustix::fs::OFlags::NOFOLLOW | rustix::fs::OFlags::NONBLOCK;
        let flags = i32::try_from(flags.bits()).unwrap_or(0);
        let file = File::options().read(true).custom_flags(flags).open(path)?;
        let now = file.metadata()?;
        if (now.dev(), now.ino()) != (stat.dev(), stat.ino()) {
            return Err(io::Error::other("it was replaced while being read"));
        }
        let sparse = now.blocks() * 512 < now.len();
        let len = now.len();
        Ok(Kind::File(self.spool.append(
            &mut HostFile::new(&file, len),
            len,
            sparse,
        )?))
    }

    /// The contents of a regular file of at most `most` bytes; `None` for
    /// other kinds and larger files.
    pub(crate) fn read_file(&self, id: NodeId, most: u64) -> io::Result<Option<Vec<u8>>> {
        let Kind::File(content) = &self.tree.node(id).kind else {
            return Ok(None);
        };
        let size = usize::try_from(content.size_bytes).unwrap_or(usize::MAX);
        if content.size_bytes > most {
            return Ok(None);
        }
        let mut out = vec![0; size.next_multiple_of(BLOCK_BYTES)];
        for run in &content.runs {
            let at = run.logical as usize * BLOCK_BYTES;
            let len = run.blocks as usize * BLOCK_BYTES;
            self.spool.read_blocks(run.spool, &mut out[at..at + len])?;
        }
        out.truncate(size);
        Ok(Some(out))
    }

    /// Puts a file of root's at `path`, in place of what is there.
    pub(crate) fn put_file(
        &mut self,
        path: &[u8],
        mode: u16,
        mut bytes: &[u8],
    ) -> Result<(), EntryError> {
        let size = bytes.len() as u64;
        let content = self
            .spool
            .append(&mut bytes, size, false)
            .map_err(EntryError::Content)?;
        let meta = Meta {
            mode,
            mtime: self.tree.newest(),
            ..Meta::default()
        };
        Ok(self.tree.insert(path, meta, Kind::File(content))?)
    }
}

/// The attributes of a host file that ext4 knows.
fn host_xattrs(path: &Path) -> io::Result<Xattrs> {
    use rustix::fs::{lgetxattr, llistxattr};
    use rustix::io::Errno;
    let mut list = vec![0; MAX_XATTR_LIST_BYTES];
    let len = match llistxattr(path, &mut list[..]) {
        Ok(len) => len,
        Err(Errno::NOTSUP | Errno::NOSYS) => 0,
        Err(error) => return Err(error.into()),
    };
    let mut xattrs = Xattrs::new();
    for name in list[..len]
        .split(|b| *b == 0)
        .filter(|name| !name.is_empty())
    {
        let mut value = vec![0; MAX_XATTR_LIST_BYTES];
        match lgetxattr(path, name, &mut value[..]) {
            Ok(len) => {
                value.truncate(len);
                xattrs.insert(name.to_vec(), value);
            }
            // Labels of the host's security module, or gone meanwhile.
            Err(Errno::NODATA | Errno::NOTSUP | Errno::ACCESS | Errno::PERM) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(xattrs)
}

/// A name from an archive made harmless for a terminal.
fn printable(name: &[u8]) -> String {
    const MOST: usize = 200;
    let text: String = String::from_utf8_lossy(name)
        .escape_debug()
        .take(MOST)
        .collect();
    text
}
