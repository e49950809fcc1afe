//! Directories that are built under a hidden name and appear whole.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::backend::{FileBackend, LockGuard};
use crate::directory::{create_durable_dirs, sync_tree};
use crate::error::{FileError, PublishError};
use crate::random_name;

/// The names of directories that are being built begin with a dot and have this in them.
pub const STAGING_MARK: &str = ".staging-";

/// A directory that is being built, in the directory where it will get its name.
///
/// It holds a lock as long as it lives, by which others know it from what a killed process left. Dropped without having
/// been published, it removes itself.
#[derive(Debug)]
pub struct Staging {
    files: Arc<dyn FileBackend>,
    collection: PathBuf,
    path: PathBuf,
    _lock: Option<LockGuard>,
    published: bool,
}

impl Staging {
    /// Makes a staging directory (0700) in `collection`, a directory of ours, which is itself made if it is missing. Removes what
    /// killed processes left there.
    ///
    /// # Errors
    /// The system refuses. What cannot be removed is no error.
    pub fn create(files: Arc<dyn FileBackend>, collection: &Path) -> Result<Self, FileError> {
        create_durable_dirs(&*files, collection)?;
        // Between making the directory and locking it nobody may take it for a leftover.
        let _all = files
            .lock_dir(collection, true)
            .map_err(FileError::at("lock", collection))?;
        remove_leftovers(&*files, collection)?;
        Self::create_in(files, collection, OsStr::new(""))
    }

    /// Makes a staging directory beside `target`, which is any place that the user named: nothing there is looked at. What a
    /// killed process leaves must be removed by whoever noted [`Self::path`].
    ///
    /// # Errors
    /// The system refuses.
    pub fn create_beside(files: Arc<dyn FileBackend>, target: &Path) -> Result<Self, FileError> {
        let name = target.file_name().unwrap_or_default();
        let parent = match target.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        };
        Self::create_in(files, parent, name)
    }

    fn create_in(
        files: Arc<dyn FileBackend>,
        parent: &Path,
        label: &OsStr,
    ) -> Result<Self, FileError> {
        let mut name = std::ffi::OsString::new();
        if !label.is_empty() {
            name.push(".");
            name.push(label);
        }
        name.push(STAGING_MARK);
        name.push(random_name());
        let path = parent.join(name);
        files
            .create_dir(&path)
            .map_err(FileError::at("create directory", &path))?;
        let lock = files
            .lock_dir(&path, true)
            .map_err(FileError::at("lock", &path));
        if lock.is_err() {
            // Best effort: the error to report is the first one.
            let _ = files.remove_dir(&path);
        }
        Ok(Self {
            files,
            collection: parent.to_path_buf(),
            path,
            _lock: lock?,
            published: false,
        })
    }

    /// The directory to build in.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Syncs every file and directory below, renames the directory to `name` in its collection, and syncs that. When this
    /// returns `Ok`, it is durable. Where it fails the directory stays, for another name.
    ///
    /// # Errors
    /// [`PublishError::Taken`] if the name exists: nothing is ever replaced.
    pub fn publish_as(&mut self, name: &str) -> Result<PathBuf, PublishError> {
        sync_tree(&*self.files, &self.path)?;
        let target = self.collection.join(name);
        self.rename_to(&target)?;
        Ok(target)
    }

    /// Renames the directory, whose content the caller has synced, to `target` beside it, and syncs the directory around it.
    ///
    /// # Errors
    /// As [`Self::publish_as`].
    pub fn publish_synced(mut self, target: &Path) -> Result<Published, PublishError> {
        self.rename_to(target)?;
        Ok(Published {
            files: Arc::clone(&self.files),
            target: target.to_path_buf(),
            hidden: self.path.clone(),
        })
    }

    fn rename_to(&mut self, target: &Path) -> Result<(), PublishError> {
        publish(&*self.files, &self.path, target)?;
        self.published = true;
        Ok(())
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        if self.published {
            return;
        }
        match self.files.remove_tree(&self.path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                tracing::warn!(path = %self.path.display(), %error, "staging directory left behind");
            }
            _ => {}
        }
    }
}

/// Renames a file or directory whose content is synced to a name that must be free, in the same directory, and makes that durable.
/// If that fails it has its old name again.
///
/// # Errors
/// [`PublishError`].
pub fn publish(files: &dyn FileBackend, from: &Path, target: &Path) -> Result<(), PublishError> {
    match files.rename_new(from, target) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            return Err(PublishError::Taken);
        }
        Err(error) => return Err(FileError::at("publish", target)(error).into()),
    }
    let dir = match target.parent() {
        Some(dir) if !dir.as_os_str().is_empty() => dir,
        _ => Path::new("."),
    };
    let Err(error) = files.sync_dir(dir) else {
        return Ok(());
    };
    let error = FileError::at("sync", dir)(error);
    match files.rename_new(target, from) {
        Ok(()) => Err(error.into()),
        Err(_) => Err(PublishError::Unknown(error)),
    }
}

/// A directory that has its name.
#[derive(Debug)]
pub struct Published {
    files: Arc<dyn FileBackend>,
    target: PathBuf,
    hidden: PathBuf,
}

impl Published {
    /// Takes the directory back: its name is gone before its contents are.
    ///
    /// # Errors
    /// It is left behind, under its name or hidden.
    pub fn withdraw(self) -> Result<(), FileError> {
        self.files
            .rename_new(&self.target, &self.hidden)
            .and_then(|()| self.files.remove_tree(&self.hidden))
            .map_err(FileError::at("remove", &self.target))
    }
}

/// Removes the staging directories in `collection`, a directory of ours, that no living process holds: directories, of this user,
/// under a staging name. One that cannot be removed is passed over.
///
/// # Errors
/// The collection cannot be listed.
pub fn remove_leftovers(files: &dyn FileBackend, collection: &Path) -> Result<(), FileError> {
    let names = files
        .list(collection)
        .map_err(FileError::at("list", collection))?;
    for name in names.iter().filter(|name| is_staging_name(name)) {
        let path = collection.join(name);
        let ours = files
            .stat(&path)
            .is_ok_and(|stat| stat.is_dir() && stat.owner == files.user());
        if !ours {
            continue;
        }
        // Held by a living process, or gone.
        let Ok(Some(_lock)) = files.lock_dir(&path, false) else {
            continue;
        };
        match files.remove_tree(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                tracing::warn!(path = %path.display(), %error, "a leftover cannot be removed");
            }
            _ => {}
        }
    }
    Ok(())
}

fn is_staging_name(name: &OsStr) -> bool {
    name.as_bytes().starts_with(STAGING_MARK.as_bytes())
}

/// Takes a directory of ours out of its collection: its name is gone, durably, before its contents are. False if there is
/// nothing of that name.
///
/// # Errors
/// The system refuses.
pub fn remove_whole(
    files: Arc<dyn FileBackend>,
    collection: &Path,
    name: &str,
) -> Result<bool, FileError> {
    let path = collection.join(name);
    match files.stat(&path) {
        Ok(_) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(FileError::at("find", &path)(error)),
    }
    let grave = Staging::create(Arc::clone(&files), collection)?;
    match files.rename(&path, &grave.path().join(name)) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(FileError::at("remove", &path)(error)),
    }
    files
        .sync_dir(collection)
        .map_err(FileError::at("sync", collection))?;
    Ok(true)
}
