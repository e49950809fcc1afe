//! A host whose processes die and whose power fails.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::pages::{PAGE_BYTES, Page, Pages, pieces};
use crate::file::OverlayFile;

/// Bytes that a disk writes as a whole.
const SECTOR_BYTES: usize = 512;

/// A simulated host with a page cache: owns files that all stop at one chosen operation.
///
/// After a process death the page cache is as it was; after a power loss each page holds any of the
/// contents that it had since the last sync of its file, each page by itself. Pages whose file
/// offset lies below a limit (an overlay's header and map) may even be torn at 512-byte sectors.
#[derive(Debug, Clone)]
pub struct CrashHost(Arc<Mutex<Host>>);

#[derive(Debug)]
struct Host {
    files: Vec<Content>,
    /// Operations that change something, so far.
    operations: u64,
    /// The operation that is the last one, applied to some of its pages only.
    stop_at: Option<u64>,
    stopped: bool,
    torn_below_bytes: u64,
    random: u64,
    during_sync: Hook,
}

/// What happens during the next sync.
#[derive(Default)]
struct Hook(Option<Box<dyn FnOnce() + Send>>);

impl fmt::Debug for Hook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Hook").field(&self.0.is_some()).finish()
    }
}

#[derive(Debug, Default, Clone)]
struct Content {
    cache: Pages,
    durable: Pages,
    /// Contents of pages since the last sync, oldest first; `None` is a hole.
    pending: BTreeMap<u64, Vec<Option<Page>>>,
}

impl CrashHost {
    /// A host without files. `seed` decides what is lost; pages below `torn_below_bytes` of each
    /// file may be torn.
    pub fn new(seed: u64, torn_below_bytes: u64) -> Self {
        Self(Arc::new(Mutex::new(Host {
            files: Vec::new(),
            operations: 0,
            stop_at: None,
            stopped: false,
            torn_below_bytes,
            // Any seed will do but zero, from which xorshift never leaves.
            random: seed.wrapping_mul(2).wrapping_add(1),
            during_sync: Hook::default(),
        })))
    }

    /// A copy of the host and its files as they are, to try another fate on; its files are had by
    /// [`CrashFile::on`].
    pub fn fork(&self, seed: u64) -> Self {
        let host = self.host();
        let fork = Self::new(seed, host.torn_below_bytes);
        fork.host().files.clone_from(&host.files);
        fork
    }

    /// A new, empty file. Its size is durable at once, its content is not.
    pub fn file(&self) -> CrashFile {
        let mut host = self.host();
        host.files.push(Content::default());
        CrashFile {
            host: self.clone(),
            index: host.files.len() - 1,
        }
    }

    /// How many operations have changed or synced a file.
    pub fn operations(&self) -> u64 {
        self.host().operations
    }

    /// Lets the operation number `operation` (counted from zero) fail half done, and all after it.
    pub fn stop_at(&self, operation: u64) {
        self.host().stop_at = Some(operation);
    }

    /// Runs `hook` in the middle of the next sync: what is in the file by then is durable, the sync
    /// has not returned. It may write to the files, as another thread of the process would.
    pub fn during_next_sync(&self, hook: impl FnOnce() + Send + 'static) {
        self.host().during_sync = Hook(Some(Box::new(hook)));
    }

    /// Whether that operation was reached.
    pub fn is_stopped(&self) -> bool {
        self.host().stopped
    }

    /// Goes on after the death of the process: nothing in the page cache is lost.
    pub fn restart_process(&self) {
        let mut host = self.host();
        host.go_on();
    }

    /// Goes on after a power loss.
    pub fn restart_power(&self) {
        let mut host = self.host();
        host.go_on();
        let mut files = std::mem::take(&mut host.files);
        for content in &mut files {
            host.lose(content);
        }
        host.files = files;
    }

    fn host(&self) -> MutexGuard<'_, Host> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Host {
    fn go_on(&mut self) {
        self.stop_at = None;
        self.stopped = false;
        self.during_sync = Hook::default();
    }

    /// A number below `bound`.
    fn random(&mut self, bound: usize) -> usize {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random >> 16) as usize % bound
    }

    /// Counts an operation; says whether it is the one at which all ends.
    fn count(&mut self) -> io::Result<bool> {
        if self.stopped {
            return Err(io::Error::other("the host has stopped"));
        }
        self.stopped = self.stop_at == Some(self.operations);
        self.operations += 1;
        Ok(self.stopped)
    }

    /// Decides what of a file has survived a power loss.
    fn lose(&mut self, content: &mut Content) {
        for (page, versions) in std::mem::take(&mut content.pending) {
            let chosen = self.random(versions.len() + 1);
            if chosen > 0 {
                set(&mut content.durable, page, versions[chosen - 1].as_ref());
            }
            if page * PAGE_BYTES < self.torn_below_bytes {
                self.tear(&mut content.durable, page, &versions);
            }
        }
        content.cache = content.durable.clone();
    }

    fn tear(&mut self, durable: &mut Pages, page: u64, versions: &[Option<Page>]) {
        let mut bytes = durable.get(page);
        for sector in bytes.chunks_exact_mut(SECTOR_BYTES).enumerate() {
            let (index, sector) = sector;
            let chosen = self.random(versions.len() + 1);
            if let Some(Some(version)) = chosen.checked_sub(1).map(|at| versions[at]) {
                let at = index * SECTOR_BYTES;
                sector.copy_from_slice(&version[at..at + SECTOR_BYTES]);
            }
        }
        set(durable, page, Some(&bytes));
    }
}

impl Content {
    fn remember(&mut self, page: u64) {
        let version = self.cache.pages.get(&page).copied();
        self.pending.entry(page).or_default().push(version);
    }
}

fn set(pages: &mut Pages, page: u64, version: Option<&Page>) {
    match version {
        Some(bytes) => pages.pages.insert(page, *bytes),
        None => pages.pages.remove(&page),
    };
}

/// A file of a [`CrashHost`]. Clones are the same file; opening it again after a restart is using a
/// clone.
#[derive(Debug, Clone)]
pub struct CrashFile {
    host: CrashHost,
    index: usize,
}

impl CrashFile {
    /// The same file on a copy of its host.
    pub fn on(&self, fork: &CrashHost) -> Self {
        Self {
            host: fork.clone(),
            index: self.index,
        }
    }

    /// Runs a change page by page; the last operation reaches only some of them.
    fn change(
        &self,
        offset_bytes: u64,
        len_bytes: u64,
        mut apply: impl FnMut(&mut Pages, u64, Range<u64>, Range<u64>),
    ) -> io::Result<()> {
        let mut host = self.host.host();
        let last = host.count()?;
        let pieces: Vec<_> = pieces(offset_bytes, len_bytes).collect();
        let count = if last {
            host.random(pieces.len() + 1)
        } else {
            pieces.len()
        };
        let content = &mut host.files[self.index];
        for (page, within, part) in pieces.into_iter().take(count) {
            apply(&mut content.cache, page, within, part);
            content.remember(page);
        }
        if last {
            return Err(io::Error::other("the host stops"));
        }
        Ok(())
    }
}

impl OverlayFile for CrashFile {
    fn read_at(&self, offset_bytes: u64, buf: &mut [u8]) -> io::Result<()> {
        let host = self.host.host();
        if host.stopped {
            return Err(io::Error::other("the host has stopped"));
        }
        host.files[self.index].cache.read(offset_bytes, buf)
    }

    fn write_at(&self, offset_bytes: u64, data: &[u8]) -> io::Result<()> {
        self.change(
            offset_bytes,
            data.len() as u64,
            |pages, page, within, part| {
                let part = &data[part.start as usize..part.end as usize];
                pages.write(page * PAGE_BYTES + within.start, part);
            },
        )
    }

    fn punch_hole(&self, offset_bytes: u64, len_bytes: u64) -> io::Result<()> {
        self.change(offset_bytes, len_bytes, |pages, page, within, _| {
            pages.punch(page * PAGE_BYTES + within.start, within.end - within.start);
        })
    }

    fn next_stored(&self, offset_bytes: u64) -> io::Result<Option<Range<u64>>> {
        let host = self.host.host();
        Ok(host.files[self.index].cache.next_stored(offset_bytes))
    }

    fn sync_data(&self) -> io::Result<()> {
        let mut host = self.host.host();
        if host.count()? {
            return Err(io::Error::other("the host stops"));
        }
        let content = &mut host.files[self.index];
        content.pending.clear();
        content.durable = content.cache.clone();
        let hook = std::mem::take(&mut host.during_sync).0;
        drop(host);
        if let Some(hook) = hook {
            hook();
        }
        if self.host.is_stopped() {
            return Err(io::Error::other("the host has stopped"));
        }
        Ok(())
    }

    fn size_bytes(&self) -> io::Result<u64> {
        Ok(self.host.host().files[self.index].cache.size_bytes)
    }

    fn set_size_bytes(&self, size_bytes: u64) -> io::Result<()> {
        let mut host = self.host.host();
        if host.count()? {
            return Err(io::Error::other("the host stops"));
        }
        let content = &mut host.files[self.index];
        content.cache.size_bytes = size_bytes;
        content.durable.size_bytes = size_bytes;
        Ok(())
    }

    fn stored_bytes(&self) -> io::Result<u64> {
        Ok(self.host.host().files[self.index].cache.stored_bytes())
    }
}
