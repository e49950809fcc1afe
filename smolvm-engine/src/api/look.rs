//! Looking into points: files out of them, and what differs between two. Nothing is started.

use std::ffi::OsStr;
use std::ops::ControlFlow;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

use agent_protocol::message::CopyReport;
use agent_protocol::tree::{Destination, Ownership, RootName, TreeReceiver};
use cas_store::PackSet;
use durable_files::LockGuard;
use guest_image::file_system::{FileSystemError, Kind};
use snapshot_format::verify::ROOT_DISK;
use snapshot_format::{MapReader, MapRoot, Point};

use super::archive::UnpackedArchive;
use super::create_from::PointSource;
use crate::api::{Engine, EngineError};
use crate::inside::{
    ChangedChunks, Difference, Files, PointFiles, ProcessDifference, SendFailure, changed_chunks,
    compare_files, compare_processes, open_disk, send_files,
};
use crate::machine::NodesIn;
use crate::point::PointError;
use crate::progress::{Phase, Progress};

/// A point, by name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PointName {
    /// Where it, or the newest of its lineage, is.
    pub source: PointSource,
    /// Which of its generations: `~N`, a full id or a unique prefix. For a machine `~N` counts from its head.
    pub at: Option<String>,
}

/// What was copied out of a point.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct PointCopy {
    /// What the copy did.
    pub report: CopyReport,
    /// Short id of the point.
    pub short_id: String,
    /// The guest had written everything to its disk when the point was taken. Otherwise what it changed shortly before may be
    /// missing: it is in the point's memory only.
    pub disk_is_whole: bool,
}

/// How two points differ, but for their files.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct DiffSummary {
    /// Full ids of both.
    pub ids: [String; 2],
    /// Files that only the second has.
    pub added: u64,
    /// Files that both have, and that differ.
    pub changed: u64,
    /// Files that only the first has.
    pub removed: u64,
    /// Files, or directories with all that is in them, that could not be compared.
    pub unknown: u64,
    /// Bytes of the 64 KiB chunks of memory that differ.
    pub memory_bytes: u64,
    /// The same of the disk.
    pub disk_bytes: u64,
    /// Of each, whether the guest had written everything to its disk when it was taken. Otherwise changes of files that were made
    /// shortly before may be missing.
    pub disk_is_whole: [bool; 2],
    /// Processes that only one of them has; `None` where the guest of one did not list its own when it was saved.
    pub processes: Option<Vec<ProcessDifference>>,
    /// Processes of either that are in no list, since there were too many.
    pub unlisted_processes: u64,
}

/// A point that is being looked into.
struct Opened {
    point: Point,
    packs: Arc<PackSet>,
    /// Nobody deletes it meanwhile.
    _in_use: Vec<LockGuard>,
    /// What holds the packs of an exported file.
    _unpacked: Option<UnpackedArchive>,
}

impl Engine {
    /// Copies the file or tree at `path` in a point to this host, with the same rules as [`Engine::copy_out`]. It is what the
    /// point's disk holds: nothing of what the guest had in file systems in memory, such as `/run`, and of what it had not written
    /// to its disk only what its kernel wrote when the point was taken.
    ///
    /// # Errors
    ///
    /// There is no such point or file; [`EngineError::CopyFromPoint`] where it cannot be written here. What could be copied only
    /// in part is in the report and no error.
    pub fn copy_out_of_point(
        &self,
        name: &PointName,
        path: &OsStr,
        target: &Path,
        progress: &dyn Progress,
    ) -> Result<PointCopy, EngineError> {
        let opened = self.open_point(name, progress)?;
        let id = opened.point.id().short();
        let unreadable = |source| EngineError::PointFiles {
            id: id.clone(),
            path: Path::new(path).display().to_string(),
            source,
        };
        let files = opened.files()?;
        let found = files.resolve(path.as_bytes()).map_err(unreadable)?;
        let root = RootName::of_source(Path::new(path));
        if root.name().is_none() && found.kind != Kind::Directory {
            return Err(unreadable(FileSystemError::NotADirectory));
        }
        let root = RootName::new(root.as_bytes()).map_err(|_| EngineError::Invalid {
            what: "the path's last name is too long".to_owned(),
            hint: None,
        })?;
        let mut receiver = TreeReceiver::new(Destination {
            target,
            root,
            ownership: Ownership::Mine,
        });
        let phase = Phase::begin(progress, &format!("copying from point {id}"), None);
        match send_files(&files, &found, &mut receiver, &|bytes| phase.go_on(bytes)) {
            Ok(()) => Ok(PointCopy {
                report: receiver.finish(),
                short_id: id,
                disk_is_whole: opened.point.record().disks_written,
            }),
            Err(SendFailure::Files(source)) => Err(unreadable(source)),
            Err(SendFailure::Receive(source)) => Err(EngineError::CopyFromPoint { id, source }),
        }
    }

    /// Says what differs between two points. `visit` is told of each file, in order, and may end it: then there is no summary.
    /// A file differs where its data, kind, permissions or owner do, not where only its times do.
    ///
    /// # Errors
    ///
    /// There is no such point, or its disk cannot be read at all.
    pub fn diff(
        &self,
        from: &PointName,
        to: &PointName,
        visit: &mut dyn FnMut(Difference) -> ControlFlow<()>,
        progress: &dyn Progress,
    ) -> Result<Option<DiffSummary>, EngineError> {
        let (from, to) = (
            self.open_point(from, progress)?,
            self.open_point(to, progress)?,
        );
        let memory_bytes = memory_that_differs(&from, &to)?;
        let disks = [&from, &to].map(|opened| opened.point.record().disk(ROOT_DISK));
        let [one, other] = disks.map(|disk| disk.map_or(MapRoot::ZEROS, |disk| disk.map));
        let chunks = differing(&from, &one, &to, &other)?;
        let mut summary = DiffSummary {
            ids: [&from, &to].map(|opened| opened.point.id().to_string()),
            added: 0,
            changed: 0,
            removed: 0,
            unknown: 0,
            memory_bytes,
            disk_bytes: chunks.bytes(),
            disk_is_whole: [&from, &to].map(|opened| opened.point.record().disks_written),
            processes: None,
            unlisted_processes: 0,
        };
        if chunks.bytes() > 0 {
            let phase = Phase::begin(progress, "comparing files", None);
            let files = Files {
                from: &from.files()?,
                to: &to.files()?,
                chunks: &chunks,
            };
            let mut count = |difference: Difference| {
                *match difference {
                    Difference::Added { .. } => &mut summary.added,
                    Difference::Changed { .. } => &mut summary.changed,
                    Difference::Removed { .. } => &mut summary.removed,
                    Difference::Unknown { .. } => &mut summary.unknown,
                } += 1;
                visit(difference)
            };
            let compared = compare_files(&files, &mut count, &|bytes| phase.advance(bytes));
            let compared = compared.map_err(|source| to.unreadable(source))?;
            if compared.is_break() {
                return Ok(None);
            }
        }
        let lists = [&from, &to].map(|opened| opened.point.record().processes.as_ref());
        if let [Some(before), Some(after)] = lists {
            summary.processes = Some(compare_processes(before, after));
            summary.unlisted_processes = before.unlisted.saturating_add(after.unlisted);
        }
        Ok(Some(summary))
    }

    /// Finds a point; an exported file is unpacked for as long.
    fn open_point(&self, name: &PointName, progress: &dyn Progress) -> Result<Opened, EngineError> {
        let at = name.at.as_deref();
        let (found, unpacked) = match &name.source {
            PointSource::Archive(path) => {
                let unpacked = UnpackedArchive::open(self, path, progress)?;
                let source = PointSource::Directory(unpacked.path());
                (self.find_point(&source, at)?, Some(unpacked))
            }
            source => (self.find_point(source, at)?, None),
        };
        let point = found.history.own().clone();
        let (packs, in_use) = found.into_packs();
        Ok(Opened {
            point,
            packs: Arc::new(packs),
            _in_use: in_use,
            _unpacked: unpacked,
        })
    }
}

impl Opened {
    fn files(&self) -> Result<PointFiles, EngineError> {
        open_disk(&self.point, &self.packs).map_err(|source| self.unreadable(source))
    }

    fn unreadable(&self, source: FileSystemError) -> EngineError {
        EngineError::PointFiles {
            id: self.point.id().short(),
            path: "the files".to_owned(),
            source,
        }
    }
}

fn differing(
    from: &Opened,
    map: &MapRoot,
    to: &Opened,
    other: &MapRoot,
) -> Result<ChangedChunks, EngineError> {
    let readers = [from, to].map(|opened| MapReader::new(NodesIn(&opened.packs)));
    let changed = changed_chunks((&readers[0], map), (&readers[1], other));
    Ok(changed.map_err(PointError::from)?)
}

/// Bytes of the chunks of memory that differ, region by region.
fn memory_that_differs(from: &Opened, to: &Opened) -> Result<u64, EngineError> {
    let regions = |opened: &Opened| {
        let regions = opened.point.record().memory.iter();
        regions
            .map(|region| (region.start_gpa, region.map))
            .collect::<Vec<_>>()
    };
    let (before, mut after) = (regions(from), regions(to));
    let mut bytes = 0;
    for (start, map) in before {
        let same = after.iter().position(|(other, _)| *other == start);
        let other = same.map_or(MapRoot::ZEROS, |at| after.swap_remove(at).1);
        bytes += differing(from, &map, to, &other)?.bytes();
    }
    for (_, map) in after {
        bytes += differing(from, &MapRoot::ZEROS, to, &map)?.bytes();
    }
    Ok(bytes)
}
