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
    /// Where its temporary name is, if not in `parent`.
    home: Option<OwnedFd>,
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
            None => create_named(parent.as_fd(), mode)?,
        };
        Ok(Self {
            parent,
            name,
            meta,
            fd,
            temporary,
            home: None,
        })
    }

    /// It is to get another name than the one it was made for.
    pub(super) fn move_to(&mut self, parent: OwnedFd, name: Vec<u8>) {
        let before = std::mem::replace(&mut self.parent, parent);
        self.home.get_or_insert(before);
        self.name = name;
    }

    fn home(&self) -> &OwnedFd {
        self.home.as_ref().unwrap_or(&self.parent)
    }

    /// Gives the complete file its name, in place of what has it.
    pub(super) fn put_in_place(&mut self) -> Result<(), Errno> {
        // What a file system says only when a file is closed must be known while the old one is there.
        close::close(duplicate(self.fd.as_fd())?)?;
        let temporary = match self.temporary.take() {
            Some(temporary) => temporary,
            None => match link(&self.fd, &self.parent, &self.name) {
                Err(Errno::EXIST) => {
                    let link = |name: &str| link(&self.fd, self.home(), name.as_bytes());
                    with_temporary_name(link)?.0
                }
                done => return done,
            },
        };
        let renamed = rfs::renameat(self.home(), &*temporary, &self.parent, &*self.name);
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
            let _ = rfs::unlinkat(self.home(), &**temporary, AtFlags::empty());
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

/// A file under a temporary name.
fn create_named(parent: BorrowedFd<'_>, mode: Mode) -> Result<(OwnedFd, Option<String>), Errno> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let (name, fd) = with_temporary_name(|name| rfs::openat(parent, name, flags, mode))?;
    Ok((fd, Some(name)))
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

#[cfg(test)]
mod tests {
    use super::*;

    /// As where the file system knows no nameless files.
    #[test]
    fn a_temporary_name_goes_whatever_becomes_of_the_file() {
        let place = tempfile::tempdir().expect("temporary directory");
        let names = || {
            let entries = std::fs::read_dir(place.path()).expect("list");
            let mut names: Vec<_> = entries.map(|e| e.expect("entry").file_name()).collect();
            names.sort();
            names
        };
        let open = || rfs::open(place.path(), OFlags::RDONLY, Mode::empty()).expect("open");
        let file = |name: &str| {
            let parent = open();
            let mode = Mode::RUSR | Mode::WUSR;
            let (fd, temporary) = create_named(parent.as_fd(), mode).expect("created");
            NewFile {
                parent,
                name: name.into(),
                meta: Metadata::default(),
                fd,
                temporary,
                home: None,
            }
        };
        let dropped = file("dropped");
        assert_eq!(names().len(), 1);
        drop(dropped);
        assert_eq!(names().len(), 0);
        std::fs::create_dir(place.path().join("directory")).expect("directory");
        for _ in 0..2 {
            let mut made = file("directory");
            assert_eq!(made.put_in_place(), Err(Errno::ISDIR));
            made.move_to(open(), b"file".to_vec());
            made.put_in_place().expect("placed");
            drop(made);
            assert_eq!(names(), ["directory", "file"]);
        }
    }
}
