//! The one writer of `machine.json`.

use std::fs::File;
use std::io::Write;

use super::dir::{MAX_FILE_BYTES, MachineDir, MachineDirError, TEMPORARY_PREFIX, sync_directory};
use super::file::MachineFile;
use crate::file_error::FileError;

/// How a change of `machine.json` ended.
#[derive(Debug)]
#[must_use]
pub(crate) enum Change {
    /// It is durable. What the file is now.
    Done(MachineFile),
    /// Every process sees the file as it is here, but after a power failure it may be the former one. Nothing
    /// that either of them names may be removed; the next start settles it.
    Unknown(MachineFile, MachineDirError),
    /// The file is as it was.
    NotDone(MachineDirError),
}

impl Change {
    /// What every process sees now, durable or not.
    pub(crate) fn visible(self) -> Result<MachineFile, MachineDirError> {
        match self {
            Self::Done(machine) => Ok(machine),
            Self::Unknown(machine, error) => {
                let error = crate::error_chain::chain(&error);
                tracing::warn!(%error, "a change of the machine may not survive a power failure");
                Ok(machine)
            }
            Self::NotDone(error) => Err(error),
        }
    }
}

impl MachineDir {
    /// Reads `machine.json`, changes it and replaces it, durably, all under one lock: no change of another
    /// thread or process is lost. What does not change is not written.
    pub(crate) fn change(&self, change: impl FnOnce(&mut MachineFile)) -> Change {
        self.change_and_sync(change, || sync_directory(self.path()))
    }

    fn change_and_sync(
        &self,
        change: impl FnOnce(&mut MachineFile),
        sync: impl FnOnce() -> Result<(), MachineDirError>,
    ) -> Change {
        let locked = self.lock_file();
        let _lock = match locked {
            Ok(lock) => lock,
            Err(error) => return Change::NotDone(error),
        };
        let former = match self.read() {
            Ok(Some(machine)) => machine,
            Ok(None) => {
                let path = self.file_path();
                return Change::NotDone(MachineDirError::Gone { path });
            }
            Err(error) => return Change::NotDone(error),
        };
        let mut machine = former.clone();
        change(&mut machine);
        if machine == former {
            return Change::Done(machine);
        }
        if let Err(error) = self.replace(&machine) {
            return Change::NotDone(error);
        }
        match sync() {
            Ok(()) => Change::Done(machine),
            Err(error) => Change::Unknown(machine, error),
        }
    }

    /// Writes the first `machine.json` of a directory that nobody else knows yet, durably.
    pub(crate) fn write_first(&self, machine: &MachineFile) -> Result<(), MachineDirError> {
        self.replace(machine)?;
        sync_directory(self.path())
    }

    /// Replaces the file. After an error it is the former one; a success is not durable yet.
    fn replace(&self, machine: &MachineFile) -> Result<(), MachineDirError> {
        let path = self.file_path();
        let text =
            serde_json::to_vec_pretty(machine).map_err(|source| MachineDirError::Damaged {
                path: path.clone(),
                source,
            })?;
        if text.len() as u64 > MAX_FILE_BYTES {
            return Err(MachineDirError::TooLarge { path });
        }
        let mut temporary = tempfile::Builder::new()
            .prefix(TEMPORARY_PREFIX)
            .tempfile_in(self.path())
            .map_err(FileError::at("create a file in", self.path()))?;
        temporary
            .write_all(&text)
            .and_then(|()| temporary.as_file().sync_all())
            .map_err(FileError::at("write", &path))?;
        let persisted: Result<File, _> = temporary.persist(&path);
        persisted.map_err(|error| FileError::at("replace", &path)(error.error))?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn machine() -> (tempfile::TempDir, MachineDir) {
        let directory = tempfile::tempdir().unwrap();
        let dir = MachineDir::new(directory.path().join("m"));
        fs::create_dir(dir.path()).unwrap();
        dir.write_first(&MachineFile::for_tests()).unwrap();
        (directory, dir)
    }

    #[test]
    fn changes_of_many_threads_all_stay() {
        let (_directory, dir) = machine();
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for _ in 0..5 {
                        let change = dir.change(|machine| machine.starts += 1);
                        assert!(matches!(change, Change::Done(_)));
                    }
                });
            }
        });
        assert_eq!(dir.read().unwrap().unwrap().starts, 40);
    }

    #[test]
    fn a_change_that_cannot_be_made_durable_is_unknown_and_seen() {
        let (_directory, dir) = machine();
        let failed = || {
            let error = std::io::Error::from(std::io::ErrorKind::StorageFull);
            Err(FileError::at("sync", dir.path())(error).into())
        };
        let change = dir.change_and_sync(|machine| machine.starts = 7, failed);
        assert!(matches!(change, Change::Unknown(..)));
        assert_eq!(dir.read().unwrap().unwrap().starts, 7);
    }

    #[test]
    fn a_change_that_is_too_large_to_be_read_again_is_not_done() {
        let (_directory, dir) = machine();
        let before = dir.read().unwrap();
        let change = dir.change(|machine| machine.command_line = "x".repeat(5 << 20));
        assert!(matches!(
            change,
            Change::NotDone(MachineDirError::TooLarge { .. })
        ));
        assert_eq!(dir.read().unwrap(), before);
    }

    #[test]
    fn a_machine_that_is_gone_is_not_made_again() {
        let (_directory, dir) = machine();
        fs::remove_dir_all(dir.path()).unwrap();
        assert!(matches!(dir.change(|_| ()), Change::NotDone(_)));
        assert!(!dir.path().exists());
    }
}
