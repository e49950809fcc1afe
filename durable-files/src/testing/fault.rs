//! A backend that fails at a chosen operation, once or from there on.

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::backend::{BackendFile, FileBackend, FileStat, LockGuard, LockMode};

/// A kind of operation that can be made to fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// Creating a file.
    Create,
    /// Writing to a file.
    Write,
    /// Syncing a file or a directory.
    Sync,
    /// Renaming a file.
    Rename,
    /// Linking a file.
    Link,
    /// Reading from a file.
    Read,
}

/// What fails, and when.
#[derive(Debug, Clone, Copy)]
pub enum Plan {
    /// Nothing; operations are only counted.
    Count(Operation),
    /// The operation with this number (from 0) of its kind fails with this error number, all others work.
    FailOnce(Operation, u64, i32),
    /// That operation and all later ones of its kind fail, as on a full disk.
    FailFrom(Operation, u64, i32),
    /// That operation and every later change of any kind fails and has no effect: the machine lost its power.
    Crash(Operation, u64),
}

/// Another backend whose operations are counted and fail as planned.
#[derive(Debug, Clone)]
pub struct FaultBackend<B> {
    inner: B,
    faults: Arc<Faults>,
}

#[derive(Debug)]
struct Faults {
    plan: Plan,
    seen: AtomicU64,
}

impl Faults {
    fn before(&self, operation: Operation) -> io::Result<()> {
        let (kind, number, crash) = match self.plan {
            Plan::Count(kind) => (kind, u64::MAX, false),
            Plan::FailOnce(kind, number, _) | Plan::FailFrom(kind, number, _) => {
                (kind, number, false)
            }
            Plan::Crash(kind, number) => (kind, number, true),
        };
        let seen = if operation == kind {
            self.seen.fetch_add(1, Ordering::Relaxed)
        } else if crash && operation != Operation::Read {
            // Dead once the chosen operation was reached.
            match self.seen.load(Ordering::Relaxed).checked_sub(1) {
                Some(last) => last,
                None => return Ok(()),
            }
        } else {
            return Ok(());
        };
        let fails = match self.plan {
            Plan::Count(_) => false,
            Plan::FailOnce(..) => seen == number,
            Plan::FailFrom(..) | Plan::Crash(..) => seen >= number,
        };
        if fails { Err(self.error()) } else { Ok(()) }
    }

    /// For changes that cannot be chosen, only stopped by a crash.
    fn unless_dead(&self) -> io::Result<()> {
        match self.plan {
            Plan::Crash(_, number) if self.seen.load(Ordering::Relaxed) > number => {
                Err(self.error())
            }
            _ => Ok(()),
        }
    }

    fn error(&self) -> io::Error {
        match self.plan {
            Plan::FailOnce(_, _, errno) | Plan::FailFrom(_, _, errno) => {
                io::Error::from_raw_os_error(errno)
            }
            Plan::Count(_) | Plan::Crash(..) => io::Error::other("the machine lost its power"),
        }
    }
}

impl<B: FileBackend> FaultBackend<B> {
    /// Wraps `inner`.
    pub fn new(inner: B, plan: Plan) -> Self {
        Self {
            inner,
            faults: Arc::new(Faults {
                plan,
                seen: AtomicU64::new(0),
            }),
        }
    }

    /// How many operations of the plan's kind were tried.
    #[must_use]
    pub fn seen(&self) -> u64 {
        self.faults.seen.load(Ordering::Relaxed)
    }

    fn wrap(&self, file: Arc<dyn BackendFile>) -> Arc<dyn BackendFile> {
        Arc::new(FaultFile {
            inner: file,
            faults: Arc::clone(&self.faults),
        })
    }
}

impl<B: FileBackend> FileBackend for FaultBackend<B> {
    fn create_dir(&self, dir: &Path) -> io::Result<()> {
        self.faults.unless_dead()?;
        self.inner.create_dir(dir)
    }

    fn create_new(&self, path: &Path) -> io::Result<Arc<dyn BackendFile>> {
        self.faults.before(Operation::Create)?;
        Ok(self.wrap(self.inner.create_new(path)?))
    }

    fn open(&self, path: &Path) -> io::Result<Arc<dyn BackendFile>> {
        Ok(self.wrap(self.inner.open(path)?))
    }

    fn append(&self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        self.faults.before(Operation::Write)?;
        self.inner.append(path, bytes)
    }

    fn stat(&self, path: &Path) -> io::Result<FileStat> {
        self.inner.stat(path)
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<OsString>> {
        self.inner.list(dir)
    }

    fn link(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.faults.before(Operation::Link)?;
        self.inner.link(from, to)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.faults.before(Operation::Rename)?;
        self.inner.rename(from, to)
    }

    fn rename_new(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.faults.before(Operation::Rename)?;
        self.inner.rename_new(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.faults.unless_dead()?;
        self.inner.remove(path)
    }

    fn remove_dir(&self, dir: &Path) -> io::Result<()> {
        self.faults.unless_dead()?;
        self.inner.remove_dir(dir)
    }

    fn remove_tree(&self, dir: &Path) -> io::Result<()> {
        self.faults.unless_dead()?;
        self.inner.remove_tree(dir)
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        self.faults.before(Operation::Sync)?;
        self.inner.sync_dir(dir)
    }

    fn lock(&self, path: &Path, mode: LockMode, wait: bool) -> io::Result<Option<LockGuard>> {
        self.inner.lock(path, mode, wait)
    }

    fn lock_present(
        &self,
        path: &Path,
        mode: LockMode,
        wait: bool,
    ) -> io::Result<Option<LockGuard>> {
        self.inner.lock_present(path, mode, wait)
    }

    fn lock_dir(&self, dir: &Path, wait: bool) -> io::Result<Option<LockGuard>> {
        self.inner.lock_dir(dir, wait)
    }

    fn resolve(&self, path: &Path) -> io::Result<PathBuf> {
        self.inner.resolve(path)
    }

    fn user(&self) -> u32 {
        self.inner.user()
    }
}

#[derive(Debug)]
struct FaultFile {
    inner: Arc<dyn BackendFile>,
    faults: Arc<Faults>,
}

impl BackendFile for FaultFile {
    fn stat(&self) -> io::Result<FileStat> {
        self.inner.stat()
    }

    fn len_bytes(&self) -> io::Result<u64> {
        self.inner.len_bytes()
    }

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        self.faults.before(Operation::Read)?;
        self.inner.read_exact_at(buf, offset)
    }

    fn write_all_at(&self, data: &[u8], offset: u64) -> io::Result<()> {
        self.faults.before(Operation::Write)?;
        self.inner.write_all_at(data, offset)
    }

    fn seal(&self) -> io::Result<()> {
        self.faults.unless_dead()?;
        self.inner.seal()
    }

    fn sync(&self) -> io::Result<()> {
        self.faults.before(Operation::Sync)?;
        self.inner.sync()
    }

    fn forget_cached(&self) -> io::Result<()> {
        self.inner.forget_cached()
    }
}
