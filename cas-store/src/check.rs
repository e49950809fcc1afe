//! Looking for damage, and mending it from another set of packs.

use std::collections::HashSet;
use std::fmt;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::error::{ChunkError, PackError, ReadError, StoreError};
use crate::pack::pack_path;
use crate::pack::reader::{EntryError, Pack};
use crate::pack::sink::{PackLimits, PackSink};
use crate::packset::PackSet;
use crate::store::Store;
use crate::sweep::RecordChunks;
use crate::{ChunkId, DEFAULT_PACK_BYTES, DEFAULT_PACK_CHUNKS, MAX_CHUNK_BYTES, PackId};
use durable_files::random_name;

/// Most findings that one check lists; the rest is counted.
pub const MAX_FINDINGS: usize = 10_000;

/// How closely a check looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CheckLevel {
    /// Headers, footers and indexes.
    Quick,
    /// Also this part of the chunks, in percent, chosen anew each time.
    Sample(u8),
    /// Also every chunk.
    Full,
}

/// How bad a finding is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// Nothing is lost: another copy is intact.
    Warning,
    /// Data is lost, unless another store has it.
    Error,
}

/// One thing that a check found.
#[derive(Debug, Clone)]
pub struct Finding {
    /// How bad it is.
    pub severity: Severity,
    /// The pack, record or directory.
    pub path: PathBuf,
    /// What is wrong.
    pub kind: FindingKind,
}

/// What is wrong.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum FindingKind {
    /// A whole pack cannot be used.
    Pack(Arc<PackError>),
    /// A chunk's bytes are damaged.
    Chunk(ChunkId, Arc<ChunkError>),
    /// A record names a chunk that no pack holds.
    Missing(ChunkId),
    /// A record cannot be understood.
    Record(String),
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.path.display())?;
        match &self.kind {
            FindingKind::Pack(error) => write!(f, "{error}"),
            FindingKind::Chunk(id, error) => write!(f, "chunk {id}: {error}"),
            FindingKind::Missing(id) => write!(f, "chunk {id} is in none of the packs"),
            FindingKind::Record(what) => write!(f, "{what}"),
        }
    }
}

/// What a check saw.
#[derive(Debug, Clone, Default)]
pub struct CheckReport {
    /// What is wrong, at most [`MAX_FINDINGS`].
    pub findings: Vec<Finding>,
    /// Findings beyond that.
    pub unlisted: u64,
    /// Packs looked at.
    pub packs: usize,
    /// Chunks in their indexes.
    pub chunks: u64,
    /// Chunks that were read and verified.
    pub verified_chunks: u64,
    /// The chunks that cannot be read from any pack, as far as the level tells.
    pub bad_chunks: HashSet<ChunkId>,
    /// The packs in which something is wrong.
    pub damaged_packs: Vec<PackId>,
}

impl CheckReport {
    /// Whether nothing is wrong.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.findings.is_empty()
    }

    fn found(&self) -> u64 {
        self.findings.len() as u64 + self.unlisted
    }

    fn add(&mut self, severity: Severity, path: &Path, kind: FindingKind) {
        if self.findings.len() < MAX_FINDINGS {
            self.findings.push(Finding {
                severity,
                path: path.to_path_buf(),
                kind,
            });
        } else {
            self.unlisted += 1;
        }
    }
}

/// Told now and then how far a check is: chunks done, chunks in all packs opened so far.
pub type CheckProgress<'a> = &'a mut dyn FnMut(u64, u64);

impl PackSet {
    /// Looks at every pack and collects what is wrong instead of stopping at the first.
    ///
    /// # Errors
    /// Only trouble of the system, such as a directory that cannot be listed.
    pub fn check(
        &self,
        level: CheckLevel,
        progress: CheckProgress<'_>,
    ) -> Result<CheckReport, ReadError> {
        let mut report = CheckReport::default();
        for slot in self.rescan()?.iter() {
            report.packs += 1;
            let found_before = report.found();
            match self.open_slot(slot) {
                Ok(pack) => {
                    if let Err(error) = pack.index.validate() {
                        let kind = FindingKind::Pack(Arc::new(error));
                        report.add(Severity::Error, &slot.path, kind);
                    }
                    report.chunks += pack.index.len() as u64;
                    self.check_chunks(&pack, &slot.path, level, &mut report, progress);
                }
                Err(ReadError::DamagedPack { source, .. }) => {
                    report.add(Severity::Error, &slot.path, FindingKind::Pack(source));
                }
                // Swept since it was listed: nothing needs it any more.
                Err(ReadError::Io { source, .. }) if source.kind() == ErrorKind::NotFound => {
                    report.packs -= 1;
                    continue;
                }
                Err(error) => return Err(error),
            }
            if report.found() > found_before {
                report.damaged_packs.push(slot.id);
            }
        }
        Ok(report)
    }

    fn check_chunks(
        &self,
        pack: &Pack,
        path: &Path,
        level: CheckLevel,
        report: &mut CheckReport,
        progress: CheckProgress<'_>,
    ) {
        let (mut stored, mut raw) = (Vec::new(), vec![0; MAX_CHUNK_BYTES]);
        let mut chooser = Chooser::new(level);
        for entry in pack.index.entries() {
            if !chooser.choose() {
                continue;
            }
            report.verified_chunks += 1;
            progress(report.verified_chunks, report.chunks);
            let kind = match pack.read(&entry, &mut stored, &mut raw) {
                Ok(_) => continue,
                Err(EntryError::Chunk(error)) => FindingKind::Chunk(entry.id, Arc::new(error)),
                Err(EntryError::Pack(error)) => FindingKind::Pack(Arc::new(error)),
                // An entry longer than a chunk fails as a bad entry before its buffer is looked at.
                Err(EntryError::BufferTooSmall { .. }) => {
                    FindingKind::Pack(Arc::new(PackError::BadEntry { chunk: entry.id }))
                }
            };
            let elsewhere = self.get(&entry.id, &mut raw).is_ok();
            let severity = if elsewhere {
                Severity::Warning
            } else {
                Severity::Error
            };
            if !elsewhere {
                report.bad_chunks.insert(entry.id);
            }
            report.add(severity, path, kind);
        }
    }
}

/// Picks the chunks of a sample.
struct Chooser {
    percent: u64,
    state: u64,
}

impl Chooser {
    fn new(level: CheckLevel) -> Self {
        let percent = match level {
            CheckLevel::Quick => 0,
            CheckLevel::Sample(percent) => u64::from(percent.min(100)),
            CheckLevel::Full => 100,
        };
        let seed = u64::from_str_radix(&random_name(), 16).unwrap_or(1);
        Self {
            percent,
            state: seed | 1,
        }
    }

    fn choose(&mut self) -> bool {
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        (self.state >> 33) % 100 < self.percent
    }
}

/// What a repair did.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RepairReport {
    /// Damaged packs that were replaced.
    pub replaced_packs: usize,
    /// Damaged packs that had to stay: some chunk of theirs is nowhere else, or a save or restore that is under way reads from them.
    pub kept_packs: usize,
    /// Chunks that came from the source.
    pub recovered_chunks: u64,
    /// Chunks that are lost.
    pub lost_chunks: Vec<ChunkId>,
}

/// The damage in one directory.
#[derive(Default)]
struct Damage {
    /// Damaged packs, with the chunks that are damaged in them.
    packs: Vec<(PackId, Vec<ChunkId>)>,
    /// Chunks that are intact, but in a damaged pack.
    to_move: Vec<ChunkId>,
    intact: Vec<(PackId, PathBuf)>,
}

/// Mends the packs in `dir` from `source`: what is intact in damaged packs and what the source has of the rest (and of
/// `needed`, where given) goes into a new pack; the damaged ones are removed once that is durable. Other directories that
/// link the same damaged files are mended on their own.
///
/// # Errors
/// The system refuses. Nothing is removed then.
pub fn repair_packs<'a>(
    packs: &PackSet,
    dir: &Path,
    needed: impl IntoIterator<Item = &'a ChunkId>,
    source: &PackSet,
) -> Result<RepairReport, StoreError> {
    repair_all_but(&HashSet::new(), packs, dir, needed, source)
}

/// The same; the packs that `stay` are left, though what is sound in them is elsewhere as well.
fn repair_all_but<'a>(
    stay: &HashSet<PackId>,
    packs: &PackSet,
    dir: &Path,
    needed: impl IntoIterator<Item = &'a ChunkId>,
    source: &PackSet,
) -> Result<RepairReport, StoreError> {
    let backend = packs.backend();
    let damage = find_damage(packs)?;
    let mut report = RepairReport::default();
    let prefix = format!(".repair-{}", random_name());
    let limits = PackLimits::new(DEFAULT_PACK_BYTES, DEFAULT_PACK_CHUNKS);
    let sink = PackSink::new(Arc::clone(backend), dir.to_path_buf(), prefix, limits);
    let mut stored = Vec::new();
    for id in &damage.to_move {
        let entry = packs.get_stored(id, &mut stored)?;
        sink.append_stored(entry, &stored)?;
    }
    let intact = PackSet::of_files(Arc::clone(backend), damage.intact);
    let mut lost = HashSet::new();
    let damaged = damage
        .packs
        .iter()
        .flat_map(|(_, chunks)| chunks.iter().copied());
    for id in damaged.chain(needed.into_iter().copied()) {
        if id.is_zero() || intact.contains(&id)? || sink.raw_len(&id).is_some() {
            continue;
        }
        match source.get_stored(&id, &mut stored) {
            Ok(entry) => {
                sink.append_stored(entry, &stored)?;
                report.recovered_chunks += 1;
            }
            Err(error) => {
                tracing::warn!(chunk = %id, %error, "chunk not in the source either");
                lost.insert(id);
            }
        }
    }
    let mut new = HashSet::new();
    for pack in sink.finish()? {
        new.insert(pack.id);
        let rename = StoreError::io("rename", &pack.path);
        backend
            .rename(&pack.path, &pack_path(dir, &pack.id))
            .map_err(rename)?;
    }
    backend.sync_dir(dir).map_err(StoreError::io("sync", dir))?;
    for (id, chunks) in &damage.packs {
        // A pack whose index is gone may hold what is lost; so may one with a lost chunk.
        if stay.contains(id)
            || chunks.iter().any(|chunk| lost.contains(chunk))
            || (chunks.is_empty() && !lost.is_empty())
        {
            report.kept_packs += 1;
            continue;
        }
        report.replaced_packs += 1;
        if new.contains(id) {
            // Made again as it was: the rename replaced it.
            continue;
        }
        let path = pack_path(dir, id);
        backend
            .remove(&path)
            .map_err(StoreError::io("remove", &path))?;
    }
    backend.sync_dir(dir).map_err(StoreError::io("sync", dir))?;
    packs.rescan()?;
    report.lost_chunks = lost.into_iter().collect();
    report.lost_chunks.sort_unstable();
    Ok(report)
}

fn find_damage(packs: &PackSet) -> Result<Damage, StoreError> {
    let mut damage = Damage::default();
    let (mut stored, mut raw) = (Vec::new(), vec![0; MAX_CHUNK_BYTES]);
    for slot in packs.rescan()?.iter() {
        let pack = match packs.open_slot(slot) {
            Ok(pack) => pack,
            Err(ReadError::DamagedPack { .. }) => {
                damage.packs.push((slot.id, Vec::new()));
                continue;
            }
            Err(error) => return Err(error.into()),
        };
        let (mut good, mut bad) = (Vec::new(), Vec::new());
        for entry in pack.index.entries() {
            let intact = pack.read(&entry, &mut stored, &mut raw).is_ok();
            if intact {
                good.push(entry.id)
            } else {
                bad.push(entry.id)
            }
        }
        if bad.is_empty() {
            damage.intact.push((slot.id, slot.path.clone()));
        } else {
            damage.packs.push((slot.id, bad));
            damage.to_move.extend(good);
        }
    }
    Ok(damage)
}

impl Store {
    /// Shares nothing with these packs any more until they were verified anew: [damage](CheckReport::damaged_packs) was found in
    /// them. What is equal to their chunks is stored again by the next capture. Where that cannot be noted the log says so.
    pub fn distrust(&self, packs: &[PackId]) {
        self.inner.distrust(packs);
    }

    /// Checks the packs, and that they hold every chunk that the store's points name. Runs beside captures. What is damaged is
    /// [distrusted](Self::distrust).
    ///
    /// # Errors
    /// Only trouble of the system.
    pub fn check(
        &self,
        level: CheckLevel,
        records: &dyn RecordChunks,
        progress: CheckProgress<'_>,
    ) -> Result<CheckReport, StoreError> {
        let packs = PackSet::with_backend(self.inner.shared_backend(), [self.packs_dir()]);
        let mut report = packs.check(level, progress)?;
        self.distrust(&report.damaged_packs);
        for id in self.inner.record_ids()? {
            let path = self.record_path(&id);
            let Some(record) = self.inner.record(&id)? else {
                continue;
            };
            let mut named = HashSet::new();
            if let Err(error) = records.chunks(&record, &mut |id| named.extend([id])) {
                report.add(
                    Severity::Error,
                    &path,
                    FindingKind::Record(error.to_string()),
                );
            }
            for chunk in packs.missing(&named)? {
                report.bad_chunks.insert(chunk);
                report.add(Severity::Error, &path, FindingKind::Missing(chunk));
            }
        }
        Ok(report)
    }

    /// [`repair_packs`] for the store itself, with all that its points name.
    ///
    /// # Errors
    /// As there; the store is poisoned. A record that cannot be read is left out.
    pub fn repair_from(
        &self,
        source: &PackSet,
        records: &dyn RecordChunks,
    ) -> Result<RepairReport, StoreError> {
        let _lock = self.inner.lock_exclusive()?;
        let mut needed = HashSet::new();
        for id in self.inner.record_ids()? {
            let Some(record) = self.inner.record(&id)? else {
                continue;
            };
            // What such a point needs is not known; it keeps nothing from being mended for the others.
            if let Err(error) = records.chunks(&record, &mut |id| needed.extend([id])) {
                tracing::warn!(point = %id, %error, "a record cannot be read: what it needs may be missing");
            }
        }
        let packs = PackSet::with_backend(self.inner.shared_backend(), [self.packs_dir()]);
        let pinned = self.inner.pinned(false)?;
        let repaired = repair_all_but(&pinned, &packs, &self.packs_dir(), &needed, source);
        let repaired = self.inner.watch(repaired)?;
        self.inner.packs().rescan()?;
        Ok(repaired)
    }
}
