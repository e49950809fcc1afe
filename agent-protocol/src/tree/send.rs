//! The reading side: walks a tree without following links and writes its items.

use std::collections::HashMap;
use std::ffi::{CStr, CString};
use std::io::{self, BufWriter, Write};
use std::ops::ControlFlow;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{self as rfs, AtFlags, Dir, FileType, Mode, OFlags, SeekFrom, Stat};
use rustix::io::Errno;
use thiserror::Error;

use super::{MAX_DEPTH, MAX_LINKED_FILES, Metadata, RootName, SpecialKind, TreeItem, shown};
use crate::codec::Bytes;
use crate::frame::{FrameError, MAX_DATA_BYTES, write_message};
use crate::message::chain;

/// Bytes gathered before the stream is written.
const BUFFER_BYTES: usize = 256 << 10;

/// Why a tree could not be sent.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum SendError {
    /// The first entry cannot be read; nothing was sent.
    #[error("cannot read {}", path.display())]
    Source {
        /// The path asked for.
        path: PathBuf,
        /// The file system's answer.
        #[source]
        source: io::Error,
    },
    /// The first entry is of a kind that is not copied, such as a socket.
    #[error("{} is neither a file, a directory, a link, a pipe nor a device", path.display())]
    Kind {
        /// The path asked for.
        path: PathBuf,
    },
    /// The stream failed.
    #[error("the connection failed while files were sent")]
    Stream(#[from] FrameError),
    /// The caller's progress function asked to stop.
    #[error("the copy was stopped")]
    Stopped,
}

/// Called with the number of bytes of file data sent since the last call.
pub(crate) type Progress<'a> = &'a mut dyn FnMut(u64) -> ControlFlow<()>;

/// Sends the tree at `source` to `to`, ending with [`TreeItem::End`].
///
/// A symbolic link is sent as a link. A `source` whose [`RootName`] is none (it ends in `/.`, or names
/// no entry) must be a directory. What cannot be read below `source` becomes a [`TreeItem::Problem`].
///
/// `progress` is told the bytes sent since it was last called, at least once per entry.
///
/// # Errors
/// [`SendError`]; but for [`SendError::Stream`] the other side has been told by
/// [`TreeItem::Abort`].
pub fn send_tree(
    source: &Path,
    to: &mut impl Write,
    progress: &mut dyn FnMut(u64) -> ControlFlow<()>,
) -> Result<(), SendError> {
    let mut sender = Sender {
        to: BufWriter::with_capacity(BUFFER_BYTES, to),
        progress,
        links: HashMap::new(),
        next_link: 0,
        stack: Vec::new(),
    };
    let sent = sender.tree(source);
    let last = match &sent {
        Ok(()) => TreeItem::End,
        Err(SendError::Stream(_)) => return sent,
        Err(error) => TreeItem::Abort {
            message: chain(error),
        },
    };
    sender.item(&last)?;
    sender
        .to
        .flush()
        .map_err(|e| SendError::Stream(FrameError::Io(e)))?;
    sent
}

/// A directory being read.
struct Level {
    fd: OwnedFd,
    entries: Dir,
}

enum EntryError {
    /// This entry cannot be read; the walk goes on.
    Skip(Errno),
    /// Not a kind that is copied.
    Kind,
    /// The whole copy ends.
    Stop(SendError),
}

impl From<SendError> for EntryError {
    fn from(error: SendError) -> Self {
        Self::Stop(error)
    }
}

impl From<Errno> for EntryError {
    fn from(errno: Errno) -> Self {
        Self::Skip(errno)
    }
}

struct Sender<'a, W: Write> {
    to: BufWriter<W>,
    progress: Progress<'a>,
    /// Device and inode of each file with several names, and the number it was given.
    links: HashMap<(u64, u64), u64>,
    next_link: u64,
    stack: Vec<Level>,
}

impl<W: Write> Sender<'_, W> {
    fn item(&mut self, item: &TreeItem) -> Result<(), SendError> {
        Ok(write_message(&mut Unflushed(&mut self.to), item)?)
    }

    fn advance(&mut self, bytes: u64) -> Result<(), SendError> {
        match (self.progress)(bytes) {
            ControlFlow::Continue(()) => Ok(()),
            ControlFlow::Break(()) => Err(SendError::Stopped),
        }
    }

    fn problem(&mut self, name: &[u8], why: &str) -> Result<(), SendError> {
        let message = format!("{}: {why}", shown(name));
        self.item(&TreeItem::Problem { message })
    }

    fn tree(&mut self, source: &Path) -> Result<(), SendError> {
        let failed = |source_error: Errno| SendError::Source {
            path: source.to_owned(),
            source: source_error.into(),
        };
        let root = RootName::of_source(source);
        let path = source.as_os_str().as_bytes();
        let path = CString::new(path).map_err(|_| failed(Errno::INVAL))?;
        let stat = rfs::statat(rfs::CWD, &path, AtFlags::SYMLINK_NOFOLLOW).map_err(failed)?;
        if root.name().is_none() && FileType::from_raw_mode(stat.st_mode) != FileType::Directory {
            return Err(failed(Errno::NOTDIR));
        }
        match self.entry(rfs::CWD, &path, b"", &stat) {
            Err(EntryError::Skip(errno)) => Err(failed(errno)),
            Err(EntryError::Kind) => Err(SendError::Kind {
                path: source.to_owned(),
            }),
            Err(EntryError::Stop(error)) => Err(error),
            Ok(()) => self.walk(),
        }
    }

    /// Sends everything below the directories on the stack.
    fn walk(&mut self) -> Result<(), SendError> {
        while let Some(level) = self.stack.last_mut() {
            let name = match level.entries.next() {
                None => {
                    self.stack.pop();
                    self.item(&TreeItem::EndDirectory)?;
                    continue;
                }
                Some(Err(errno)) => {
                    self.problem(b"(directory)", &io::Error::from(errno).to_string())?;
                    self.stack.pop();
                    self.item(&TreeItem::EndDirectory)?;
                    continue;
                }
                Some(Ok(entry)) => entry.file_name().to_owned(),
            };
            if name.as_bytes() != b"." && name.as_bytes() != b".." {
                self.advance(0)?;
                self.child(&name)?;
            }
        }
        Ok(())
    }

    fn child(&mut self, name: &CStr) -> Result<(), SendError> {
        let Some(level) = self.stack.last() else {
            return Ok(());
        };
        // A descriptor of its own, so that `self` stays free; closed after this entry.
        let parent = rustix::io::fcntl_dupfd_cloexec(&level.fd, 0);
        let result = parent.map_err(EntryError::Skip).and_then(|parent| {
            let stat = rfs::statat(&parent, name, AtFlags::SYMLINK_NOFOLLOW)?;
            self.entry(parent.as_fd(), name, name.to_bytes(), &stat)
        });
        match result {
            Ok(()) => Ok(()),
            Err(EntryError::Skip(errno)) => {
                self.problem(name.to_bytes(), &io::Error::from(errno).to_string())
            }
            Err(EntryError::Kind) => self.problem(name.to_bytes(), "a socket is not copied"),
            Err(EntryError::Stop(error)) => Err(error),
        }
    }

    fn entry(
        &mut self,
        parent: BorrowedFd<'_>,
        path: &CStr,
        name: &[u8],
        stat: &Stat,
    ) -> Result<(), EntryError> {
        let name = Bytes::from(name);
        let meta = metadata(stat);
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory => self.directory(parent, path, name),
            FileType::RegularFile => self.file(parent, path, name),
            FileType::Symlink => {
                let target = rfs::readlinkat(parent, path, Vec::new())?.into_bytes();
                Ok(self.item(&TreeItem::Symlink {
                    name,
                    meta,
                    target: target.into(),
                })?)
            }
            FileType::Fifo => Ok(self.special(name, meta, SpecialKind::Fifo, stat)?),
            FileType::CharacterDevice => {
                Ok(self.special(name, meta, SpecialKind::CharacterDevice, stat)?)
            }
            FileType::BlockDevice => {
                Ok(self.special(name, meta, SpecialKind::BlockDevice, stat)?)
            }
            _ => Err(EntryError::Kind),
        }
    }

    #[allow(clippy::unnecessary_cast, clippy::cast_sign_loss)] // the type differs by platform
    fn special(
        &mut self,
        name: Bytes,
        meta: Metadata,
        kind: SpecialKind,
        stat: &Stat,
    ) -> Result<(), SendError> {
        let (major, minor) = match kind {
            SpecialKind::Fifo => (0, 0),
            _ => (
                rfs::major(stat.st_rdev) as u32,
                rfs::minor(stat.st_rdev) as u32,
            ),
        };
        self.item(&TreeItem::Special {
            name,
            meta,
            kind,
            major,
            minor,
        })
    }

    fn directory(
        &mut self,
        parent: BorrowedFd<'_>,
        path: &CStr,
        name: Bytes,
    ) -> Result<(), EntryError> {
        if self.stack.len() >= MAX_DEPTH {
            return Err(EntryError::Skip(Errno::NAMETOOLONG));
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = rfs::openat(parent, path, flags, Mode::empty())?;
        let entries = Dir::read_from(&fd)?;
        let meta = metadata(&rfs::fstat(&fd)?);
        self.item(&TreeItem::Directory { name, meta })?;
        self.stack.push(Level { fd, entries });
        Ok(())
    }

    #[allow(clippy::unnecessary_cast, clippy::cast_sign_loss)] // the types differ by platform
    fn file(&mut self, parent: BorrowedFd<'_>, path: &CStr, name: Bytes) -> Result<(), EntryError> {
        // NONBLOCK: should the entry have become a pipe meanwhile, opening must not hang.
        let flags =
            OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
        let fd = rfs::openat(parent, path, flags, Mode::empty())?;
        let stat = rfs::fstat(&fd)?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Err(EntryError::Skip(Errno::AGAIN));
        }
        let mut link = None;
        let key = (stat.st_dev as u64, stat.st_ino as u64);
        if stat.st_nlink as u64 > 1 {
            if let Some(&link) = self.links.get(&key) {
                return Ok(self.item(&TreeItem::HardLink { name, link })?);
            }
            if self.links.len() < MAX_LINKED_FILES {
                self.links.insert(key, self.next_link);
                link = Some(self.next_link);
                self.next_link += 1;
            }
        }
        let meta = metadata(&stat);
        self.item(&TreeItem::File { name, meta, link })?;
        let end = match self.data(&fd, u64::try_from(stat.st_size).unwrap_or(0)) {
            Ok(size_bytes) => TreeItem::FileEnd { size_bytes },
            Err(EntryError::Stop(error)) => return Err(EntryError::Stop(error)),
            Err(EntryError::Skip(errno)) => TreeItem::FileBroken {
                message: io::Error::from(errno).to_string(),
            },
            Err(EntryError::Kind) => TreeItem::FileBroken {
                message: "not a file".into(),
            },
        };
        if matches!(end, TreeItem::FileBroken { .. }) {
            // Its other names are files of their own to the other side: it has none to give them to.
            self.links.remove(&key);
        }
        Ok(self.item(&end)?)
    }

    /// Sends the data extents up to `size`, which was the size when the file was opened (so that a
    /// file that grows does not keep the copy from ending); 0 means to read to the end, as files
    /// of /proc want. Returns the size sent.
    fn data(&mut self, fd: &OwnedFd, size: u64) -> Result<u64, EntryError> {
        let mut position = 0;
        while position < size || size == 0 {
            let (start, end) = match next_extent(fd, position, size)? {
                Some(extent) => extent,
                None => return Ok(size),
            };
            position = start;
            while position < end {
                let want = usize::try_from(end - position).unwrap_or(usize::MAX);
                let mut data = vec![0; want.min(MAX_DATA_BYTES)];
                let count = rustix::io::retry_on_intr(|| {
                    rustix::io::pread(fd, data.as_mut_slice(), position)
                })?;
                if count == 0 {
                    return Ok(position); // it shrank, or this is the end of an unsized file
                }
                data.truncate(count);
                self.item(&TreeItem::Data {
                    offset: position,
                    data: data.into(),
                })?;
                position += count as u64;
                self.advance(count as u64)?;
            }
        }
        Ok(size)
    }
}

/// The next run of data at or after `position`, `None` when only a hole is left.
fn next_extent(fd: &OwnedFd, position: u64, size: u64) -> Result<Option<(u64, u64)>, Errno> {
    if size == 0 {
        return Ok(Some((position, u64::MAX)));
    }
    let start = match rfs::seek(fd, SeekFrom::Data(position)) {
        Ok(start) => start,
        Err(Errno::NXIO) => return Ok(None),
        // The file system knows no holes.
        Err(Errno::INVAL | Errno::OPNOTSUPP) => return Ok(Some((position, size))),
        Err(errno) => return Err(errno),
    };
    if start >= size {
        return Ok(None);
    }
    let end = match rfs::seek(fd, SeekFrom::Hole(start)) {
        Ok(end) if end > start => end.min(size),
        Ok(_) | Err(Errno::NXIO) => size,
        Err(errno) => return Err(errno),
    };
    Ok(Some((start, end)))
}

#[allow(
    clippy::unnecessary_cast,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss
)] // types differ by platform
fn metadata(stat: &Stat) -> Metadata {
    Metadata {
        mode: stat.st_mode as u32 & 0o7777,
        uid: stat.st_uid,
        gid: stat.st_gid,
        mtime_seconds: stat.st_mtime as i64,
        mtime_nanos: stat.st_mtime_nsec as u32,
    }
}

/// Hides flushes, so that small items are gathered.
struct Unflushed<'a, W: Write>(&'a mut BufWriter<W>);

impl<W: Write> Write for Unflushed<'_, W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
