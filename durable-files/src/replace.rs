//! Small files that change as a whole.

use std::io;
use std::path::{Path, PathBuf};

use crate::backend::FileBackend;
use crate::error::{FileError, ReplaceError};
use crate::random_name;

/// What the names of temporary files begin with. What a killed process left of them may be removed by whoever owns the
/// directory.
pub const TEMPORARY_PREFIX: &str = ".tmp-";

fn directory(path: &Path) -> &Path {
    match path.parent() {
        Some(dir) if !dir.as_os_str().is_empty() => dir,
        _ => Path::new("."),
    }
}

/// Makes `bytes` the content of `path` (0600), durably: readers see the old or the new file, whole, also after a power loss.
/// What was there before is replaced, whatever it is but a directory.
///
/// # Errors
/// [`ReplaceError`] says whether the old file is still in place.
pub fn replace(files: &dyn FileBackend, path: &Path, bytes: &[u8]) -> Result<(), ReplaceError> {
    let dir = directory(path);
    let temporary = write_temporary(files, dir, bytes).map_err(ReplaceError::NotDone)?;
    if let Err(source) = files.rename(&temporary, path) {
        // Best effort: the error to report is the first one.
        let _ = files.remove(&temporary);
        return Err(ReplaceError::NotDone(FileError::at("replace", path)(
            source,
        )));
    }
    files
        .sync_dir(dir)
        .map_err(|source| ReplaceError::Unknown(FileError::at("sync", dir)(source)))
}

fn write_temporary(
    files: &dyn FileBackend,
    dir: &Path,
    bytes: &[u8],
) -> Result<PathBuf, FileError> {
    let temporary = dir.join(format!("{TEMPORARY_PREFIX}{}", random_name()));
    write_new(files, &temporary, bytes)?;
    Ok(temporary)
}

/// Writes a file that must not exist (0600) and makes its bytes durable, not yet its name: the caller syncs the directory.
///
/// # Errors
/// The system refuses. Nothing is left then.
pub fn write_new(files: &dyn FileBackend, path: &Path, bytes: &[u8]) -> Result<(), FileError> {
    let file = files
        .create_new(path)
        .map_err(FileError::at("create", path))?;
    let written = file
        .write_all_at(bytes, 0)
        .map_err(FileError::at("write", path))
        .and_then(|()| file.sync().map_err(FileError::at("sync", path)));
    if written.is_err() {
        // Best effort: the error to report is the first one.
        let _ = files.remove(path);
    }
    written
}

/// A whole file of at most `limit_bytes`; `None` if it does not exist.
///
/// # Errors
/// It is no regular file, is longer, or cannot be read.
pub fn read_bounded(
    files: &dyn FileBackend,
    path: &Path,
    limit_bytes: u64,
) -> Result<Option<Vec<u8>>, FileError> {
    let file = match files.open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(FileError::at("open", path)(error)),
    };
    let len_bytes = file.len_bytes().map_err(FileError::at("read", path))?;
    if len_bytes > limit_bytes {
        let error = io::Error::from(io::ErrorKind::FileTooLarge);
        return Err(FileError::at("read", path)(error));
    }
    let mut bytes = vec![0; len_bytes as usize];
    file.read_exact_at(&mut bytes, 0)
        .map_err(FileError::at("read", path))?;
    Ok(Some(bytes))
}
