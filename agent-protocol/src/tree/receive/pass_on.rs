//! A single file that goes to where bytes are only passed on: a named pipe, a terminal, `/dev/null`.

use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::fs::{self as rfs, AtFlags, FileType, Mode, OFlags};
use rustix::io::Errno;

use super::place::{MakeError, kind};

/// Holes are written in pieces of so many zeros.
static ZEROS: [u8; 64 << 10] = [0; 64 << 10];

/// What bytes are passed on to, in order.
#[derive(Debug)]
pub(super) struct Passage {
    fd: OwnedFd,
    position: u64,
}

/// Opens a target that bytes are passed on to, which may be reached by a link as `/dev/stdout` is. `None`
/// where a file is to be made. What a copy must not take the place of is an error.
pub(super) fn open(target: &Path, is_file: bool) -> Result<Option<Passage>, MakeError> {
    let path = target.as_os_str().as_bytes();
    let Ok(stat) = rfs::statat(rfs::CWD, path, AtFlags::empty()) else {
        return Ok(None);
    };
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::Fifo | FileType::CharacterDevice if is_file => {}
        FileType::RegularFile if is_open_file(path) => {
            return Err(MakeError::InTheWay("a link to an open file"));
        }
        FileType::RegularFile | FileType::Directory => return Ok(None),
        other => return Err(MakeError::InTheWay(kind(other))),
    }
    // Nobody may ever read from a pipe; it must not be waited for.
    let flags = OFlags::WRONLY | OFlags::NOCTTY | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let fd = match rfs::openat(rfs::CWD, path, flags, Mode::empty()) {
        Err(Errno::NXIO) => {
            return Err(MakeError::InTheWay("a pipe or device that nobody reads"));
        }
        opened => opened?,
    };
    let now = FileType::from_raw_mode(rfs::fstat(&fd)?.st_mode);
    if !matches!(now, FileType::Fifo | FileType::CharacterDevice) {
        return Err(MakeError::System(Errno::AGAIN));
    }
    rfs::fcntl_setfl(&fd, rfs::fcntl_getfl(&fd)? - OFlags::NONBLOCK)?;
    Ok(Some(Passage { fd, position: 0 }))
}

/// Whether the path is a link such as `/dev/stdout`, which stands for what a process has open.
fn is_open_file(path: &[u8]) -> bool {
    let target = rfs::readlinkat(rfs::CWD, path, Vec::new());
    target.is_ok_and(|target| target.as_bytes().starts_with(b"/proc/"))
}

impl Passage {
    /// Passes on what belongs at `offset`, zeros before it. `Ok(false)` where that is behind.
    pub(super) fn write(&mut self, offset: u64, mut data: &[u8]) -> Result<bool, Errno> {
        if offset < self.position {
            return Ok(false);
        }
        while self.position < offset {
            let gap = usize::try_from(offset - self.position).unwrap_or(usize::MAX);
            self.write_some(&ZEROS[..gap.min(ZEROS.len())])?;
        }
        while !data.is_empty() {
            let count = self.write_some(data)?;
            data = &data[count..];
        }
        Ok(true)
    }

    fn write_some(&mut self, data: &[u8]) -> Result<usize, Errno> {
        let count = rustix::io::retry_on_intr(|| rustix::io::write(&self.fd, data))?;
        if count == 0 {
            return Err(Errno::IO);
        }
        self.position += count as u64;
        Ok(count)
    }
}
