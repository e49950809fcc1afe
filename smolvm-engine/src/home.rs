//! The directory that holds everything: `$SMOLVM_HOME`.

use std::fs;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};

use thiserror::Error;

use crate::file_error::FileError;
use crate::name::MachineName;

/// Why there is no home.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum HomeError {
    /// No variable says where it lies.
    #[error("neither SMOLVM_HOME nor XDG_DATA_HOME nor HOME is set")]
    Unknown,
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

    /// Makes the directories that are missing.
    pub fn ensure(&self) -> Result<(), HomeError> {
        for path in [self.root.clone(), self.machines()] {
            let existed = path.is_dir();
            make_private_dir(&path)?;
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

/// Makes a directory and its parents for this user only; one that exists is left as it is.
pub(crate) fn make_private_dir(path: &Path) -> Result<(), FileError> {
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(path)
        .map_err(FileError::at("create directory", path))
}
