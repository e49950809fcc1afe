//! Removing what a run that was cut off left in its machine's directory.

use std::collections::HashSet;
use std::fs;
use std::path::Path;

use cas_store::{ChunkId, Compacted, Kept, PackSet, StoreError};
use snapshot_format::map::SeenNodes;
use snapshot_format::{CheckpointId, ChunkRef, InvalidId, MapReader, NodeSource, Point};
use thiserror::Error;

use crate::file_error::FileError;
use crate::machine::{
    BaseMap, BaseMapError, MachineDir, MachineFile, MapReadError, NodesIn, RecordedState,
    TEMPORARY_PREFIX, needed_chunks,
};
use crate::point::{
    History, PointError, is_paused_file_name, own_record, paused_file_name, read_point,
    record_file_name,
};

/// Why a directory was not tidied, or not to the end.
#[derive(Debug, Error)]
pub(crate) enum TidyError {
    #[error(transparent)]
    Io(#[from] FileError),
    #[error("the id of the head is damaged")]
    Id(#[from] InvalidId),
    #[error(transparent)]
    Point(#[from] PointError),
    #[error(transparent)]
    Base(#[from] BaseMapError),
    #[error(transparent)]
    Map(#[from] MapReadError),
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Removes files that `machine` does not need, as far as its last run may have left some: half-written
/// ones, layers and bases that it does not name; after a run that was cut off also records of points that
/// are not in its history, and packs in which only those points lie.
///
/// Nothing may run in the directory. Of a machine that is damaged everything is kept: a repair could want
/// it.
pub(crate) fn tidy(dir: &MachineDir, machine: &MachineFile) -> Result<(), TidyError> {
    match machine.state {
        RecordedState::Damaged { .. } => Ok(()),
        // What came with the booted point that its last run began at.
        RecordedState::Stopped if machine.booted.is_some() => {
            tidy_files(dir, machine)?;
            keep_own(dir, machine)
        }
        RecordedState::Created | RecordedState::Stopped | RecordedState::Paused { .. } => {
            tidy_files(dir, machine)?;
            match holds_consumed_pause(dir, machine)? {
                true => keep_own(dir, machine),
                false => Ok(()),
            }
        }
        RecordedState::Running { .. } | RecordedState::Failed { .. } => {
            tidy_files(dir, machine)?;
            keep_own(dir, machine)
        }
    }
}

/// [`keep_history`], and what the next start goes on from.
fn keep_own(dir: &MachineDir, machine: &MachineFile) -> Result<(), TidyError> {
    let next = match &machine.restore {
        Some(id) => {
            let id = id.parse()?;
            Some(read_point(&own_record(&dir.records(), &id), Some(id))?)
        }
        None => None,
    };
    keep_history(dir, machine, next.as_ref()).map(drop)
}

/// Whether there is the record of a pause that nothing goes on from any more.
fn holds_consumed_pause(dir: &MachineDir, machine: &MachineFile) -> Result<bool, FileError> {
    let records = dir.records();
    let needed = match &machine.restore {
        Some(id) => id.parse().ok().map(|id| paused_file_name(&id)),
        None => None,
    };
    for entry in fs::read_dir(&records).map_err(FileError::at("list", &records))? {
        let name = entry.map_err(FileError::at("list", &records))?.file_name();
        let name = name.to_string_lossy();
        if is_paused_file_name(&name) && needed.as_deref() != Some(&*name) {
            return Ok(true);
        }
    }
    Ok(false)
}

fn tidy_files(dir: &MachineDir, machine: &MachineFile) -> Result<(), TidyError> {
    remove_pause_store(dir)?;
    let disk: HashSet<&str> = machine.disk.layers.iter().map(String::as_str).collect();
    remove_others(&dir.disk(), |name| {
        disk.contains(name) || name == machine.disk.base
    })?;
    remove_others(dir.path(), |name| !name.starts_with(TEMPORARY_PREFIX))
}

/// Gives up the points that the machine keeps beyond its head, the last earlier ones that it is to keep, and `also`. Nothing is
/// given up where one of them is damaged: what it lacks may be in what would go. Says how full the packs are that are left.
pub(super) fn keep_history(
    dir: &MachineDir,
    machine: &MachineFile,
    also: Option<&Point>,
) -> Result<Kept, TidyError> {
    let history = history(dir, machine)?;
    let points: Vec<&Point> = points(&history, also).collect();
    let packs = PackSet::open([dir.packs()]);
    let left = packs.keep_only(&needed(dir, machine, &points, &packs)?)?;
    let mut records: HashSet<String> = points
        .iter()
        .map(|point| record_file_name(&point.id()))
        .collect();
    let earlier = history.iter().flat_map(History::earlier);
    records.extend(earlier.map(|generation| record_file_name(&generation.entry().id)));
    records.extend(also.map(|point| paused_file_name(&point.id())));
    remove_others(&dir.records(), |name| records.contains(name))?;
    Ok(left)
}

/// Writes anew what the machine needs of mostly dead packs: those of points that it gave up stay as long as any chunk in them is
/// needed. Where `go_on` says no, nothing is changed.
pub(super) fn compact(
    dir: &MachineDir,
    machine: &MachineFile,
    also: Option<&Point>,
    go_on: &dyn Fn() -> bool,
) -> Result<Compacted, TidyError> {
    let history = history(dir, machine)?;
    let points: Vec<&Point> = points(&history, also).collect();
    let packs = PackSet::open([dir.packs()]);
    let needed = needed(dir, machine, &points, &packs)?;
    Ok(packs.compact(&needed, go_on)?)
}

/// The points whose data the machine keeps.
fn points<'a>(
    history: &'a Option<History>,
    also: Option<&'a Point>,
) -> impl Iterator<Item = &'a Point> {
    let kept = history.iter().flat_map(History::sound);
    kept.map(|(point, _)| point).chain(also)
}

/// All chunks that the machine needs.
fn needed(
    dir: &MachineDir,
    machine: &MachineFile,
    points: &[&Point],
    packs: &PackSet,
) -> Result<Vec<ChunkId>, TidyError> {
    let mut needed = needed_chunks(points.iter().copied(), packs)?;
    let base = BaseMap::read(&dir.disk().join(&machine.disk.base))?;
    needed.extend(base_chunks(&base, packs)?);
    Ok(needed)
}

/// The chunks under the disk's layers, nodes of the map included.
fn base_chunks(base: &BaseMap, packs: &PackSet) -> Result<Vec<ChunkId>, MapReadError> {
    let nodes = |id: &ChunkRef| match base.nodes().get(id) {
        Some(bytes) => Ok(bytes.to_vec()),
        None => NodesIn(packs).node(id),
    };
    let mut chunks = Vec::new();
    let visit = &mut |name: ChunkRef| {
        if base.nodes().get(&name).is_none() {
            chunks.push(ChunkId(name.0));
        }
    };
    MapReader::new(nodes).visit_distinct(base.map(), &mut SeenNodes::default(), visit)?;
    Ok(chunks)
}

/// The points that the machine keeps: its head and the earlier ones.
fn history(dir: &MachineDir, machine: &MachineFile) -> Result<Option<History>, TidyError> {
    let Some(head) = &machine.head else {
        return Ok(None);
    };
    let id: CheckpointId = head.parse()?;
    let file = dir.records().join(record_file_name(&id));
    let head = read_point(&file, Some(id))?;
    let records = dir.records();
    Ok(Some(History::follow(
        head,
        &file,
        &records,
        machine.history,
    )))
}

/// Removes what a pause that was cut off stored. Its packs are the machine's, if it came so far.
pub(super) fn remove_pause_store(dir: &MachineDir) -> Result<(), FileError> {
    let path = dir.pause_store();
    match fs::remove_dir_all(&path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(FileError::at("remove", &path)(error))
        }
        _ => Ok(()),
    }
}

/// Removes the files of a directory whose names are not kept.
fn remove_others(directory: &Path, keep: impl Fn(&str) -> bool) -> Result<(), TidyError> {
    let list = || FileError::at("list", directory);
    for entry in fs::read_dir(directory).map_err(list())? {
        let entry = entry.map_err(list())?;
        let kept = entry.file_name().to_str().is_none_or(&keep);
        if kept || !entry.file_type().map_err(list())?.is_file() {
            continue;
        }
        fs::remove_file(entry.path()).map_err(FileError::at("remove", &entry.path()))?;
        tracing::info!(path = %crate::error_chain::place(&entry.path()), "a leftover was removed");
    }
    Ok(())
}
