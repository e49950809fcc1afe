//! A machine that runs goes back to a point: in place where its VMM can, else by its end.
//!
//! Order: the state is captured, if it is to be kept, and the guest does not run on after that; the VMM says that it is ready;
//! `machine.json` is made to say that the machine is at the target, which decides it; the VMM loads the target. Whatever fails or is
//! killed before the decision leaves the machine where it was, everything after it is settled by a start at the target.

use std::fs::{File, OpenOptions};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use cas_store::Store;
use snapshot_format::{CheckpointId, Point};
use thiserror::Error;

use super::checkpoint::{CaptureState, CheckpointError, OnProgress, keep};
use super::shared::{Live, STOPPED_PATIENCE, Shared};
use crate::channel::control::{
    KeptPoint, KeptStatus, StartReport, Trouble, UndoAnswer, UndoRequest,
};
use crate::channel::messages::ToVmm;
use crate::channel::undo::{GoBackEvent, GoBackRequest, Unreadable};
use crate::channel::{self, ChannelError};
use crate::error_chain::chain;
use crate::file_error::FileError;
use crate::machine::{Change, DiskFile, MachineDirError, RecordedState};
use crate::phase::Phase;
use crate::point::{PointError, own_record, read_point, record_file_name};
use crate::restore::{HeldPoint, PlaceError, PreparedDisk, prepare_disk};

/// How long the end of a VMM may take to be noted after a capture failed by it.
const END_PATIENCE: Duration = Duration::from_secs(1);
/// How long the VMM may take for a step.
const VMM_PATIENCE: Duration = Duration::from_secs(60);
/// How often a step that is waited for looks at the VMM.
const VMM_LOOK: Duration = Duration::from_millis(100);
/// How often somebody who waits for the guest's set-up looks.
const LOOK: Duration = Duration::from_secs(60);

/// Why a machine does not go back in place.
#[derive(Debug, Error)]
pub(super) enum InPlaceError {
    #[error(transparent)]
    Dir(#[from] MachineDirError),
    #[error(transparent)]
    Place(#[from] PlaceError),
    #[error(transparent)]
    Point(#[from] PointError),
    #[error(transparent)]
    Io(#[from] FileError),
    #[error("the VMM does not answer")]
    Channel(#[from] ChannelError),
    #[error("the machine is gone")]
    Gone,
    #[error("its VMM is stopped by a signal")]
    Stopped,
    #[error("the VMM: {0}")]
    Vmm(String),
    /// Whoever goes there cannot read it.
    #[error("{message}")]
    Unreadable {
        message: String,
        unreadable: Unreadable,
    },
}

/// Why a machine that runs did not leave its state; it runs on.
#[derive(Debug, Error)]
pub(super) enum UndoError {
    /// Its state could not be kept although CPU and memory are there.
    #[error(transparent)]
    NotKept(#[from] CheckpointError),
    /// What it needs at the target cannot be had.
    #[error(transparent)]
    NotReached(#[from] InPlaceError),
}

/// Called once, as soon as the machine is at the target and the id of its former state is known; that state is
/// published afterwards.
pub(super) type OnAnswer<'a> = &'a mut dyn FnMut(UndoAnswer);

/// Goes back, in place or by ending the VMM, and says so by `answer` unless this fails.
///
/// # Errors
///
/// See [`UndoError`]: the machine runs on.
pub(super) fn undo(
    shared: &Arc<Shared>,
    request: &UndoRequest,
    progress: OnProgress<'_>,
    answer: OnAnswer<'_>,
) -> Result<(), UndoError> {
    let waits = shared.begin_undo();
    let mut state = shared
        .capture
        .lock()
        .unwrap_or_else(PoisonError::into_inner);
    drop(waits);
    let mut way_back = WayBack {
        shared,
        destination: Some(Destination::prepare(shared, request)?),
        discards: request.keep.is_none(),
        answer: Some(answer),
        went: None,
        left: false,
        former: None,
    };
    let mut lost = None;
    match &request.keep {
        Some(how) => match keep(shared, how, progress, &mut state, &mut way_back) {
            Ok(kept) => way_back.finish(Some(kept), None),
            Err(error) if way_back.left => {
                tracing::error!(error = %chain(&error), "the state that was left is not kept");
                lost = Some(chain(&error));
            }
            Err(error) if shared.wait_end(END_PATIENCE) => {
                tracing::info!(%error, "the state cannot be kept");
                lost = Some("it ended before it was saved".to_owned());
            }
            Err(error) => return Err(error.into()),
        },
        None => way_back.go(&mut state),
    }
    if let Some(Went::Refused(error)) = way_back.went {
        return Err(error.into());
    }
    way_back.finish(None, lost);
    way_back.remove_former_files();
    Ok(())
}

/// The target, and what the machine needs to be there: had before anything is given up for it.
struct Destination {
    point: Point,
    record: File,
    disk: PreparedDisk,
}

impl Destination {
    fn prepare(shared: &Shared, request: &UndoRequest) -> Result<Self, InPlaceError> {
        let dir = &shared.dir;
        HeldPoint::of_undo(dir).pin()?;
        let id: CheckpointId = request.target.parse().map_err(PointError::Id)?;
        let record = dir.records().join(record_file_name(&id));
        let point = read_point(&record, Some(id))?;
        Ok(Self {
            record: open(&record, File::options().read(true))?,
            disk: prepare_disk(dir, &point)?,
            point,
        })
    }
}

/// The way to the target, once the state that is left is captured or given up.
pub(super) struct WayBack<'a> {
    shared: &'a Arc<Shared>,
    /// Until the machine went there.
    destination: Option<Destination>,
    /// The state before is not kept.
    discards: bool,
    /// Until it was given.
    answer: Option<OnAnswer<'a>>,
    /// How it went, once it was gone.
    went: Option<Went>,
    /// The state before is not the machine's any more.
    left: bool,
    /// Files of the disk before.
    former: Option<DiskFile>,
}

enum Went {
    /// In place; the guest is being set up, which is the set-up after so many resets.
    InPlace(u64),
    /// Not at all: the VMM ends, and a start at the target follows.
    Nowhere,
    /// Not at all, since nobody could: the machine runs on.
    Refused(InPlaceError),
}

impl WayBack<'_> {
    /// Goes to the target in place; where that fails the VMM has to end.
    pub(super) fn go(&mut self, state: &mut CaptureState) {
        let went = match self.in_place(state) {
            Ok(resets) => Went::InPlace(resets),
            // What was kept can be gone to again; what is given up could not.
            Err(InPlaceError::Unreadable {
                message,
                unreadable,
            }) if self.discards => {
                self.note_damage(state, &unreadable);
                self.went = Some(Went::Refused(InPlaceError::Unreadable {
                    message,
                    unreadable,
                }));
                return;
            }
            Err(error) => {
                tracing::warn!(error = %chain(&error), "not in place: another VMM takes its place");
                Went::Nowhere
            }
        };
        self.went = Some(went);
        self.left = true;
    }

    /// The next save takes all of memory from the guest, and shares nothing with the pack.
    fn note_damage(&self, state: &mut CaptureState, unreadable: &Unreadable) {
        state.base = None;
        state.damaged = true;
        let stem = unreadable.pack.as_deref().and_then(Path::file_stem);
        let id = stem.and_then(|stem| stem.to_str()?.parse().ok());
        let (Some(id), Ok(Some(machine))) = (id, self.shared.dir.read()) else {
            return;
        };
        for packs in machine.packs_elsewhere(&self.shared.default_store) {
            match packs.parent().map(Store::open) {
                Some(Ok(store)) => store.distrust(&[id]),
                Some(Err(error)) => tracing::warn!(error = %chain(&error), "damage is not noted"),
                None => {}
            }
        }
    }

    /// The id of the state that was left is known, its data is stored but not durable: that is enough for an answer
    /// when the machine runs at the target already.
    pub(super) fn known(&mut self, kept: &KeptPoint) {
        if matches!(self.went, Some(Went::InPlace(_))) {
            self.shared
                .change(|live| live.kept = Some((kept.id.clone(), KeptStatus::Saving)));
            self.finish(Some(kept.clone()), None);
        }
    }

    /// Answers, unless that was done: then only notes how keeping the state ended.
    fn finish(&mut self, kept: Option<KeptPoint>, lost: Option<String>) {
        let Some(answer) = self.answer.take() else {
            self.shared.change(|live| {
                if let Some((id, status)) = &mut live.kept {
                    match (&kept, lost) {
                        (Some(_), _) => *status = KeptStatus::Saved,
                        (None, Some(lost)) => *status = KeptStatus::Failed(lost),
                        (None, None) => tracing::debug!(%id, "kept"),
                    }
                }
            });
            return;
        };
        let in_place = match self.went.take() {
            Some(Went::InPlace(resets)) => Some(self.wait_set_up(resets)),
            Some(Went::Nowhere | Went::Refused(_)) | None => {
                self.shared.quit_vmm();
                self.shared.wait_finished();
                None
            }
        };
        answer(UndoAnswer {
            kept,
            lost,
            in_place,
        });
    }

    /// Waits until the guest is set up at the target, and says how that went.
    fn wait_set_up(&self, resets: u64) -> StartReport {
        let shared = self.shared;
        let over = |live: &Live| {
            live.end.is_some() || live.resets != resets || live.ready || live.trouble.is_some()
        };
        while !shared.wait(LOOK, over) {}
        Phase::UndoSetUp.reached();
        if !shared.has_ended() {
            if shared.is_ready() {
                return StartReport::Ready {
                    backend: shared.backend.clone(),
                    pending: shared.pending(),
                };
            }
            let reset = || Trouble::Silent("it was reset while it was set up".to_owned());
            return StartReport::NotReady(shared.trouble().unwrap_or_else(reset));
        }
        shared.wait_finished();
        let machine = shared.dir.read().ok().flatten();
        let why = match machine.map(|machine| machine.state) {
            Some(RecordedState::Failed { reason } | RecordedState::Damaged { reason }) => reason,
            _ => "it ended".to_owned(),
        };
        StartReport::Failed {
            message: format!("the guest ended while it was set up: {why}"),
            hint: None,
        }
    }

    /// Whether the state before is not the machine's any more.
    pub(super) fn has_left(&self) -> bool {
        self.left
    }

    /// Goes to the target in place. Returns how often the guest counts as reset then.
    fn in_place(&mut self, state: &mut CaptureState) -> Result<u64, InPlaceError> {
        let shared = self.shared;
        let dir = &shared.dir;
        let Some(destination) = self.destination.take() else {
            return Err(InPlaceError::Gone);
        };
        let Destination {
            point,
            record,
            disk,
        } = destination;
        state.quiet = None;
        if shared.rebooted.swap(false, Ordering::SeqCst) {
            state.base = None;
        }
        let base = state.base.as_ref();
        let base = base.map(|base| own_record(&dir.records(), &base.id()));

        let (ours, theirs) = UnixStream::pair().map_err(ChannelError::Io)?;
        ours.set_read_timeout(Some(VMM_PATIENCE))
            .map_err(ChannelError::Io)?;
        let map = open(&disk.base_path(), File::options().read(true))?;
        let layer = open(&disk.layer_path(), File::options().read(true).write(true))?;
        let base = base.and_then(|base| File::open(base).ok());
        let mut descriptors = vec![theirs.as_fd(), record.as_fd(), map.as_fd(), layer.as_fd()];
        descriptors.extend(base.as_ref().map(AsFd::as_fd));
        shared.tell_vmm(&ToVmm::GoBack, &descriptors)?;
        drop(theirs);
        let GoBackEvent::Ready = hear(shared, &ours)? else {
            return Err(InPlaceError::Vmm("an unexpected answer".to_owned()));
        };
        state.base = None;
        let top = disk.layer_name();
        self.decide(&ours, disk, &point)?;
        let GoBackEvent::Back {
            pause_micros,
            chunks,
        } = hear(shared, &ours)?
        else {
            return Err(InPlaceError::Vmm("an unexpected answer".to_owned()));
        };
        tracing::info!(pause_micros, chunks, "the machine went back in place");
        state.base = shared.branchable.then(|| Arc::new(point));
        state.vmm_top = Some(top);
        let change = dir.change(|machine| {
            machine.restore = None;
            machine.state = RecordedState::Running {
                backend: shared.backend.clone(),
            };
        });
        change.visible()?;
        // As after a reset: whoever set the guest up before is told to do it again.
        let mut resets = 0;
        shared.change(|live| {
            live.forget_set_up();
            live.resets += 1;
            resets = live.resets;
        });
        Ok(resets)
    }
}

impl WayBack<'_> {
    /// Makes the machine's file say that the machine is at the target, and tells the VMM.
    fn decide(
        &mut self,
        socket: &UnixStream,
        disk: PreparedDisk,
        target: &Point,
    ) -> Result<(), InPlaceError> {
        let dir = &self.shared.dir;
        let mut former = None;
        let change = dir.change(|machine| {
            former = Some(machine.disk.clone());
            disk.put_into(machine, target);
        });
        disk.settle(&change);
        let durable = matches!(change, Change::Done(_));
        change.visible()?;
        // A power failure may bring the former files back into use otherwise.
        self.former = former.filter(|_| durable);
        Phase::UndoDecided.reached();
        self.shared.change(|live| {
            live.forget_set_up();
            live.out_of_memory = None;
        });
        Ok(channel::send(socket, &GoBackRequest::Decided, &[])?)
    }

    /// Removes the files of the disk before, which nothing names any more. Not before the state that was left
    /// is kept: they hold its disk.
    fn remove_former_files(&self) {
        let Some(former) = &self.former else {
            return;
        };
        for name in former.layers.iter().chain([&former.base]) {
            if let Err(error) = std::fs::remove_file(self.shared.dir.disk().join(name)) {
                tracing::warn!(%name, %error, "a former file of the disk was not removed");
            }
        }
    }
}

fn open(path: &Path, options: &OpenOptions) -> Result<File, FileError> {
    options.open(path).map_err(FileError::at("open", path))
}

/// What the VMM says next.
fn hear(shared: &Shared, socket: &UnixStream) -> Result<GoBackEvent, InPlaceError> {
    let mut since = Instant::now();
    loop {
        if channel::is_readable(socket, VMM_LOOK)? {
            match channel::receive(socket)?.message {
                GoBackEvent::Waiting => since = Instant::now(),
                GoBackEvent::Failed {
                    message,
                    between: false,
                    unreadable: Some(unreadable),
                } => {
                    return Err(InPlaceError::Unreadable {
                        message,
                        unreadable,
                    });
                }
                GoBackEvent::Failed { message, .. } => return Err(InPlaceError::Vmm(message)),
                event => return Ok(event),
            }
        }
        if shared.is_quitting() {
            return Err(InPlaceError::Gone);
        }
        if since.elapsed() > STOPPED_PATIENCE && shared.is_vmm_stopped() {
            return Err(InPlaceError::Stopped);
        }
        if since.elapsed() > VMM_PATIENCE {
            return Err(InPlaceError::Vmm("it does not answer".to_owned()));
        }
    }
}
