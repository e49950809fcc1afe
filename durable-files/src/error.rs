//! What can go wrong, and what is known afterwards.

use std::io;
use std::path::{Path, PathBuf};

/// Something on a path of the host failed.
#[derive(Debug, thiserror::Error)]
#[error("cannot {operation} {}", path.display())]
pub struct FileError {
    /// What was tried, as a verb.
    pub operation: &'static str,
    /// On which path.
    pub path: PathBuf,
    /// The host's answer.
    #[source]
    pub source: io::Error,
}

impl FileError {
    /// For `map_err`: `operation` on `path` failed.
    pub fn at<E: Into<io::Error>>(
        operation: &'static str,
        path: &Path,
    ) -> impl FnOnce(E) -> Self + use<E> {
        let path = path.to_owned();
        move |source| Self {
            operation,
            path,
            source: source.into(),
        }
    }
}

/// Why a file was not replaced for certain.
#[derive(Debug, thiserror::Error)]
pub enum ReplaceError {
    /// The old file is in place.
    #[error(transparent)]
    NotDone(FileError),
    /// The new file is in place, but a power loss may bring the old one back. Whatever either of them names must stay.
    #[error(transparent)]
    Unknown(FileError),
}

impl ReplaceError {
    /// What failed.
    #[must_use]
    pub fn into_file_error(self) -> FileError {
        match self {
            Self::NotDone(error) | Self::Unknown(error) => error,
        }
    }
}

/// Why a staged directory was not published.
#[derive(Debug, thiserror::Error)]
pub enum PublishError {
    /// Something of that name is there already.
    #[error("the name is taken")]
    Taken,
    /// Syncing or renaming failed: there is nothing of that name.
    #[error(transparent)]
    File(#[from] FileError),
    /// The directory has its name, but it could not be made durable, nor taken back.
    #[error("it has its name, but a power loss may take it away")]
    Unknown(#[source] FileError),
}
