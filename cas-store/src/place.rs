//! Bringing sealed packs into another directory: by hard link, or by a verified copy where links are refused.

use std::io;
use std::path::Path;
use std::sync::Arc;

use crate::error::{PackError, ReadError, StoreError};
use crate::pack::layout::{HEADER_BYTES, header};
use crate::pack::pack_path;
use crate::pack::reader::Pack;
use crate::packset::{PackSet, PackSlot, entry_error};
use crate::store::Inner;
use crate::verified::{Verified, verify_pack};
use crate::{ChunkId, MAX_CHUNK_BYTES, PackId};
use durable_files::{FileBackend, FileStat};

/// What [`PackSet::pin_into`] brought into a directory.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Pinned {
    /// The packs that hold the chunks, also those that were there before.
    pub packs: Vec<PackId>,
    /// Bytes of packs that were linked: they take no more room.
    pub linked_bytes: u64,
    /// Bytes of packs that had to be copied (other file system, too many links, links not permitted).
    pub copied_bytes: u64,
}

/// How often a pack may vanish under a reader (repack) before that is an error.
const MAX_ROUNDS: usize = 4;
/// Permission bits that let somebody write.
const WRITE_BITS: u32 = 0o222;
/// How much of a pack's index is copied at a time.
const COPY_BLOCK_BYTES: usize = 1 << 20;

impl PackSet {
    /// Links (or copies, verified) the packs that hold `ids` into `target`, an existing directory, and makes that
    /// durable. Packs that `target` holds already are left as they are. Afterwards the chunks can be read from `target`
    /// alone.
    ///
    /// # Errors
    /// [`ReadError::NotFound`] if no pack holds one of the chunks; nothing is placed then. Trouble of the system.
    pub fn pin_into<'a, I>(&self, target: &Path, ids: I) -> Result<Pinned, StoreError>
    where
        I: IntoIterator<Item = &'a ChunkId> + Clone,
    {
        self.while_packs_vanish(|set| set.try_pin_into(target, ids.clone()))
    }

    /// Tries again after listing the packs, should one vanish under `work`: repack put its chunks elsewhere.
    pub(crate) fn while_packs_vanish<T>(
        &self,
        work: impl Fn(&Self) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        for _ in 1..MAX_ROUNDS {
            match work(self) {
                Err(StoreError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
                    self.rescan()?;
                }
                result => return result,
            }
        }
        work(self)
    }

    fn try_pin_into<'a>(
        &self,
        target: &Path,
        ids: impl IntoIterator<Item = &'a ChunkId>,
    ) -> Result<Pinned, StoreError> {
        let (slots, missing) = self.cover(ids)?;
        if let Some(chunk) = missing.first() {
            // Says so if a damaged pack is the reason.
            self.locate(chunk)?;
            return Err(ReadError::NotFound { chunk: *chunk }.into());
        }
        self.place_all(&slots, target)
    }

    pub(crate) fn place_all(
        &self,
        slots: &[Arc<PackSlot>],
        target: &Path,
    ) -> Result<Pinned, StoreError> {
        let backend = &**self.backend();
        let mut pinned = Pinned::default();
        for slot in slots {
            let len = backend
                .stat(&slot.path)
                .map_err(StoreError::io("find", &slot.path))?
                .len_bytes;
            match place_pack(backend, &slot.path, &slot.id, target)? {
                Placed::Present => {}
                Placed::Linked => pinned.linked_bytes += len,
                Placed::Copied => pinned.copied_bytes += len,
            }
            pinned.packs.push(slot.id);
        }
        backend
            .sync_dir(target)
            .map_err(StoreError::io("sync", target))?;
        Ok(pinned)
    }
}

/// How a pack came to its place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Placed {
    Present,
    Linked,
    Copied,
}

/// How a pack came into a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Admitted {
    /// It was there, verified.
    Known,
    /// It was there, and is verified now.
    Verified,
    /// It is a link now, of so many bytes, and verified.
    Linked(u64),
    /// It was copied, verified.
    Copied(u64),
    /// It is damaged, and not in the store.
    Damaged,
}

/// Brings the pack `from` into the store, where it is verified before it has its name. What lies there under its name without
/// having been verified is replaced unless it is sound. The caller syncs the directory and notes the pack as verified.
pub(crate) fn admit(
    store: &Inner,
    from: &Path,
    id: &PackId,
    staged: &Path,
    verified: &Verified,
) -> Result<Admitted, StoreError> {
    let backend = store.backend();
    let to = store.pack_path(id);
    let present = match backend.stat(&to) {
        Ok(stat) => Some(stat),
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => return Err(StoreError::io("find", &to)(error)),
    };
    if let Some(present) = &present {
        if verified.has(id, present) {
            return Ok(Admitted::Known);
        }
        if is_sound(backend, &to, id)? {
            return Ok(Admitted::Verified);
        }
    }
    let source = backend.stat(from).map_err(StoreError::io("find", from))?;
    if present.is_some_and(|present| present.same_file(&source)) {
        return Ok(Admitted::Damaged);
    }
    if is_ours_and_sealed(backend, &source) {
        match backend.link(from, staged) {
            Ok(()) => return admit_link(backend, staged, &to, id, source.len_bytes),
            Err(error) if copy_instead(&error) => {}
            Err(error) => return Err(StoreError::io("link", from)(error)),
        }
    }
    match copy_pack(backend, from, id, &store.packs_dir(), &to) {
        Ok(()) => Ok(Admitted::Copied(source.len_bytes)),
        Err(error) if error.is_damage() => Ok(Admitted::Damaged),
        Err(error) => Err(error),
    }
}

/// Gives a link its name in the store, if it is sound.
fn admit_link(
    backend: &dyn FileBackend,
    staged: &Path,
    to: &Path,
    id: &PackId,
    len_bytes: u64,
) -> Result<Admitted, StoreError> {
    let admitted = is_sound(backend, staged, id).and_then(|sound| match sound {
        true => backend
            .rename(staged, to)
            .map(|()| Admitted::Linked(len_bytes))
            .map_err(StoreError::io("rename", staged)),
        false => Ok(Admitted::Damaged),
    });
    if !matches!(admitted, Ok(Admitted::Linked(_))) {
        // Best effort: it is a dead session's later.
        let _ = backend.remove(staged);
    }
    admitted
}

fn is_sound(backend: &dyn FileBackend, path: &Path, id: &PackId) -> Result<bool, StoreError> {
    match verify_pack(backend, path, id) {
        Ok(()) => Ok(true),
        Err(error) if error.is_damage() => {
            tracing::warn!(path = %path.display(), %error, "a damaged pack is not taken into the store");
            Ok(false)
        }
        Err(ReadError::Io { path, source }) => Err(StoreError::io("read", &path)(source)),
        Err(error) => Err(error.into()),
    }
}

/// Whether nobody else can change the file, and this user does not by accident.
fn is_ours_and_sealed(backend: &dyn FileBackend, stat: &FileStat) -> bool {
    stat.is_file() && stat.owner == backend.user() && stat.mode & WRITE_BITS == 0
}

/// Gives the sealed pack `from` a name in `target`. One that is not this user's, or not sealed, is copied. What has the name
/// already stays if its index is sound. The caller syncs the directory.
pub(crate) fn place_pack(
    backend: &dyn FileBackend,
    from: &Path,
    id: &PackId,
    target: &Path,
) -> Result<Placed, StoreError> {
    let to = pack_path(target, id);
    if has_pack(backend, &to, id)? {
        return Ok(Placed::Present);
    }
    let source = backend.stat(from).map_err(StoreError::io("find", from))?;
    let linked = match is_ours_and_sealed(backend, &source) {
        true => backend.link(from, &to),
        false => Err(io::ErrorKind::PermissionDenied.into()),
    };
    match linked {
        Ok(()) => Ok(Placed::Linked),
        Err(error) if copy_instead(&error) || error.kind() == io::ErrorKind::AlreadyExists => {
            copy_pack(backend, from, id, target, &to)?;
            Ok(Placed::Copied)
        }
        Err(error) => {
            let path = if backend.stat(from).is_err() {
                from
            } else {
                &to
            };
            Err(StoreError::io("link", path)(error))
        }
    }
}

/// Whether there is a pack of this id whose index is sound.
fn has_pack(backend: &dyn FileBackend, path: &Path, id: &PackId) -> Result<bool, StoreError> {
    match backend.open(path) {
        Ok(file) => Ok(Pack::open(file, id).is_ok()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(StoreError::io("open", path)(error)),
    }
}

/// Whether the system refuses the link but a copy would do.
fn copy_instead(error: &io::Error) -> bool {
    use io::ErrorKind::{CrossesDevices, PermissionDenied, TooManyLinks, Unsupported};
    matches!(
        error.kind(),
        CrossesDevices | PermissionDenied | TooManyLinks | Unsupported
    )
}

/// Removes what a killed process left of copies and repairs in a directory of packs, unless `running` says of a copied
/// pack that it is on its way.
pub(crate) fn remove_leftovers(
    backend: &dyn FileBackend,
    dir: &Path,
    running: impl Fn(&PackId) -> bool,
) -> Result<(), StoreError> {
    for name in crate::session::list(backend, dir)? {
        let Some(stem) = name
            .strip_prefix('.')
            .and_then(|name| name.strip_suffix(".tmp"))
        else {
            continue;
        };
        let copied = stem.split('-').next().and_then(|id| id.parse().ok());
        if !copied.is_some_and(|id| running(&id)) {
            crate::session::remove_ours(backend, &dir.join(&name))?;
        }
    }
    Ok(())
}

/// Copies a pack chunk by chunk, verifying each, so that damage never spreads.
fn copy_pack(
    backend: &dyn FileBackend,
    from: &Path,
    id: &PackId,
    target: &Path,
    to: &Path,
) -> Result<(), StoreError> {
    let staged = target.join(format!(".{id}-{}.tmp", durable_files::random_name()));
    let result = copy_to(backend, from, id, &staged).and_then(|()| {
        backend
            .rename(&staged, to)
            .map_err(StoreError::io("rename", &staged))
    });
    if result.is_err() && backend.stat(&staged).is_ok() {
        // Best effort: the copy's own error is the one to report.
        let _ = backend.remove(&staged);
    }
    result
}

fn copy_to(
    backend: &dyn FileBackend,
    from: &Path,
    id: &PackId,
    staged: &Path,
) -> Result<(), StoreError> {
    let damaged = |source| StoreError::Pack {
        path: from.to_path_buf(),
        source: Arc::new(source),
    };
    let write = |path: &Path| StoreError::io("write", path);
    let source = backend.open(from).map_err(StoreError::io("open", from))?;
    let pack = Pack::open(Arc::clone(&source), id).map_err(damaged)?;
    pack.index.validate().map_err(damaged)?;
    let copy = backend
        .create_new(staged)
        .map_err(StoreError::io("create", staged))?;
    copy.write_all_at(&header(), 0).map_err(write(staged))?;

    let mut entries: Vec<_> = pack.index.entries().collect();
    entries.sort_unstable_by_key(|entry| entry.offset);
    let (mut stored, mut raw) = (Vec::new(), vec![0; MAX_CHUNK_BYTES]);
    let mut bodies_end = HEADER_BYTES as u64;
    for entry in &entries {
        pack.read(entry, &mut stored, &mut raw)
            .map_err(|error| entry_error(&entry.id, from, error))?;
        copy.write_all_at(&stored, entry.offset)
            .map_err(write(staged))?;
        bodies_end = bodies_end.max(entry.offset + stored.len() as u64);
    }
    // Index and footer, byte for byte: their digest was verified when the pack was opened.
    let mut at = bodies_end;
    let mut block = vec![0; COPY_BLOCK_BYTES];
    while at < pack.len_bytes() {
        let len = (pack.len_bytes() - at).min(COPY_BLOCK_BYTES as u64) as usize;
        source
            .read_exact_at(&mut block[..len], at)
            .map_err(|error| damaged(PackError::Io(error)))?;
        copy.write_all_at(&block[..len], at)
            .map_err(write(staged))?;
        at += len as u64;
    }
    copy.seal().map_err(StoreError::io("seal", staged))?;
    copy.sync().map_err(StoreError::io("sync", staged))
}
