//! The real file system.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::sync::Arc;

use super::{FileStat, LockGuard, LockMode, StoreBackend, StoreFile};

/// The files of this host.
#[derive(Debug, Clone, Copy, Default)]
pub struct OsBackend;

impl StoreBackend for OsBackend {
    fn create_dirs(&self, dir: &Path) -> io::Result<()> {
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(dir)
    }

    fn create_new(&self, path: &Path) -> io::Result<Arc<dyn StoreFile>> {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(path)?;
        Ok(Arc::new(OsFile(file)))
    }

    fn open(&self, path: &Path) -> io::Result<Arc<dyn StoreFile>> {
        // A pipe put there by someone else must not block the reader.
        let file = OpenOptions::new()
            .read(true)
            .custom_flags(libc::O_NONBLOCK | libc::O_NOFOLLOW)
            .open(path)?;
        if !file.metadata()?.is_file() {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "not a regular file",
            ));
        }
        Ok(Arc::new(OsFile(file)))
    }

    fn stat(&self, path: &Path) -> io::Result<FileStat> {
        let meta = fs::symlink_metadata(path)?;
        Ok(FileStat {
            device: meta.dev(),
            inode: meta.ino(),
            links: meta.nlink(),
            len_bytes: meta.len(),
            mode: meta.mode() & 0o7777,
            is_dir: meta.is_dir(),
            modified_ns: i128::from(meta.mtime()) * 1_000_000_000 + i128::from(meta.mtime_nsec()),
        })
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<OsString>> {
        fs::read_dir(dir)?
            .map(|entry| Ok(entry?.file_name()))
            .collect()
    }

    fn link(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::hard_link(from, to)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        fs::remove_file(path)
    }

    fn remove_tree(&self, dir: &Path) -> io::Result<()> {
        fs::remove_dir_all(dir)
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        File::open(dir)?.sync_all()
    }

    fn lock(&self, path: &Path, mode: LockMode, wait: bool) -> io::Result<Option<LockGuard>> {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(path)?;
        if wait {
            match mode {
                LockMode::Shared => file.lock_shared()?,
                LockMode::Exclusive => file.lock()?,
            }
            return Ok(Some(Box::new(file)));
        }
        let tried = match mode {
            LockMode::Shared => file.try_lock_shared(),
            LockMode::Exclusive => file.try_lock(),
        };
        match tried {
            Ok(()) => Ok(Some(Box::new(file))),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(error)) => Err(error),
        }
    }
}

#[derive(Debug)]
struct OsFile(File);

impl StoreFile for OsFile {
    fn len_bytes(&self) -> io::Result<u64> {
        Ok(self.0.metadata()?.len())
    }

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        self.0.read_exact_at(buf, offset)
    }

    fn write_all_at(&self, data: &[u8], offset: u64) -> io::Result<()> {
        self.0.write_all_at(data, offset)
    }

    fn seal(&self) -> io::Result<()> {
        self.0.set_permissions(fs::Permissions::from_mode(0o400))
    }

    fn sync(&self) -> io::Result<()> {
        self.0.sync_all()
    }
}
