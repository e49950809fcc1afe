//! What the host says of a file, with what was tried on which.

use std::io;
use std::path::{Path, PathBuf};

use thiserror::Error;

/// Something on a path of the host failed.
#[derive(Debug, Error)]
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

    /// What to do if the file system of the home is full.
    pub(crate) fn full_home_hint(&self) -> Option<String> {
        (self.source.kind() == io::ErrorKind::StorageFull)
            .then(|| "free some disk space, or set SMOLVM_HOME to a larger file system".into())
    }
}
