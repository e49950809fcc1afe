//! Deleting points: one that a store keeps, or a checkpoint directory.

use std::fs;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use cas_store::{DirectoryState, PACK_SUFFIX, PointEntry, RemovalStep, Store, StoreError};
use durable_files::{FileBackend, LockGuard, LockMode, OsBackend};
use snapshot_format::{CheckpointId, LineageEntry, MAGIC};

use super::checkpoint::{LogEntry, log_entry};
use super::error::EngineError;
use super::place::{absolute, check_store, in_home};
use crate::api::Engine;
use crate::file_error::FileError;
use crate::phase::Phase;
use crate::point::{CheckpointDir, PointError, RECORD_SUFFIX, StoreLog, open_regular};

/// What files that a copy or a repair of packs left begin and end with.
const LEFTOVER: (&str, &str) = (".", ".tmp");

impl Engine {
    /// The point that a store, or the default one, keeps under this id or a unique beginning of it. Changes nothing.
    ///
    /// # Errors
    ///
    /// [`EngineError::NotStored`] where there is none, or several; a point that lies in a checkpoint directory.
    pub fn stored_point(&self, store: Option<&Path>, asked: &str) -> Result<LogEntry, EngineError> {
        let store = self.existing_store(store)?;
        let log = StoreLog::read(&store)?;
        let (id, entry) = log.resolve(asked).map_err(|error| match error {
            PointError::NotInStore { asked, candidates } => EngineError::NotStored {
                asked,
                candidates,
                store: store.dir().to_owned(),
            },
            error => error.into(),
        })?;
        if !entry.has_record {
            return Err(why_not_kept(&store, id, entry));
        }
        let line = log.line(&id).unwrap_or(LineageEntry {
            id,
            parent: None,
            taken: Default::default(),
            machine: String::new(),
            message: String::new(),
            data_bytes: 0,
            autosave: false,
        });
        Ok(log_entry(&line, None, false))
    }

    /// Deletes a point that a store keeps. Other points, machines and checkpoint directories have all that they had; its line
    /// stays in the log. What only it needed is given back by [`Engine::prune`].
    ///
    /// # Errors
    ///
    /// As of [`Engine::stored_point`]; [`EngineError::PointInUse`] while it is being read, by a restore for instance.
    pub fn delete_point(&self, store: Option<&Path>, asked: &str) -> Result<LogEntry, EngineError> {
        let point = self.stored_point(store, asked)?;
        let id: CheckpointId = point.id.parse().map_err(PointError::Id)?;
        let store = self.writable_store(store)?;
        match store.remove_point(&cas_store::PointId(id.0)) {
            // Somebody else deleted it just now; it is gone as was asked.
            Ok(_) => {}
            Err(StoreError::InUse { .. }) => {
                return Err(EngineError::PointInUse {
                    what: format!("point {}", point.short_id),
                });
            }
            Err(error) => return Err(error.into()),
        }
        Phase::PointDeleted.reached();
        Ok(point)
    }

    /// Checks that a path is that of a checkpoint directory and may be deleted: a directory of this user's, no link, outside of the
    /// home, with a record and nothing in it that checkpoints do not have. Changes nothing.
    ///
    /// # Errors
    ///
    /// [`PointError::NotACheckpoint`], [`EngineError::Invalid`] with what speaks against it.
    pub fn check_deletable(&self, path: &Path) -> Result<PathBuf, EngineError> {
        let path = absolute(path)?;
        let refuse = |why: String| -> EngineError {
            EngineError::Invalid {
                what: format!("{} is not deleted: {why}", path.display()),
                hint: Some("smolvm removes only what it made".to_owned()),
            }
        };
        let meta = fs::symlink_metadata(&path).map_err(FileError::at("find", &path))?;
        if meta.is_symlink() {
            return Err(refuse("it is a link".to_owned()));
        }
        let dir = CheckpointDir::new(&path);
        if !meta.is_dir() || dir.record().symlink_metadata().is_err() {
            return Err(PointError::NotACheckpoint { path }.into());
        }
        if meta.uid() != OsBackend.user() {
            return Err(refuse(format!(
                "it belongs to the user with id {}",
                meta.uid()
            )));
        }
        let real = path.canonicalize().map_err(FileError::at("find", &path))?;
        if let Some(why) = in_home(&real, self.home()) {
            return Err(refuse(why));
        }
        if !is_record(&dir.record())? {
            return Err(PointError::NotACheckpoint { path }.into());
        }
        match foreign(&dir, &path)? {
            Some(foreign) => Err(refuse(format!("{} is not smolvm's", foreign.display()))),
            None => Ok(real),
        }
    }

    /// Deletes a checkpoint directory. Killed at any time, it is whole or gone, and the next save into the default store, or the next
    /// deletion, removes what is left of its files. The log of its store says that it is gone.
    ///
    /// # Errors
    ///
    /// As of [`Engine::check_deletable`]; [`EngineError::PointInUse`] while a machine is being made from it.
    pub fn delete_checkpoint(&self, path: &Path) -> Result<PathBuf, EngineError> {
        // First, so that what an earlier one left is taken away whatever becomes of this.
        self.home().ensure()?;
        let journal = Store::open_own(self.home().store())?;
        let path = self.check_deletable(path)?;
        let record = CheckpointDir::new(&path).record();
        let mut lock: Option<LockGuard> =
            match OsBackend.lock_present(&record, LockMode::Exclusive, false) {
                Ok(Some(lock)) => Some(lock),
                Ok(None) => {
                    return Err(EngineError::PointInUse {
                        what: path.display().to_string(),
                    });
                }
                Err(error) => return Err(FileError::at("lock", &record)(error).into()),
            };
        journal.remove_outside(&path, &mut |step| match step {
            RemovalStep::Noted => Phase::DeletionNoted.reached(),
            RemovalStep::Hidden => {
                // Who waited for it finds it gone.
                drop(lock.take());
                Phase::DirectoryHidden.reached();
            }
            _ => {}
        })?;
        Ok(path)
    }

    /// A store that is there, or the default one, for looking at it.
    pub(super) fn existing_store(&self, store: Option<&Path>) -> Result<Store, EngineError> {
        let path = match store {
            Some(store) => check_store(store, self.home())?,
            None => self.home().store(),
        };
        if path
            .symlink_metadata()
            .is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
        {
            return Err(EngineError::NoStore { path });
        }
        Ok(Store::open_existing(path)?)
    }

    /// The same for changing it: what killed commands left is taken away.
    pub(super) fn writable_store(&self, store: Option<&Path>) -> Result<Store, EngineError> {
        let found = self.existing_store(store)?;
        Ok(Store::open(found.dir())?)
    }
}

/// Why a point of the log is not one that the store keeps.
fn why_not_kept(store: &Store, id: CheckpointId, entry: &PointEntry) -> EngineError {
    let here = entry
        .directory
        .as_ref()
        .filter(|directory| directory.state == DirectoryState::Present);
    match here {
        Some(directory) => {
            let path = directory.path.display();
            EngineError::Invalid {
                what: format!("point {} is the checkpoint {path}", id.short()),
                hint: Some(format!(
                    "delete it with: smolvm machine checkpoint-delete {path} -f"
                )),
            }
        }
        None => EngineError::PointGone {
            id: id.short(),
            store: store.dir().to_owned(),
        },
    }
}

/// Whether a file begins as a record does. It may be damaged further on: a damaged checkpoint is one.
fn is_record(path: &Path) -> Result<bool, EngineError> {
    let mut begin = [0; MAGIC.len()];
    let read = open_regular(path)?.read_exact(&mut begin);
    match read {
        Ok(()) => Ok(begin == MAGIC),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(false),
        Err(error) => Err(FileError::at("read", path)(error).into()),
    }
}

/// Something in a checkpoint directory that no checkpoint has.
fn foreign(dir: &CheckpointDir, path: &Path) -> Result<Option<PathBuf>, FileError> {
    let (packs, generations) = (dir.packs(), dir.generations());
    let is_part = |entry: &Path, is_dir: bool| match is_dir {
        true => [&packs, &generations].into_iter().any(|part| part == entry),
        false => dir.record() == entry,
    };
    let is_pack = |entry: &Path, is_dir: bool| {
        let name = entry.file_name().unwrap_or_default().to_string_lossy();
        let left_over = name.starts_with(LEFTOVER.0) && name.ends_with(LEFTOVER.1);
        !is_dir && (name.ends_with(PACK_SUFFIX) || left_over)
    };
    let is_generation = |entry: &Path, is_dir: bool| {
        let name = entry.file_name().unwrap_or_default().to_string_lossy();
        !is_dir && name.ends_with(RECORD_SUFFIX)
    };
    if let Some(found) = other_than(path, &is_part)? {
        return Ok(Some(found));
    }
    if packs.exists()
        && let Some(found) = other_than(&packs, &is_pack)?
    {
        return Ok(Some(found));
    }
    match generations.exists() {
        true => other_than(&generations, &is_generation),
        false => Ok(None),
    }
}

/// An entry of a directory that is not expected there, which is told its path and whether it is a directory; nor is what is
/// neither a regular file nor a directory.
fn other_than(
    directory: &Path,
    expected: &dyn Fn(&Path, bool) -> bool,
) -> Result<Option<PathBuf>, FileError> {
    let list = || FileError::at("list", directory);
    for entry in fs::read_dir(directory).map_err(list())? {
        let entry = entry.map_err(list())?;
        let kind = entry.file_type().map_err(list())?;
        let is_plain = kind.is_file() || kind.is_dir();
        if !is_plain || !expected(&entry.path(), kind.is_dir()) {
            return Ok(Some(entry.path()));
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use snapshot_format::{Point, PointRecord};

    use super::*;
    use crate::api::EngineOptions;
    use crate::api::process::ProcessModel;
    use crate::home::Home;

    fn bed() -> (tempfile::TempDir, Engine) {
        let folder = tempfile::tempdir().unwrap();
        let home = Home::at(folder.path().join("home"));
        let program = PathBuf::from("/bin/false");
        let options = EngineOptions::new(home, ProcessModel::Processes { program });
        (folder, Engine::open(options).unwrap())
    }

    fn checkpoint(path: &Path) {
        let (_, bytes) = Point::seal(PointRecord::default()).unwrap();
        fs::create_dir_all(path.join("packs")).unwrap();
        fs::create_dir_all(path.join("generations")).unwrap();
        fs::write(path.join("point.record"), bytes).unwrap();
        let pack = format!("packs/{}.pack", "0".repeat(64));
        fs::write(path.join(pack), "data").unwrap();
    }

    #[test]
    fn only_what_smolvm_made_is_deleted() {
        let (folder, engine) = bed();
        let at = |name: &str| folder.path().join(name);
        let path = at("x.checkpoint");
        checkpoint(&path);
        symlink(&path, at("link.checkpoint")).unwrap();
        fs::create_dir(at("mine.checkpoint")).unwrap();
        fs::create_dir(at("other.checkpoint")).unwrap();
        fs::write(at("other.checkpoint/point.record"), "not one of ours").unwrap();
        fs::write(at("file.checkpoint"), "").unwrap();
        for bad in ["link", "mine", "other", "file", "missing"] {
            let bad = at(&format!("{bad}.checkpoint"));
            assert!(engine.delete_checkpoint(&bad).is_err(), "{}", bad.display());
        }
        for foreign in [
            "notes",
            "packs/notes",
            "generations/x.pack",
            "packs/dir.pack/",
        ] {
            let inside = path.join(foreign);
            match foreign.ends_with('/') {
                true => fs::create_dir(&inside).unwrap(),
                false => fs::write(&inside, "of the user").unwrap(),
            }
            let error = engine.delete_checkpoint(&path).unwrap_err();
            assert!(error.to_string().contains("not smolvm's"), "{error}");
            assert!(inside.exists());
            match foreign.ends_with('/') {
                true => fs::remove_dir(&inside).unwrap(),
                false => fs::remove_file(&inside).unwrap(),
            }
        }
        // Of a damaged one nothing but its first bytes says what it is.
        let damaged = at("damaged.checkpoint");
        checkpoint(&damaged);
        let record = damaged.join("point.record");
        let mut bytes = fs::read(&record).unwrap();
        bytes.truncate(40);
        fs::write(&record, bytes).unwrap();
        fs::write(damaged.join("packs/.x-1.tmp"), "left over").unwrap();
        for good in [path, damaged] {
            engine.delete_checkpoint(&good).unwrap();
            assert!(!good.exists());
        }
        let left = fs::read_dir(folder.path()).unwrap();
        let hidden = left.filter(|entry| {
            let name = entry.as_ref().unwrap().file_name();
            name.to_string_lossy().starts_with('.')
        });
        assert_eq!(hidden.count(), 0);
    }

    #[test]
    fn a_checkpoint_that_is_read_stays() {
        let (folder, engine) = bed();
        let path = folder.path().join("x.checkpoint");
        checkpoint(&path);
        let found = crate::api::stored::find_in_directory(&path).unwrap();
        let error = engine.delete_checkpoint(&path).unwrap_err();
        assert!(matches!(error, EngineError::PointInUse { .. }), "{error}");
        drop(found);
        engine.delete_checkpoint(&path).unwrap();
        assert!(crate::api::stored::find_in_directory(&path).is_err());
    }
}
