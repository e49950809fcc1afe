//! Files that are being made.
//!
//! Until it is complete a file has no name at all, so whatever ends the copy leaves nothing behind. Where
//! the file system knows no such files it has a temporary one, which goes with the [`NewFile`].

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{self as rfs, AtFlags, Mode, OFlags};
use rustix::io::Errno;

use super::super::Metadata;
use super::close;
use super::place::duplicate;

static NEXT_TEMPORARY: AtomicU64 = AtomicU64::new(0);
/// Temporary names tried for one file.
const TEMPORARY_NAMES: u32 = 100;

/// A file that is not in its place; gone when dropped unless it was put there.
#[derive(Debug)]
pub(super) struct NewFile {
    pub(super) parent: OwnedFd,
    pub(super) name: Vec<u8>,
    pub(super) meta: Metadata,
    pub(super) fd: OwnedFd,
    temporary: Option<String>,
}

impl NewFile {
    /// A new file for `name`. The process's umask is taken from `mode` by the system.
    pub(super) fn create(
        parent: OwnedFd,
        name: Vec<u8>,
        meta: Metadata,
        mode: Mode,
    ) -> Result<Self, Errno> {
        let (fd, temporary) = match create_nameless(parent.as_fd(), mode)? {
            Some(fd) => (fd, None),
            None => {
                let flags = OFlags::WRONLY
                    | OFlags::CREATE
                    | OFlags::EXCL
                    | OFlags::NOFOLLOW
                    | OFlags::CLOEXEC;
                let (temporary, fd) =
                    with_temporary_name(|name| rfs::openat(&parent, name, flags, mode))?;
                (fd, Some(temporary))
            }
        };
        Ok(Self {
            parent,
            name,
            meta,
            fd,
            temporary,
        })
    }

    /// Gives the complete file its name, in place of what has it.
    pub(super) fn put_in_place(&mut self) -> Result<(), Errno> {
        // What a file system says only when a file is closed must be known while the old one is there.
        close::close(duplicate(self.fd.as_fd())?)?;
        let temporary = match self.temporary.take() {
            Some(temporary) => temporary,
            None => match link(&self.fd, &self.parent, &self.name) {
                Err(Errno::EXIST) => {
                    let link = |name: &str| link(&self.fd, &self.parent, name.as_bytes());
                    with_temporary_name(link)?.0
                }
                done => return done,
            },
        };
        let renamed = rfs::renameat(&self.parent, &*temporary, &self.parent, &*self.name);
        if renamed.is_err() {
            self.temporary = Some(temporary);
        }
        renamed
    }
}

impl Drop for NewFile {
    fn drop(&mut self) {
        if let Some(temporary) = &self.temporary {
            // Best effort: the copy has failed already and says so.
            let _ = rfs::unlinkat(&self.parent, &**temporary, AtFlags::empty());
        }
    }
}

/// A file without a name; `None` where the file system has no such files.
#[cfg(target_os = "linux")]
fn create_nameless(parent: BorrowedFd<'_>, mode: Mode) -> Result<Option<OwnedFd>, Errno> {
    let flags = OFlags::WRONLY | OFlags::TMPFILE | OFlags::CLOEXEC;
    match rfs::openat(parent, c".", flags, mode) {
        Ok(fd) => Ok(Some(fd)),
        Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::INVAL | Errno::NOENT) => Ok(None),
        Err(errno) => Err(errno),
    }
}

#[cfg(not(target_os = "linux"))]
fn create_nameless(_parent: BorrowedFd<'_>, _mode: Mode) -> Result<Option<OwnedFd>, Errno> {
    Ok(None)
}

/// Gives a nameless file a name.
#[cfg(target_os = "linux")]
fn link(file: &OwnedFd, parent: &OwnedFd, name: &[u8]) -> Result<(), Errno> {
    use std::os::fd::AsRawFd;
    match rfs::linkat(file, c"", parent, name, AtFlags::EMPTY_PATH) {
        // Only some may do so by the descriptor itself; without /proc the first answer counts.
        Err(first @ (Errno::NOENT | Errno::PERM)) => {
            let path = format!("/proc/self/fd/{}", file.as_raw_fd());
            match rfs::linkat(rfs::CWD, &*path, parent, name, AtFlags::SYMLINK_FOLLOW) {
                Err(Errno::NOENT) => Err(first),
                other => other,
            }
        }
        other => other,
    }
}

#[cfg(not(target_os = "linux"))]
fn link(_file: &OwnedFd, _parent: &OwnedFd, _name: &[u8]) -> Result<(), Errno> {
    Err(Errno::OPNOTSUPP)
}

/// Does something with a name that nothing has.
fn with_temporary_name<T>(
    mut make: impl FnMut(&str) -> Result<T, Errno>,
) -> Result<(String, T), Errno> {
    let process = std::process::id();
    for _ in 0..TEMPORARY_NAMES {
        let number = NEXT_TEMPORARY.fetch_add(1, Ordering::Relaxed);
        let name = format!(".smolvm-copy-{process}-{number}");
        match make(&name) {
            Ok(made) => return Ok((name, made)),
            Err(Errno::EXIST) => {}
            Err(errno) => return Err(errno),
        }
    }
    Err(Errno::EXIST)
}
