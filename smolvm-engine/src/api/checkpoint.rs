//! Saving machines, and the log of what was saved.

use std::path::{Path, PathBuf};
use std::time::Duration;

use cas_store::{DirectoryState, Store};
use snapshot_format::{CheckpointId, LineageEntry};

use super::create_from::PointSource;
use super::phases::Phases;
use super::place::{check_output, check_store, own_default_store};
use crate::api::Engine;
use crate::api::error::EngineError;
use crate::channel::control::{CheckpointDone, CheckpointRequest, Control, ControlReply};
use crate::machine::DEFAULT_HISTORY;
use crate::name::MachineName;
use crate::point::{
    Generation, History, MAX_GENERATIONS, PointError, by_lineage, read_point, record_file_name,
};
use crate::progress::Progress;

/// How to save a machine.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct CheckpointOptions {
    /// The store; the home's when absent.
    pub store: Option<PathBuf>,
    /// The checkpoint directory to make; without it the point stays in the store.
    pub output: Option<PathBuf>,
    /// Most earlier points in the directory; 0 keeps none.
    pub history: usize,
    /// A message for the log.
    pub message: String,
}

impl Default for CheckpointOptions {
    fn default() -> Self {
        Self {
            store: None,
            output: None,
            history: DEFAULT_HISTORY,
            message: String::new(),
        }
    }
}

/// A saved point.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Checkpoint {
    /// Its full id.
    pub id: String,
    /// Its short id.
    pub short_id: String,
    /// The checkpoint directory, if one was made.
    pub output: Option<PathBuf>,
    /// How long the guest stood still.
    pub paused: Duration,
    /// How long everything took.
    pub saved_in: Duration,
    /// Bytes that went to disk.
    pub written_bytes: u64,
    /// Bytes of memory and disk that are not zero.
    pub data_bytes: u64,
    /// Those of them that were stored already.
    pub shared_bytes: u64,
    /// Written pages were tracked; otherwise the guest stood still all the time.
    pub tracked: bool,
    /// What is amiss but kept nobody from saving, such as what a killed command left and nobody can remove.
    pub warnings: Vec<String>,
}

/// A line of the log.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct LogEntry {
    /// How many points back, in a checkpoint's own log.
    pub generation: Option<usize>,
    /// Its full id.
    pub id: String,
    /// Its short id.
    pub short_id: String,
    /// The parent's full id.
    pub parent: Option<String>,
    /// Seconds since 1970 when it was taken.
    pub taken_unix: u64,
    /// The machine that it was taken of.
    pub machine: String,
    /// The user's message.
    pub message: String,
    /// Bytes of memory and disk that are not zero.
    pub data_bytes: u64,
    /// It was saved on the machine's schedule.
    pub autosave: bool,
    /// In a store: neither a record nor its directory is left.
    pub gone: bool,
    /// Why the point cannot be used; then nothing but its id is known. The others are not affected.
    pub damaged: Option<String>,
}

impl Engine {
    /// Saves a running machine without stopping it. When this returns the point is durable.
    ///
    /// # Errors
    ///
    /// A path that is taken or not allowed; [`EngineError::Refused`] with what failed: nothing is
    /// published then, and the machine runs on.
    pub fn checkpoint(
        &self,
        name: &MachineName,
        options: &CheckpointOptions,
        progress: &dyn Progress,
    ) -> Result<Checkpoint, EngineError> {
        self.require_running(name, "checkpoint")?;
        let request = Control::Checkpoint(self.checkpoint_request(options)?);
        let mut phases = Phases::new(progress);
        let reply = self.control_with_progress(name, &request, &mut |phase, done, total| {
            phases.report(phase, done, total);
        });
        drop(phases);
        match reply? {
            ControlReply::Saved(done) => Ok(saved(done)),
            ControlReply::Failed { message, hint } => Err(EngineError::Refused {
                name: name.clone(),
                reason: message,
                hint,
            }),
            other => Err(EngineError::Refused {
                name: name.clone(),
                reason: format!("unexpected answer {other:?}"),
                hint: None,
            }),
        }
    }

    /// What a supervisor is asked for; the paths are allowed.
    pub(super) fn checkpoint_request(
        &self,
        options: &CheckpointOptions,
    ) -> Result<CheckpointRequest, EngineError> {
        self.home().ensure()?;
        let store = match &options.store {
            Some(store) => check_store(store, self.home())?,
            None => self.home().store(),
        };
        let output = options
            .output
            .as_deref()
            .map(|output| check_output(output, &store, self.home()));
        let output = output.transpose()?;
        own_default_store(&store, self.home())?;
        Ok(CheckpointRequest {
            store,
            output,
            history: options.history,
            message: options.message.clone(),
            autosave: false,
        })
    }

    /// The log of a point: itself first, then its parents. Changes nothing.
    pub fn checkpoint_log(&self, source: &PointSource) -> Result<Vec<LogEntry>, EngineError> {
        Ok(generations(&self.find_point(source, None)?.history))
    }

    /// The log of what a machine can go back to by itself: its head first, then the parents; nothing before it was saved. Changes
    /// nothing.
    pub fn machine_log(&self, name: &MachineName) -> Result<Vec<LogEntry>, EngineError> {
        let Some(head) = self.read(name)?.head else {
            return Ok(Vec::new());
        };
        let head: CheckpointId = head.parse().map_err(PointError::Id)?;
        let records = self.dir(name).records();
        let file = records.join(record_file_name(&head));
        let point = read_point(&file, Some(head))?;
        Ok(generations(&History::follow(
            point,
            &file,
            &records,
            MAX_GENERATIONS,
        )))
    }

    /// The log of a store, oldest first, each point behind its parent whatever the clock said; also points whose data is
    /// gone. `machine` shows only those of one machine. Changes nothing.
    pub fn store_log(
        &self,
        store: Option<&Path>,
        machine: Option<&MachineName>,
    ) -> Result<Vec<LogEntry>, EngineError> {
        let path = match store {
            Some(path) if !path.exists() => {
                return Err(EngineError::NoStore {
                    path: path.to_owned(),
                });
            }
            Some(path) => path.to_owned(),
            // Nothing was saved in this home so far.
            None if !self.home().store().exists() => return Ok(Vec::new()),
            None => self.home().store(),
        };
        let mut lines = by_lineage(store_lines(path)?);
        if let Some(machine) = machine {
            lines.retain(|(line, _)| line.machine == machine.as_str());
        }
        let entry = |(line, gone): &(LineageEntry, bool)| log_entry(line, None, *gone);
        Ok(lines.iter().map(entry).collect())
    }
}

/// What the log says of a point and its parents.
fn generations(history: &History) -> Vec<LogEntry> {
    let own = LineageEntry::from(history.own());
    let mut entries = vec![log_entry(&own, Some(0), false)];
    for (before, generation) in history.earlier().iter().enumerate() {
        let mut entry = log_entry(&generation.entry(), Some(before + 1), false);
        if let Generation::Broken { reason, .. } = generation {
            entry.damaged = Some(reason.clone());
        }
        entries.push(entry);
    }
    entries
}

/// The points of a store, and whether the data of each is gone.
pub(super) fn store_lines(path: PathBuf) -> Result<Vec<(LineageEntry, bool)>, EngineError> {
    let store = Store::open_existing(path)?;
    let mut lines = Vec::new();
    for point in store.points()? {
        let in_directory = point
            .directory
            .as_ref()
            .is_some_and(|directory| matches!(directory.state, DirectoryState::Present));
        let gone = !point.has_record && !in_directory;
        match LineageEntry::from_line(CheckpointId(point.id.0), &point.meta) {
            Ok(line) => lines.push((line, gone)),
            // A later version may write other lines; the rest of the log is still of use.
            Err(error) => tracing::warn!(id = %point.id, %error, "a line of the log is unknown"),
        }
    }
    Ok(lines)
}

pub(super) fn log_entry(entry: &LineageEntry, generation: Option<usize>, gone: bool) -> LogEntry {
    LogEntry {
        generation,
        id: entry.id.to_string(),
        short_id: entry.id.short(),
        parent: entry.parent.map(|parent| parent.to_string()),
        taken_unix: entry.taken.seconds,
        machine: entry.machine.clone(),
        message: entry.message.clone(),
        data_bytes: entry.data_bytes,
        autosave: entry.autosave,
        gone,
        damaged: None,
    }
}

pub(super) fn saved(done: CheckpointDone) -> Checkpoint {
    Checkpoint {
        id: done.id,
        short_id: done.short_id,
        output: done.output,
        paused: Duration::from_micros(done.pause_micros),
        saved_in: Duration::from_micros(done.saved_micros),
        written_bytes: done.written_bytes,
        data_bytes: done.data_bytes,
        shared_bytes: done.shared_bytes,
        tracked: done.tracked,
        warnings: done.warnings,
    }
}
