//! What machines are made of: images and kernels as named directories under
//! `$SMOLVM_HOME`.
//!
//! An artifact is a directory `HOME/COLLECTION/NAME` that appears whole or not
//! at all. It is built in a hidden staging sibling, synced, and renamed to its
//! name without ever replacing anything; see [`durable_files::Staging`]. A
//! leftover of a killed import is removed by the next one.

pub(crate) mod decompress;
pub(crate) mod name;

use std::borrow::Cow;
use std::io;
use std::path::Path;
use std::sync::Arc;

use durable_files::{FileBackend, FileError, OsBackend, Staging};

/// A private directory in `collection` in which an artifact is built.
pub(crate) fn stage(collection: &Path) -> Result<Staging, FileError> {
    Staging::create(Arc::new(OsBackend), &place_of(collection)?)
}

/// Where the collection really lies. A user may keep it elsewhere and link to it; below it nothing is followed.
fn place_of(collection: &Path) -> Result<Cow<'_, Path>, FileError> {
    let is_link = std::fs::symlink_metadata(collection).is_ok_and(|found| found.is_symlink());
    if !is_link {
        return Ok(Cow::Borrowed(collection));
    }
    std::fs::canonicalize(collection)
        .map(Cow::Owned)
        .map_err(FileError::at("find", collection))
}

/// Takes an artifact away. Returns false if there is none of that name.
pub(crate) fn remove(collection: &Path, name: &str) -> Result<bool, FileError> {
    durable_files::remove_whole(Arc::new(OsBackend), &place_of(collection)?, name)
}

/// The [valid names](name::valid_name) in a collection, sorted; an absent
/// collection is empty.
///
/// # Errors
///
/// It is there and cannot be listed.
pub fn names_in(collection: &Path) -> Result<Vec<String>, FileError> {
    let place = match place_of(collection) {
        Err(error) if error.source.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        place => place?,
    };
    let entries = match OsBackend.list(&place) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        result => result.map_err(FileError::at("list", collection))?,
    };
    let mut names: Vec<String> = entries
        .into_iter()
        .filter_map(|name| name.into_string().ok())
        .filter(|name| name::valid_name(name))
        .collect();
    names.sort();
    Ok(names)
}

/// What to do if the file system of the home is full.
pub(crate) fn full_home_hint(error: &FileError) -> Option<String> {
    (error.source.kind() == io::ErrorKind::StorageFull)
        .then(|| "free some disk space, or set SMOLVM_HOME to a larger file system".into())
}

/// The present as descriptions of artifacts say it: `2026-09-28T03:01:05Z`.
pub(crate) fn now() -> String {
    humantime::format_rfc3339_seconds(std::time::SystemTime::now()).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hidden_and_foreign_names_are_not_listed() {
        let home = tempfile::tempdir().unwrap();
        assert!(names_in(&home.path().join("none")).unwrap().is_empty());
        let staged = stage(home.path()).unwrap();
        for name in ["b", "a", "Not Ours", ".hidden"] {
            std::fs::create_dir(home.path().join(name)).unwrap();
        }
        assert_eq!(names_in(home.path()).unwrap(), ["a", "b"]);
        assert!(staged.path().exists());
        assert!(remove(home.path(), "a").unwrap());
        assert!(!remove(home.path(), "a").unwrap());
    }

    #[test]
    fn a_collection_may_be_a_link() {
        let home = tempfile::tempdir().unwrap();
        let elsewhere = home.path().join("elsewhere");
        let collection = home.path().join("images");
        std::fs::create_dir(&elsewhere).unwrap();
        std::os::unix::fs::symlink(&elsewhere, &collection).unwrap();
        std::fs::create_dir(elsewhere.join("a")).unwrap();
        assert_eq!(names_in(&collection).unwrap(), ["a"]);
        let staged = stage(&collection).unwrap();
        assert!(staged.path().exists());
        assert!(remove(&collection, "a").unwrap());
        std::fs::remove_dir_all(&elsewhere).ok();
        assert!(names_in(&collection).unwrap().is_empty());
    }
}
