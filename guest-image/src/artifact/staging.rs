//! Staging directories and their durable publication.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, RenameFlags};

use super::name::valid_name;

/// Prefix of staging directories; no valid artifact name begins with a dot.
const STAGING_PREFIX: &str = ".staging-";

/// Why a staged directory was not published.
#[derive(Debug, thiserror::Error)]
pub enum PublishError {
    /// Something of that name is there already.
    #[error("the name is taken")]
    Taken,
    /// Syncing or renaming failed.
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// A private directory in which an artifact is built.
///
/// It holds a lock as long as it lives, by which others know it from the
/// leftover of a killed process. Dropped without [`Staging::publish`], it
/// removes itself.
#[derive(Debug)]
pub struct Staging {
    collection: PathBuf,
    path: PathBuf,
    /// The open directory carries the lock.
    _lock: File,
    published: bool,
}

impl Staging {
    /// Makes a staging directory in `collection` (itself made if missing, mode
    /// 0700) and removes leftovers of killed imports.
    pub fn create(collection: &Path) -> io::Result<Self> {
        create_private_dir(collection)?;
        let parent = File::open(collection)?;
        // Between making the directory and locking it nobody may sweep.
        rustix::fs::flock(&parent, FlockOperation::LockExclusive)?;
        sweep(collection)?;
        let path = tempfile::Builder::new()
            .prefix(STAGING_PREFIX)
            .tempdir_in(collection)?
            .keep();
        let lock = File::open(&path)?;
        rustix::fs::flock(&lock, FlockOperation::LockExclusive)?;
        Ok(Self {
            collection: collection.to_path_buf(),
            path,
            _lock: lock,
            published: false,
        })
    }

    /// The directory to build in.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Syncs every file and directory below the staging directory and renames
    /// it to `name`. When this returns `Ok` the artifact is durable.
    ///
    /// # Errors
    ///
    /// [`PublishError::Taken`] if the name exists; nothing is ever replaced.
    pub fn publish(mut self, name: &str) -> Result<PathBuf, PublishError> {
        self.try_publish(name)
    }

    /// As [`Staging::publish`]; where the name is taken the directory stays, for another name.
    ///
    /// # Errors
    ///
    /// [`PublishError::Taken`] if the name exists; nothing is ever replaced.
    pub fn try_publish(&mut self, name: &str) -> Result<PathBuf, PublishError> {
        sync_tree(&self.path)?;
        let target = self.collection.join(name);
        let cwd = rustix::fs::CWD;
        match rustix::fs::renameat_with(cwd, &self.path, cwd, &target, RenameFlags::NOREPLACE) {
            Ok(()) => {}
            Err(rustix::io::Errno::EXIST) => return Err(PublishError::Taken),
            Err(errno) => return Err(PublishError::Io(errno.into())),
        }
        self.published = true;
        File::open(&self.collection)?.sync_all()?;
        Ok(target)
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        if self.published {
            return;
        }
        if let Err(error) = fs::remove_dir_all(&self.path) {
            tracing::warn!(path = %self.path.display(), %error, "staging directory left behind");
        }
    }
}

/// Takes `HOME/COLLECTION/NAME` away: the name is gone, durably, before its
/// contents are. Returns false if there is no such artifact.
pub fn remove(collection: &Path, name: &str) -> io::Result<bool> {
    match fs::symlink_metadata(collection.join(name)) {
        Ok(_) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(error),
    }
    let grave = Staging::create(collection)?;
    match fs::rename(collection.join(name), grave.path().join(name)) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(error),
    }
    File::open(collection)?.sync_all()?;
    Ok(true)
}

/// The valid names in a collection, sorted; an absent collection is empty.
pub fn list(collection: &Path) -> io::Result<Vec<String>> {
    let entries = match fs::read_dir(collection) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let mut names = Vec::new();
    for entry in entries {
        if let Ok(name) = entry?.file_name().into_string()
            && valid_name(&name)
        {
            names.push(name);
        }
    }
    names.sort();
    Ok(names)
}

/// Makes a directory and its parents, readable by the owner only.
fn create_private_dir(path: &Path) -> io::Result<()> {
    use std::os::unix::fs::DirBuilderExt;
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(path)
}

/// Removes staging directories that no living process holds.
fn sweep(collection: &Path) -> io::Result<()> {
    for entry in fs::read_dir(collection)? {
        let entry = entry?;
        if !entry
            .file_name()
            .to_string_lossy()
            .starts_with(STAGING_PREFIX)
        {
            continue;
        }
        let dir = match File::open(entry.path()) {
            Ok(dir) => dir,
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(error),
        };
        if rustix::fs::flock(&dir, FlockOperation::NonBlockingLockExclusive).is_err() {
            continue;
        }
        match fs::remove_dir_all(entry.path()) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    Ok(())
}

/// Syncs all regular files and directories below and including `dir`.
fn sync_tree(dir: &Path) -> io::Result<()> {
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        let kind = entry.file_type()?;
        if kind.is_dir() {
            sync_tree(&entry.path())?;
        } else if kind.is_file() {
            File::open(entry.path())?.sync_all()?;
        }
    }
    File::open(dir)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn publishes_once_and_never_replaces() {
        let home = tempfile::tempdir().unwrap();
        let collection = home.path().join("things");
        let first = Staging::create(&collection).unwrap();
        fs::write(first.path().join("f"), "one").unwrap();
        first.publish("x").unwrap();
        let second = Staging::create(&collection).unwrap();
        fs::write(second.path().join("f"), "two").unwrap();
        let mut second = second;
        assert!(matches!(second.try_publish("x"), Err(PublishError::Taken)));
        assert!(second.path().join("f").exists(), "it can have another name");
        assert!(matches!(second.publish("x"), Err(PublishError::Taken)));
        assert_eq!(fs::read(collection.join("x/f")).unwrap(), b"one");
        assert_eq!(
            fs::read_dir(&collection).unwrap().count(),
            1,
            "no staging left"
        );
    }

    #[test]
    fn sweeps_leftovers_but_not_running_imports() {
        let home = tempfile::tempdir().unwrap();
        let running = Staging::create(home.path()).unwrap();
        let leftover = home.path().join(".staging-dead");
        fs::create_dir(&leftover).unwrap();
        fs::write(leftover.join("f"), "x").unwrap();
        drop(Staging::create(home.path()).unwrap());
        assert!(running.path().exists());
        assert!(!leftover.exists());
    }

    #[test]
    fn removes_and_lists() {
        let home = tempfile::tempdir().unwrap();
        assert!(list(&home.path().join("none")).unwrap().is_empty());
        Staging::create(home.path()).unwrap().publish("a").unwrap();
        assert_eq!(list(home.path()).unwrap(), ["a"]);
        assert!(remove(home.path(), "a").unwrap());
        assert!(!remove(home.path(), "a").unwrap());
        assert_eq!(fs::read_dir(home.path()).unwrap().count(), 0);
    }
}
