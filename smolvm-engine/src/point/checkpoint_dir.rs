use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::error::PointError;
use super::history::{History, MAX_GENERATIONS, read_point};
use crate::file_error::FileError;

/// Suffix of every checkpoint directory.
pub(crate) const SUFFIX: &str = ".checkpoint";
/// The record of its own point.
pub(super) const OWN_RECORD: &str = "point.record";

/// A checkpoint directory: `point.record`, `packs/`, `generations/`.
#[derive(Debug, Clone)]
pub(crate) struct CheckpointDir {
    path: PathBuf,
}

impl CheckpointDir {
    /// The directory at `path`, which need not exist.
    pub(crate) fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into() }
    }

    /// The record of its own point.
    pub(crate) fn record(&self) -> PathBuf {
        self.path.join(OWN_RECORD)
    }

    /// The chunks of all its points.
    pub(crate) fn packs(&self) -> PathBuf {
        self.path.join("packs")
    }

    /// The records of earlier points.
    pub(crate) fn generations(&self) -> PathBuf {
        self.path.join("generations")
    }

    /// Reads its point and the earlier ones, newest first.
    pub(crate) fn history(&self) -> Result<History, PointError> {
        let record = self.record();
        let own = read_point(&record, None).map_err(|error| match error {
            PointError::Io(error) if is_absent(&error.source) => self.why_absent(error),
            other => other,
        })?;
        let generations = self.generations();
        Ok(History::follow(own, &record, &generations, MAX_GENERATIONS))
    }

    /// Why there is no record: no directory, one that may not be looked into, or one of something else.
    fn why_absent(&self, error: FileError) -> PointError {
        let path = self.path.clone();
        match fs::metadata(&path) {
            Ok(_) => PointError::NotACheckpoint { path },
            Err(source) if is_absent(&source) => {
                let operation = "open";
                PointError::Io(FileError {
                    operation,
                    path,
                    source,
                })
            }
            Err(_) => PointError::Io(error),
        }
    }

    /// Whether `path` lies in a checkpoint directory, or is one: its outermost one.
    pub(crate) fn around(path: &Path) -> Option<PathBuf> {
        path.ancestors()
            .skip(1)
            .find(|above| above.join(OWN_RECORD).exists())
            .map(Into::into)
    }
}

fn is_absent(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
    )
}
