//! A point's data in the directory of a machine that is made from it.

use std::collections::HashSet;
use std::path::Path;

use cas_store::{ChunkId, PackSet, StoreError};
use durable_files::LockGuard;
use snapshot_format::verify::ROOT_DISK;
use snapshot_format::{ChunkLookup, ChunkRef, Level, NodeSource, Point, verify, verify_chunks};
use thiserror::Error;

use super::BootCache;
use crate::file_error::FileError;
use crate::home::make_private_dir;
use crate::machine::{
    BaseMap, MachineDir, MachineDirError, NodesIn, PointFile, create_overlay, pin_whole_points,
    replace_file,
};
use crate::point::{History, PointError, link_record, record_file_name};

/// Findings that an error names at most.
const MAX_NAMED_FINDINGS: usize = 5;

/// A point, its parents, and where their chunks are.
pub(crate) struct FoundPoint {
    pub(crate) history: History,
    pub(crate) packs: PackSet,
    /// Nobody deletes them as long as this lives.
    in_use: Vec<LockGuard>,
}

impl FoundPoint {
    /// Points that nobody else deletes, or that are found to be gone where they are read.
    pub(crate) fn new(history: History, packs: PackSet) -> Self {
        Self::in_use(history, packs, Vec::new())
    }

    /// Points that stay as long as these locks are held.
    pub(crate) fn in_use(history: History, packs: PackSet, locks: Vec<LockGuard>) -> Self {
        Self {
            history,
            packs,
            in_use: locks,
        }
    }

    /// Its packs, and what keeps everybody from deleting them.
    pub(crate) fn into_packs(self) -> (PackSet, Vec<LockGuard>) {
        (self.packs, self.in_use)
    }

    /// Gives the packs of the point, and of those of the earlier ones that have all their chunks, names in `target`. Returns
    /// these points, its own first.
    pub(crate) fn pin_into(&self, target: &Path) -> Result<Vec<PointFile<'_>>, PointError> {
        let own = self.history.own().id();
        let pinned = pin_whole_points(self.history.sound(), &self.packs, target)?;
        match pinned.first() {
            Some((point, _)) if point.id() == own => Ok(pinned),
            _ => Err(PointError::Unsound {
                id: own.short(),
                findings: vec!["some of its chunks are lost".to_owned()],
            }),
        }
    }
}

/// Why a point's data is not in a machine's directory.
#[derive(Debug, Error)]
pub(crate) enum PlaceError {
    #[error(transparent)]
    Io(#[from] FileError),
    #[error(transparent)]
    Dir(#[from] MachineDirError),
    #[error(transparent)]
    Point(#[from] PointError),
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Refuses a point whose parts do not fit one another, or whose chunks are not there.
pub(crate) fn check_sound(point: &Point, packs: &PackSet) -> Result<(), PointError> {
    let mut findings = unsoundness(point, packs, &HashSet::new());
    if findings.is_empty() {
        return Ok(());
    }
    findings.truncate(MAX_NAMED_FINDINGS);
    Err(PointError::Unsound {
        id: point.id().short(),
        findings,
    })
}

/// Why a point cannot be restored: its parts do not fit one another, or chunks are not there, or known to be `bad`.
pub(crate) fn unsoundness(point: &Point, packs: &PackSet, bad: &HashSet<ChunkId>) -> Vec<String> {
    let record = point.record();
    verify(record)
        .into_iter()
        .chain(verify_chunks(record, &InPacks { packs, bad }))
        .filter(|finding| finding.level == Level::Error)
        .map(|finding| finding.problem.to_string())
        .collect()
}

/// Chunks of packs, for verification.
struct InPacks<'a> {
    packs: &'a PackSet,
    bad: &'a HashSet<ChunkId>,
}

impl ChunkLookup for InPacks<'_> {
    fn has(&self, chunk: &ChunkRef) -> bool {
        let id = ChunkId(chunk.0);
        !self.bad.contains(&id) && self.packs.contains(&id).unwrap_or(false)
    }

    fn node(&self, node: &ChunkRef) -> Option<Vec<u8>> {
        NodesIn(self.packs).node(node).ok()
    }
}

/// Puts everything that the machine needs into its own directory.
pub(crate) fn fill_from_point(
    dir: &MachineDir,
    found: &FoundPoint,
    cache: &BootCache,
) -> Result<(), PlaceError> {
    for path in [dir.packs(), dir.records(), dir.disk()] {
        make_private_dir(&path)?;
    }
    for (point, file) in found.pin_into(&dir.packs())? {
        link_record(file, &dir.records().join(record_file_name(&point.id())))?;
    }
    let own = PackSet::open([dir.packs()]);
    let record = found.history.own().record();
    let disk = record.disk(ROOT_DISK).ok_or_else(|| PointError::Unsound {
        id: found.history.own().id().short(),
        findings: vec!["it has no root disk".to_owned()],
    })?;
    let base = BaseMap::of_point(disk).encode();
    replace_file(&dir.disk().join("base-0.map"), &base)?;
    create_overlay(&dir.disk().join("layer-1"), disk.size_bytes)?;
    cache.place(&record.boot.kernel, &own, &dir.kernel())?;
    Ok(cache.place(&record.boot.initramfs, &own, &dir.initramfs())?)
}
