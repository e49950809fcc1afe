//! The directory that holds everything: `$SMOLVM_HOME`.

use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use durable_files::{FileBackend, OsBackend};
use thiserror::Error;

use crate::file_error::FileError;
use crate::name::MachineName;

/// Mode bits that let others change a directory.
const WRITABLE_BY_OTHERS: u32 = 0o022;

/// Why there is no home.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum HomeError {
    /// No variable says where it lies.
    #[error("neither SMOLVM_HOME nor XDG_DATA_HOME nor HOME is set")]
    Unknown,
    /// It belongs to somebody else, who could put anything there.
    #[error("{} belongs to the user with id {owner}, not to you", path.display())]
    Foreign {
        /// The directory.
        path: PathBuf,
        /// Whose it is, as a user id.
        owner: u32,
    },
    /// Others may change what is there.
    #[error("{} can be written by others", path.display())]
    Shared {
        /// The directory.
        path: PathBuf,
    },
    /// It cannot be made or used.
    #[error(transparent)]
    Io(#[from] FileError),
}

/// The home directory, mode 0700, and where things lie in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Home {
    root: PathBuf,
}

impl Home {
    /// The home that the environment names: `SMOLVM_HOME`, else `XDG_DATA_HOME/smolvm`, else
    /// `HOME/.local/share/smolvm`.
    pub fn from_environment() -> Result<Self, HomeError> {
        let variable = |name| std::env::var_os(name).filter(|value| !value.is_empty());
        let root = variable("SMOLVM_HOME")
            .map(PathBuf::from)
            .or_else(|| variable("XDG_DATA_HOME").map(|data| Path::new(&data).join("smolvm")))
            .or_else(|| variable("HOME").map(|home| Path::new(&home).join(".local/share/smolvm")))
            .ok_or(HomeError::Unknown)?;
        Ok(Self::at(root))
    }

    /// A home at `root`, which need not exist.
    pub fn at(root: impl Into<PathBuf>) -> Self {
        let root = root.into();
        Self {
            root: std::path::absolute(&root).unwrap_or(root),
        }
    }

    /// Checks that the home, if it exists, is this user's alone.
    ///
    /// # Errors
    ///
    /// [`HomeError::Foreign`], [`HomeError::Shared`].
    pub fn check(&self) -> Result<(), HomeError> {
        for path in [self.root.clone(), self.machines()] {
            match fs::metadata(&path) {
                Ok(meta) => check_owner(path, &meta)?,
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(FileError::at("look at", &path)(error).into()),
            }
        }
        Ok(())
    }

    /// Makes the directories that are missing, durably: what is made in them counts as made.
    pub fn ensure(&self) -> Result<(), HomeError> {
        for path in [self.root.clone(), self.machines()] {
            let existed = path.is_dir();
            let missing: Vec<&Path> = path.ancestors().take_while(|path| !path.exists()).collect();
            make_private_dir(&path)?;
            for parent in missing.iter().filter_map(|path| path.parent()) {
                let sync = OsBackend.sync_dir(parent);
                sync.map_err(FileError::at("sync", parent))?;
            }
            if !existed {
                let mode = fs::Permissions::from_mode(0o700);
                fs::set_permissions(&path, mode).map_err(FileError::at("protect", &path))?;
            }
        }
        Ok(())
    }

    /// The directory itself.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Where machines lie.
    pub fn machines(&self) -> PathBuf {
        self.root.join("machines")
    }

    /// The directory of one machine.
    pub fn machine(&self, name: &MachineName) -> PathBuf {
        self.machines().join(name.as_str())
    }

    /// The default store.
    pub fn store(&self) -> PathBuf {
        self.root.join("store")
    }

    /// What can be made again.
    pub fn cache(&self) -> PathBuf {
        self.root.join("cache")
    }
}

fn check_owner(path: PathBuf, meta: &fs::Metadata) -> Result<(), HomeError> {
    if meta.uid() != rustix::process::geteuid().as_raw() {
        let owner = meta.uid();
        return Err(HomeError::Foreign { path, owner });
    }
    if meta.mode() & WRITABLE_BY_OTHERS != 0 {
        return Err(HomeError::Shared { path });
    }
    Ok(())
}

/// Makes a directory and its parents for this user only; one that exists is left as it is.
pub(crate) fn make_private_dir(path: &Path) -> Result<(), FileError> {
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(path)
        .map_err(FileError::at("create directory", path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_home_that_others_may_change_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let home = Home::at(directory.path().join("home"));
        home.check().unwrap();
        home.ensure().unwrap();
        home.check().unwrap();
        for mode in [0o770, 0o702] {
            fs::set_permissions(home.root(), fs::Permissions::from_mode(mode)).unwrap();
            assert!(matches!(home.check(), Err(HomeError::Shared { .. })));
        }
        fs::set_permissions(home.root(), fs::Permissions::from_mode(0o755)).unwrap();
        home.check().unwrap();
    }

    #[test]
    fn a_home_of_somebody_else_is_refused() {
        // Of root and of an ordinary user at once: each is somebody else's to the other.
        let foreign = if rustix::process::geteuid().is_root() {
            let directory = tempfile::tempdir().unwrap();
            std::os::unix::fs::chown(directory.path(), Some(65534), None).unwrap();
            let home = Home::at(directory.path());
            let checked = home.check();
            drop(directory);
            checked
        } else {
            Home::at("/").check()
        };
        assert!(matches!(foreign, Err(HomeError::Foreign { .. })));
    }
}
