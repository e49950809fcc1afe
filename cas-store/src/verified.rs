//! Which packs of the store were verified, body by body, and in which order they came. Duplicates are looked for in no others:
//! an index says what its writer liked.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use crate::PackId;
use crate::error::{ReadError, StoreError};
use crate::on_threads::for_all;
use crate::pack::layout::Entry;
use crate::pack::reader::Pack;
use crate::packset::entry_error;
use crate::session::{is_our_file, read_lines, remove_ours};
use crate::store::Inner;
use durable_files::{FileBackend, FileStat, LockMode, ReplaceError, replace};

/// The list's name: one line for each pack, in the order in which they came.
const LIST: &str = "verified";
/// Says that a sync of the store failed.
const POISONED: &str = "poisoned";
/// What stands in the place of the file where a pack was found damaged after it had been verified.
const DAMAGED: &str = "damaged";
/// A list above this length is written anew when the store is swept.
const COMPACT_ABOVE_BYTES: usize = 256 << 10;

/// The list as it was read.
#[derive(Debug, Default)]
pub(crate) struct Verified {
    /// The newest last.
    order: Vec<PackId>,
    files: HashMap<PackId, FileKey>,
}

/// The file that was verified: another one of the same name was not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct FileKey {
    inode: u64,
    len_bytes: u64,
}

impl FileKey {
    fn of(stat: &FileStat) -> Self {
        Self {
            inode: stat.inode,
            len_bytes: stat.len_bytes,
        }
    }
}

impl Verified {
    fn parse(lines: &[String]) -> Self {
        let mut list = Self::default();
        // A line that a crash cut is one pack more to verify.
        for (id, key) in lines.iter().filter_map(|line| parse_line(line)) {
            let Some(key) = key else {
                if list.files.remove(&id).is_some() {
                    list.order.retain(|listed| *listed != id);
                }
                continue;
            };
            if list.files.insert(id, key).is_none() {
                list.order.push(id);
            }
        }
        list
    }

    /// Whether the file of pack `id` that this is about was verified.
    pub(crate) fn has(&self, id: &PackId, stat: &FileStat) -> bool {
        stat.is_file() && self.files.get(id) == Some(&FileKey::of(stat))
    }

    /// All that were ever noted, the newest first. Some may be gone.
    pub(crate) fn newest_first(&self) -> impl Iterator<Item = &PackId> {
        self.order.iter().rev()
    }
}

fn line(id: &PackId, stat: &FileStat) -> String {
    format!("{id} {} {}\n", stat.inode, stat.len_bytes)
}

/// A pack, and the file that was verified; `None`: it is not what it was.
fn parse_line(line: &str) -> Option<(PackId, Option<FileKey>)> {
    let mut words = line.split(' ');
    let id = words.next()?.parse().ok()?;
    if words.clone().eq([DAMAGED]) {
        return Some((id, None));
    }
    let (inode, len_bytes) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
    let key = FileKey { inode, len_bytes };
    words.next().is_none().then_some((id, Some(key)))
}

impl Inner {
    fn list_path(&self) -> PathBuf {
        self.dir().join(LIST)
    }

    /// The packs that were verified. What is no list of this user's is none.
    pub(crate) fn verified(&self) -> Result<Verified, StoreError> {
        let path = self.list_path();
        if !is_our_file(self.backend(), &path)? {
            return Ok(Verified::default());
        }
        match read_lines(self.backend(), &path) {
            Ok(lines) => Ok(Verified::parse(&lines)),
            // One that nobody can have written here.
            Err(StoreError::TooLarge { .. }) => Ok(Verified::default()),
            Err(error) => Err(error),
        }
    }

    /// Notes packs of the store whose bodies were written or verified just now. Where that fails they are verified again.
    pub(crate) fn note_verified(&self, ids: &[PackId]) {
        let lines: Result<String, StoreError> = ids
            .iter()
            .map(|id| Ok(line(id, &self.stat_pack(id)?)))
            .collect();
        let noted = lines.and_then(|lines| self.append_lines(&lines));
        if let Err(error) = noted {
            let path = self.list_path();
            tracing::warn!(path = %path.display(), %error, "verified packs were not noted");
        }
    }

    /// Takes packs off the list that were found damaged: nothing is shared with them any more. Whoever may not write here does
    /// not save here either.
    pub(crate) fn distrust(&self, ids: &[PackId]) {
        let noted = self.verified().and_then(|listed| {
            let listed = ids.iter().filter(|id| listed.files.contains_key(id));
            let lines: String = listed.map(|id| format!("{id} {DAMAGED}\n")).collect();
            self.append_lines(&lines)
        });
        if let Err(error) = noted {
            let path = self.list_path();
            tracing::warn!(path = %path.display(), %error, "damaged packs were not noted");
        }
    }

    fn append_lines(&self, lines: &str) -> Result<(), StoreError> {
        if lines.is_empty() {
            return Ok(());
        }
        let path = self.list_path();
        // The line before may have been cut by a crash.
        self.backend()
            .append(&path, format!("\n{lines}").as_bytes())
            .map_err(StoreError::io("write", &path))
    }

    fn stat_pack(&self, id: &PackId) -> Result<FileStat, StoreError> {
        let path = self.pack_path(id);
        self.backend()
            .stat(&path)
            .map_err(StoreError::io("find", &path))
    }

    /// Takes the packs that are gone out of the list, where it has become long. The caller holds the lock, exclusive.
    pub(crate) fn compact_verified(&self) -> Result<(), StoreError> {
        let list = self.verified()?;
        let mut lines = String::new();
        let mut dropped = 0;
        for id in &list.order {
            match self.stat_pack(id) {
                Ok(stat) if list.has(id, &stat) => lines.push_str(&line(id, &stat)),
                _ => dropped += 1,
            }
        }
        if dropped == 0 || lines.len() < COMPACT_ABOVE_BYTES && dropped < 1000 {
            return Ok(());
        }
        replace(self.backend(), &self.list_path(), lines.as_bytes())
            .map_err(ReplaceError::into_file_error)?;
        Ok(())
    }

    /// Leaves word of a failed sync for the next opening.
    pub(crate) fn note_poisoned(&self) {
        let path = self.dir().join(POISONED);
        match self.backend().create_new(&path) {
            Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => {
                tracing::warn!(path = %path.display(), %error, "a failed sync was not noted");
            }
            _ => {}
        }
    }

    /// Where a sync failed in an earlier opening: syncs all that the store holds, and forgets what was verified, so that nothing
    /// is shared before it was read again from the disk.
    ///
    /// # Errors
    /// A sync fails again: the store stays as it is.
    pub(crate) fn recover(&self) -> Result<(), StoreError> {
        let note = self.dir().join(POISONED);
        if !is_our_file(self.backend(), &note)? {
            return Ok(());
        }
        let _lock = self.lock(LockMode::Exclusive, true)?;
        tracing::warn!(store = %self.dir().display(), "an earlier sync failed; everything is synced again");
        for dir in [self.packs_dir(), self.points_dir(), self.lineage_dir()] {
            for name in crate::session::list(self.backend(), &dir)? {
                let path = dir.join(name);
                if is_our_file(self.backend(), &path)? {
                    self.sync_again(&path)?;
                }
            }
            self.sync_dir(&dir)?;
        }
        remove_ours(self.backend(), &self.list_path())?;
        self.sync_dir(self.dir())?;
        remove_ours(self.backend(), &note)?;
        self.sync_dir(self.dir())
    }

    fn sync_again(&self, path: &Path) -> Result<(), StoreError> {
        let open = StoreError::io("open", path);
        let file = self.backend().open(path).map_err(open)?;
        file.sync().map_err(StoreError::io("sync", path))?;
        file.forget_cached().map_err(StoreError::io("read", path))
    }
}

/// Reads every body of a pack and compares it with its id.
pub(crate) fn verify_pack(
    backend: &dyn FileBackend,
    path: &Path,
    id: &PackId,
) -> Result<(), ReadError> {
    let file = backend.open(path).map_err(ReadError::io(path))?;
    let pack = Pack::open(file, id).map_err(ReadError::pack(path))?;
    pack.index.validate().map_err(ReadError::pack(path))?;
    let entries: Vec<Entry> = pack.index.entries().collect();
    let verified = for_all(&entries, |entry, buffer| {
        pack.read_decoded(entry, buffer)
            .map(drop)
            .map_err(|error| entry_error(&entry.id, path, error))
    });
    verified
        .map(drop)
        .map_err(|failures| failures.cause(|_| false))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_that_are_cut_or_wrong_name_nothing() {
        let id = PackId([7; 32]);
        let good = format!("{id} 12 345");
        let lines = [
            good.clone(),
            good[..40].to_owned(),
            format!("{good} 6"),
            format!("{id} 12"),
            format!("{} 1 2{good}", PackId([8; 32])),
            String::new(),
        ];
        let list = Verified::parse(&lines);
        assert_eq!(list.newest_first().collect::<Vec<_>>(), [&id]);
        let key = FileKey {
            inode: 12,
            len_bytes: 345,
        };
        assert_eq!(list.files[&id], key);
    }

    #[test]
    fn a_damaged_pack_is_trusted_again_only_after_it_was_verified_anew() {
        let (id, other) = (PackId([7; 32]), PackId([8; 32]));
        let mut lines = vec![
            format!("{id} 12 345"),
            format!("{other} 13 345"),
            format!("{id} damaged"),
        ];
        let list = Verified::parse(&lines);
        assert_eq!(list.newest_first().collect::<Vec<_>>(), [&other]);
        assert!(!list.files.contains_key(&id));
        lines.push(format!("{id} 14 345"));
        let list = Verified::parse(&lines);
        assert_eq!(list.newest_first().collect::<Vec<_>>(), [&id, &other]);
        assert_eq!(list.files[&id].inode, 14);
    }
}
