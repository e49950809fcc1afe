//! A file system in memory that knows what would survive a crash.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::io;
use std::path::{Component, Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use crate::backend::{BackendFile, FileBackend, FileKind, FileStat, LockGuard, LockMode};

/// Files in memory, all of one user. Clones are views of the same files. What survives a crash is what POSIX promises: bytes
/// after a sync of the file, names (of directories too) after a sync of the directory that has them.
#[derive(Debug, Clone, Default)]
pub struct MemoryBackend {
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    files: Mutex<Files>,
    unlocked: Condvar,
}

/// Node 0 is the root.
#[derive(Debug, Clone)]
struct Files {
    nodes: Vec<Node>,
    locks: BTreeMap<usize, Lock>,
}

impl Default for Files {
    fn default() -> Self {
        Self {
            nodes: vec![Node::Directory(Directory::default())],
            locks: BTreeMap::new(),
        }
    }
}

#[derive(Debug, Clone)]
enum Node {
    File(Content),
    Directory(Directory),
}

#[derive(Debug, Clone, Default)]
struct Content {
    bytes: Vec<u8>,
    mode: u32,
    synced: Option<(Vec<u8>, u32)>,
}

#[derive(Debug, Clone, Default)]
struct Directory {
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
        for node in &mut files.nodes {
            match node {
                Node::Directory(dir) => {
                    if survivors == Survivors::OnlySynced {
                        dir.names = dir.synced.clone();
                    }
                    dir.synced = dir.names.clone();
                }
                Node::File(file) => {
                    if survivors != Survivors::Everything {
                        (file.bytes, file.mode) =
                            file.synced.clone().unwrap_or((Vec::new(), 0o600));
                    }
                    file.synced = Some((file.bytes.clone(), file.mode));
                }
            }
        }
        files.forget_unreachable();
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
        let mut found = Vec::new();
        self.files().walk(0, Path::new("/"), &mut |path, node| {
            if matches!(node, Node::File(_)) {
                found.push(path.to_path_buf());
            }
        });
        found
    }

    /// Changes a file's bytes behind everybody's back, as a bad disk does.
    ///
    /// # Errors
    /// `NotFound`.
    pub fn damage(&self, path: &Path, change: impl FnOnce(&mut Vec<u8>)) -> io::Result<()> {
        let mut files = self.files();
        let number = files.find(path)?;
        change(&mut files.file(number)?.bytes);
        Ok(())
    }

    /// Makes a directory and its parents, durably: the place where a test begins.
    ///
    /// # Errors
    /// A file is in the way.
    pub fn make_dirs(&self, dir: &Path) -> io::Result<()> {
        crate::create_durable_dirs(self, dir).map_err(|error| error.source)
    }

    fn files(&self) -> MutexGuard<'_, Files> {
        self.shared
            .files
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn hold(&self, number: usize, mode: LockMode, wait: bool) -> Option<LockGuard> {
        let mut files = self.files();
        loop {
            let lock = files.locks.entry(number).or_default();
            let free = !lock.exclusive && (mode == LockMode::Shared || lock.shared == 0);
            if free {
                lock.exclusive = mode == LockMode::Exclusive;
                lock.shared += usize::from(mode == LockMode::Shared);
                return Some(Box::new(HeldLock {
                    backend: self.clone(),
                    number,
                    mode,
                }));
            }
            if !wait {
                return None;
            }
            files = self
                .shared
                .unlocked
                .wait(files)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }
}

fn error(kind: io::ErrorKind) -> io::Error {
    kind.into()
}

fn not_found() -> io::Error {
    error(io::ErrorKind::NotFound)
}

fn split(path: &Path) -> io::Result<(&Path, &OsStr)> {
    let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?;
    Ok((path.parent().unwrap_or(Path::new("")), name))
}

impl Files {
    fn find(&self, path: &Path) -> io::Result<usize> {
        let mut at = 0;
        for part in path.components() {
            match part {
                Component::Normal(name) => at = *self.names(at)?.get(name).ok_or_else(not_found)?,
                Component::RootDir | Component::CurDir => {}
                _ => return Err(error(io::ErrorKind::InvalidInput)),
            }
        }
        Ok(at)
    }

    fn names(&self, number: usize) -> io::Result<&BTreeMap<OsString, usize>> {
        match &self.nodes[number] {
            Node::Directory(dir) => Ok(&dir.names),
            Node::File(_) => Err(error(io::ErrorKind::NotADirectory)),
        }
    }

    fn dir(&mut self, path: &Path) -> io::Result<&mut Directory> {
        let number = self.find(path)?;
        match &mut self.nodes[number] {
            Node::Directory(dir) => Ok(dir),
            Node::File(_) => Err(error(io::ErrorKind::NotADirectory)),
        }
    }

    fn file(&mut self, number: usize) -> io::Result<&mut Content> {
        match &mut self.nodes[number] {
            Node::File(file) => Ok(file),
            Node::Directory(_) => Err(error(io::ErrorKind::IsADirectory)),
        }
    }

    /// Gives a node a name that must be free.
    fn name(&mut self, path: &Path, number: usize) -> io::Result<()> {
        let (dir, name) = split(path)?;
        let names = &mut self.dir(dir)?.names;
        if names.contains_key(name) {
            return Err(error(io::ErrorKind::AlreadyExists));
        }
        names.insert(name.to_owned(), number);
        Ok(())
    }

    fn add(&mut self, path: &Path, node: Node) -> io::Result<usize> {
        let number = self.nodes.len();
        self.name(path, number)?;
        self.nodes.push(node);
        Ok(number)
    }

    fn rename(&mut self, from: &Path, to: &Path) -> io::Result<()> {
        let number = self.find(from)?;
        if self.find(to).is_ok_and(|there| there == number) {
            return Ok(());
        }
        let (dir, name) = split(to)?;
        self.dir(dir)?.names.insert(name.to_owned(), number);
        let (dir, name) = split(from)?;
        self.dir(dir)?.names.remove(name);
        Ok(())
    }

    fn walk(&self, number: usize, path: &Path, visit: &mut dyn FnMut(&Path, &Node)) {
        visit(path, &self.nodes[number]);
        if let Node::Directory(dir) = &self.nodes[number] {
            for (name, number) in &dir.names {
                self.walk(*number, &path.join(name), visit);
            }
        }
    }

    /// Empties directories that have no name any more, so that nobody counts the links in them.
    fn forget_unreachable(&mut self) {
        let mut reached = BTreeSet::new();
        let mut left = vec![0];
        while let Some(number) = left.pop() {
            if reached.insert(number)
                && let Node::Directory(dir) = &self.nodes[number]
            {
                left.extend(dir.names.values().chain(dir.synced.values()));
            }
        }
        for (number, node) in self.nodes.iter_mut().enumerate() {
            if let Node::Directory(dir) = node
                && !reached.contains(&number)
            {
                *dir = Directory::default();
            }
        }
    }

    fn links(&self, number: usize) -> u64 {
        let mut links = 0;
        self.walk(0, Path::new("/"), &mut |_, node| {
            if let Node::Directory(dir) = node {
                links += dir.names.values().filter(|found| **found == number).count() as u64;
            }
        });
        links
    }

    fn stat(&self, number: usize) -> FileStat {
        let (kind, len_bytes, mode) = match &self.nodes[number] {
            Node::Directory(_) => (FileKind::Directory, 0, 0o700),
            Node::File(file) => (FileKind::File, file.bytes.len() as u64, file.mode),
        };
        FileStat {
            device: 1,
            inode: number as u64,
            links: self.links(number),
            len_bytes,
            mode,
            owner: 0,
            kind,
            // Nodes are numbered in the order in which they were made.
            modified_ns: number as i128,
        }
    }
}

impl FileBackend for MemoryBackend {
    fn create_dir(&self, dir: &Path) -> io::Result<()> {
        self.files()
            .add(dir, Node::Directory(Directory::default()))
            .map(drop)
    }

    fn create_new(&self, path: &Path) -> io::Result<Arc<dyn BackendFile>> {
        let file = Content {
            mode: 0o600,
            ..Content::default()
        };
        let number = self.files().add(path, Node::File(file))?;
        Ok(Arc::new(MemoryFile {
            backend: self.clone(),
            number,
        }))
    }

    fn open(&self, path: &Path) -> io::Result<Arc<dyn BackendFile>> {
        let mut files = self.files();
        let number = files.find(path)?;
        files.file(number)?;
        Ok(Arc::new(MemoryFile {
            backend: self.clone(),
            number,
        }))
    }

    fn append(&self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        match self.create_new(path) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
        let mut files = self.files();
        let number = files.find(path)?;
        files.file(number)?.bytes.extend_from_slice(bytes);
        Ok(())
    }

    fn stat(&self, path: &Path) -> io::Result<FileStat> {
        let files = self.files();
        Ok(files.stat(files.find(path)?))
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<OsString>> {
        Ok(self.files().dir(dir)?.names.keys().cloned().collect())
    }

    fn link(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut files = self.files();
        let number = files.find(from)?;
        files.file(number)?;
        files.name(to, number)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.files().rename(from, to)
    }

    fn rename_new(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut files = self.files();
        if files.find(to).is_ok() {
            return Err(error(io::ErrorKind::AlreadyExists));
        }
        files.rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        let (dir, name) = split(path)?;
        let mut files = self.files();
        let number = files.find(path)?;
        files.file(number)?;
        files.dir(dir)?.names.remove(name);
        Ok(())
    }

    fn remove_dir(&self, dir: &Path) -> io::Result<()> {
        let (parent, name) = split(dir)?;
        let mut files = self.files();
        if !files.dir(dir)?.names.is_empty() {
            return Err(error(io::ErrorKind::DirectoryNotEmpty));
        }
        files.dir(parent)?.names.remove(name);
        Ok(())
    }

    fn remove_tree(&self, dir: &Path) -> io::Result<()> {
        let (parent, name) = split(dir)?;
        let mut files = self.files();
        files.dir(dir)?;
        files.dir(parent)?.names.remove(name);
        Ok(())
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        let mut files = self.files();
        let dir = files.dir(dir)?;
        dir.synced = dir.names.clone();
        Ok(())
    }

    fn lock(&self, path: &Path, mode: LockMode, wait: bool) -> io::Result<Option<LockGuard>> {
        match self.create_new(path) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
        let number = self.files().find(path)?;
        Ok(self.hold(number, mode, wait))
    }

    fn lock_present(
        &self,
        path: &Path,
        mode: LockMode,
        wait: bool,
    ) -> io::Result<Option<LockGuard>> {
        let number = self.files().find(path)?;
        Ok(self.hold(number, mode, wait))
    }

    fn lock_dir(&self, dir: &Path, wait: bool) -> io::Result<Option<LockGuard>> {
        let number = self.files().find(dir)?;
        Ok(self.hold(number, LockMode::Exclusive, wait))
    }

    fn resolve(&self, path: &Path) -> io::Result<PathBuf> {
        self.files().find(path)?;
        Ok(path.to_path_buf())
    }

    fn user(&self) -> u32 {
        0
    }
}

#[derive(Debug)]
struct HeldLock {
    backend: MemoryBackend,
    number: usize,
    mode: LockMode,
}

impl Drop for HeldLock {
    fn drop(&mut self) {
        if let Some(lock) = self.backend.files().locks.get_mut(&self.number) {
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

impl BackendFile for MemoryFile {
    fn stat(&self) -> io::Result<FileStat> {
        Ok(self.backend.files().stat(self.number))
    }

    fn len_bytes(&self) -> io::Result<u64> {
        Ok(self.backend.files().file(self.number)?.bytes.len() as u64)
    }

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        let mut files = self.backend.files();
        let bytes = &files.file(self.number)?.bytes;
        let start = usize::try_from(offset).map_err(io::Error::other)?;
        let found = start
            .checked_add(buf.len())
            .and_then(|end| bytes.get(start..end));
        buf.copy_from_slice(found.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }

    fn write_all_at(&self, data: &[u8], offset: u64) -> io::Result<()> {
        let mut files = self.backend.files();
        let bytes = &mut files.file(self.number)?.bytes;
        let start = usize::try_from(offset).map_err(io::Error::other)?;
        let end = start + data.len();
        if bytes.len() < end {
            bytes.resize(end, 0);
        }
        bytes[start..end].copy_from_slice(data);
        Ok(())
    }

    fn seal(&self) -> io::Result<()> {
        self.backend.files().file(self.number)?.mode = 0o400;
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        let mut files = self.backend.files();
        let file = files.file(self.number)?;
        file.synced = Some((file.bytes.clone(), file.mode));
        Ok(())
    }

    fn forget_cached(&self) -> io::Result<()> {
        Ok(())
    }
}
