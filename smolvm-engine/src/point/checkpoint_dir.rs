use std::path::{Path, PathBuf};

use super::error::PointError;
use super::history::{History, read_point};

/// Suffix of every checkpoint directory.
pub(crate) const SUFFIX: &str = ".checkpoint";

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
        self.path.join("point.record")
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
        if !self.record().is_file() {
            return Err(PointError::NotACheckpoint {
                path: self.path.clone(),
            });
        }
        let own = read_point(&self.record(), None)?;
        History::follow(own, &self.record(), &self.generations())
    }

    /// Whether `path` lies in a checkpoint directory, or is one: its outermost one.
    pub(crate) fn around(path: &Path) -> Option<PathBuf> {
        path.ancestors()
            .skip(1)
            .find(|above| above.join("point.record").exists())
            .map(Into::into)
    }
}
