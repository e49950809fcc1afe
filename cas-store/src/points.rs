//! Points that are kept in the store, and lines about every point that was ever made with it.

use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::PointId;
use crate::error::StoreError;
use crate::session::{hex, list, read_small, remove_file, staged_record_name, unhex};
use crate::store::{Inner, Store};
use durable_files::{LockGuard, LockHeld, LockMode, lock_holders, lock_present_within};

/// Longest record that the store keeps or reads; the same as in the point format.
pub const MAX_RECORD_BYTES: u64 = 72 << 20;
/// Longest line about a point.
pub const MAX_META_BYTES: u64 = 16 << 10;

const RECORD_SUFFIX: &str = ".record";
const LINE_SUFFIX: &str = ".line";
const LINE_HEAD: &str = "cas-store point line 1";

/// How often a record is looked for that somebody else replaces meanwhile.
const MAX_REPLACED: usize = 64;

/// How long a record is waited for that somebody removes.
const REMOVAL_PATIENCE: Duration = Duration::from_secs(5);

/// A point that is being read; see [`Store::use_point`]. It ends with this, or with the process.
#[derive(Debug)]
pub struct PointUse {
    _lock: Option<LockGuard>,
}

/// One point as the store's log has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PointEntry {
    /// The point.
    pub id: PointId,
    /// The caller's line about it; empty if a crash came between record and line, or if the line is damaged.
    pub meta: String,
    /// Whether the record is kept here.
    pub has_record: bool,
    /// The directory that was registered for it.
    pub directory: Option<Directory>,
}

/// A checkpoint directory outside the store whose packs are links to the store's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Directory {
    /// Where it was registered.
    pub path: PathBuf,
    /// Whether it still is there.
    pub state: DirectoryState,
}

/// What became of a registered directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DirectoryState {
    /// The same directory is at its place.
    Present,
    /// Nothing is there: removed or moved. Moved ones still count by their links.
    Gone,
    /// Another file or directory is there.
    Replaced,
}

/// A line as it lies in the file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Line {
    meta: String,
    directory: Option<(u64, u64, PathBuf)>,
}

impl Store {
    /// Keeps a point: its record and a line about it (no line breaks) for the log. Durable on return. Putting an id
    /// again replaces both.
    ///
    /// The packs of its chunks must be pinned ([`crate::SealedCapture`], [`crate::Pin`]) until this has returned.
    ///
    /// # Errors
    /// A limit is exceeded, the store is poisoned, or the system refuses.
    pub fn put_point(&self, id: &PointId, record: &[u8], meta: &str) -> Result<(), StoreError> {
        check_size("a record", record.len(), MAX_RECORD_BYTES)?;
        let line = Line {
            meta: meta.to_owned(),
            directory: self.read_line(id)?.directory,
        };
        line.check()?;
        let points = self.inner.points_dir();
        let name = record_name(id);
        // Where that cannot be told, what may be an earlier record stays.
        let was_there = !matches!(
            self.inner.backend().stat(&points.join(&name)),
            Err(error) if error.kind() == io::ErrorKind::NotFound
        );
        let written = self
            .inner
            .write_durable(&points, &name, record)
            .and_then(|()| self.write_line(id, &line));
        if written.is_err() && !was_there {
            // A point that was not saved must not be found. The error to report is the first one.
            let path = points.join(&name);
            if let Err(error) = self.inner.backend().remove(&path)
                && error.kind() != io::ErrorKind::NotFound
            {
                tracing::warn!(path = %path.display(), %error, "the record of a point that was not saved is left behind");
            }
        }
        written
    }

    /// Notes that the checkpoint directory `dir` holds the point. It need not be kept in the store as well. Durable on
    /// return.
    ///
    /// # Errors
    /// As [`Self::put_point`]; `dir` does not exist.
    pub fn register_directory(
        &self,
        id: &PointId,
        dir: &Path,
        meta: &str,
    ) -> Result<(), StoreError> {
        let path = std::path::absolute(dir).map_err(StoreError::io("find", dir))?;
        let stat = self
            .inner
            .backend()
            .stat(&path)
            .map_err(StoreError::io("find", &path))?;
        let line = Line {
            meta: meta.to_owned(),
            directory: Some((stat.device, stat.inode, path)),
        };
        line.check()?;
        self.write_line(id, &line)
    }

    /// Every point of the store's log, by id; also those whose record and directory are gone.
    ///
    /// # Errors
    /// The directories cannot be read.
    pub fn points(&self) -> Result<Vec<PointEntry>, StoreError> {
        let mut ids = self.inner.ids_in(&self.inner.lineage_dir(), LINE_SUFFIX)?;
        let records = self.inner.record_ids()?;
        ids.extend(&records);
        ids.sort_unstable();
        ids.dedup();
        let entry = |id: PointId| {
            // One that cannot be read hides no other, and is as one that is malformed.
            let line = self.read_line(&id).unwrap_or_else(|error| {
                tracing::warn!(point = %id, %error, "the line of a point cannot be read");
                Line::default()
            });
            let has_record = records.contains(&id);
            let directory = line.directory.map(|found| self.inner.directory(found));
            Ok(PointEntry {
                id,
                meta: line.meta,
                has_record,
                directory,
            })
        };
        ids.into_iter().map(entry).collect()
    }

    /// The record of a point that is kept here.
    ///
    /// # Errors
    /// It cannot be read or exceeds [`MAX_RECORD_BYTES`].
    pub fn point_record(&self, id: &PointId) -> Result<Option<Vec<u8>>, StoreError> {
        self.inner.record(id)
    }

    /// The path of a point's record, for hard links.
    #[must_use]
    pub fn record_path(&self, id: &PointId) -> PathBuf {
        self.inner.points_dir().join(record_name(id))
    }

    /// Removes a point's record; its line stays in the log. What only it needed goes with the next sweep. False if no
    /// record was there.
    ///
    /// # Errors
    /// [`StoreError::InUse`] while a [`PointUse`] holds it; the system refuses.
    pub fn remove_point(&self, id: &PointId) -> Result<bool, StoreError> {
        // Of two who remove it one is told that it is gone.
        let _lock = self.inner.lock_exclusive()?;
        let removed = self.inner.remove_record(id)?;
        self.inner.sync_dir(&self.inner.points_dir())?;
        Ok(removed)
    }

    /// Holds a point that is kept here for as long as it is read: nobody removes it meanwhile. `None` if there is no record.
    ///
    /// # Errors
    /// The system refuses; somebody who removes nothing holds it alone.
    pub fn use_point(&self, id: &PointId) -> Result<Option<PointUse>, StoreError> {
        let path = self.record_path(id);
        let find = || StoreError::io("find", &path);
        for _ in 0..MAX_REPLACED {
            let before = match self.inner.backend().stat(&path) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
                stat => stat.map_err(find())?,
            };
            // Held exclusively for the moment of a removal only. Whoever may read it can hold it for longer.
            let files = self.inner.backend();
            let lock = lock_present_within(files, &path, LockMode::Shared, REMOVAL_PATIENCE);
            let lock = match lock {
                Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
                Ok(None) => return Err(held(&path)),
                lock => lock.map_err(StoreError::io("lock", &path))?,
            };
            // It may have been removed, or put again, while it was waited for.
            let after = self.inner.backend().stat(&path);
            if after.is_ok_and(|after| after.same_file(&before)) {
                return Ok(Some(PointUse { _lock: lock }));
            }
        }
        let what = "it is replaced again and again";
        Err(StoreError::Malformed { path, what })
    }

    fn read_line(&self, id: &PointId) -> Result<Line, StoreError> {
        let path = self.inner.lineage_dir().join(line_name(id));
        let bytes = read_small(self.inner.backend(), &path, 4 * MAX_META_BYTES)?;
        let Some(bytes) = bytes else {
            return Ok(Line::default());
        };
        Ok(Line::decode(&bytes).unwrap_or_else(|| {
            // One damaged line must not hide the rest of the log; a directory it named is left alone by repack.
            tracing::warn!(path = %path.display(), "malformed line of a point");
            Line::default()
        }))
    }

    fn write_line(&self, id: &PointId, line: &Line) -> Result<(), StoreError> {
        let text = line.encode();
        self.inner
            .write_durable(&self.inner.lineage_dir(), &line_name(id), text.as_bytes())
    }
}

impl Inner {
    pub(crate) fn record_ids(&self) -> Result<Vec<PointId>, StoreError> {
        self.ids_in(&self.points_dir(), RECORD_SUFFIX)
    }

    pub(crate) fn record(&self, id: &PointId) -> Result<Option<Vec<u8>>, StoreError> {
        read_small(
            self.backend(),
            &self.points_dir().join(record_name(id)),
            MAX_RECORD_BYTES,
        )
    }

    /// Removes a record that nobody uses; false if there is none. The caller syncs the directory.
    pub(crate) fn remove_record(&self, id: &PointId) -> Result<bool, StoreError> {
        let path = self.points_dir().join(record_name(id));
        let lock = self
            .backend()
            .lock_present(&path, LockMode::Exclusive, false);
        match lock {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(StoreError::io("lock", &path)(error)),
            Ok(None) => Err(StoreError::InUse { point: *id }),
            Ok(Some(_lock)) => {
                remove_file(self.backend(), &path)?;
                Ok(true)
            }
        }
    }

    /// Whether nobody uses a record.
    pub(crate) fn is_record_free(&self, id: &PointId) -> Result<bool, StoreError> {
        let path = self.points_dir().join(record_name(id));
        let lock = self
            .backend()
            .lock_present(&path, LockMode::Exclusive, false);
        match lock {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            lock => Ok(lock.map_err(StoreError::io("lock", &path))?.is_some()),
        }
    }

    fn ids_in(&self, dir: &Path, suffix: &str) -> Result<Vec<PointId>, StoreError> {
        let names = list(self.backend(), dir)?;
        Ok(names
            .iter()
            .filter_map(|name| name.strip_suffix(suffix)?.parse().ok())
            .collect())
    }

    fn directory(&self, (device, inode, path): (u64, u64, PathBuf)) -> Directory {
        let state = match self.backend().stat(&path) {
            Ok(stat) if (stat.device, stat.inode) == (device, inode) => DirectoryState::Present,
            Ok(_) => DirectoryState::Replaced,
            Err(_) => DirectoryState::Gone,
        };
        Directory { path, state }
    }

    /// Writes a small file: staged, synced, renamed, directory synced. Its mode is 0400.
    pub(crate) fn write_durable(
        &self,
        dir: &Path,
        name: &str,
        bytes: &[u8],
    ) -> Result<(), StoreError> {
        // A sweep would take the staged file for a dead session's.
        let _lock = self.lock_shared()?;
        let staged = self.staging_dir().join(staged_record_name());
        let path = dir.join(name);
        let result = self.watch(self.stage_file(&staged, bytes)).and_then(|()| {
            self.backend()
                .rename(&staged, &path)
                .map_err(StoreError::io("rename", &staged))
        });
        if let Err(error) = result {
            // Best effort: the write's own error is the one to report.
            let _ = self.backend().remove(&staged);
            return Err(error);
        }
        self.sync_dir(dir)
    }

    fn stage_file(&self, staged: &Path, bytes: &[u8]) -> Result<(), StoreError> {
        let create = StoreError::io("create", staged);
        let file = self.backend().create_new(staged).map_err(create)?;
        file.write_all_at(bytes, 0)
            .map_err(StoreError::io("write", staged))?;
        file.seal().map_err(StoreError::io("seal", staged))?;
        file.sync().map_err(StoreError::io("sync", staged))
    }
}

impl Line {
    fn check(&self) -> Result<(), StoreError> {
        check_size("a point's line", self.encode().len(), MAX_META_BYTES)?;
        if self.meta.contains(['\n', '\r']) {
            let what = "a point's line has a line break";
            return Err(StoreError::Malformed {
                path: PathBuf::new(),
                what,
            });
        }
        Ok(())
    }

    fn encode(&self) -> String {
        let mut text = format!("{LINE_HEAD}\nmeta {}\n", self.meta);
        if let Some((device, inode, path)) = &self.directory {
            let path = hex(path.as_os_str().as_bytes());
            text.push_str(&format!("directory {device} {inode} {path}\n"));
        }
        text
    }

    /// Lines of unknown kinds are skipped: a later version may add some.
    fn decode(bytes: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(bytes).ok()?;
        let mut lines = text.lines();
        if lines.next() != Some(LINE_HEAD) {
            return None;
        }
        let mut line = Self::default();
        for (kind, rest) in lines.filter_map(|line| line.split_once(' ')) {
            match kind {
                "meta" => line.meta = rest.to_owned(),
                "directory" => line.directory = Some(parse_directory(rest)?),
                _ => {}
            }
        }
        Some(line)
    }
}

/// Somebody holds a record alone, for longer than a removal takes.
fn held(path: &Path) -> StoreError {
    let holders = std::fs::File::open(path).map(|file| lock_holders(&file, LockMode::Shared));
    let holder = holders.unwrap_or_default().into_iter().next();
    StoreError::io("lock", path)(LockHeld { holder }.into_error())
}

fn parse_directory(text: &str) -> Option<(u64, u64, PathBuf)> {
    let mut words = text.split(' ');
    let (device, inode) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
    let path = std::ffi::OsString::from_vec(unhex(words.next()?)?);
    Some((device, inode, PathBuf::from(path)))
}

fn check_size(what: &'static str, len: usize, limit_bytes: u64) -> Result<(), StoreError> {
    let len_bytes = len as u64;
    if len_bytes > limit_bytes {
        return Err(StoreError::TooLarge {
            what,
            len_bytes,
            limit_bytes,
        });
    }
    Ok(())
}

fn record_name(id: &PointId) -> String {
    format!("{id}{RECORD_SUFFIX}")
}

fn line_name(id: &PointId) -> String {
    format!("{id}{LINE_SUFFIX}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_round_trip_and_skip_what_is_new() {
        let line = Line {
            meta: "2026 worker \"before migrate\"".into(),
            directory: Some((1, 2, PathBuf::from("/a b/ü.checkpoint"))),
        };
        let text = format!("{}later field\n", line.encode());
        assert_eq!(Line::decode(text.as_bytes()), Some(line));
        assert_eq!(Line::decode(b"something else\n"), None);
        assert_eq!(Line::decode(b"cas-store point line 1\ndirectory x\n"), None);
    }
}
