//! A directory that stays reachable under whatever name it has.

use std::fs::File;
#[cfg(not(target_os = "macos"))]
use std::os::fd::AsRawFd;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

#[cfg(not(target_os = "macos"))]
use crate::error_chain::HELD_ROOT;
use crate::file_error::FileError;

/// A directory that is held open. Its path leads to it for as long as it is held, also after it was renamed; only in this process.
#[derive(Debug)]
pub(crate) struct HeldDirectory {
    descriptor: OwnedFd,
}

impl HeldDirectory {
    /// Opens the directory.
    pub(crate) fn open(path: &Path) -> Result<Self, FileError> {
        let opened = File::open(path).and_then(|file| match file.metadata()?.is_dir() {
            true => Ok(file),
            false => Err(std::io::ErrorKind::NotADirectory.into()),
        });
        let file = opened.map_err(FileError::at("open directory", path))?;
        Ok(Self::of(file.into()))
    }

    /// One that another process has opened and handed over.
    pub(crate) fn of(descriptor: OwnedFd) -> Self {
        Self { descriptor }
    }

    /// The path that always leads there. `error_chain` gives messages the name that it has.
    #[cfg(not(target_os = "macos"))]
    pub(crate) fn path(&self) -> PathBuf {
        PathBuf::from(format!("{HELD_ROOT}{}", self.descriptor.as_raw_fd()))
    }

    /// Where it lies now, as far as the host says.
    #[cfg(not(target_os = "macos"))]
    pub(crate) fn place(&self) -> Option<PathBuf> {
        std::fs::read_link(self.path()).ok()
    }

    /// The path that leads there now: no path leads through a descriptor here.
    #[cfg(target_os = "macos")]
    pub(crate) fn path(&self) -> PathBuf {
        self.place().unwrap_or_default()
    }

    /// Where it lies now, as far as the host says.
    #[cfg(target_os = "macos")]
    pub(crate) fn place(&self) -> Option<PathBuf> {
        use std::os::unix::ffi::OsStringExt;
        let path = rustix::fs::getpath(&self.descriptor).ok()?;
        Some(std::ffi::OsString::from_vec(path.into_bytes()).into())
    }
}

impl AsFd for HeldDirectory {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn it_is_found_under_its_new_name() {
        let root = tempfile::tempdir().unwrap();
        let [old, new] = ["old", "new"].map(|name| root.path().join(name));
        fs::create_dir(&old).unwrap();
        let held = HeldDirectory::open(&old).unwrap();
        fs::rename(&old, &new).unwrap();
        fs::create_dir(&old).unwrap();
        fs::write(held.path().join("file"), "x").unwrap();
        assert!(new.join("file").exists() && !old.join("file").exists());
        assert_eq!(held.place().unwrap(), new.canonicalize().unwrap());
    }

    #[test]
    fn a_file_is_no_directory() {
        let root = tempfile::tempdir().unwrap();
        let file = root.path().join("file");
        fs::write(&file, "").unwrap();
        assert!(HeldDirectory::open(&file).is_err());
    }
}
