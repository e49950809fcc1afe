//! Points as one file: exported, and made a checkpoint directory again elsewhere.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use cas_store::{Pin, Store};
use durable_files::{OsBackend, PublishError, Staging};

use super::create_from::PointSource;
use super::place::{check_file, check_output};
use super::verify::{VerifyLevel, VerifyOptions, VerifySource};
use crate::api::{DEFAULT_HISTORY, Engine, EngineError};
use crate::file_error::FileError;
use crate::home::make_private_dir;
use crate::point::{
    ArchiveError, CheckpointDir, PointError, SUFFIX, archive, link_record, record_file_name,
};
use crate::progress::{Phase, Progress};
use crate::restore::{FoundPoint, check_sound};

/// What is exported.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ExportOptions {
    /// Where the point is.
    pub source: PointSource,
    /// Which of its generations: `~N`, a full id or a unique prefix.
    pub at: Option<String>,
    /// Most earlier points that go with it; 0: it alone.
    pub history: usize,
}

impl ExportOptions {
    /// This point with its earlier ones.
    pub fn new(source: PointSource) -> Self {
        Self {
            source,
            at: None,
            history: DEFAULT_HISTORY,
        }
    }
}

/// What was exported or imported.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Archived {
    /// Full id of the newest point.
    pub id: String,
    /// Its short id.
    pub short_id: String,
    /// How many points there are, with it.
    pub points: usize,
    /// Bytes of their files.
    pub bytes: u64,
}

impl Engine {
    /// Writes a point with its earlier ones as one archive: it can be piped, and needs nothing else to be
    /// [imported](Self::import). Any program that reads tar archives makes a checkpoint directory of it.
    ///
    /// # Errors
    ///
    /// The point cannot be restored, or the archive not be written. What was written then is of no use.
    pub fn export(
        &self,
        options: &ExportOptions,
        to: &mut dyn Write,
        progress: &dyn Progress,
    ) -> Result<Archived, EngineError> {
        let mut found = self.find_point(&options.source, options.at.as_deref())?;
        found.history = found.history.limit(options.history);
        check_sound(found.history.own(), &found.packs)?;
        self.home().ensure()?;
        // Held by links: it stays whole, whatever becomes of it meanwhile.
        let staging = Staging::create(Arc::new(OsBackend), &self.home().cache().join("export"))?;
        let dir = CheckpointDir::new(staging.path());
        make_parts(&dir)?;
        let points = lay_out(&dir, &found)?;
        let point = found.history.own();
        let (id, short_id) = (point.id().to_string(), point.id().short());
        let top = format!("{short_id}{SUFFIX}");
        let taken = point.record().taken.seconds;
        let phase = Phase::begin(progress, "exporting", Some(length_of(&dir)?));
        let advance = |bytes| phase.advance(bytes);
        let bytes = archive::write(&dir, &top, taken, to, &advance).map_err(PointError::from)?;
        Ok(Archived {
            id,
            short_id,
            points,
            bytes,
        })
    }

    /// [`export`](Self::export) into a new file, which appears whole and durable or not at all.
    ///
    /// # Errors
    ///
    /// As there; the path is taken.
    pub fn export_file(
        &self,
        options: &ExportOptions,
        path: &Path,
        progress: &dyn Progress,
    ) -> Result<Archived, EngineError> {
        let path = check_file(path, self.home())?;
        let hidden = Hidden::beside(self, &path)?;
        let temporary = hidden.staging.path().join("archive");
        let file = File::options()
            .create_new(true)
            .write(true)
            .mode(0o600)
            .open(&temporary)
            .map_err(FileError::at("create", &temporary))?;
        let archived = self.export(options, &mut &file, progress)?;
        file.sync_all().map_err(FileError::at("sync", &path))?;
        match durable_files::publish(&OsBackend, &temporary, &path) {
            Ok(()) => Ok(archived),
            Err(PublishError::Taken) => Err(PointError::Taken { path }.into()),
            Err(PublishError::File(error) | PublishError::Unknown(error)) => Err(error.into()),
        }
    }

    /// Makes a checkpoint directory of an archive. Every byte is verified before the directory appears, whole and durable.
    ///
    /// # Errors
    ///
    /// It is not the archive of a checkpoint, or damaged; the directory cannot be made there. Nothing is left then.
    pub fn import(
        &self,
        from: &mut dyn Read,
        output: &Path,
        progress: &dyn Progress,
    ) -> Result<Archived, EngineError> {
        let output = check_output(output, &self.home().store(), self.home())?;
        let mut hidden = Hidden::beside(self, &output)?;
        let archived = self.unpack(from, hidden.staging.path(), progress)?;
        let name = output.file_name().unwrap_or_default().to_string_lossy();
        match hidden.staging.publish_as(&name) {
            Ok(_) => Ok(archived),
            Err(PublishError::Taken) => Err(PointError::Taken { path: output }.into()),
            Err(PublishError::File(error) | PublishError::Unknown(error)) => Err(error.into()),
        }
    }

    /// Unpacks an archive into an empty directory and verifies all of it.
    pub(super) fn unpack(
        &self,
        from: &mut dyn Read,
        to: &Path,
        progress: &dyn Progress,
    ) -> Result<Archived, EngineError> {
        let dir = CheckpointDir::new(to);
        make_parts(&dir)?;
        let phase = Phase::begin(progress, "importing", None);
        let bytes = archive::read(from, &dir, &|bytes| phase.advance(bytes));
        let bytes = bytes.map_err(PointError::from)?;
        drop(phase);
        let mut options = VerifyOptions::new(VerifySource::Directory(to.to_owned()));
        options.level = VerifyLevel::Full;
        let found = self.verify(&options, progress)?;
        let Some(own) = found.points.first().map(|point| &point.entry) else {
            return Err(PointError::from(ArchiveError::Empty).into());
        };
        let problem = found.points.iter().flat_map(|point| point.problems.first());
        let lost = found.problems.iter().map(|problem| &problem.what);
        if let Some(problem) = problem.chain(lost).next() {
            let (id, findings) = (own.short_id.clone(), vec![problem.clone()]);
            return Err(PointError::Unsound { id, findings }.into());
        }
        Ok(Archived {
            id: own.id.clone(),
            short_id: own.short_id.clone(),
            points: found.points.len(),
            bytes,
        })
    }
}

/// A hidden directory beside a place that the user named. Where this process is killed, the next export or import, or whoever else opens
/// the default store to write, removes it: that has it noted.
struct Hidden {
    // First: it is gone before its note is.
    staging: Staging,
    _note: Pin,
}

impl Hidden {
    fn beside(engine: &Engine, target: &Path) -> Result<Self, EngineError> {
        engine.home().ensure()?;
        // This also removes what killed ones left.
        let note = Store::open_own(engine.home().store())?.pin([])?;
        let staging = Staging::create_beside(Arc::new(OsBackend), target)?;
        note.stage_outside(staging.path())?;
        Ok(Self {
            staging,
            _note: note,
        })
    }
}

fn make_parts(dir: &CheckpointDir) -> Result<(), FileError> {
    make_private_dir(&dir.packs())?;
    make_private_dir(&dir.generations())
}

/// Links points and their packs into an empty checkpoint directory; how many points.
fn lay_out(dir: &CheckpointDir, found: &FoundPoint) -> Result<usize, PointError> {
    let points = found.pin_into(&dir.packs())?;
    let own = found.history.own().id();
    for (point, file) in &points {
        let to = match point.id() == own {
            true => dir.record(),
            false => dir.generations().join(record_file_name(&point.id())),
        };
        link_record(file, &to)?;
    }
    Ok(points.len())
}

/// Bytes of the files in a checkpoint directory.
fn length_of(dir: &CheckpointDir) -> Result<u64, FileError> {
    let mut bytes = length(&dir.record())?;
    for directory in [dir.packs(), dir.generations()] {
        let list = || FileError::at("list", &directory);
        for entry in fs::read_dir(&directory).map_err(list())? {
            bytes += length(&entry.map_err(list())?.path())?;
        }
    }
    Ok(bytes)
}

fn length(path: &Path) -> Result<u64, FileError> {
    let metadata = fs::metadata(path).map_err(FileError::at("read", path))?;
    Ok(metadata.len())
}

/// An archive on its way to be a machine.
pub(super) struct UnpackedArchive {
    /// The checkpoint directory; gone when this is dropped.
    staging: Staging,
}

impl UnpackedArchive {
    /// Unpacks an exported file, for as long as this lives.
    pub(super) fn open(
        engine: &Engine,
        path: &Path,
        progress: &dyn Progress,
    ) -> Result<Self, EngineError> {
        engine.home().ensure()?;
        let mut file = io::BufReader::new(File::open(path).map_err(FileError::at("open", path))?);
        let place = engine.home().cache().join("import");
        let staging = Staging::create(Arc::new(OsBackend), &place)?;
        engine.unpack(&mut file, staging.path(), progress)?;
        Ok(Self { staging })
    }

    /// Where it is.
    pub(super) fn path(&self) -> PathBuf {
        self.staging.path().to_owned()
    }
}
