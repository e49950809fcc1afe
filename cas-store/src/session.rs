//! A running capture or restore as others see it: a lock that only the living hold, the packs it needs, and what it has
//! staged. What the dead left is removed by the next opening.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::PackId;
use crate::error::StoreError;
use crate::store::Inner;
use durable_files::{
    BackendFile, FileBackend, FileStat, LockGuard, LockMode, STAGING_MARK, TEMPORARY_PREFIX,
    random_name,
};

const LOCK_SUFFIX: &str = ".lock";
const PIN_SUFFIX: &str = ".pin";
const OUTSIDE_SUFFIX: &str = ".outside";
/// What the names of staged files end with.
const STAGED_SUFFIX: &str = ".tmp";
/// The numbers of packs that are linked here begin with this one, those of new packs with 0.
const FIRST_LINK: u64 = 1 << 32;
/// In place of a number, in the name of a small file that is staged.
const RECORD_STAGE: &str = "record";
/// A pin file or list of staged directories longer than this is not ours.
const MAX_LIST_BYTES: u64 = 16 << 20;

/// One session. Dropping it gives the pins back and removes what is still staged.
#[derive(Debug)]
pub(crate) struct Session {
    store: Arc<Inner>,
    name: String,
    lock: Option<LockGuard>,
    pins: Mutex<Pins>,
    outside: Mutex<Option<AppendFile>>,
    links: AtomicU64,
    /// Its files stay when it ends, for the next opening of the store.
    is_left: AtomicBool,
}

#[derive(Debug)]
struct Pins {
    file: AppendFile,
    ids: HashSet<PackId>,
}

#[derive(Debug)]
struct AppendFile {
    file: Arc<dyn BackendFile>,
    path: PathBuf,
    len_bytes: u64,
}

impl AppendFile {
    fn create(backend: &dyn FileBackend, path: PathBuf) -> Result<Self, StoreError> {
        let file = backend
            .create_new(&path)
            .map_err(StoreError::io("create", &path))?;
        Ok(Self {
            file,
            path,
            len_bytes: 0,
        })
    }

    fn append(&mut self, text: &str) -> Result<(), StoreError> {
        let write = StoreError::io("write", &self.path);
        self.file
            .write_all_at(text.as_bytes(), self.len_bytes)
            .map_err(write)?;
        self.len_bytes += text.len() as u64;
        Ok(())
    }
}

impl Session {
    /// Begins a session. The caller holds the store's lock, shared: nobody takes the new files for a dead one's.
    pub(crate) fn begin(store: &Arc<Inner>) -> Result<Self, StoreError> {
        let backend = store.backend();
        let name = random_name();
        let lock_path = store.pins_dir().join(format!("{name}{LOCK_SUFFIX}"));
        let lock = backend
            .lock(&lock_path, LockMode::Exclusive, true)
            .map_err(StoreError::io("lock", &lock_path))?;
        let pin_path = store.pins_dir().join(format!("{name}{PIN_SUFFIX}"));
        let file = match AppendFile::create(backend, pin_path) {
            Ok(file) => file,
            Err(error) => {
                // Best effort: left behind, it is a dead session's and goes with the next opening.
                let _ = backend.remove(&lock_path);
                return Err(error);
            }
        };
        let pins = Mutex::new(Pins {
            file,
            ids: HashSet::new(),
        });
        Ok(Self {
            store: Arc::clone(store),
            name,
            lock,
            pins,
            outside: Mutex::new(None),
            links: AtomicU64::new(0),
            is_left: AtomicBool::new(false),
        })
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// A new name in the staging directory for a pack of elsewhere.
    pub(crate) fn staged_link(&self) -> PathBuf {
        let number = FIRST_LINK + self.links.fetch_add(1, Ordering::Relaxed);
        let name = format!("{}-{number}{STAGED_SUFFIX}", self.name);
        self.store.staging_dir().join(name)
    }

    /// Protects packs from a sweep, whether they exist yet or not. The caller holds the store's lock, shared.
    pub(crate) fn pin(&self, ids: impl IntoIterator<Item = PackId>) -> Result<(), StoreError> {
        let mut pins = self.pins.lock().unwrap_or_else(PoisonError::into_inner);
        let new: HashSet<PackId> = ids
            .into_iter()
            .filter(|id| !pins.ids.contains(id))
            .collect();
        let text: String = new.iter().map(|id| format!("{id}\n")).collect();
        pins.file.append(&text)?;
        pins.ids.extend(new);
        Ok(())
    }

    /// Records a directory outside the store that is to be removed should this process die.
    pub(crate) fn stage_outside(&self, dir: &Path) -> Result<(), StoreError> {
        let dir = std::path::absolute(dir).map_err(StoreError::io("find", dir))?;
        if !has_staging_name(&dir) {
            let what = "a staged directory needs `.staging-` in its name";
            return Err(StoreError::Malformed { path: dir, what });
        }
        let stat = self.store.backend().stat(&dir);
        self.note_outside(&dir, &stat.map_err(StoreError::io("find", &dir))?)
    }

    /// The same for a directory that is going to have this name.
    pub(crate) fn note_outside(&self, dir: &Path, stat: &FileStat) -> Result<(), StoreError> {
        let backend = self.store.backend();
        let mut outside = self.outside.lock().unwrap_or_else(PoisonError::into_inner);
        let mut file = match outside.take() {
            Some(file) => file,
            None => {
                let name = format!("{}{OUTSIDE_SUFFIX}", self.name);
                AppendFile::create(backend, self.store.pins_dir().join(name))?
            }
        };
        let path = hex(dir.as_os_str().as_bytes());
        let result = file.append(&format!("{} {} {path}\n", stat.device, stat.inode));
        *outside = Some(file);
        result
    }
}

impl Session {
    /// Ends as if it had been killed: the next opening of the store removes what it has noted.
    pub(crate) fn leave(self) {
        self.is_left.store(true, Ordering::Relaxed);
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        if self.is_left.load(Ordering::Relaxed) {
            return drop(self.lock.take());
        }
        let removed = remove_session(&self.store, &self.name);
        drop(self.lock.take());
        if let Err(error) = removed {
            // The lock is free now, so the next opening of the store tries again.
            tracing::warn!(session = %self.name, %error, "session files not removed");
        }
    }
}

/// What a dead session left and nobody could remove.
#[derive(Debug)]
pub struct Leftover {
    /// The file or directory.
    pub path: PathBuf,
    /// Why it is still there.
    pub error: StoreError,
}

/// Removes a session's files: staged packs first, its lock last.
fn remove_session(store: &Inner, name: &str) -> Result<(), StoreError> {
    let backend = store.backend();
    for staged in list(backend, &store.staging_dir())? {
        if owner_of_staged(&staged) == Some(name) {
            remove_ours(backend, &store.staging_dir().join(staged))?;
        }
    }
    for suffix in [OUTSIDE_SUFFIX, PIN_SUFFIX, LOCK_SUFFIX] {
        remove_ours(backend, &store.pins_dir().join(format!("{name}{suffix}")))?;
    }
    Ok(())
}

/// Removes what dead sessions left: files and directories of this user that are where and named as a session makes them.
/// What cannot be removed is returned and keeps nobody from anything. The caller holds the store's lock, exclusive.
pub(crate) fn remove_dead(store: &Inner) -> Result<Vec<Leftover>, StoreError> {
    let backend = store.backend();
    let mut leftovers = Vec::new();
    let mut alive = HashSet::new();
    for name in session_names(store)? {
        let lock_path = store.pins_dir().join(format!("{name}{LOCK_SUFFIX}"));
        match backend.lock(&lock_path, LockMode::Exclusive, false) {
            Ok(Some(_lock)) => {
                let before = leftovers.len();
                remove_outside(store, &name, &mut leftovers)?;
                // What it staged outside is tried again as long as its list is there.
                if leftovers.len() == before
                    && let Err(error) = remove_session(store, &name)
                {
                    leftovers.push(Leftover::new(&lock_path, error));
                }
            }
            Ok(None) => {
                alive.insert(name);
            }
            Err(error) => {
                let error = StoreError::io("lock", &lock_path)(error);
                leftovers.push(Leftover::new(&lock_path, error));
                alive.insert(name);
            }
        }
    }
    for staged in list(backend, &store.staging_dir())? {
        if owner_of_staged(&staged).is_none_or(|owner| alive.contains(owner)) {
            continue;
        }
        let path = store.staging_dir().join(staged);
        if let Err(error) = remove_ours(backend, &path) {
            leftovers.push(Leftover::new(&path, error));
        }
    }
    for name in list(backend, store.dir())? {
        let path = store.dir().join(&name);
        if name.starts_with(TEMPORARY_PREFIX)
            && let Err(error) = remove_ours(backend, &path)
        {
            leftovers.push(Leftover::new(&path, error));
        }
    }
    Ok(leftovers)
}

impl Leftover {
    fn new(path: &Path, error: StoreError) -> Self {
        tracing::warn!(path = %path.display(), %error, "what a dead session left cannot be removed");
        let path = path.to_owned();
        Self { path, error }
    }
}

/// The session that a staged file belongs to; `None` for names that no session gives.
fn owner_of_staged(name: &str) -> Option<&str> {
    let (owner, number) = name.strip_suffix(STAGED_SUFFIX)?.split_once('-')?;
    let counted = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
    (is_random_name(owner) && (counted || number == RECORD_STAGE)).then_some(owner)
}

/// Whether it looks like what [`random_name`] gives.
fn is_random_name(name: &str) -> bool {
    name.len() == 16
        && name
            .bytes()
            .all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

/// The packs that living sessions pin. The caller holds the store's lock, exclusive, and has removed the dead.
pub(crate) fn pinned_packs(store: &Inner) -> Result<HashSet<PackId>, StoreError> {
    let mut pinned = HashSet::new();
    for name in session_names(store)? {
        pinned.extend(pins_of(store, &name)?);
    }
    Ok(pinned)
}

/// The same where nothing may be changed: the dead are told by their locks, which are free.
pub(crate) fn pinned_by_living(store: &Inner) -> Result<HashSet<PackId>, StoreError> {
    let mut pinned = HashSet::new();
    for name in session_names(store)? {
        let lock_path = store.pins_dir().join(format!("{name}{LOCK_SUFFIX}"));
        let lock = store
            .backend()
            .lock_present(&lock_path, LockMode::Exclusive, false);
        match lock {
            Ok(Some(_lock)) => continue,
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            // Who cannot be asked counts as living.
            Ok(None) | Err(_) => {}
        }
        pinned.extend(pins_of(store, &name)?);
    }
    Ok(pinned)
}

fn pins_of(store: &Inner, session: &str) -> Result<Vec<PackId>, StoreError> {
    let path = store.pins_dir().join(format!("{session}{PIN_SUFFIX}"));
    let malformed = || StoreError::Malformed {
        path: path.clone(),
        what: "not a pack id",
    };
    // Gone means that the session ended just now and its links or records are in place.
    let lines = read_lines(store.backend(), &path)?;
    lines
        .iter()
        .map(|line| line.parse().map_err(|_| malformed()))
        .collect()
}

fn session_names(store: &Inner) -> Result<HashSet<String>, StoreError> {
    let names = list(store.backend(), &store.pins_dir())?;
    let session = |name: &String| {
        let suffixes = [LOCK_SUFFIX, PIN_SUFFIX, OUTSIDE_SUFFIX];
        let session = suffixes.iter().find_map(|end| name.strip_suffix(end))?;
        is_random_name(session).then(|| session.to_owned())
    };
    Ok(names.iter().filter_map(session).collect())
}

/// Removes directories staged outside the store, if they still are the ones that were recorded, this user's, and nobody is
/// building in them.
fn remove_outside(
    store: &Inner,
    name: &str,
    leftovers: &mut Vec<Leftover>,
) -> Result<(), StoreError> {
    let backend = store.backend();
    let path = store.pins_dir().join(format!("{name}{OUTSIDE_SUFFIX}"));
    // A list that somebody else put here names what we do not know.
    if !is_our_file(backend, &path)? {
        return Ok(());
    }
    let lines = match read_lines(backend, &path) {
        Ok(lines) => lines,
        Err(error) => {
            leftovers.push(Leftover::new(&path, error));
            return Ok(());
        }
    };
    for (device, inode, dir) in lines.iter().filter_map(|line| parse_outside(line)) {
        let ours = backend.stat(&dir).is_ok_and(|stat| {
            stat.is_dir()
                && (stat.device, stat.inode) == (device, inode)
                && stat.owner == backend.user()
        });
        if !ours || !has_staging_name(&dir) {
            continue;
        }
        let removed = match backend.lock_dir(&dir, false) {
            // Somebody is building in it.
            Ok(None) => continue,
            Ok(Some(_lock)) => backend.remove_tree(&dir),
            Err(error) => Err(error),
        };
        match removed {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                let error = StoreError::io("remove", &dir)(error);
                leftovers.push(Leftover::new(&dir, error));
            }
            _ => {}
        }
    }
    Ok(())
}

/// Whether a name is that of a regular file of this user.
pub(crate) fn is_our_file(backend: &dyn FileBackend, path: &Path) -> Result<bool, StoreError> {
    match backend.stat(path) {
        Ok(stat) => Ok(stat.is_file() && stat.owner == backend.user()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(StoreError::io("find", path)(error)),
    }
}

/// Removes a regular file of this user; what else has the name is left alone.
pub(crate) fn remove_ours(backend: &dyn FileBackend, path: &Path) -> Result<(), StoreError> {
    match is_our_file(backend, path)? {
        true => remove_file(backend, path),
        false => Ok(()),
    }
}

fn parse_outside(line: &str) -> Option<(u64, u64, PathBuf)> {
    let mut words = line.split(' ');
    let (device, inode) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
    Some((
        device,
        inode,
        PathBuf::from(std::ffi::OsString::from_vec(unhex(words.next()?)?)),
    ))
}

fn has_staging_name(dir: &Path) -> bool {
    let mark = STAGING_MARK.as_bytes();
    dir.file_name().is_some_and(|name| {
        name.as_bytes()
            .windows(mark.len())
            .any(|window| window == mark)
    })
}

/// The complete lines of a small file; none if it does not exist. A last line cut by a crash is left out.
pub(crate) fn read_lines(
    backend: &dyn FileBackend,
    path: &Path,
) -> Result<Vec<String>, StoreError> {
    let Some(bytes) = read_small(backend, path, MAX_LIST_BYTES)? else {
        return Ok(Vec::new());
    };
    let complete = bytes
        .iter()
        .rposition(|byte| *byte == b'\n')
        .map_or(0, |at| at + 1);
    let text = String::from_utf8_lossy(&bytes[..complete]);
    Ok(text.lines().map(str::to_owned).collect())
}

/// A whole file of at most `limit` bytes; `None` if it does not exist.
pub(crate) fn read_small(
    backend: &dyn FileBackend,
    path: &Path,
    limit: u64,
) -> Result<Option<Vec<u8>>, StoreError> {
    let file = match backend.open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(StoreError::io("open", path)(error)),
    };
    let len_bytes = file.len_bytes().map_err(StoreError::io("read", path))?;
    if len_bytes > limit {
        return Err(StoreError::TooLarge {
            what: "a file",
            len_bytes,
            limit_bytes: limit,
        });
    }
    let mut bytes = vec![0; len_bytes as usize];
    file.read_exact_at(&mut bytes, 0)
        .map_err(StoreError::io("read", path))?;
    Ok(Some(bytes))
}

/// The UTF-8 names in a directory; the store makes no others.
pub(crate) fn list(backend: &dyn FileBackend, dir: &Path) -> Result<Vec<String>, StoreError> {
    let names = backend.list(dir).map_err(StoreError::io("list", dir))?;
    Ok(names
        .iter()
        .filter_map(|name| OsStr::to_str(name).map(str::to_owned))
        .collect())
}

/// Removes a file that may be gone already.
pub(crate) fn remove_file(backend: &dyn FileBackend, path: &Path) -> Result<(), StoreError> {
    match backend.remove(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(StoreError::io("remove", path)(error))
        }
        _ => Ok(()),
    }
}

/// The name under which a small file is staged, which belongs to no session.
pub(crate) fn staged_record_name() -> String {
    format!("{}-{RECORD_STAGE}{STAGED_SUFFIX}", random_name())
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

pub(crate) fn unhex(text: &str) -> Option<Vec<u8>> {
    if !text.len().is_multiple_of(2) || !text.is_ascii() {
        return None;
    }
    (0..text.len())
        .step_by(2)
        .map(|at| u8::from_str_radix(&text[at..at + 2], 16).ok())
        .collect()
}
