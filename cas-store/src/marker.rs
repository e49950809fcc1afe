//! What makes a directory a store: a marker, written last. Nothing is changed in a directory without it that is not empty.

use std::io;
use std::path::{Path, PathBuf};

use durable_files::{
    FileBackend, FileStat, ReplaceError, TEMPORARY_PREFIX, create_durable_dirs, replace,
};

use crate::error::StoreError;
use crate::session::read_small;

/// The marker's name.
const MARKER: &str = "cas-store.marker";
/// What it says: the version of the directory's layout.
const MARKER_TEXT: &[u8] = b"cas-store directory 1\n";
/// A longer file is no marker.
const MAX_MARKER_BYTES: u64 = 4096;

/// Whose a directory is that has no marker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unmarked {
    /// Anybody's: only an empty one becomes a store.
    Anybodys,
    /// The caller's, and for a store only.
    OfTheCaller,
}

/// Whether there is a store in `dir`, which may be a link to its directory.
///
/// # Errors
/// It cannot be told: the directory may not be looked into, or its marker is not known.
pub fn is_store(backend: &dyn FileBackend, dir: &Path) -> Result<bool, StoreError> {
    let path = dir.join(MARKER);
    match read_small(backend, &path, MAX_MARKER_BYTES) {
        Ok(None) => Ok(false),
        Ok(Some(text)) if text == MARKER_TEXT => Ok(true),
        Ok(Some(_)) => Err(StoreError::Malformed {
            path,
            what: "its version is not known",
        }),
        Err(StoreError::Io { source, .. }) if source.kind() == io::ErrorKind::NotADirectory => {
            Ok(false)
        }
        Err(error) => Err(error),
    }
}

/// The directory of a store that must exist, without links.
pub(crate) fn find(backend: &dyn FileBackend, dir: &Path) -> Result<PathBuf, StoreError> {
    let dir = resolve(backend, dir)?;
    match is_store(backend, &dir)? {
        true => Ok(dir),
        false => Err(StoreError::NotAStore { path: dir }),
    }
}

/// The directory of a store, which is made where there is none. `parts` are its own directories.
pub(crate) fn find_or_create(
    backend: &dyn FileBackend,
    dir: &Path,
    parts: &[&str],
    unmarked: Unmarked,
) -> Result<PathBuf, StoreError> {
    create_durable_dirs(backend, dir)?;
    let dir = resolve(backend, dir)?;
    let found = stat(backend, &dir)?;
    if !found.is_dir() {
        return Err(StoreError::NotAStore { path: dir });
    }
    // What root, or another who may, puts here is for its writer alone: the owner could not read it.
    if found.owner != backend.user() {
        return Err(StoreError::Foreign {
            path: dir,
            owner: found.owner,
        });
    }
    if !is_store(backend, &dir)? {
        // Several processes may begin with one store.
        let _lock = backend
            .lock_dir(&dir, true)
            .map_err(StoreError::io("lock", &dir))?;
        if !is_store(backend, &dir)? {
            if unmarked == Unmarked::Anybodys {
                refuse_foreign(backend, &dir, parts)?;
            }
            make_parts(backend, &dir, parts)?;
            replace(backend, &dir.join(MARKER), MARKER_TEXT)
                .map_err(ReplaceError::into_file_error)?;
        }
    }
    make_parts(backend, &dir, parts)?;
    Ok(dir)
}

fn resolve(backend: &dyn FileBackend, dir: &Path) -> Result<PathBuf, StoreError> {
    let dir = std::path::absolute(dir).map_err(StoreError::io("find", dir))?;
    backend.resolve(&dir).map_err(StoreError::io("open", &dir))
}

/// Refuses a directory with anything in it but what a creation that was cut off may have left.
fn refuse_foreign(backend: &dyn FileBackend, dir: &Path, parts: &[&str]) -> Result<(), StoreError> {
    for name in backend.list(dir).map_err(StoreError::io("list", dir))? {
        let path = dir.join(&name);
        let stat = stat(backend, &path)?;
        let name = name.to_str().unwrap_or_default();
        let ours = match stat.is_dir() {
            true => {
                parts.contains(&name) && backend.list(&path).is_ok_and(|in_it| in_it.is_empty())
            }
            false => stat.is_file() && name.starts_with(TEMPORARY_PREFIX),
        };
        if !ours || stat.owner != backend.user() {
            return Err(StoreError::NotEmpty { path: dir.into() });
        }
    }
    Ok(())
}

fn make_parts(backend: &dyn FileBackend, dir: &Path, parts: &[&str]) -> Result<(), StoreError> {
    for part in parts {
        let path = dir.join(part);
        create_durable_dirs(backend, &path)?;
        if !stat(backend, &path)?.is_dir() {
            let what = "it is no directory";
            return Err(StoreError::Malformed { path, what });
        }
    }
    Ok(())
}

fn stat(backend: &dyn FileBackend, path: &Path) -> Result<FileStat, StoreError> {
    backend.stat(path).map_err(StoreError::io("find", path))
}
