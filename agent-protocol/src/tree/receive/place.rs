//! Making entries in open directories.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::fs::{self as rfs, AtFlags, FileType, Gid, Mode, OFlags, RawMode, Uid};
use rustix::io::Errno;

pub(super) fn duplicate(fd: BorrowedFd<'_>) -> Result<OwnedFd, Errno> {
    rustix::io::fcntl_dupfd_cloexec(fd, 0)
}

pub(super) fn open_directory(
    at: BorrowedFd<'_>,
    name: &[u8],
    follow: bool,
) -> Result<OwnedFd, Errno> {
    let mut flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    if !follow {
        flags |= OFlags::NOFOLLOW;
    }
    rfs::openat(at, name, flags, Mode::empty())
}

/// Whether a path can only be that of a directory: it ends in a slash, or in `/.`.
pub(super) fn means_directory(path: &Path) -> bool {
    let bytes = path.as_os_str().as_bytes();
    matches!(bytes.rsplit(|&byte| byte == b'/').next(), Some(b"" | b"."))
}

/// Parent directory and last name of a target that is no directory yet.
pub(super) fn target_parent(
    target: &Path,
    is_directory: bool,
) -> Result<(OwnedFd, Vec<u8>), Errno> {
    if means_directory(target) && !is_directory {
        return Err(Errno::NOTDIR);
    }
    let name = target.file_name().ok_or(Errno::INVAL)?.as_bytes().to_vec();
    let parent = match target.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    Ok((
        open_directory(rfs::CWD, parent.as_os_str().as_bytes(), true)?,
        name,
    ))
}

/// Why an entry was not made.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum MakeError {
    /// The system's answer.
    System(Errno),
    /// Something that is no file, and that others use by its name, is there.
    InTheWay(&'static str),
}

impl From<Errno> for MakeError {
    fn from(errno: Errno) -> Self {
        Self::System(errno)
    }
}

/// A regular file that is replaced: the new one gets its owner and mode.
#[derive(Debug, Clone, Copy)]
pub(super) struct Replaced {
    pub(super) uid: Uid,
    pub(super) gid: Gid,
    pub(super) mode: RawMode,
}

/// Looks at what stands where an entry is to be made. What a copy takes the place of without a word is
/// files and links; directories are refused by the system.
#[allow(clippy::unnecessary_cast)] // the type differs by platform
pub(super) fn replaceable(
    parent: BorrowedFd<'_>,
    name: &[u8],
) -> Result<Option<Replaced>, MakeError> {
    let stat = match rfs::statat(parent, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) => stat,
        Err(Errno::NOENT) => return Ok(None),
        Err(errno) => return Err(errno.into()),
    };
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => Ok(Some(Replaced {
            uid: Uid::from_raw(stat.st_uid),
            gid: Gid::from_raw(stat.st_gid),
            mode: stat.st_mode & 0o7777,
        })),
        FileType::Directory | FileType::Symlink => Ok(None),
        other => Err(MakeError::InTheWay(kind(other))),
    }
}

/// A kind of entry that is no file, in words.
pub(super) fn kind(file_type: FileType) -> &'static str {
    match file_type {
        FileType::Fifo => "a named pipe",
        FileType::Socket => "a socket",
        FileType::CharacterDevice => "a character device",
        FileType::BlockDevice => "a block device",
        _ => "no file",
    }
}

/// Makes an entry that cannot replace another in one step: removes the other first.
pub(super) fn replace(
    parent: BorrowedFd<'_>,
    name: &[u8],
    make: impl Fn() -> Result<(), Errno>,
) -> Result<(), MakeError> {
    match make() {
        Err(Errno::EXIST) => {
            replaceable(parent, name)?;
            rfs::unlinkat(parent, name, AtFlags::empty())?;
            Ok(make()?)
        }
        other => Ok(other?),
    }
}

pub(super) fn write_at(fd: &OwnedFd, mut offset: u64, mut data: &[u8]) -> Result<(), Errno> {
    while !data.is_empty() {
        let count = rustix::io::retry_on_intr(|| rustix::io::pwrite(fd, data, offset))?;
        if count == 0 {
            return Err(Errno::IO);
        }
        data = &data[count..];
        offset += count as u64;
    }
    Ok(())
}
