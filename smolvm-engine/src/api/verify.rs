//! Verifying points: that all they need is there and undamaged, and repairing them from elsewhere.

use std::collections::HashSet;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use cas_store::{CheckLevel, ChunkId, DirectoryState, PackSet, PointId, Severity, Store};
use snapshot_format::{CheckpointId, LineageEntry, Point};

use super::checkpoint::{LogEntry, log_entry};
use crate::api::Engine;
use crate::api::error::EngineError;
use crate::file_error::FileError;
use crate::machine::{ChunksOf, needed_chunks};
use crate::name::MachineName;
use crate::point::{CheckpointDir, Generation, PointError, read_point};
use crate::progress::{Phase, Progress};
use crate::restore::unsoundness;

/// Bytes that progress counts for a chunk: as many as it may have.
const CHUNK_BYTES: u64 = cas_store::MAX_CHUNK_BYTES as u64;

/// What is verified.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum VerifySource {
    /// A checkpoint directory: its own point and its earlier generations.
    Directory(PathBuf),
    /// A store, or the default one: the points that it keeps, and the checkpoint directories made with it that are
    /// still at their places.
    Store(Option<PathBuf>),
}

/// How closely data is looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum VerifyLevel {
    /// Records, and that all they name is there.
    Quick,
    /// Also this part of the data, in percent, chosen anew each time.
    Sample(u8),
    /// Also every byte.
    #[default]
    Full,
}

/// Where sound copies of damaged data may be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RepairSource {
    /// A store or a checkpoint directory.
    Directory(PathBuf),
    /// A machine of this home.
    Machine(MachineName),
}

/// How to verify.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct VerifyOptions {
    /// What.
    pub source: VerifySource,
    /// How closely.
    pub level: VerifyLevel,
    /// Replaces what is damaged or missing by copies from there before the points are judged.
    pub repair_from: Option<RepairSource>,
}

impl VerifyOptions {
    /// Every byte, and nothing is changed.
    pub fn new(source: VerifySource) -> Self {
        Self {
            source,
            level: VerifyLevel::default(),
            repair_from: None,
        }
    }
}

/// What was found.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Verification {
    /// The points, as the log lists them.
    pub points: Vec<VerifiedPoint>,
    /// What is wrong with files of data, each with its path.
    pub problems: Vec<Problem>,
    /// Problems beyond those listed.
    pub unlisted: u64,
    /// Packs that were looked at.
    pub packs: usize,
    /// Chunks in them.
    pub chunks: u64,
    /// Chunks of which every byte was read.
    pub verified_chunks: u64,
    /// What was repaired, where that was asked for.
    pub repaired: Option<Repaired>,
}

impl Verification {
    /// Whether every point can be restored, and no data is lost.
    pub fn is_sound(&self) -> bool {
        let lost = self.problems.iter().any(|problem| problem.lost);
        !lost && self.points.iter().all(VerifiedPoint::is_sound)
    }
}

/// A point, and what is wrong with it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct VerifiedPoint {
    /// The point.
    pub entry: LogEntry,
    /// The checkpoint directory that it lies in, if it is not kept in the store.
    pub directory: Option<PathBuf>,
    /// Why it cannot be restored; empty when it can.
    pub problems: Vec<String>,
}

impl VerifiedPoint {
    /// Whether it can be restored.
    pub fn is_sound(&self) -> bool {
        self.problems.is_empty()
    }
}

/// Something wrong with a file of data.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Problem {
    /// Which file, and what is wrong with it.
    pub what: String,
    /// Data is lost. Otherwise a sound copy lies beside it.
    pub lost: bool,
}

/// What a repair did.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Repaired {
    /// Chunks that came from the source.
    pub recovered_chunks: u64,
    /// Damaged packs that were replaced.
    pub replaced_packs: usize,
    /// Chunks that the source does not have either.
    pub lost_chunks: usize,
}

impl Engine {
    /// Verifies points and the data that they need. Without a repair it changes no point and no data, and it runs beside
    /// saves and restores. A store remembers in which of its packs damage was found: later saves do not share them.
    ///
    /// # Errors
    ///
    /// The checkpoint or store is none, or cannot be read at all. Damage is no error: it is what is returned.
    pub fn verify(
        &self,
        options: &VerifyOptions,
        progress: &dyn Progress,
    ) -> Result<Verification, EngineError> {
        let place = self.place(&options.source)?;
        let repaired = match &options.repair_from {
            Some(from) => {
                let source = self.repair_packs_dir(from)?;
                let _phase = Phase::begin(progress, "repairing", None);
                Some(place.repair(&source)?)
            }
            None => None,
        };
        let mut verification = place.check(options.level, progress)?;
        verification.repaired = repaired;
        Ok(verification)
    }

    fn place(&self, source: &VerifySource) -> Result<Place, EngineError> {
        match source {
            VerifySource::Directory(path) => {
                let dir = CheckpointDir::new(path);
                Ok(Place {
                    records: records_of_directory(&dir)?,
                    packs_dir: dir.packs(),
                    store: None,
                })
            }
            VerifySource::Store(path) => {
                let path = path.clone().unwrap_or_else(|| self.home().store());
                let store = Store::open_existing(path)?;
                Ok(Place {
                    records: records_of_store(&store)?,
                    packs_dir: store.packs_dir(),
                    store: Some(store),
                })
            }
        }
    }

    /// The directory of packs of a repair's source.
    fn repair_packs_dir(&self, from: &RepairSource) -> Result<PathBuf, EngineError> {
        match from {
            RepairSource::Machine(name) => {
                self.read(name)?;
                Ok(self.dir(name).packs())
            }
            RepairSource::Directory(path) => {
                let checkpoint = CheckpointDir::new(path);
                match checkpoint.history() {
                    Ok(_) => Ok(checkpoint.packs()),
                    Err(PointError::NotACheckpoint { .. }) => {
                        Ok(Store::open_existing(path)?.packs_dir())
                    }
                    Err(error) => Err(error.into()),
                }
            }
        }
    }
}

/// A point's record, or why there is none.
struct Record {
    entry: LogEntry,
    point: Result<Box<Point>, String>,
    /// The checkpoint directory that holds its data.
    directory: Option<PathBuf>,
}

/// What is verified: records, and the packs that hold what they name.
struct Place {
    records: Vec<Record>,
    packs_dir: PathBuf,
    /// If it is one.
    store: Option<Store>,
}

impl Place {
    fn check(
        &self,
        level: VerifyLevel,
        progress: &dyn Progress,
    ) -> Result<Verification, EngineError> {
        let packs = PackSet::open([&self.packs_dir]);
        let phase = Phase::begin(progress, "verifying", None);
        let mut counted = 0;
        let level = match level {
            VerifyLevel::Quick => CheckLevel::Quick,
            VerifyLevel::Sample(percent) => CheckLevel::Sample(percent),
            VerifyLevel::Full => CheckLevel::Full,
        };
        let report = packs
            .check(level, &mut |verified, _| {
                phase.advance((verified - counted) * CHUNK_BYTES);
                counted = verified;
            })
            .map_err(PointError::from)?;
        if let Some(store) = &self.store {
            // Else the next save takes what is damaged for what it has just read.
            store.distrust(&report.damaged_packs);
        }
        let problem = |finding: &cas_store::Finding| Problem {
            what: finding.to_string(),
            lost: finding.severity == Severity::Error,
        };
        let judge = |record: &Record| self.judge(record, &packs, &report.bad_chunks, level);
        let points = self.records.iter().map(judge);
        // What was given up since it was listed is not damaged.
        let points = points.filter(|point| point.is_sound() || !self.was_given_up(point));
        Ok(Verification {
            points: points.collect(),
            problems: report.findings.iter().map(problem).collect(),
            unlisted: report.unlisted,
            packs: report.packs,
            chunks: report.chunks,
            verified_chunks: report.verified_chunks,
            repaired: None,
        })
    }

    fn judge(
        &self,
        record: &Record,
        packs: &PackSet,
        bad: &HashSet<ChunkId>,
        level: CheckLevel,
    ) -> VerifiedPoint {
        let problems = match (&record.point, &record.directory) {
            (Err(reason), _) => vec![reason.clone()],
            (Ok(point), None) => unsoundness(point, packs, bad),
            (Ok(point), Some(path)) => {
                let dir = CheckpointDir::new(path).packs();
                let problems = self.problems_of_copy(point, &dir, bad, level);
                // It harms no other point.
                problems.unwrap_or_else(|error| vec![crate::chain(&error)])
            }
        };
        VerifiedPoint {
            entry: record.entry.clone(),
            directory: record.directory.clone(),
            problems,
        }
    }

    /// Whether the store does not keep a point any more that it kept.
    fn was_given_up(&self, point: &VerifiedPoint) -> bool {
        let (Some(store), None) = (&self.store, &point.directory) else {
            return false;
        };
        let id = point.entry.id.parse::<CheckpointId>();
        id.is_ok_and(|id| {
            let record = store.record_path(&PointId(id.0));
            matches!(record.try_exists(), Ok(false))
        })
    }

    /// What is wrong with a point whose packs lie in this directory.
    fn problems_of_copy(
        &self,
        point: &Point,
        dir: &Path,
        bad: &HashSet<ChunkId>,
        level: CheckLevel,
    ) -> Result<Vec<String>, EngineError> {
        let packs = PackSet::open([dir]);
        if self.shares_all_of(dir)? {
            return Ok(unsoundness(point, &packs, bad));
        }
        // Copies, or what a repair has replaced here only: these bytes were not looked at.
        let report = packs.check(level, &mut |_, _| ());
        let report = report.map_err(PointError::from)?;
        Ok(unsoundness(point, &packs, &report.bad_chunks))
    }

    /// Whether each file in the directory is one of the store's own packs by another name.
    fn shares_all_of(&self, dir: &Path) -> Result<bool, EngineError> {
        let list = || FileError::at("list", dir);
        for entry in std::fs::read_dir(dir).map_err(list())? {
            let entry = entry.map_err(list())?;
            let here = entry.metadata().map_err(list())?;
            let ours = std::fs::symlink_metadata(self.packs_dir.join(entry.file_name()));
            if !ours.is_ok_and(|ours| (ours.dev(), ours.ino()) == (here.dev(), here.ino())) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Replaces what is damaged or missing in the packs by what those in `source` have.
    fn repair(&self, source: &Path) -> Result<Repaired, EngineError> {
        // Nodes of maps may be lost here as well: they are looked for in both places.
        let both = PackSet::open([source, &self.packs_dir]);
        let source = &PackSet::open([source]);
        let report = match &self.store {
            Some(store) => store.repair_from(source, &ChunksOf(&both))?,
            None => {
                let points = self
                    .records
                    .iter()
                    .filter(|record| record.directory.is_none());
                let points = points.filter_map(|record| record.point.as_deref().ok());
                let mut needed = Vec::new();
                for point in points {
                    match needed_chunks([point], &both) {
                        Ok(chunks) => needed.extend(chunks),
                        // It keeps nothing from being mended for the others, and is judged afterwards.
                        Err(error) => {
                            tracing::warn!(point = %point.id(), %error, "a map is lost in both places");
                        }
                    }
                }
                let packs = PackSet::open([&self.packs_dir]);
                cas_store::repair_packs(&packs, &self.packs_dir, &needed, source)?
            }
        };
        Ok(Repaired {
            recovered_chunks: report.recovered_chunks,
            replaced_packs: report.replaced_packs,
            lost_chunks: report.lost_chunks.len(),
        })
    }
}

/// A checkpoint directory's records: its own and its generations'.
fn records_of_directory(dir: &CheckpointDir) -> Result<Vec<Record>, EngineError> {
    let history = dir.history()?;
    let own = Record::of(history.own().clone(), Some(0));
    let earlier = history.earlier().iter().zip(1..);
    let earlier = earlier.map(|(generation, number)| match generation {
        Generation::Sound { point, .. } => Record::of((**point).clone(), Some(number)),
        Generation::Broken { reason, .. } => Record {
            entry: log_entry(&generation.entry(), Some(number), false),
            point: Err(reason.clone()),
            directory: None,
        },
    });
    Ok([own].into_iter().chain(earlier).collect())
}

/// The records that a store keeps, and the own ones of checkpoint directories that were made with it.
fn records_of_store(store: &Store) -> Result<Vec<Record>, EngineError> {
    let mut records = Vec::new();
    for point in store.points()? {
        let id = CheckpointId(point.id.0);
        let directory = point.directory.filter(|_| !point.has_record);
        let (read, directory) = match directory {
            None if !point.has_record => continue,
            None => (read_point(&store.record_path(&point.id), Some(id)), None),
            Some(directory) => match directory.state {
                // Its line stays in the log; there is nothing to verify.
                DirectoryState::Gone | DirectoryState::Replaced => continue,
                DirectoryState::Present => {
                    let path = directory.path;
                    let record = CheckpointDir::new(&path).record();
                    (read_point(&record, Some(id)), Some(path))
                }
            },
        };
        records.push(match read {
            Ok(point) => Record {
                directory,
                ..Record::of(point, None)
            },
            Err(error) => Record {
                entry: damaged_entry(id),
                point: Err(crate::chain(&error)),
                directory,
            },
        });
    }
    records.sort_by_key(|record| (record.entry.taken_unix, record.entry.id.clone()));
    Ok(records)
}

/// What is known of a point without a record: its id.
fn damaged_entry(id: CheckpointId) -> LogEntry {
    let reason = String::new();
    log_entry(&Generation::Broken { id, reason }.entry(), None, false)
}

impl Record {
    fn of(point: Point, generation: Option<usize>) -> Self {
        Self {
            entry: log_entry(&LineageEntry::from(&point), generation, false),
            point: Ok(Box::new(point)),
            directory: None,
        }
    }
}
