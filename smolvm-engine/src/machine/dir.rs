use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use durable_files::{LockHolder, LockMode, lock_holders, lock_within, wait_for_lock};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use thiserror::Error;

use super::file::{MACHINE_FILE_VERSION, MachineFile};
use super::held::HeldDirectory;
use crate::error_chain::AROUND_LINK;
use crate::file_error::FileError;
use crate::name::MachineName;

/// Largest `machine.json` in bytes.
pub(super) const MAX_FILE_BYTES: u64 = 4 << 20;

/// Held by the process that a machine was made for.
const OWNER_LOCK: &str = "owner.lock";
/// Pause between two looks at a lock that somebody holds.
const LOCK_PAUSE: Duration = Duration::from_millis(2);

/// Held while `machine.json` is changed.
const FILE_LOCK: &str = "file.lock";
/// Held while the machine is changed from outside.
const OPERATION_LOCK: &str = "operation.lock";
/// Held while the machine runs.
const RUN_LOCK: &str = "run.lock";

/// What the names of files begin with that are written to replace others.
pub(crate) const TEMPORARY_PREFIX: &str = ".new-";

/// Why a machine's directory could not be read or changed.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum MachineDirError {
    /// The host failed.
    #[error(transparent)]
    Io(#[from] FileError),
    /// `machine.json` is damaged.
    #[error("{} is damaged", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        #[source]
        source: serde_json::Error,
    },
    /// `machine.json` is larger, or would be, than is read.
    #[error("{} of more than {} MiB is not possible", path.display(), MAX_FILE_BYTES >> 20)]
    TooLarge {
        /// The file.
        path: PathBuf,
    },
    /// The machine was removed meanwhile.
    #[error("{} is gone", path.display())]
    Gone {
        /// The file.
        path: PathBuf,
    },
    /// `machine.json` was written by a newer version.
    #[error("{} has version {version}, this version reads {MACHINE_FILE_VERSION}", path.display())]
    Version {
        /// The file.
        path: PathBuf,
        /// Its version.
        version: u32,
    },
}

/// The directory of one machine.
#[derive(Debug, Clone)]
pub(crate) struct MachineDir {
    path: PathBuf,
    /// What `path` leads through, where the machine may get another name meanwhile.
    held: Option<Arc<HeldDirectory>>,
}

impl MachineDir {
    pub(crate) fn new(path: PathBuf) -> Self {
        Self { path, held: None }
    }

    /// The directory at `path`, which is meant from now on whatever its name becomes.
    pub(crate) fn held(path: &Path) -> Result<Self, MachineDirError> {
        let held = HeldDirectory::open(path)?;
        // `durable_files` takes no links, and the path of a descriptor is one: this leads around it by a directory of each machine.
        let path = held.path().join(AROUND_LINK);
        let held = Some(Arc::new(held));
        Ok(Self { path, held })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn exists(&self) -> bool {
        self.file_path().exists()
    }

    pub(super) fn file_path(&self) -> PathBuf {
        self.path.join("machine.json")
    }

    /// Packs that the machine pins.
    pub(crate) fn packs(&self) -> PathBuf {
        self.path.join("packs")
    }

    /// Records of points that the machine pins.
    pub(crate) fn records(&self) -> PathBuf {
        self.path.join("records")
    }

    /// The store of a pause that is under way.
    pub(crate) fn pause_store(&self) -> PathBuf {
        self.path.join("pausing")
    }

    /// Disk map and overlays.
    pub(crate) fn disk(&self) -> PathBuf {
        self.path.join("disk")
    }

    /// The uncompressed kernel.
    pub(crate) fn kernel(&self) -> PathBuf {
        self.path.join("vmlinux")
    }

    /// The initramfs with the agent of the machine's day.
    pub(crate) fn initramfs(&self) -> PathBuf {
        self.path.join("initramfs")
    }

    /// The serial console's output, all starts one after the other.
    pub(crate) fn console_log(&self) -> PathBuf {
        self.path.join("console.log")
    }

    /// What the machine's processes report.
    pub(crate) fn process_log(&self) -> PathBuf {
        self.path.join("supervisor.log")
    }

    /// The supervisor's socket.
    pub(crate) fn control_socket(&self) -> PathBuf {
        self.path.join("control.sock")
    }

    /// Reads `machine.json`; `None` where there is no machine.
    pub(crate) fn read(&self) -> Result<Option<MachineFile>, MachineDirError> {
        let path = self.file_path();
        let file = match File::open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(FileError::at("read", &path)(error).into()),
        };
        let mut bytes = Vec::new();
        io::Read::read_to_end(&mut io::Read::take(file, MAX_FILE_BYTES + 1), &mut bytes)
            .map_err(FileError::at("read", &path))?;
        if bytes.len() as u64 > MAX_FILE_BYTES {
            return Err(MachineDirError::TooLarge { path });
        }
        let mut machine: MachineFile =
            serde_json::from_slice(&bytes).map_err(|source| MachineDirError::Damaged {
                path: path.clone(),
                source,
            })?;
        if machine.v > MACHINE_FILE_VERSION {
            return Err(MachineDirError::Version {
                path,
                version: machine.v,
            });
        }
        // A rename writes the name here, then gives it to the directory: what it has is the name.
        if let Some(name) = self.name() {
            machine.name = name;
        }
        Ok(Some(machine))
    }

    /// The machine's name, if the directory has that of a machine.
    fn name(&self) -> Option<MachineName> {
        let place = self.held.as_ref().map(|held| held.place());
        let path = place.unwrap_or_else(|| Some(self.path.clone()))?;
        path.file_name()?.to_str()?.parse().ok()
    }

    /// Waits for, then holds, the lock under which `machine.json` is changed: for the time of one change.
    pub(super) fn lock_file(&self) -> Result<File, MachineDirError> {
        self.lock(FILE_LOCK)
    }

    /// Waits for, then holds, the lock under which the machine is changed from outside: start, stop,
    /// delete, rename. Released when the file is dropped.
    ///
    /// # Errors
    /// [`MachineDirError::Gone`] where the machine was deleted or renamed meanwhile; who holds the lock is stopped.
    pub(crate) fn lock_operation(&self) -> Result<File, MachineDirError> {
        self.lock(OPERATION_LOCK)
    }

    /// As [`Self::lock_operation`]; `None` when somebody else has it for longer than `patience`, whatever he does.
    pub(crate) fn lock_operation_within(
        &self,
        patience: Duration,
    ) -> Result<Option<File>, MachineDirError> {
        self.lock_with(OPERATION_LOCK, |file| {
            lock_within(file, LockMode::Exclusive, patience)
        })
    }

    /// Who holds the operation lock, as far as this host tells.
    pub(crate) fn operator(&self) -> Option<LockHolder> {
        let file = File::open(self.path.join(OPERATION_LOCK)).ok()?;
        let holders = lock_holders(&file, LockMode::Exclusive);
        holders.into_iter().next()
    }

    /// Takes the lock that says that the machine runs, to run it. Waits for readers that look at it.
    pub(crate) fn lock_running(&self) -> Result<RunLock, MachineDirError> {
        let file = self.lock(RUN_LOCK)?;
        Ok(RunLock { file })
    }

    /// Waits for one of the machine's locks, then holds it.
    fn lock(&self, name: &str) -> Result<File, MachineDirError> {
        let locked = self.lock_with(name, |file| {
            wait_for_lock(file, LockMode::Exclusive).map(|()| true)
        });
        locked.map(|file| file.expect("waiting ends with the lock"))
    }

    /// One of the machine's locks, once `take` has it. A machine that is deleted or renamed takes its locks with it: who waited for one of
    /// them has none of the machine that has the name by then, and waits for that.
    fn lock_with(
        &self,
        name: &str,
        take: impl Fn(&File) -> io::Result<bool>,
    ) -> Result<Option<File>, MachineDirError> {
        loop {
            let (file, path) = self.open_lock(name)?;
            if !take(&file).map_err(FileError::at("lock", &path))? {
                return Ok(None);
            }
            let own = file.metadata().map_err(FileError::at("look at", &path))?;
            match std::fs::metadata(&path) {
                Ok(there) if (there.dev(), there.ino()) == (own.dev(), own.ino()) => {
                    return Ok(Some(file));
                }
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    return Err(FileError::at("look at", &path)(error).into());
                }
                _ => {}
            }
        }
    }

    /// Waits until nobody holds the run lock; false after `patience`.
    pub(crate) fn wait_until_free(&self, patience: Duration) -> Result<bool, MachineDirError> {
        let deadline = Instant::now() + patience;
        while self.is_running()? {
            if Instant::now() >= deadline {
                return Ok(false);
            }
            std::thread::sleep(LOCK_PAUSE);
        }
        Ok(true)
    }

    /// The file whose lock says that the machine runs. Only who holds the lock has it open for writing.
    pub(super) fn run_lock_path(&self) -> PathBuf {
        self.path.join(RUN_LOCK)
    }

    /// Whether somebody holds the run lock. Changes nothing.
    pub(crate) fn is_running(&self) -> Result<bool, MachineDirError> {
        self.is_locked(RUN_LOCK)
    }

    /// Makes the machine, which nobody knows yet, that of whoever holds the lock: it ends with them.
    pub(crate) fn lock_owner(&self) -> Result<File, MachineDirError> {
        self.lock(OWNER_LOCK)
    }

    /// Whether the process is there that the machine was made for. Changes nothing.
    pub(crate) fn has_owner(&self) -> Result<bool, MachineDirError> {
        self.is_locked(OWNER_LOCK)
    }

    /// Waits until the process is gone that the machine was made for. One that is stopped is not gone.
    pub(crate) fn wait_for_owner(&self) -> Result<(), MachineDirError> {
        let path = self.path.join(OWNER_LOCK);
        let file = File::open(&path).map_err(FileError::at("open", &path))?;
        loop {
            match flock(&file, FlockOperation::LockShared) {
                Err(Errno::INTR) => {}
                locked => return Ok(locked.map_err(FileError::at("lock", &path))?),
            }
        }
    }

    /// Whether somebody starts, stops or otherwise changes the machine from outside. Changes nothing.
    pub(crate) fn is_operated(&self) -> Result<bool, MachineDirError> {
        self.is_locked(OPERATION_LOCK)
    }

    fn is_locked(&self, name: &str) -> Result<bool, MachineDirError> {
        let path = self.path.join(name);
        let file = match File::open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
            Err(error) => return Err(FileError::at("open", &path)(error).into()),
        };
        match flock(&file, FlockOperation::NonBlockingLockShared) {
            Ok(()) => Ok(false),
            Err(Errno::WOULDBLOCK) => Ok(true),
            Err(error) => Err(FileError::at("look at", &path)(error).into()),
        }
    }

    fn open_lock(&self, name: &str) -> Result<(File, PathBuf), MachineDirError> {
        let path = self.path.join(name);
        let file = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .mode(0o600)
            .open(&path);
        match file {
            Ok(file) => Ok((file, path)),
            // The directory is not there any more.
            Err(error) if error.kind() == io::ErrorKind::NotFound => Err(MachineDirError::Gone {
                path: self.file_path(),
            }),
            Err(error) => Err(FileError::at("open", &path)(error).into()),
        }
    }
}

/// Held by the process that runs the machine, for as long as it does.
#[derive(Debug)]
pub(crate) struct RunLock {
    file: File,
}

impl RunLock {
    /// The lock that another process has taken and handed over.
    pub(crate) fn taken(descriptor: std::os::fd::OwnedFd) -> Self {
        let file = descriptor.into();
        Self { file }
    }

    /// The lock's descriptor: the lock is held until its last copy is closed.
    pub(crate) fn descriptor(&self) -> std::os::fd::BorrowedFd<'_> {
        std::os::fd::AsFd::as_fd(&self.file)
    }
}

/// Replaces a file durably: temporary file, sync, rename, sync of the directory.
pub(crate) fn replace_file(path: &Path, bytes: &[u8]) -> Result<(), MachineDirError> {
    let directory = path.parent().unwrap_or(Path::new("."));
    let mut temporary = tempfile::Builder::new()
        .prefix(TEMPORARY_PREFIX)
        .tempfile_in(directory)
        .map_err(FileError::at("create a file in", directory))?;
    temporary
        .write_all(bytes)
        .map_err(FileError::at("write", path))?;
    temporary
        .as_file()
        .sync_all()
        .map_err(FileError::at("sync", path))?;
    temporary
        .persist(path)
        .map_err(|error| FileError::at("replace", path)(error.error))?;
    sync_directory(directory)
}

/// Makes a directory's entries durable.
pub(crate) fn sync_directory(directory: &Path) -> Result<(), MachineDirError> {
    File::open(directory)
        .and_then(|directory| directory.sync_all())
        .map_err(FileError::at("sync directory", directory))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::Change;

    #[test]
    fn the_run_lock_says_who_runs() {
        let directory = tempfile::tempdir().unwrap();
        let machine = MachineDir::new(directory.path().to_owned());
        assert!(!machine.is_running().unwrap());
        let lock = machine.lock_running().unwrap();
        assert!(machine.is_running().unwrap());
        drop(lock);
        assert!(!machine.is_running().unwrap());
    }

    #[test]
    fn a_rename_that_is_cut_off_anywhere_leaves_a_machine_of_one_name() {
        let root = tempfile::tempdir().unwrap();
        let [old, new] = ["m", "n"].map(|name| root.path().join(name));
        let names = ["m", "n"].map(|name| name.parse::<MachineName>().unwrap());
        std::fs::create_dir_all(old.join("packs")).unwrap();
        let dir = MachineDir::new(old.clone());
        dir.write_first(&MachineFile::for_tests()).unwrap();
        let running = MachineDir::held(&old).unwrap();
        let is = |dir: &MachineDir, name: &MachineName| {
            let machine = dir.read().unwrap().unwrap();
            assert_eq!(&machine.name, name);
            assert!(machine.is_or_was("m"));
        };

        // First the file, which does not count yet.
        let change = dir.change(|file| file.rename(&names[0], &names[1]));
        assert!(change.visible().unwrap().is_or_was("n"));
        is(&dir, &names[0]);
        is(&running, &names[0]);
        // Then the directory: that decides, also for who holds it.
        std::fs::rename(&old, &new).unwrap();
        assert!(!dir.exists());
        is(&MachineDir::new(new.clone()), &names[1]);
        is(&running, &names[1]);
        // What the machine's own process writes goes with it.
        let starts = |file: &mut MachineFile| file.starts = 7;
        assert!(matches!(running.change(starts), Change::Done(_)));
        assert_eq!(MachineDir::new(new).read().unwrap().unwrap().starts, 7);
        assert!(!old.exists());
    }

    #[test]
    fn a_missing_and_a_damaged_file_are_told_apart() {
        let directory = tempfile::tempdir().unwrap();
        let machine = MachineDir::new(directory.path().to_owned());
        assert!(machine.read().unwrap().is_none());
        replace_file(&machine.file_path(), b"{").unwrap();
        assert!(matches!(
            machine.read(),
            Err(MachineDirError::Damaged { .. })
        ));
    }
    #[test]
    fn the_lock_of_a_machine_that_is_gone_is_not_its_successors() {
        let directory = tempfile::tempdir().unwrap();
        let machine = MachineDir::new(directory.path().join("a"));
        std::fs::create_dir(machine.path()).unwrap();
        let first = machine.lock_operation().unwrap();
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| machine.lock_operation());
            // It waits for the first one's lock before that goes.
            while lock_waiters(&first) == 0 {
                std::thread::sleep(LOCK_PAUSE);
            }
            std::fs::rename(machine.path(), directory.path().join("deleted")).unwrap();
            std::fs::create_dir(machine.path()).unwrap();
            let second = machine.lock_operation().unwrap();
            drop(first);
            std::thread::sleep(Duration::from_millis(200));
            assert!(!waits.is_finished(), "it has a lock beside the successor's");
            drop(second);
            waits.join().unwrap().unwrap();
        });
        std::fs::remove_dir_all(machine.path()).unwrap();
        assert!(matches!(
            machine.lock_operation(),
            Err(MachineDirError::Gone { .. })
        ));
    }

    /// How many others have the file of a lock open.
    fn lock_waiters(lock: &File) -> usize {
        let own = lock.metadata().unwrap();
        let open = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
        let same = |entry: &std::fs::DirEntry| {
            let meta = std::fs::metadata(entry.path());
            meta.is_ok_and(|meta| (meta.dev(), meta.ino()) == (own.dev(), own.ino()))
        };
        open.filter(same).count() - 1
    }
}
