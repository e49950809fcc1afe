//! The real file system.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File, OpenOptions};
use std::io;
use std::num::NonZeroU64;
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustix::fs::{AtFlags, OFlags, RenameFlags};

use crate::backend::{BackendFile, FileBackend, FileKind, FileStat, LockGuard, LockMode};
use crate::waiting::{lock_within, wait_for_lock};

/// The files of this host.
#[derive(Debug, Clone, Copy, Default)]
pub struct OsBackend;

/// Neither follows a link nor waits for the other end of a pipe.
fn careful() -> i32 {
    (OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC).bits() as i32
}

/// A directory that is no link.
fn open_dir(dir: &Path) -> io::Result<File> {
    OpenOptions::new()
        .read(true)
        .custom_flags(careful() | OFlags::DIRECTORY.bits() as i32)
        .open(dir)
}

fn regular(file: File) -> io::Result<File> {
    if file.metadata()?.is_file() {
        return Ok(file);
    }
    let what = "not a regular file";
    Err(io::Error::new(io::ErrorKind::InvalidInput, what))
}

/// The directory of `path`, opened without following it if it is a link, and the name in it.
fn parent(path: &Path) -> io::Result<(File, &OsStr)> {
    let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?;
    let dir = match path.parent() {
        Some(dir) if !dir.as_os_str().is_empty() => dir,
        _ => Path::new("."),
    };
    Ok((open_dir(dir)?, name))
}

fn to_stat(meta: &fs::Metadata) -> FileStat {
    let kind = match meta.file_type() {
        kind if kind.is_file() => FileKind::File,
        kind if kind.is_dir() => FileKind::Directory,
        _ => FileKind::Other,
    };
    FileStat {
        device: meta.dev(),
        inode: meta.ino(),
        links: meta.nlink(),
        len_bytes: meta.len(),
        mode: meta.mode() & 0o7777,
        owner: meta.uid(),
        kind,
        modified_ns: i128::from(meta.mtime()) * 1_000_000_000 + i128::from(meta.mtime_nsec()),
    }
}

impl FileBackend for OsBackend {
    fn create_dir(&self, dir: &Path) -> io::Result<()> {
        fs::DirBuilder::new().mode(0o700).create(dir)
    }

    fn create_new(&self, path: &Path) -> io::Result<Arc<dyn BackendFile>> {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(path)?;
        Ok(Arc::new(OsFile(file)))
    }

    fn open(&self, path: &Path) -> io::Result<Arc<dyn BackendFile>> {
        let file = OpenOptions::new()
            .read(true)
            .custom_flags(careful())
            .open(path)?;
        Ok(Arc::new(OsFile(regular(file)?)))
    }

    fn append(&self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        let file = OpenOptions::new()
            .append(true)
            .create(true)
            .mode(0o600)
            .custom_flags(careful())
            .open(path)?;
        let mut file = regular(file)?;
        match io::Write::write(&mut file, bytes)? {
            written if written == bytes.len() => Ok(()),
            _ => Err(io::ErrorKind::StorageFull.into()),
        }
    }

    fn stat(&self, path: &Path) -> io::Result<FileStat> {
        Ok(to_stat(&fs::symlink_metadata(path)?))
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<OsString>> {
        // Where `dir` is a link, `read_dir` would follow it.
        drop(open_dir(dir)?);
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

    fn rename_new(&self, from: &Path, to: &Path) -> io::Result<()> {
        let here = rustix::fs::CWD;
        match rustix::fs::renameat_with(here, from, here, to, RenameFlags::NOREPLACE) {
            // A file system that lacks the flag. Who made `to` since it was looked at would lose an empty directory or a file.
            Err(rustix::io::Errno::INVAL | rustix::io::Errno::NOSYS)
                if fs::symlink_metadata(to).is_err() =>
            {
                fs::rename(from, to)
            }
            result => Ok(result?),
        }
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        let (dir, name) = parent(path)?;
        Ok(rustix::fs::unlinkat(&dir, name, AtFlags::empty())?)
    }

    fn remove_dir(&self, dir: &Path) -> io::Result<()> {
        let (parent, name) = parent(dir)?;
        Ok(rustix::fs::unlinkat(&parent, name, AtFlags::REMOVEDIR)?)
    }

    fn remove_tree(&self, dir: &Path) -> io::Result<()> {
        drop(open_dir(dir)?);
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
            .custom_flags(careful())
            .open(path)?;
        hold(regular(file)?, mode, wait)
    }

    fn lock_present(
        &self,
        path: &Path,
        mode: LockMode,
        wait: bool,
    ) -> io::Result<Option<LockGuard>> {
        let file = OpenOptions::new()
            .read(true)
            .custom_flags(careful())
            .open(path)?;
        hold(regular(file)?, mode, wait)
    }

    fn lock_dir(&self, dir: &Path, wait: bool) -> io::Result<Option<LockGuard>> {
        hold(open_dir(dir)?, LockMode::Exclusive, wait)
    }

    fn resolve(&self, path: &Path) -> io::Result<PathBuf> {
        fs::canonicalize(path)
    }

    fn user(&self) -> u32 {
        rustix::process::geteuid().as_raw()
    }
}

fn hold(file: File, mode: LockMode, wait: bool) -> io::Result<Option<LockGuard>> {
    if wait {
        wait_for_lock(&file, mode)?;
    } else if !lock_within(&file, mode, Duration::ZERO)? {
        return Ok(None);
    }
    Ok(Some(Box::new(file)))
}

#[derive(Debug)]
struct OsFile(File);

impl BackendFile for OsFile {
    fn stat(&self) -> io::Result<FileStat> {
        Ok(to_stat(&self.0.metadata()?))
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

    #[cfg(target_os = "linux")]
    fn begin_sync(&self, offset: u64, length: NonZeroU64) -> io::Result<()> {
        // Linux begins to write what is dirty, and keeps what is being written (`mm/fadvise.c`).
        let advice = rustix::fs::Advice::DontNeed;
        Ok(rustix::fs::fadvise(&self.0, offset, Some(length), advice)?)
    }

    #[cfg(target_os = "linux")]
    fn forget_cached(&self) -> io::Result<()> {
        Ok(rustix::fs::fadvise(
            &self.0,
            0,
            None,
            rustix::fs::Advice::DontNeed,
        )?)
    }

    #[cfg(not(target_os = "linux"))]
    fn forget_cached(&self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dir_with_link() -> (tempfile::TempDir, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let target = dir.path().join("elsewhere");
        fs::create_dir(&target).unwrap();
        fs::write(target.join("precious"), b"x").unwrap();
        let link = dir.path().join("link");
        std::os::unix::fs::symlink(&target, &link).unwrap();
        (dir, link)
    }

    #[test]
    fn nothing_is_listed_or_removed_through_a_link() {
        let (dir, link) = dir_with_link();
        OsBackend.list(&link).unwrap_err();
        OsBackend.remove(&link.join("precious")).unwrap_err();
        OsBackend.remove_tree(&link).unwrap_err();
        OsBackend.lock_dir(&link, false).unwrap_err();
        assert!(dir.path().join("elsewhere/precious").exists());
        assert_eq!(OsBackend.stat(&link).unwrap().kind, FileKind::Other);
    }

    #[test]
    fn links_pipes_and_directories_are_not_opened_as_files() {
        let (dir, link) = dir_with_link();
        let to_file = dir.path().join("to-file");
        std::os::unix::fs::symlink(link.join("precious"), &to_file).unwrap();
        let pipe = dir.path().join("pipe");
        rustix::fs::mknodat(
            rustix::fs::CWD,
            &pipe,
            rustix::fs::FileType::Fifo,
            rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR,
            0,
        )
        .unwrap();
        for path in [&to_file, &pipe, &link] {
            OsBackend.open(path).unwrap_err();
            OsBackend.lock(path, LockMode::Exclusive, true).unwrap_err();
            OsBackend
                .lock_present(path, LockMode::Shared, true)
                .unwrap_err();
            OsBackend.append(path, b"x").unwrap_err();
        }
        assert_eq!(fs::read(&to_file).unwrap(), b"x");
    }

    #[test]
    fn a_name_that_is_taken_is_not_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        fs::write(at("a"), b"a").unwrap();
        fs::write(at("b"), b"b").unwrap();
        let error = OsBackend.rename_new(&at("a"), &at("b")).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AlreadyExists);
        OsBackend.rename_new(&at("a"), &at("c")).unwrap();
        assert_eq!(fs::read(at("b")).unwrap(), b"b");
    }
}
