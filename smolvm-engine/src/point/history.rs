use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use snapshot_format::limits::MAX_RECORD_BYTES;
use snapshot_format::{CheckpointId, Lineage, LineageEntry, Point};

use super::error::PointError;
use crate::file_error::FileError;

/// Name of a record's file in `records/` and `generations/`.
pub(crate) fn record_file_name(id: &CheckpointId) -> String {
    format!("{id}.record")
}

/// Reads and checks a record; `expected` is the id that it must have.
pub(crate) fn read_point(path: &Path, expected: Option<CheckpointId>) -> Result<Point, PointError> {
    let mut bytes = Vec::new();
    let file = File::open(path).map_err(FileError::at("open", path))?;
    file.take(MAX_RECORD_BYTES + 1)
        .read_to_end(&mut bytes)
        .map_err(FileError::at("read", path))?;
    let damaged = |source| PointError::Damaged {
        path: path.to_owned(),
        source,
    };
    let point = Point::decode(&bytes).map_err(damaged)?;
    match expected {
        Some(expected) if expected != point.id() => Err(PointError::OtherPoint {
            path: path.to_owned(),
            found: point.id(),
            expected,
        }),
        _ => Ok(point),
    }
}

/// A point and those of its parents that exist, newest first.
#[derive(Debug, Clone)]
pub(crate) struct History {
    points: Vec<Point>,
    /// The file of each point's record.
    files: Vec<PathBuf>,
}

impl History {
    /// Follows the parents of `own` through the records in `directory`, as far as they exist.
    pub(crate) fn follow(own: Point, file: &Path, directory: &Path) -> Result<Self, PointError> {
        let mut points = vec![own];
        let mut files = vec![file.to_owned()];
        while let Some(parent) = points[points.len() - 1].record().parent {
            // An id is a hash over the parent's id: a circle cannot be, but damage must not hang us.
            if points.iter().any(|point| point.id() == parent) {
                break;
            }
            let path = directory.join(record_file_name(&parent));
            match read_point(&path, Some(parent)) {
                Err(PointError::Io(FileError { source, .. }))
                    if source.kind() == io::ErrorKind::NotFound =>
                {
                    break;
                }
                result => {
                    points.push(result?);
                    files.push(path);
                }
            }
        }
        Ok(Self { points, files })
    }

    /// A point without its parents.
    pub(crate) fn alone(own: Point, file: &Path) -> Self {
        Self {
            points: vec![own],
            files: vec![file.to_owned()],
        }
    }

    /// The points, newest first.
    pub(crate) fn points(&self) -> &[Point] {
        &self.points
    }

    /// Each point with the file of its record, newest first.
    pub(crate) fn with_files(&self) -> impl Iterator<Item = (&Point, &Path)> {
        self.points
            .iter()
            .zip(self.files.iter().map(PathBuf::as_path))
    }

    /// What the log says of each point, newest first.
    pub(crate) fn lineage(&self) -> Result<Lineage, PointError> {
        Ok(Lineage::new(self.points.iter().map(LineageEntry::from))?)
    }

    /// Position of `~N`, a full id or a unique prefix of one.
    pub(crate) fn resolve(&self, asked: &str) -> Result<usize, PointError> {
        let lineage = self.lineage()?;
        let id = lineage.resolve(asked)?.id;
        // What a lineage resolves is one of its own entries.
        Ok(lineage.generation_of(&id).unwrap_or(0))
    }

    /// Forgets the points before `position`: the one there is the newest afterwards.
    pub(crate) fn starting_at(mut self, position: usize) -> Self {
        self.points.drain(..position);
        self.files.drain(..position);
        self
    }

    /// Keeps at most `earlier` points beside the newest.
    pub(crate) fn limit(mut self, earlier: usize) -> Self {
        self.points.truncate(earlier.saturating_add(1));
        self.files.truncate(earlier.saturating_add(1));
        self
    }
}
