//! The seam between the store and where its files lie.

mod os;

use std::ffi::OsString;
use std::fmt;
use std::io;
use std::path::Path;
use std::sync::Arc;

pub use os::OsBackend;

/// What the store asks of a file system. [`OsBackend`] is the real one; the feature `testing` brings one in
/// memory, one that fails on purpose and one that stops as a crash does.
///
/// Durability is explicit, as POSIX has it: a file's bytes survive a crash after [`StoreFile::sync`], its name after
/// [`StoreBackend::sync_dir`] of the directory. Errors are those of the system call, since the store tells
/// `NotFound`, `AlreadyExists`, `CrossesDevices`, `TooManyLinks` and `PermissionDenied` apart.
pub trait StoreBackend: fmt::Debug + Send + Sync {
    /// Makes a directory and its parents for the user alone (0700); fine if it exists.
    fn create_dirs(&self, dir: &Path) -> io::Result<()>;
    /// Creates a file that must not exist (0600), for reading and writing.
    fn create_new(&self, path: &Path) -> io::Result<Arc<dyn StoreFile>>;
    /// Opens a file for reading.
    fn open(&self, path: &Path) -> io::Result<Arc<dyn StoreFile>>;
    /// What is known about a file or directory. Symbolic links are not followed.
    fn stat(&self, path: &Path) -> io::Result<FileStat>;
    /// The names in a directory, in any order.
    fn list(&self, dir: &Path) -> io::Result<Vec<OsString>>;
    /// Gives a file a second name, which must not exist.
    fn link(&self, from: &Path, to: &Path) -> io::Result<()>;
    /// Renames a file, replacing what was there.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
    /// Removes a file's name.
    fn remove(&self, path: &Path) -> io::Result<()>;
    /// Removes a directory with all that is in it.
    fn remove_tree(&self, dir: &Path) -> io::Result<()>;
    /// Makes the names in a directory durable.
    fn sync_dir(&self, dir: &Path) -> io::Result<()>;
    /// Takes a lock on a file, creating it if need be. The lock ends with the guard or the process. `None` if
    /// another holds it and `wait` is false.
    fn lock(&self, path: &Path, mode: LockMode, wait: bool) -> io::Result<Option<LockGuard>>;
}

/// One open file. All methods may be called from several threads.
pub trait StoreFile: fmt::Debug + Send + Sync {
    /// Length in bytes.
    fn len_bytes(&self) -> io::Result<u64>;
    /// Fills `buf` from `offset`; `UnexpectedEof` if the file is shorter.
    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()>;
    /// Writes all of `data` at `offset`.
    fn write_all_at(&self, data: &[u8], offset: u64) -> io::Result<()>;
    /// Takes everybody's right to write away (0400).
    fn seal(&self) -> io::Result<()>;
    /// Makes the file's bytes and mode durable.
    fn sync(&self) -> io::Result<()>;
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

/// What is known about a file without opening it.
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
    /// Whether it is a directory.
    pub is_dir: bool,
    /// Time of the last change to the bytes, in nanoseconds since 1970; orders packs by age.
    pub modified_ns: i128,
}

impl FileStat {
    /// Whether both are the same file.
    #[must_use]
    pub fn same_file(&self, other: &Self) -> bool {
        (self.device, self.inode) == (other.device, other.inode)
    }
}
