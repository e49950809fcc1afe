//! Making entries in open directories.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{self as rfs, AtFlags, Mode, OFlags};
use rustix::io::Errno;

use super::super::Metadata;

static NEXT_TEMPORARY: AtomicU64 = AtomicU64::new(0);
/// Temporary names tried for one file.
const TEMPORARY_NAMES: u32 = 100;

/// A file under its temporary name; removed unless it is kept.
#[derive(Debug)]
pub(super) struct NewFile {
    pub(super) parent: OwnedFd,
    pub(super) temporary: String,
    pub(super) name: Vec<u8>,
    pub(super) meta: Metadata,
    pub(super) fd: OwnedFd,
    pub(super) kept: bool,
}

impl Drop for NewFile {
    fn drop(&mut self) {
        if !self.kept {
            // Best effort: the copy has failed already and says so.
            let _ = rfs::unlinkat(&self.parent, &*self.temporary, AtFlags::empty());
        }
    }
}

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

/// Parent directory and last name of a target that is no directory yet.
pub(super) fn target_parent(
    target: &Path,
    is_directory: bool,
) -> Result<(OwnedFd, Vec<u8>), Errno> {
    let bytes = target.as_os_str().as_bytes();
    if bytes.ends_with(b"/") && !is_directory {
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

/// A new file under a temporary name. The process's umask is taken from `mode` by the system.
pub(super) fn create_temporary(
    parent: BorrowedFd<'_>,
    mode: Mode,
) -> Result<(String, OwnedFd), Errno> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let process = std::process::id();
    for _ in 0..TEMPORARY_NAMES {
        let number = NEXT_TEMPORARY.fetch_add(1, Ordering::Relaxed);
        let name = format!(".smolvm-copy-{process}-{number}");
        match rfs::openat(parent, &*name, flags, mode) {
            Ok(fd) => return Ok((name, fd)),
            Err(Errno::EXIST) => {}
            Err(errno) => return Err(errno),
        }
    }
    Err(Errno::EXIST)
}

/// Makes an entry that cannot replace another in one step: removes the other first.
pub(super) fn replace(
    parent: BorrowedFd<'_>,
    name: &[u8],
    make: impl Fn() -> Result<(), Errno>,
) -> Result<(), Errno> {
    match make() {
        Err(Errno::EXIST) => {
            rfs::unlinkat(parent, name, AtFlags::empty())?;
            make()
        }
        other => other,
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
