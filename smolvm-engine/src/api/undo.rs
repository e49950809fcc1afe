//! Going back: a machine becomes what it was at a point, under its name.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use snapshot_format::CheckpointId;
use snapshot_format::verify::ROOT_DISK;

use super::phases::Phases;
use super::place::own_default_store;
use super::undo_target::UndoTarget;
use crate::api::error::EngineError;
use crate::api::{Engine, MachineState};
use crate::channel::branch::Alone;
use crate::channel::control::{
    CheckpointRequest, Control, ControlReply, StartReport, Trouble, UndoRequest,
};
use crate::machine::{Change, MachineDir, MachineFile};
use crate::name::MachineName;
use crate::phase::Phase;
use crate::point::{PointError, read_point, record_file_name};
use crate::progress::Progress;
use crate::restore::{HeldPoint, check_sound, prepare_disk};
use crate::save::disk_capture::has_changes;

/// Pause between two looks at an undo that is under way.
const LOOK_AGAIN: Duration = Duration::from_millis(10);
/// How long an undo that is under way is waited for to tell a command why it was cut off.
const UNDO_PATIENCE: Duration = Duration::from_secs(10);

/// How to go back.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct UndoOptions {
    /// Where to: `~N` counted from the machine's head, a full id or a unique prefix; the head when absent.
    pub to: Option<String>,
    /// Give the present state up instead of saving it first.
    pub discard: bool,
}

/// What [`Engine::undo`] did.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Undone {
    /// Full id of the point that the machine went back to; its head now.
    pub id: String,
    /// Its short id.
    pub short_id: String,
    /// Seconds since 1970 when that point was taken.
    pub taken_unix: u64,
    /// The user's message at that point.
    pub message: String,
    /// That point is an autosave.
    pub autosave: bool,
    /// The state that was left, as a point.
    pub kept: Option<KeptState>,
    /// Why that state could not be kept although it was to be.
    pub lost: Option<String>,
    /// The machine's process went on; otherwise another has taken its place.
    pub in_place: bool,
    /// The backend in use.
    pub backend: String,
    /// Why the guest's agent cannot be worked with; the machine runs all the same.
    pub silent: Option<String>,
    /// Why the machine must not be used yet although its agent answers.
    pub not_set_up: Option<String>,
    /// As [`Started::pending`](crate::Started::pending).
    pub pending: Vec<String>,
    /// How long everything took.
    pub took: Duration,
}

/// A state that was left and can be gone to again.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct KeptState {
    /// Its full id.
    pub id: String,
    /// Its short id.
    pub short_id: String,
    /// The store that it lies in, or will lie in: its data may be on its way there still.
    pub store: PathBuf,
}

impl Engine {
    /// Takes a machine back to a point, in whatever state it is, and lets it run there. The state that is
    /// left is saved first as a point whose parent is the old head, where CPU and memory are there and
    /// `discard` is not asked for.
    ///
    /// # Errors
    ///
    /// [`EngineError::NoPoint`] where the machine was never saved, [`EngineError::DiskNotKept`] where it is
    /// stopped and its disk is not what it was at its head; [`EngineError::NotStarted`] when the machine is at
    /// the point but does not run: the next start tries again.
    pub fn undo(
        &self,
        name: &MachineName,
        options: &UndoOptions,
        progress: &dyn Progress,
    ) -> Result<Undone, EngineError> {
        let begin = Instant::now();
        let dir = self.dir(name);
        self.read(name)?;
        let _operation = self.lock_operation(name, &dir)?;
        let file = self.read(name)?;
        let target = self.undo_target(name, &file, options.to.as_deref())?;
        let point = target.point();
        check_sound(point, &target.found.packs)?;
        // A save that ends meanwhile may give up what the machine pins.
        let held = HeldPoint::take(&dir, &target.found)?;
        Phase::TargetHeld.reached();
        let (left, in_place) = if dir.is_running()? {
            self.leave(name, &file, &target, options, progress)?
        } else {
            self.check_host(point, file.spec.backend)?;
            (self.leave_what_ended(name, &dir, &file, options)?, None)
        };
        let is_in_place = in_place.is_some();
        let report = match in_place {
            Some(report) => report,
            None => {
                self.wait_for_own_end(name, &dir)?;
                // Nothing runs from here on.
                self.put_back(&dir, name, file.undos, &target)?;
                let alone = Alone {
                    interpret: !self.options.translation,
                    ..Alone::default()
                };
                self.launch(name, &dir, alone)?
            }
        };
        drop(held);
        let undone = |backend: String| Undone {
            id: point.id().to_string(),
            short_id: point.id().short(),
            taken_unix: point.record().taken.seconds,
            message: point.record().message.clone(),
            autosave: point.record().autosave,
            kept: left.kept,
            lost: left.lost,
            in_place: is_in_place,
            backend,
            silent: None,
            not_set_up: None,
            pending: Vec::new(),
            took: begin.elapsed(),
        };
        match report {
            StartReport::Ready { backend, pending } => Ok(Undone {
                pending,
                ..undone(backend)
            }),
            StartReport::NotReady(trouble) => {
                let undone = undone(self.machine(name)?.backend.unwrap_or_default());
                Ok(match trouble {
                    Trouble::Silent(why) => Undone {
                        silent: Some(why),
                        ..undone
                    },
                    Trouble::Incomplete(why) => Undone {
                        not_set_up: Some(why),
                        ..undone
                    },
                })
            }
            StartReport::Failed { message, hint } => {
                // It does not run: the next command must not find its last process and think it did.
                self.wait_for_end(name, &dir)?;
                Err(EngineError::NotStarted {
                    name: name.clone(),
                    reason: message,
                    hint,
                })
            }
        }
    }

    /// How often the machine went back to a point so far. Changes nothing.
    pub fn undo_count(&self, name: &MachineName) -> Result<u64, EngineError> {
        Ok(self.read(name)?.undos)
    }

    /// The full id of the point that the machine went back to after it had done so `count` times: why the
    /// connections to it ended. An undo that is under way is waited for. Changes nothing.
    pub fn went_back(&self, name: &MachineName, count: u64) -> Option<String> {
        let dir = self.dir(name);
        let deadline = Instant::now() + UNDO_PATIENCE;
        loop {
            let busy = dir.is_operated().unwrap_or(false);
            let file = dir.read().ok().flatten()?;
            if file.undos > count {
                return file.head;
            }
            if !busy || Instant::now() >= deadline {
                return None;
            }
            std::thread::sleep(LOOK_AGAIN);
        }
    }

    /// Leaves a machine that runs, with its state kept if that is wanted: in place, or nothing runs afterwards.
    fn leave(
        &self,
        name: &MachineName,
        file: &MachineFile,
        target: &UndoTarget,
        options: &UndoOptions,
        progress: &dyn Progress,
    ) -> Result<(Left, Option<StartReport>), EngineError> {
        let store = self.last_store(file);
        own_default_store(&store, self.home())?;
        let keep = (!options.discard).then(|| CheckpointRequest {
            store: store.clone(),
            output: None,
            history: crate::api::DEFAULT_HISTORY,
            message: String::new(),
            autosave: false,
        });
        let mut phases = Phases::new(progress);
        let request = Control::Undo(UndoRequest {
            target: target.point().id().to_string(),
            keep,
        });
        let reply = self.control_with_progress(name, &request, &mut |phase, done, total| {
            phases.report(phase, done, total);
        });
        drop(phases);
        match reply {
            Ok(ControlReply::Undone(answer)) => {
                let kept = answer.kept.map(|kept| KeptState {
                    id: kept.id,
                    short_id: kept.short_id,
                    store,
                });
                let lost = answer.lost;
                Ok((Left { kept, lost }, answer.in_place))
            }
            Ok(ControlReply::Failed { message, .. }) => Err(EngineError::NotKept {
                name: name.clone(),
                reason: message,
            }),
            Ok(ControlReply::NotReached { message }) => Err(EngineError::NotUndone {
                name: name.clone(),
                reason: message,
            }),
            // A supervisor that ends or was killed: the run lock tells when its VMM is gone too.
            _ => {
                let lost = (!options.discard).then(|| "its processes were killed".to_owned());
                Ok((Left { kept: None, lost }, None))
            }
        }
    }

    /// A machine that does not run: what of its state there still is, and whether it may be given up.
    fn leave_what_ended(
        &self,
        name: &MachineName,
        dir: &MachineDir,
        file: &MachineFile,
        options: &UndoOptions,
    ) -> Result<Left, EngineError> {
        let mut left = Left::default();
        if options.discard {
            return Ok(left);
        }
        match super::info::describe(file.clone(), false, None).state {
            MachineState::Paused => left.kept = Some(self.keep_paused(name, dir, file)?),
            MachineState::Failed { reason } | MachineState::Damaged { reason } => {
                left.lost = Some(reason);
            }
            // What a machine has that is to be restored at its start was never used.
            _ if file.restore.is_some() => {}
            _ if self.disk_moved_on(dir, file)? => {
                return Err(EngineError::DiskNotKept { name: name.clone() });
            }
            _ => {}
        }
        Ok(left)
    }

    /// Whether the disk of a machine that does not run is another than at its head.
    fn disk_moved_on(&self, dir: &MachineDir, file: &MachineFile) -> Result<bool, EngineError> {
        let head = file.head.as_deref().map(str::parse::<CheckpointId>);
        let Some(head) = head.transpose().map_err(PointError::Id)? else {
            return Ok(true);
        };
        let head = read_point(&dir.records().join(record_file_name(&head)), Some(head))?;
        match head.record().disk(ROOT_DISK) {
            Some(disk) => Ok(has_changes(dir, file, disk)?),
            None => Ok(true),
        }
    }

    /// Makes the machine, which does not run, one that goes on at the point when it starts. Nothing is to be done where its
    /// supervisor did that, since it had gone back `undos` times, and nothing ran from there: a machine that did run at the
    /// point before its processes were killed has lost its memory again, and goes back once more.
    fn put_back(
        &self,
        dir: &MachineDir,
        name: &MachineName,
        undos: u64,
        target: &UndoTarget,
    ) -> Result<(), EngineError> {
        HeldPoint::of_undo(dir).pin()?;
        let file = self.read(name)?;
        let is_there = file.restore.as_ref() == Some(&target.point().id().to_string());
        if file.undos > undos && is_there {
            return Ok(());
        }
        let former = file.disk.clone();
        let disk = prepare_disk(dir, target.point())?;
        Phase::TargetPinned.reached();
        let change = dir.change(|machine| disk.put_into(machine, target.point()));
        disk.settle(&change);
        let durable = matches!(change, Change::Done(_));
        change.visible()?;
        Phase::PutBack.reached();
        if !durable {
            // A power failure may bring the former files back into use.
            return Ok(());
        }
        for name in former.layers.iter().chain([&former.base]) {
            if let Err(error) = std::fs::remove_file(dir.disk().join(name)) {
                tracing::warn!(%name, %error, "a former file of the disk was not removed");
            }
        }
        Ok(())
    }
}

/// What became of the state that a machine had.
#[derive(Debug, Default)]
struct Left {
    kept: Option<KeptState>,
    lost: Option<String>,
}
