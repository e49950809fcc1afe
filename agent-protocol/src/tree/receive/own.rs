//! Whose the made entries are, and what they may do here.
//!
//! Somebody else may be able to write to the directory that is copied into, and swap an entry that
//! was just made for another. So owner, mode and time are given by descriptor, after a look at what
//! the descriptor is.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{self as rfs, AtFlags, Gid, Mode, Timespec, Timestamps, Uid};
use rustix::io::Errno;

use super::super::{Metadata, SpecialKind};
use super::new_file::NewFile;
use super::place::{MakeError, Replaced, replaceable};
use crate::message::Owner;

/// Whose the made entries are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ownership {
    /// The receiving process's. Modes are masked with its umask, set-user-id and set-group-id are
    /// dropped and devices left out: they would mean something else than at the source.
    Mine,
    /// The numbers of the source; needs privilege.
    Keep,
    /// This owner; needs privilege.
    Set(Owner),
}

impl Ownership {
    /// The mode that an entry is made with, which the system masks with the umask. What is not ours
    /// gets its mode once it has its owner.
    fn first_mode(self, meta: Metadata) -> Mode {
        match self {
            Self::Mine => mode(meta.mode & 0o777),
            Self::Keep | Self::Set(_) => Mode::RUSR | Mode::WUSR,
        }
    }

    /// The mode that a directory is made with: its entries must be makeable.
    pub(super) fn directory_mode(self, meta: Metadata) -> Mode {
        match self {
            Self::Mine => mode(meta.mode & 0o1777) | Mode::RWXU,
            Self::Keep | Self::Set(_) => Mode::RWXU,
        }
    }

    fn owner(self, meta: Metadata) -> Option<(Uid, Gid)> {
        match self {
            Ownership::Mine => None,
            Ownership::Keep => Some((Uid::from_raw(meta.uid), Gid::from_raw(meta.gid))),
            Ownership::Set(owner) => Some((Uid::from_raw(owner.uid), Gid::from_raw(owner.gid))),
        }
    }

    /// A new file for `name`, or else for another of its names, if it has some.
    pub(super) fn new_file(
        self,
        parent: OwnedFd,
        name: Vec<u8>,
        meta: Metadata,
        has_more_names: bool,
    ) -> Result<NewFile, MakeError> {
        let mut mode = self.first_mode(meta);
        match replaceable(parent.as_fd(), &name) {
            // Who could not read the old one reads nothing of the new one, not even for a moment.
            Ok(Some(replaced)) => {
                mode &= Mode::from_raw_mode(replaced.mode) | Mode::RUSR | Mode::WUSR;
            }
            Ok(None) => {}
            Err(MakeError::InTheWay(_)) if has_more_names => {}
            Err(error) => return Err(error),
        }
        Ok(NewFile::create(parent, name, meta, mode)?)
    }

    /// Gives a complete file its owner, mode, time and name. One that takes the place of another gets
    /// owner and mode of that.
    pub(super) fn keep_file(self, file: &mut NewFile, size_bytes: u64) -> Result<(), MakeError> {
        rfs::ftruncate(&file.fd, size_bytes)?;
        let replaced = replaceable(file.parent.as_fd(), &file.name)?;
        // Owner first: changing it clears set-user-id. Time last.
        match (replaced, self.owner(file.meta)) {
            (Some(replaced), _) => self.own_as_before(&file.fd, replaced)?,
            (None, Some((uid, gid))) => {
                rfs::fchown(&file.fd, Some(uid), Some(gid))?;
                rfs::fchmod(&file.fd, mode(file.meta.mode))?;
            }
            (None, None) => {}
        }
        rfs::futimens(&file.fd, &times(file.meta))?;
        Ok(file.put_in_place()?)
    }

    /// Owner and mode of a file that was there, as far as this process may give them.
    fn own_as_before(self, fd: &OwnedFd, replaced: Replaced) -> Result<(), Errno> {
        let may = |owner: Result<(), Errno>| match owner {
            Ok(()) => Ok(true),
            Err(Errno::PERM) => Ok(false),
            Err(errno) => Err(errno),
        };
        let whole = may(rfs::fchown(fd, Some(replaced.uid), Some(replaced.gid)))?;
        let group = whole || may(rfs::fchown(fd, None, Some(replaced.gid)))?;
        let mut mode = Mode::from_raw_mode(replaced.mode);
        if !whole || self == Self::Mine {
            mode &= Mode::RWXU | Mode::RWXG | Mode::RWXO;
        }
        if !group {
            // Another group: it may do what everybody may.
            let all = (mode & Mode::RWXO).as_raw_mode();
            mode &= Mode::RWXU | Mode::RWXO | Mode::from_raw_mode(all << 3);
        }
        rfs::fchmod(fd, mode)
    }

    /// Gives a directory of this copy its owner, mode and time, once its entries are made.
    pub(super) fn own_directory(self, fd: BorrowedFd<'_>, meta: Metadata) -> Result<(), Errno> {
        match self.owner(meta) {
            Some((uid, gid)) => {
                rfs::fchown(fd, Some(uid), Some(gid))?;
                rfs::fchmod(fd, mode(meta.mode))?;
            }
            // The system has masked the mode when the directory was made.
            None => {
                let made = Mode::from_raw_mode(rfs::fstat(fd)?.st_mode);
                rfs::fchmod(fd, made & mode(meta.mode & 0o1777))?;
            }
        }
        rfs::futimens(fd, &times(meta))
    }
}

#[cfg(target_os = "linux")]
impl Ownership {
    /// Owner and time of a symbolic link that was just made.
    pub(super) fn own_symlink(
        self,
        parent: BorrowedFd<'_>,
        name: &[u8],
        meta: Metadata,
    ) -> Result<(), Errno> {
        let fd = hold(parent, name, rfs::FileType::Symlink)?;
        self.own_held(&fd, meta)
    }

    /// Makes a pipe or device with its owner, mode and time.
    pub(super) fn make_special(
        self,
        parent: BorrowedFd<'_>,
        name: &[u8],
        kind: SpecialKind,
        (major, minor): (u32, u32),
        meta: Metadata,
    ) -> Result<(), MakeError> {
        let kind = match kind {
            SpecialKind::Fifo => rfs::FileType::Fifo,
            _ if self == Ownership::Mine => return Err(Errno::PERM.into()),
            SpecialKind::CharacterDevice => rfs::FileType::CharacterDevice,
            SpecialKind::BlockDevice => rfs::FileType::BlockDevice,
        };
        let device = rfs::makedev(major, minor);
        if let Ok(there) = rfs::statat(parent, name, AtFlags::SYMLINK_NOFOLLOW)
            && rfs::FileType::from_raw_mode(there.st_mode) == kind
            && (kind == rfs::FileType::Fifo || there.st_rdev == device)
        {
            // It is the same, and may be in use.
            return Ok(());
        }
        super::place::replace(parent, name, || {
            rfs::mknodat(parent, name, kind, self.first_mode(meta), device)
        })?;
        let fd = hold(parent, name, kind)?;
        Ok(self.own_held(&fd, meta)?)
    }

    fn own_held(self, fd: &OwnedFd, meta: Metadata) -> Result<(), Errno> {
        let here = AtFlags::EMPTY_PATH | AtFlags::SYMLINK_NOFOLLOW;
        if let Some((uid, gid)) = self.owner(meta) {
            rfs::chownat(fd, c"", Some(uid), Some(gid), here)?;
            if !is(fd, rfs::FileType::Symlink)? {
                // The only way to the mode of an entry that is not opened, before Linux 6.6.
                use std::os::fd::AsRawFd;
                let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
                rfs::chmodat(rfs::CWD, &*path, mode(meta.mode), AtFlags::empty())?;
            }
        }
        rfs::utimensat(fd, c"", &times(meta), here)
    }
}

/// Where entries cannot be held without being opened only the time of links is kept.
#[cfg(not(target_os = "linux"))]
impl Ownership {
    pub(super) fn own_symlink(
        self,
        parent: BorrowedFd<'_>,
        name: &[u8],
        meta: Metadata,
    ) -> Result<(), Errno> {
        rfs::utimensat(parent, name, &times(meta), AtFlags::SYMLINK_NOFOLLOW)
    }

    pub(super) fn make_special(
        self,
        _parent: BorrowedFd<'_>,
        _name: &[u8],
        _kind: SpecialKind,
        _device: (u32, u32),
        _meta: Metadata,
    ) -> Result<(), MakeError> {
        Err(Errno::OPNOTSUPP.into())
    }
}

/// Holds the entry that was just made: of this kind, ours, and with no other name. Anything else is
/// somebody's who swapped it.
#[cfg(target_os = "linux")]
fn hold(parent: BorrowedFd<'_>, name: &[u8], kind: rfs::FileType) -> Result<OwnedFd, Errno> {
    use rfs::OFlags;
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let fd = rfs::openat(parent, name, flags, Mode::empty())?;
    let stat = rfs::fstat(&fd)?;
    let ours = stat.st_uid == rustix::process::geteuid().as_raw() && stat.st_nlink == 1;
    if ours && is(&fd, kind)? {
        Ok(fd)
    } else {
        Err(Errno::AGAIN)
    }
}

#[cfg(target_os = "linux")]
fn is(fd: &OwnedFd, kind: rfs::FileType) -> Result<bool, Errno> {
    Ok(rfs::FileType::from_raw_mode(rfs::fstat(fd)?.st_mode) == kind)
}

fn mode(bits: u32) -> Mode {
    Mode::from_raw_mode(bits as rfs::RawMode)
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
