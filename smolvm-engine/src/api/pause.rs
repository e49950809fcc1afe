//! Machines that are saved into their own directory and end, to go on there.

use std::path::PathBuf;
use std::time::Duration;

use cas_store::{CaptureOptions, MAX_PACKS_PER_POINT, PackSet, PointId, Store};
use snapshot_format::{CheckpointId, LineageEntry, Point};

use super::phases::Phases;
use super::place::own_default_store;
use super::undo::KeptState;
use super::{MachineState, StartOptions, Started};
use crate::api::Engine;
use crate::api::error::EngineError;
use crate::channel::control::{Control, ControlReply};
use crate::error_chain::chain;
use crate::file_error::FileError;
use crate::machine::{Change, MachineDir, MachineFile, RecordedState, needed_chunks};
use crate::name::MachineName;
use crate::point::{PointError, own_record, read_point};
use crate::progress::Progress;
use crate::supervisor;

/// What [`Engine::pause`] did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Paused {
    /// How long everything took, until its processes had ended.
    pub saved_in: Duration,
    /// Bytes that went to disk.
    pub written_bytes: u64,
    /// Bytes of memory and disk that are not zero.
    pub data_bytes: u64,
}

impl Engine {
    /// Saves a machine that runs into its own directory and ends it: memory, CPU and disk at one instant, after which nothing runs in
    /// it. [`Self::resume`], or a start, lets it go on there, once. Its head stays what it is; no store is needed.
    ///
    /// # Errors
    ///
    /// [`EngineError::WrongState`]; [`EngineError::Refused`] with what failed: the machine runs on then.
    pub fn pause(
        &self,
        name: &MachineName,
        progress: &dyn Progress,
    ) -> Result<Paused, EngineError> {
        let dir = self.dir(name);
        self.read(name)?;
        let _operation = self.lock_operation(name, &dir)?;
        self.require_running(name, "pause")?;
        let mut phases = Phases::new(progress);
        let reply = self.control_with_progress(name, &Control::Pause, &mut |phase, done, total| {
            phases.report(phase, done, total);
        });
        drop(phases);
        let done = match reply {
            Ok(ControlReply::Paused(done)) => done,
            Ok(ControlReply::Failed { message, hint }) => {
                return Err(EngineError::Refused {
                    name: name.clone(),
                    reason: message,
                    hint,
                });
            }
            Ok(other) => {
                return Err(EngineError::Refused {
                    name: name.clone(),
                    reason: format!("unexpected answer {other:?}"),
                    hint: None,
                });
            }
            Err(error) => {
                // Its supervisor was killed: whoever looks next finds it paused or failed, not between.
                self.wait_for_own_end(name, &dir)?;
                return Err(error);
            }
        };
        self.wait_for_end(name, &dir)?;
        Ok(Paused {
            saved_in: Duration::from_micros(done.saved_micros),
            written_bytes: done.written_bytes,
            data_bytes: done.data_bytes,
        })
    }

    /// Lets a machine that is paused go on. One that runs already is waited for, as by [`Self::start`].
    ///
    /// # Errors
    ///
    /// [`EngineError::WrongState`] for any other; those of [`Self::start`]. The machine stays paused when it does not come up.
    pub fn resume(&self, name: &MachineName) -> Result<Started, EngineError> {
        let dir = self.dir(name);
        self.read(name)?;
        let _operation = self.lock_operation(name, &dir)?;
        let file = self.read(name)?;
        let is_paused = matches!(file.state, RecordedState::Paused { .. });
        if !is_paused && !dir.is_running()? {
            self.require_running(name, "resume")?;
        }
        let options = StartOptions::default().with_branchable(file.branchable);
        self.start_locked(name, &dir, options)
    }

    /// The point at which a machine is paused, and the file of its record.
    pub(super) fn paused_point(
        &self,
        dir: &MachineDir,
        file: &MachineFile,
    ) -> Result<(PathBuf, Point), EngineError> {
        let id = file.restore.as_deref().unwrap_or_default();
        let id: CheckpointId = id.parse().map_err(PointError::Id)?;
        let path = own_record(&dir.records(), &id);
        let point = read_point(&path, Some(id))?;
        Ok((path, point))
    }

    /// Makes a machine that is paused a stopped one, whose disk is what it was then. The operation lock is held.
    pub(super) fn discard_pause(
        &self,
        name: &MachineName,
        dir: &MachineDir,
        discard: bool,
    ) -> Result<(), EngineError> {
        if !discard {
            return Err(EngineError::WrongState {
                operation: "stop",
                name: name.clone(),
                state: MachineState::Paused.word().to_owned(),
            });
        }
        let change = dir.change(|machine| {
            machine.state = RecordedState::Stopped;
            machine.restore = None;
        });
        let durable = matches!(change, Change::Done(_));
        let file = change.visible()?;
        if !durable {
            // A power failure may bring the pause back.
            return Ok(());
        }
        if let Err(error) = supervisor::tidy(dir, &file) {
            tracing::warn!(error = %chain(&error), "what was saved takes its room until the next start");
        }
        Ok(())
    }

    /// Makes a point of the state in which a machine is paused, in the store that it was last saved into: as cheap as a few links.
    pub(super) fn keep_paused(
        &self,
        name: &MachineName,
        dir: &MachineDir,
        file: &MachineFile,
    ) -> Result<KeptState, EngineError> {
        let store = self.last_store(file);
        let kept = self.publish_paused(dir, file, &store);
        let id = kept.map_err(|error| EngineError::NotKept {
            name: name.clone(),
            reason: chain(&error),
        })?;
        Ok(KeptState {
            id: id.to_string(),
            short_id: id.short(),
            store,
        })
    }

    fn publish_paused(
        &self,
        dir: &MachineDir,
        file: &MachineFile,
        store: &std::path::Path,
    ) -> Result<CheckpointId, EngineError> {
        own_default_store(store, self.home())?;
        let (path, point) = self.paused_point(dir, file)?;
        let packs = PackSet::open([dir.packs()]);
        let ids =
            needed_chunks([&point], &packs).map_err(|error| EngineError::Disk(error.into()))?;
        let store = Store::open(store)?;
        let capture = store.begin_capture(CaptureOptions {
            parents: packs.packs().map_err(PointError::from)?,
            ..CaptureOptions::default()
        })?;
        let missing = capture.adopt(&packs, &ids)?.missing.len();
        if missing > 0 {
            return Err(PointError::Unsound {
                id: point.id().short(),
                findings: vec![format!("{missing} of its chunks are lost")],
            }
            .into());
        }
        capture.limit_packs(&ids, MAX_PACKS_PER_POINT)?;
        let _sealed = capture.seal()?;
        // Its bytes were read and checked just now; what is in the store must be these.
        let record = std::fs::read(&path).map_err(FileError::at("read", &path))?;
        if CheckpointId::of_bytes(&record) != point.id() {
            return Err(PointError::OtherPoint {
                path,
                found: CheckpointId::of_bytes(&record),
                expected: point.id(),
            }
            .into());
        }
        let line = LineageEntry::from(&point).to_line();
        store.put_point(&PointId(point.id().0), &record, &line)?;
        Ok(point.id())
    }
}
