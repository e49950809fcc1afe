//! The seam to the file system.

use std::ffi::OsString;
use std::fmt;
use std::io;
use std::num::NonZeroU64;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// What is asked of a file system. [`crate::OsBackend`] is the real one; the feature `testing` brings one in
/// memory, one that fails on purpose and one that stops as a power loss does.
///
/// Durability is explicit, as POSIX has it: a file's bytes survive a crash after [`BackendFile::sync`], its name after
/// [`FileBackend::sync_dir`] of the directory. Errors are those of the system call, since callers tell
/// `NotFound`, `AlreadyExists`, `CrossesDevices`, `TooManyLinks` and `PermissionDenied` apart.
///
/// The last part of a path is never followed if it is a symbolic link.
pub trait FileBackend: fmt::Debug + Send + Sync {
    /// Makes a directory for the user alone (0700), which must not exist.
    fn create_dir(&self, dir: &Path) -> io::Result<()>;
    /// Creates a file that must not exist (0600), for reading and writing.
    fn create_new(&self, path: &Path) -> io::Result<Arc<dyn BackendFile>>;
    /// Opens a regular file for reading; anything else is `InvalidInput`.
    fn open(&self, path: &Path) -> io::Result<Arc<dyn BackendFile>>;
    /// Adds bytes to the end of a file by one write, making it (0600) if need be. Not synced.
    fn append(&self, path: &Path, bytes: &[u8]) -> io::Result<()>;
    /// What is known about a file or directory.
    fn stat(&self, path: &Path) -> io::Result<FileStat>;
    /// The names in a directory, in any order.
    fn list(&self, dir: &Path) -> io::Result<Vec<OsString>>;
    /// Gives a file a second name, which must not exist.
    fn link(&self, from: &Path, to: &Path) -> io::Result<()>;
    /// Renames a file or directory, replacing the file that was there.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
    /// Renames a file or directory to a name that must not exist.
    fn rename_new(&self, from: &Path, to: &Path) -> io::Result<()>;
    /// Removes a file's name from a directory that is no link.
    fn remove(&self, path: &Path) -> io::Result<()>;
    /// Removes an empty directory.
    fn remove_dir(&self, dir: &Path) -> io::Result<()>;
    /// Removes a directory with all that is in it. Links in it are removed, not followed.
    fn remove_tree(&self, dir: &Path) -> io::Result<()>;
    /// Makes the names in a directory durable.
    fn sync_dir(&self, dir: &Path) -> io::Result<()>;
    /// Takes a lock on a regular file, creating it (0600) if need be. The lock ends with the guard or the process.
    /// `None` if another holds it and `wait` is false. Who waits gets an error that names the holder if that is a process which is
    /// stopped ([`crate::LockHeld`]).
    fn lock(&self, path: &Path, mode: LockMode, wait: bool) -> io::Result<Option<LockGuard>>;
    /// Takes a lock on a regular file that must exist; it is not written to, and need not be writable. `None` and errors as there.
    fn lock_present(
        &self,
        path: &Path,
        mode: LockMode,
        wait: bool,
    ) -> io::Result<Option<LockGuard>>;
    /// Takes a lock on a directory, alone. `None` and errors as there.
    fn lock_dir(&self, dir: &Path, wait: bool) -> io::Result<Option<LockGuard>>;
    /// The path without links, dots and double slashes. It must exist.
    fn resolve(&self, path: &Path) -> io::Result<PathBuf>;
    /// The user whose files these are.
    fn user(&self) -> u32;
}

/// One open file. All methods may be called from several threads.
pub trait BackendFile: fmt::Debug + Send + Sync {
    /// What is known about it.
    fn stat(&self) -> io::Result<FileStat>;
    /// Fills `buf` from `offset`; `UnexpectedEof` if the file is shorter.
    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()>;
    /// Writes all of `data` at `offset`.
    fn write_all_at(&self, data: &[u8], offset: u64) -> io::Result<()>;
    /// Takes everybody's right to write away (0400).
    fn seal(&self) -> io::Result<()>;
    /// Makes the file's bytes and mode durable.
    fn sync(&self) -> io::Result<()>;
    /// Lets the system begin to write what these bytes are to the disk, where it allows that: a later [`Self::sync`] has less to do.
    fn begin_sync(&self, _offset: u64, _length: NonZeroU64) -> io::Result<()> {
        Ok(())
    }
    /// Makes the next read come from the disk instead of memory, where the system allows it.
    fn forget_cached(&self) -> io::Result<()>;
    /// Length in bytes.
    fn len_bytes(&self) -> io::Result<u64> {
        Ok(self.stat()?.len_bytes)
    }
}

/// A held lock; dropping it lets go.
pub type LockGuard = Box<dyn fmt::Debug + Send + Sync>;

/// Who may hold a lock at the same time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LockMode {
    /// Together with other shared holders.
    Shared,
    /// Alone.
    Exclusive,
}

/// What a name stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileKind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A link, pipe, socket or device.
    Other,
}

/// What is known about a file without reading it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileStat {
    /// The device it lies on.
    pub device: u64,
    /// Its number there.
    pub inode: u64,
    /// Number of names (hard links).
    pub links: u64,
    /// Length in bytes.
    pub len_bytes: u64,
    /// Permission bits.
    pub mode: u32,
    /// The user that owns it.
    pub owner: u32,
    /// What it is.
    pub kind: FileKind,
    /// Time of the last change to the bytes, in nanoseconds since 1970.
    pub modified_ns: i128,
}

impl FileStat {
    /// Whether both are the same file.
    #[must_use]
    pub fn same_file(&self, other: &Self) -> bool {
        (self.device, self.inode) == (other.device, other.inode)
    }

    /// Whether it is a directory.
    #[must_use]
    pub fn is_dir(&self) -> bool {
        self.kind == FileKind::Directory
    }

    /// Whether it is a regular file.
    #[must_use]
    pub fn is_file(&self) -> bool {
        self.kind == FileKind::File
    }
}
