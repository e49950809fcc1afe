//! A point's data in the directory of a machine that is made from it.

use std::fs;

use cas_store::{ChunkId, PackSet, StoreError};
use snapshot_format::verify::ROOT_DISK;
use snapshot_format::{ChunkRef, Level, Point, verify};
use thiserror::Error;

use super::BootCache;
use crate::file_error::FileError;
use crate::image::ImageMap;
use crate::machine::{MachineDir, MachineDirError, create_overlay, replace_file};
use crate::point::{History, PointError, chunk_ids, link_record, record_file_name};

/// Findings that an error names at most.
const MAX_NAMED_FINDINGS: usize = 5;

/// A point, its parents, and where their chunks are.
pub(crate) struct FoundPoint {
    pub(crate) history: History,
    pub(crate) packs: PackSet,
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
    let has = |chunk: &ChunkRef| packs.contains(&ChunkId(chunk.0)).unwrap_or(false);
    let errors = verify(point.record(), &has)
        .into_iter()
        .filter(|finding| finding.level == Level::Error)
        .map(|finding| finding.problem.to_string())
        .take(MAX_NAMED_FINDINGS);
    let findings: Vec<String> = errors.collect();
    if findings.is_empty() {
        return Ok(());
    }
    Err(PointError::Unsound {
        id: point.id().short(),
        findings,
    })
}

/// Puts everything that the machine needs into its own directory.
pub(crate) fn fill_from_point(
    dir: &MachineDir,
    found: &FoundPoint,
    cache: &BootCache,
) -> Result<(), PlaceError> {
    for path in [dir.packs(), dir.records(), dir.disk()] {
        fs::create_dir(&path).map_err(FileError::at("create directory", &path))?;
    }
    for (point, file) in found.history.with_files() {
        found.packs.pin_into(&dir.packs(), &chunk_ids(point))?;
        link_record(file, &dir.records().join(record_file_name(&point.id())))?;
    }
    let own = PackSet::open([dir.packs()]);
    let record = found.history.points()[0].record();
    let disk = record.disk(ROOT_DISK).ok_or_else(|| PointError::Unsound {
        id: found.history.points()[0].id().short(),
        findings: vec!["it has no root disk".to_owned()],
    })?;
    let map = ImageMap::new(disk.chunks.iter().map(|chunk| ChunkId(chunk.0)).collect());
    replace_file(&dir.disk().join("base-0.map"), &map.encode())?;
    create_overlay(&dir.disk().join("layer-1"), disk.size_bytes)?;
    cache.place(&record.boot.kernel, &own, &dir.kernel())?;
    Ok(cache.place(&record.boot.initramfs, &own, &dir.initramfs())?)
}
