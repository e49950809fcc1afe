//! A point and its earlier generations.

use std::collections::HashSet;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};
use snapshot_format::limits::MAX_RECORD_BYTES;
use snapshot_format::{CheckpointId, Lineage, LineageEntry, Point, WallTime};

use super::error::PointError;
use crate::error_chain::chain;
use crate::file_error::FileError;

/// Most earlier generations of a checkpoint directory that are read.
pub(crate) const MAX_GENERATIONS: usize = 4096;
/// Most records that are looked at to find what lies behind one that is damaged.
const MAX_LOOKED_AT: usize = 1024;

/// Suffix of records in `records/` and `generations/`.
pub(crate) const RECORD_SUFFIX: &str = ".record";

/// Name of a record's file in `records/` and `generations/`.
pub(crate) fn record_file_name(id: &CheckpointId) -> String {
    format!("{id}{RECORD_SUFFIX}")
}

/// Suffix in `records/` of the record that a pause left: nobody can go there but the machine itself, once.
const PAUSED_SUFFIX: &str = ".paused";

/// Name of a pause's record in `records/`.
pub(crate) fn paused_file_name(id: &CheckpointId) -> String {
    format!("{id}{PAUSED_SUFFIX}")
}

/// Whether a file in `records/` is the record of a pause.
pub(crate) fn is_paused_file_name(name: &str) -> bool {
    name.ends_with(PAUSED_SUFFIX)
}

/// Where the record of what a machine goes on from is, a point or a pause, among its `records`.
pub(crate) fn own_record(records: &Path, id: &CheckpointId) -> PathBuf {
    let paused = records.join(paused_file_name(id));
    match paused.exists() {
        true => paused,
        false => records.join(record_file_name(id)),
    }
}

/// Opens a file that anybody may have put where it is: no link is followed, nothing but a regular file is opened.
pub(crate) fn open_regular(path: &Path) -> Result<File, FileError> {
    let refused = |why: &str| FileError::at("open", path)(io::Error::other(why));
    // A FIFO would be waited for without `NONBLOCK`.
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = match rustix::fs::open(path, flags, Mode::empty()) {
        Ok(file) => File::from(file),
        Err(rustix::io::Errno::LOOP) => return Err(refused("it is a symbolic link")),
        Err(error) => return Err(FileError::at("open", path)(error)),
    };
    let metadata = file.metadata().map_err(FileError::at("open", path))?;
    match metadata.is_file() {
        true => Ok(file),
        false => Err(refused("it is not a regular file")),
    }
}

/// Reads and checks a record; `expected` is the id that it must have.
pub(crate) fn read_point(path: &Path, expected: Option<CheckpointId>) -> Result<Point, PointError> {
    let mut bytes = Vec::new();
    open_regular(path)?
        .take(MAX_RECORD_BYTES + 1)
        .read_to_end(&mut bytes)
        .map_err(FileError::at("read", path))?;
    let damaged = |source| PointError::Damaged {
        path: path.to_owned(),
        source,
    };
    let point = Point::decode(&bytes).map_err(damaged)?;
    match expected {
        Some(expected) if expected != point.id() => Err(PointError::OtherPoint {
            path: path.to_owned(),
            found: point.id(),
            expected,
        }),
        _ => Ok(point),
    }
}

/// A generation whose record is there.
#[derive(Debug, Clone)]
pub(crate) enum Generation {
    /// It can be read.
    Sound {
        point: Box<Point>,
        /// Its record.
        file: PathBuf,
    },
    /// It cannot. It harms nobody else.
    Broken {
        id: CheckpointId,
        /// Why not.
        reason: String,
    },
}

impl Generation {
    /// What the log says about it.
    pub(crate) fn entry(&self) -> LineageEntry {
        match self {
            Self::Sound { point, .. } => LineageEntry::from(&**point),
            Self::Broken { id, .. } => LineageEntry {
                id: *id,
                parent: None,
                taken: WallTime::default(),
                machine: String::new(),
                message: String::new(),
                data_bytes: 0,
                autosave: false,
            },
        }
    }
}

/// A point and those of its parents that exist, newest first.
#[derive(Debug, Clone)]
pub(crate) struct History {
    own: Point,
    file: PathBuf,
    earlier: Vec<Generation>,
}

impl History {
    /// Follows the parents of `own` through the records in `directory`, as far as they exist, at most `limit` of them. One
    /// that is damaged is left where it is: what lies behind it is looked for.
    pub(crate) fn follow(own: Point, file: &Path, directory: &Path, limit: usize) -> Self {
        let mut seen = HashSet::from([own.id()]);
        let mut next = own.record().parent;
        let mut earlier = Vec::new();
        // An id is a hash over the parent's id: a circle cannot be, but damage must not hang us.
        while let Some(id) = next.filter(|id| earlier.len() < limit && seen.insert(*id)) {
            let path = directory.join(record_file_name(&id));
            match read_point(&path, Some(id)) {
                Err(PointError::Io(error)) if error.source.kind() == io::ErrorKind::NotFound => {
                    break;
                }
                Ok(point) => {
                    next = point.record().parent;
                    earlier.push(Generation::Sound {
                        point: Box::new(point),
                        file: path,
                    });
                }
                Err(error) => {
                    tracing::warn!(id = %id, error = %chain(&error), "an earlier point is damaged");
                    earlier.push(Generation::Broken {
                        id,
                        reason: chain(&error),
                    });
                    next = behind(directory, &seen);
                }
            }
        }
        Self {
            own,
            file: file.to_owned(),
            earlier,
        }
    }

    /// A point and what was found of the earlier ones, newest first.
    pub(crate) fn found(own: Point, file: &Path, earlier: Vec<Generation>) -> Self {
        Self {
            own,
            file: file.to_owned(),
            earlier,
        }
    }

    /// A point without its parents.
    pub(crate) fn alone(own: Point, file: &Path) -> Self {
        Self {
            own,
            file: file.to_owned(),
            earlier: Vec::new(),
        }
    }

    /// Keeps at most `earlier` generations beside the newest.
    pub(crate) fn limit(mut self, earlier: usize) -> Self {
        self.earlier.truncate(earlier);
        self
    }

    /// The newest point.
    pub(crate) fn own(&self) -> &Point {
        &self.own
    }

    /// The points that can be read, newest first, each with the file of its record.
    pub(crate) fn sound(&self) -> impl Iterator<Item = (&Point, &Path)> {
        let earlier = self
            .earlier
            .iter()
            .filter_map(|generation| match generation {
                Generation::Sound { point, file } => Some((&**point, file.as_path())),
                Generation::Broken { .. } => None,
            });
        [(&self.own, self.file.as_path())]
            .into_iter()
            .chain(earlier)
    }

    /// The generations before the newest, nearest first.
    pub(crate) fn earlier(&self) -> &[Generation] {
        &self.earlier
    }

    /// What the log says of each generation, newest first.
    pub(crate) fn lineage(&self) -> Result<Lineage, PointError> {
        let own = LineageEntry::from(&self.own);
        let earlier = self.earlier.iter().map(Generation::entry);
        Ok(Lineage::new([own].into_iter().chain(earlier))?)
    }

    /// The history that begins at `~N`, a full id or a unique prefix of one.
    pub(crate) fn at(mut self, asked: &str) -> Result<Self, PointError> {
        let lineage = self.lineage()?;
        let id = lineage.resolve(asked)?.id;
        let Some(before) = lineage.generation_of(&id).and_then(|at| at.checked_sub(1)) else {
            return Ok(self);
        };
        let mut from = self.earlier.drain(before..);
        match from.next() {
            Some(Generation::Sound { point, file }) => Ok(Self {
                own: *point,
                file,
                earlier: from.collect(),
            }),
            broken => {
                let reason = match broken {
                    Some(Generation::Broken { reason, .. }) => reason,
                    _ => "its record is gone".to_owned(),
                };
                let asked = asked.to_owned();
                Err(PointError::Broken { asked, id, reason })
            }
        }
    }
}

/// The newest of the points in `directory` that were not seen, if one of them is the parent of no other. Points that
/// have nothing to do with one another give none.
fn behind(directory: &Path, seen: &HashSet<CheckpointId>) -> Option<CheckpointId> {
    let names = fs::read_dir(directory).ok()?.take(MAX_LOOKED_AT);
    let ids = names.filter_map(|entry| {
        let name = entry.ok()?.file_name();
        name.to_str()?.strip_suffix(RECORD_SUFFIX)?.parse().ok()
    });
    let mut newest = HashSet::new();
    let mut parents = HashSet::new();
    for id in ids.filter(|id| !seen.contains(id)) {
        if let Ok(point) = read_point(&directory.join(record_file_name(&id)), Some(id)) {
            newest.insert(id);
            parents.extend(point.record().parent);
        }
    }
    newest.retain(|id| !parents.contains(id));
    let mut newest = newest.into_iter();
    newest.next().filter(|_| newest.next().is_none())
}

#[cfg(test)]
mod tests {
    use snapshot_format::PointRecord;

    use super::*;

    /// Points `0` to `count - 1`, each the parent of the next, in a directory.
    fn points(directory: &Path, count: usize) -> Vec<Point> {
        let mut points: Vec<Point> = Vec::new();
        for number in 0..count {
            let (point, bytes) = Point::seal(PointRecord {
                message: number.to_string(),
                parent: points.last().map(Point::id),
                ..PointRecord::default()
            })
            .unwrap();
            fs::write(directory.join(record_file_name(&point.id())), bytes).unwrap();
            points.push(point);
        }
        points
    }

    fn follow(directory: &Path, own: &Point, limit: usize) -> History {
        let file = directory.join(record_file_name(&own.id()));
        History::follow(own.clone(), &file, directory, limit)
    }

    fn messages(history: &History) -> Vec<String> {
        let messages = history.sound().map(|(point, _)| &point.record().message);
        messages.cloned().collect()
    }

    #[test]
    fn no_more_is_read_than_asked_for() {
        let place = tempfile::tempdir().unwrap();
        let points = points(place.path(), 5);
        assert_eq!(
            messages(&follow(place.path(), &points[4], 2)),
            ["4", "3", "2"]
        );
        assert_eq!(messages(&follow(place.path(), &points[4], 0)), ["4"]);
        assert_eq!(messages(&follow(place.path(), &points[4], 99)).len(), 5);
    }

    #[test]
    fn damage_stays_where_it_is() {
        let place = tempfile::tempdir().unwrap();
        let points = points(place.path(), 5);
        let file = |number: usize| place.path().join(record_file_name(&points[number].id()));
        let mut bytes = fs::read(file(2)).unwrap();
        bytes[30] ^= 1;
        fs::write(file(2), &bytes).unwrap();
        let history = follow(place.path(), &points[4], 99);
        assert_eq!(messages(&history), ["4", "3", "1", "0"]);
        assert_eq!(history.lineage().unwrap().entries().len(), 5);
        let error = history.at("~2").unwrap_err();
        assert!(matches!(&error, PointError::Broken { id, .. } if *id == points[2].id()));
        let at = follow(place.path(), &points[4], 99).at("~3").unwrap();
        assert_eq!(messages(&at), ["1", "0"]);
        let by_id = points[1].id().short();
        let at = follow(place.path(), &points[4], 99).at(&by_id).unwrap();
        assert_eq!(messages(&at), ["1", "0"]);

        // Of two that could lie behind it none does.
        let (_, other) = Point::seal(PointRecord::default()).unwrap();
        let name = record_file_name(&CheckpointId::of_bytes(&other));
        fs::write(place.path().join(name), other).unwrap();
        assert_eq!(messages(&follow(place.path(), &points[4], 99)), ["4", "3"]);
    }

    #[test]
    fn links_and_fifos_are_refused_by_name_at_once() {
        let place = tempfile::tempdir().unwrap();
        let points = points(place.path(), 2);
        let file = place.path().join(record_file_name(&points[0].id()));
        let elsewhere = place.path().join("elsewhere");
        fs::rename(&file, &elsewhere).unwrap();
        std::os::unix::fs::symlink(&elsewhere, &file).unwrap();
        let error = chain(&read_point(&file, None).unwrap_err());
        assert!(
            error.contains("symbolic link") && error.contains(".record"),
            "{error}"
        );
        assert_eq!(messages(&follow(place.path(), &points[1], 9)), ["1"]);
        fs::remove_file(&file).unwrap();
        rustix::fs::mknodat(
            rustix::fs::CWD,
            &file,
            rustix::fs::FileType::Fifo,
            Mode::RUSR,
            0,
        )
        .unwrap();
        let error = chain(&read_point(&file, None).unwrap_err());
        assert!(error.contains("not a regular file"), "{error}");
    }

    #[test]
    fn the_record_of_a_pause_is_no_point_to_anybody_else() {
        let place = tempfile::tempdir().unwrap();
        let id = CheckpointId::of_bytes(b"a record");
        let point = place.path().join(record_file_name(&id));
        assert_eq!(own_record(place.path(), &id), point);
        let pause = place.path().join(paused_file_name(&id));
        fs::write(&pause, "").unwrap();
        assert_eq!(own_record(place.path(), &id), pause);
        assert!(is_paused_file_name(&paused_file_name(&id)));
        assert!(!is_paused_file_name(&record_file_name(&id)));
        assert!(!paused_file_name(&id).ends_with(RECORD_SUFFIX));
    }
}
