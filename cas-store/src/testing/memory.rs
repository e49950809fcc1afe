//! A file system in memory that knows what would survive a crash.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use crate::backend::{FileStat, LockGuard, LockMode, StoreBackend, StoreFile};

/// Files in memory. Clones are views of the same files. Directories are durable at once, everything else as POSIX
/// promises: bytes by a sync of the file, names by a sync of the directory.
#[derive(Debug, Clone, Default)]
pub struct MemoryBackend {
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    files: Mutex<Files>,
    unlocked: Condvar,
}

#[derive(Debug, Clone, Default)]
struct Files {
    inodes: Vec<Inode>,
    dirs: BTreeMap<PathBuf, Dir>,
    locks: BTreeMap<PathBuf, Lock>,
}

#[derive(Debug, Clone, Default)]
struct Inode {
    bytes: Vec<u8>,
    mode: u32,
    synced: Option<(Vec<u8>, u32)>,
    changed: u64,
}

#[derive(Debug, Clone, Default)]
struct Dir {
    number: u64,
    names: BTreeMap<OsString, usize>,
    synced: BTreeMap<OsString, usize>,
}

#[derive(Debug, Clone, Copy, Default)]
struct Lock {
    shared: usize,
    exclusive: bool,
}

/// What a crash leaves of changes that were not synced; file systems do any of these.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Survivors {
    /// Nothing.
    OnlySynced,
    /// The names, but not the bytes: new files are empty.
    AllNames,
    /// All of it.
    Everything,
}

impl MemoryBackend {
    /// An empty file system.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The file system as it is after a crash now. All locks are free.
    #[must_use]
    pub fn after_crash(&self, survivors: Survivors) -> Self {
        let mut files = self.files().clone();
        files.locks.clear();
        if survivors == Survivors::OnlySynced {
            files
                .dirs
                .values_mut()
                .for_each(|dir| dir.names = dir.synced.clone());
        }
        if survivors != Survivors::Everything {
            for inode in &mut files.inodes {
                (inode.bytes, inode.mode) = inode.synced.clone().unwrap_or((Vec::new(), 0o600));
            }
        }
        for dir in files.dirs.values_mut() {
            dir.synced = dir.names.clone();
        }
        for inode in &mut files.inodes {
            inode.synced = Some((inode.bytes.clone(), inode.mode));
        }
        Self {
            shared: Arc::new(Shared {
                files: Mutex::new(files),
                ..Shared::default()
            }),
        }
    }

    /// The paths of all files.
    #[must_use]
    pub fn paths(&self) -> Vec<PathBuf> {
        let files = self.files();
        let in_dir = |(dir, found): (&PathBuf, &Dir)| {
            found
                .names
                .keys()
                .map(|name| dir.join(name))
                .collect::<Vec<_>>()
        };
        files.dirs.iter().flat_map(in_dir).collect()
    }

    /// Changes a file's bytes behind the store's back, as a bad disk does.
    ///
    /// # Errors
    /// `NotFound`.
    pub fn damage(&self, path: &Path, change: impl FnOnce(&mut Vec<u8>)) -> io::Result<()> {
        let mut files = self.files();
        let number = files.find(path)?;
        change(&mut files.inodes[number].bytes);
        Ok(())
    }

    fn files(&self) -> MutexGuard<'_, Files> {
        self.shared
            .files
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

fn not_found() -> io::Error {
    io::ErrorKind::NotFound.into()
}

fn split(path: &Path) -> io::Result<(&Path, OsString)> {
    let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?;
    Ok((path.parent().unwrap_or(Path::new("")), name.to_owned()))
}

impl Files {
    fn dir(&mut self, path: &Path) -> io::Result<&mut Dir> {
        self.dirs.get_mut(path).ok_or_else(not_found)
    }

    fn find(&mut self, path: &Path) -> io::Result<usize> {
        let (dir, name) = split(path)?;
        self.dir(dir)?
            .names
            .get(&name)
            .copied()
            .ok_or_else(not_found)
    }

    fn stat(&self, path: &Path) -> io::Result<FileStat> {
        let blank = FileStat {
            device: 1,
            inode: 0,
            links: 1,
            len_bytes: 0,
            mode: 0o700,
            is_dir: true,
            modified_ns: 0,
        };
        if let Some(dir) = self.dirs.get(path) {
            return Ok(FileStat {
                inode: dir.number,
                ..blank
            });
        }
        let (dir, name) = split(path)?;
        let number = self.dirs.get(dir).and_then(|dir| dir.names.get(&name));
        let number = *number.ok_or_else(not_found)?;
        let names = self.dirs.values().flat_map(|dir| dir.names.values());
        let inode = &self.inodes[number];
        Ok(FileStat {
            // Directories and files are numbered apart.
            inode: number as u64 | 1 << 32,
            links: names.filter(|found| **found == number).count() as u64,
            len_bytes: inode.bytes.len() as u64,
            mode: inode.mode,
            is_dir: false,
            modified_ns: i128::from(inode.changed),
            ..blank
        })
    }
}

impl StoreBackend for MemoryBackend {
    fn create_dirs(&self, dir: &Path) -> io::Result<()> {
        let mut files = self.files();
        for dir in dir.ancestors() {
            let number = files.dirs.len() as u64 + 1;
            files.dirs.entry(dir.to_path_buf()).or_insert(Dir {
                number,
                ..Dir::default()
            });
        }
        Ok(())
    }

    fn create_new(&self, path: &Path) -> io::Result<Arc<dyn StoreFile>> {
        let (dir, name) = split(path)?;
        let mut files = self.files();
        let number = files.inodes.len();
        let names = &mut files.dir(dir)?.names;
        if names.contains_key(&name) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        names.insert(name, number);
        let changed = number as u64;
        files.inodes.push(Inode {
            mode: 0o600,
            changed,
            ..Inode::default()
        });
        Ok(Arc::new(MemoryFile {
            backend: self.clone(),
            number,
        }))
    }

    fn open(&self, path: &Path) -> io::Result<Arc<dyn StoreFile>> {
        let number = self.files().find(path)?;
        Ok(Arc::new(MemoryFile {
            backend: self.clone(),
            number,
        }))
    }

    fn stat(&self, path: &Path) -> io::Result<FileStat> {
        self.files().stat(path)
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<OsString>> {
        Ok(self.files().dir(dir)?.names.keys().cloned().collect())
    }

    fn link(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut files = self.files();
        let number = files.find(from)?;
        let (dir, name) = split(to)?;
        let names = &mut files.dir(dir)?.names;
        if names.contains_key(&name) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        names.insert(name, number);
        Ok(())
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut files = self.files();
        let number = files.find(from)?;
        let (dir, name) = split(to)?;
        files.dir(dir)?.names.insert(name, number);
        let (dir, name) = split(from)?;
        files.dir(dir)?.names.remove(&name);
        Ok(())
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        let (dir, name) = split(path)?;
        self.files()
            .dir(dir)?
            .names
            .remove(&name)
            .map(drop)
            .ok_or_else(not_found)
    }

    fn remove_tree(&self, dir: &Path) -> io::Result<()> {
        let mut files = self.files();
        files.dir(dir)?;
        files.dirs.retain(|path, _| !path.starts_with(dir));
        Ok(())
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        let mut files = self.files();
        let dir = files.dir(dir)?;
        dir.synced = dir.names.clone();
        Ok(())
    }

    fn lock(&self, path: &Path, mode: LockMode, wait: bool) -> io::Result<Option<LockGuard>> {
        if let Err(error) = self.create_new(path)
            && error.kind() != io::ErrorKind::AlreadyExists
        {
            return Err(error);
        }
        let mut files = self.files();
        loop {
            let lock = files.locks.entry(path.to_path_buf()).or_default();
            let free = !lock.exclusive && (mode == LockMode::Shared || lock.shared == 0);
            if free {
                lock.exclusive = mode == LockMode::Exclusive;
                lock.shared += usize::from(mode == LockMode::Shared);
                let guard = HeldLock {
                    backend: self.clone(),
                    path: path.to_path_buf(),
                    mode,
                };
                return Ok(Some(Box::new(guard)));
            }
            if !wait {
                return Ok(None);
            }
            files = self
                .shared
                .unlocked
                .wait(files)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }
}

#[derive(Debug)]
struct HeldLock {
    backend: MemoryBackend,
    path: PathBuf,
    mode: LockMode,
}

impl Drop for HeldLock {
    fn drop(&mut self) {
        if let Some(lock) = self.backend.files().locks.get_mut(&self.path) {
            match self.mode {
                LockMode::Shared => lock.shared -= 1,
                LockMode::Exclusive => lock.exclusive = false,
            }
        }
        self.backend.shared.unlocked.notify_all();
    }
}

#[derive(Debug)]
struct MemoryFile {
    backend: MemoryBackend,
    number: usize,
}

impl StoreFile for MemoryFile {
    fn len_bytes(&self) -> io::Result<u64> {
        Ok(self.backend.files().inodes[self.number].bytes.len() as u64)
    }

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        let files = self.backend.files();
        let bytes = &files.inodes[self.number].bytes;
        let start = usize::try_from(offset).map_err(io::Error::other)?;
        let found = start
            .checked_add(buf.len())
            .and_then(|end| bytes.get(start..end));
        buf.copy_from_slice(found.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }

    fn write_all_at(&self, data: &[u8], offset: u64) -> io::Result<()> {
        let mut files = self.backend.files();
        let inode = &mut files.inodes[self.number];
        let start = usize::try_from(offset).map_err(io::Error::other)?;
        let end = start + data.len();
        if inode.bytes.len() < end {
            inode.bytes.resize(end, 0);
        }
        inode.bytes[start..end].copy_from_slice(data);
        Ok(())
    }

    fn seal(&self) -> io::Result<()> {
        self.backend.files().inodes[self.number].mode = 0o400;
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        let mut files = self.backend.files();
        let inode = &mut files.inodes[self.number];
        inode.synced = Some((inode.bytes.clone(), inode.mode));
        Ok(())
    }
}
