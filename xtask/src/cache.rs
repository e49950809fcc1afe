//! What is downloaded or built once and used by every working copy.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};

use crate::error::{Error, Result};

/// The cache folder: `$XDG_CACHE_HOME/smolvm-xtask`, else `~/.cache/smolvm-xtask`.
pub fn folder() -> Result<PathBuf> {
    let base = std::env::var_os("XDG_CACHE_HOME")
        .filter(|value| !value.is_empty())
        .map(PathBuf::from)
        .or_else(|| std::env::var_os("HOME").map(|home| Path::new(&home).join(".cache")))
        .unwrap_or_else(|| PathBuf::from("target"));
    let folder = base.join("smolvm-xtask");
    fs::create_dir_all(&folder).map_err(Error::file("create", &folder))?;
    Ok(folder)
}

/// Returns `folder/name`, made by `make` if it is not there yet.
///
/// `make` gets a path to fill, which is renamed into place at the end, so that an interrupted
/// attempt leaves nothing that looks complete. A lock makes parallel callers wait for the first.
pub fn entry(folder: &Path, name: &str, make: impl FnOnce(&Path) -> Result<()>) -> Result<PathBuf> {
    let path = folder.join(name);
    let lock_path = folder.join(format!(".{name}.lock"));
    let lock = File::create(&lock_path).map_err(Error::file("create", &lock_path))?;
    flock(&lock, FlockOperation::LockExclusive)
        .map_err(|e| Error::file("lock", &lock_path)(e.into()))?;
    if path.exists() {
        return Ok(path);
    }
    let unfinished = folder.join(format!(".{name}.unfinished"));
    remove(&unfinished)?;
    make(&unfinished)?;
    fs::rename(&unfinished, &path).map_err(Error::file("rename", &unfinished))?;
    Ok(path)
}

/// Removes a file or a folder with everything in it, if it is there.
pub fn remove(path: &Path) -> Result<()> {
    let result = match fs::symlink_metadata(path) {
        Ok(found) if found.is_dir() => fs::remove_dir_all(path),
        Ok(_) => fs::remove_file(path),
        Err(_) => return Ok(()),
    };
    result.map_err(Error::file("remove", path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_attempt_leaves_no_entry() {
        let folder = tempfile::tempdir().unwrap();
        let failed = entry(folder.path(), "thing", |path| {
            fs::write(path, "half").unwrap();
            Err(Error::Failed("making".into()))
        });
        assert!(failed.is_err());
        assert!(!folder.path().join("thing").exists());
        let made = entry(folder.path(), "thing", |path| {
            assert!(!path.exists());
            fs::write(path, "whole").unwrap();
            Ok(())
        })
        .unwrap();
        assert_eq!(fs::read_to_string(&made).unwrap(), "whole");
        let again = entry(folder.path(), "thing", |_| panic!("made twice")).unwrap();
        assert_eq!(again, made);
    }
}
