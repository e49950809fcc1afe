//! Making entries in open directories, and whose they are.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{self as rfs, AtFlags, Gid, Mode, OFlags, Timespec, Timestamps, Uid};
use rustix::io::Errno;

use super::super::{Metadata, SpecialKind};
use crate::message::Owner;

static NEXT_TEMPORARY: AtomicU64 = AtomicU64::new(0);
/// Temporary names tried for one file.
const TEMPORARY_NAMES: u32 = 100;

/// Whose the made entries are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ownership {
    /// The receiving process's. Set-user-id and set-group-id are dropped and devices left out:
    /// they would mean something else than at the source.
    Mine,
    /// The numbers of the source; needs privilege.
    Keep,
    /// This owner; needs privilege.
    Set(Owner),
}

impl Ownership {
    #[cfg(target_os = "linux")]
    pub(super) fn make_special(
        self,
        parent: BorrowedFd<'_>,
        name: &[u8],
        kind: SpecialKind,
        (major, minor): (u32, u32),
    ) -> Result<(), Errno> {
        let kind = match kind {
            SpecialKind::Fifo => rfs::FileType::Fifo,
            _ if self == Ownership::Mine => return Err(Errno::PERM),
            SpecialKind::CharacterDevice => rfs::FileType::CharacterDevice,
            SpecialKind::BlockDevice => rfs::FileType::BlockDevice,
        };
        let device = rfs::makedev(major, minor);
        replace(parent, name, || {
            rfs::mknodat(parent, name, kind, Mode::RUSR | Mode::WUSR, device)
        })
    }

    #[cfg(not(target_os = "linux"))]
    pub(super) fn make_special(
        self,
        _parent: BorrowedFd<'_>,
        _name: &[u8],
        _kind: SpecialKind,
        _device: (u32, u32),
    ) -> Result<(), Errno> {
        Err(Errno::OPNOTSUPP)
    }

    /// The mode that an entry gets.
    pub(super) fn mode(self, meta: Metadata) -> Mode {
        let bits = match self {
            Self::Mine => meta.mode & 0o1777,
            Self::Keep | Self::Set(_) => meta.mode,
        };
        Mode::from_raw_mode(bits as rfs::RawMode)
    }

    fn owner(self, meta: Metadata) -> Option<(Uid, Gid)> {
        match self {
            Ownership::Mine => None,
            Ownership::Keep => Some((Uid::from_raw(meta.uid), Gid::from_raw(meta.gid))),
            Ownership::Set(owner) => Some((Uid::from_raw(owner.uid), Gid::from_raw(owner.gid))),
        }
    }

    /// Owner first: changing it clears set-user-id. Time last.
    pub(super) fn own(self, fd: BorrowedFd<'_>, meta: Metadata) -> Result<(), Errno> {
        if let Some((uid, gid)) = self.owner(meta) {
            rfs::fchown(fd, Some(uid), Some(gid))?;
        }
        rfs::fchmod(fd, self.mode(meta))?;
        rfs::futimens(fd, &times(meta))
    }

    /// Owner and time of an entry that cannot be opened.
    pub(super) fn own_at(
        self,
        parent: BorrowedFd<'_>,
        name: &[u8],
        meta: Metadata,
    ) -> Result<(), Errno> {
        if let Some((uid, gid)) = self.owner(meta) {
            rfs::chownat(
                parent,
                name,
                Some(uid),
                Some(gid),
                AtFlags::SYMLINK_NOFOLLOW,
            )?;
        }
        rfs::utimensat(parent, name, &times(meta), AtFlags::SYMLINK_NOFOLLOW)
    }
}

/// A file under its temporary name; removed unless it is kept.
#[derive(Debug)]
pub(super) struct NewFile {
    pub(super) parent: OwnedFd,
    pub(super) temporary: String,
    pub(super) name: Vec<u8>,
    pub(super) meta: Metadata,
    pub(super) link: Option<u64>,
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

pub(super) fn create_temporary(parent: BorrowedFd<'_>) -> Result<(String, OwnedFd), Errno> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let process = std::process::id();
    for _ in 0..TEMPORARY_NAMES {
        let number = NEXT_TEMPORARY.fetch_add(1, Ordering::Relaxed);
        let name = format!(".smolvm-copy-{process}-{number}");
        match rfs::openat(parent, &*name, flags, Mode::RUSR | Mode::WUSR) {
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

fn times(meta: Metadata) -> Timestamps {
    let time = Timespec {
        tv_sec: meta.mtime_seconds,
        tv_nsec: meta.mtime_nanos.into(),
    };
    Timestamps {
        last_access: time,
        last_modification: time,
    }
}
