//! Points by id in a store, and points in checkpoint directories: found, and held while they are read.

use std::collections::HashSet;
use std::io;
use std::path::Path;
use std::time::Duration;

use cas_store::{PackSet, PointId, Store};
use durable_files::{LockGuard, LockMode, OsBackend, lock_present_within};
use snapshot_format::Point;

use super::error::EngineError;
use crate::api::DEFAULT_HISTORY;
use crate::error_chain::chain;
use crate::point::{CheckpointDir, Generation, History, PointError, StoreLog, read_point};
use crate::restore::FoundPoint;

/// How long a record is waited for that somebody has locked: who deletes a point needs a moment.
const RECORD_PATIENCE: Duration = Duration::from_secs(5);

/// The point of a store with this id, or whose id begins so, and its parents as far as they are there.
pub(super) fn find_in_store(path: &Path, asked: &str) -> Result<FoundPoint, EngineError> {
    let store = Store::open_existing(path)?;
    let log = StoreLog::read(&store)?;
    let (id, entry) = log.resolve(asked)?;
    if let Some(used) = store.use_point(&entry.id)? {
        let own = read_point(&store.record_path(&entry.id), Some(id))?;
        return follow(&log, &store, own, Box::new(used));
    }
    // Its directory holds it, if that is still there.
    match &entry.directory {
        Some(directory) => {
            let mut found = find_in_directory(&directory.path)?;
            // Another checkpoint may have taken its place.
            found.history = found.history.at(&id.to_string()).map_err(|error| {
                tracing::debug!(%error, "not in its directory any more");
                PointError::Moved {
                    id: id.short(),
                    path: directory.path.clone(),
                }
            })?;
            Ok(found)
        }
        None => Err(PointError::NotInStore {
            asked: asked.to_owned(),
            candidates: Vec::new(),
        }
        .into()),
    }
}

/// A point and those of its parents that the store still keeps. Where one was removed, the log says what lies behind it.
fn follow(
    log: &StoreLog,
    store: &Store,
    own: Point,
    used: LockGuard,
) -> Result<FoundPoint, EngineError> {
    let mut seen = HashSet::from([own.id()]);
    let mut next = own.record().parent;
    let (mut earlier, mut locks) = (Vec::new(), vec![used]);
    while let Some(id) = next.filter(|id| earlier.len() < DEFAULT_HISTORY && seen.insert(*id)) {
        next = log.line(&id).and_then(|line| line.parent);
        let Some(used) = store.use_point(&PointId(id.0))? else {
            continue;
        };
        let file = store.record_path(&PointId(id.0));
        earlier.push(match read_point(&file, Some(id)) {
            Ok(point) => {
                next = point.record().parent;
                let point = Box::new(point);
                Generation::Sound { point, file }
            }
            Err(error) => {
                let reason = chain(&error);
                tracing::warn!(%id, error = %reason, "an earlier point is damaged");
                Generation::Broken { id, reason }
            }
        });
        locks.push(Box::new(used));
    }
    let file = store.record_path(&PointId(own.id().0));
    let history = History::found(own, &file, earlier);
    let packs = PackSet::open([store.packs_dir()]);
    Ok(FoundPoint::in_use(history, packs, locks))
}

/// The point of a checkpoint directory and its parents. Nobody deletes it while it is read.
pub(super) fn find_in_directory(path: &Path) -> Result<FoundPoint, PointError> {
    let dir = CheckpointDir::new(path);
    let record = dir.record();
    // Who deletes it holds it for a moment. Others who may read it can hold it as long as they like.
    let lock = lock_present_within(&OsBackend, &record, LockMode::Shared, RECORD_PATIENCE);
    let lock = match lock {
        Ok(Some(lock)) => Some(lock),
        Ok(None) => {
            tracing::warn!(path = %record.display(), "somebody has locked a checkpoint: it is read all the same, and may be deleted meanwhile");
            None
        }
        // Why there is none is told where it is read.
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => {
            tracing::warn!(path = %record.display(), %error, "a checkpoint cannot be held while it is read");
            None
        }
    };
    let (history, packs) = (dir.history()?, PackSet::open([dir.packs()]));
    Ok(FoundPoint::in_use(
        history,
        packs,
        lock.into_iter().collect(),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_that_somebody_keeps_locked_is_read_all_the_same() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("x.checkpoint");
        let dir = CheckpointDir::new(&path);
        std::fs::create_dir(&path).unwrap();
        std::fs::write(dir.record(), b"no record").unwrap();
        let other = std::fs::File::open(dir.record()).unwrap();
        other.lock().unwrap();
        // It is read, and found to be none.
        let error = find_in_directory(&path).err().unwrap();
        assert!(!matches!(error, PointError::Io(_)), "{error}");
    }
}
