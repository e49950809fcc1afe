//! Directories, with the durability of what is in them.

use std::io;
use std::path::Path;

use crate::backend::{FileBackend, FileKind};
use crate::error::FileError;

/// Makes a directory (0700) and its missing parents, and makes their names durable.
///
/// # Errors
/// The system refuses; something else than a directory is in the way.
pub fn create_durable_dirs(files: &dyn FileBackend, dir: &Path) -> Result<(), FileError> {
    let missing: Vec<&Path> = dir
        .ancestors()
        .take_while(|path| !path.as_os_str().is_empty() && files.stat(path).is_err())
        .collect();
    for path in missing.into_iter().rev() {
        match files.create_dir(path) {
            // Somebody else made it just now.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            result => result.map_err(FileError::at("create directory", path))?,
        }
        if let Some(parent) = path.parent().filter(|path| !path.as_os_str().is_empty()) {
            files
                .sync_dir(parent)
                .map_err(FileError::at("sync", parent))?;
        }
    }
    Ok(())
}

/// Syncs all regular files and directories below and including `dir`.
///
/// # Errors
/// The first that failed.
pub fn sync_tree(files: &dyn FileBackend, dir: &Path) -> Result<(), FileError> {
    let names = files.list(dir).map_err(FileError::at("list", dir))?;
    for name in names {
        let path = dir.join(name);
        let stat = files.stat(&path).map_err(FileError::at("find", &path))?;
        match stat.kind {
            FileKind::Directory => sync_tree(files, &path)?,
            FileKind::File => files
                .open(&path)
                .and_then(|file| file.sync())
                .map_err(FileError::at("sync", &path))?,
            FileKind::Other => {}
        }
    }
    files.sync_dir(dir).map_err(FileError::at("sync", dir))
}

/// Removes a file that may be gone already. Says whether it was there.
///
/// # Errors
/// The system refuses.
pub fn remove_if_present(files: &dyn FileBackend, path: &Path) -> Result<bool, FileError> {
    match files.remove(path) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(FileError::at("remove", path)(error)),
    }
}
