//! Saving a running machine: from a command to a published point.

mod boot;
mod booted;
mod branch;
mod dialogue;
mod error;
mod head;
mod pause;
mod publication;
mod quiet;

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use agent_protocol::message::{Activity, Processes};
use cas_store::{Capture, CaptureOptions, ChunkId, Leftover, MAX_PACKS_PER_POINT, PackSet, Store};
use snapshot_format::{Point, StateRecord};

pub(super) use self::booted::freeze_booted;
pub(super) use self::branch::{Branched, branch};
use self::dialogue::Switched;
pub(crate) use self::error::CheckpointError;
use self::head::Merged;
pub(super) use self::pause::{pause, tidy_paused};
use self::publication::NewPoint;
use self::quiet::{LayerStamp, Quiet, is_unchanged};
use super::shared::Shared;
use super::tidy;
use super::undo::WayBack;
use crate::channel::capture::UnitState;
use crate::channel::control::{CheckpointDone, CheckpointRequest, KeptPoint};
use crate::machine::{BaseMap, MachineFile};
use crate::phase::Phase;
use crate::point::{Output, PointError, paused_file_name, record_file_name};
use crate::save::chunk_sink::ChunkSink;
use crate::save::maps::Maps;
use crate::save::{disk_capture, record};

/// How long the guest may take to write its page cache out, before the capture.
const SYNC_PATIENCE: Duration = Duration::from_millis(200);

/// Leftovers that one answer names at most.
const MAX_WARNINGS: usize = 8;

/// What a supervisor remembers between captures.
#[derive(Default)]
pub(super) struct CaptureState {
    /// The point at which this run of the machine began: its memory may still be filled from it.
    pub(super) begun_at: Option<Arc<Point>>,
    /// The point that memory is equal to, but for the pages that the VMM notes as written.
    pub(super) base: Option<Arc<Point>>,
    /// The machine's packs hold much that it does not need any more.
    pub(super) sparse: bool,
    /// The machine's packs do not hold all that their indexes say.
    pub(super) damaged: bool,
    /// The layer that the VMM's disk writes to, by name, as far as is known.
    pub(super) vmm_top: Option<String>,
    /// What tells whether anything changed since the head was saved.
    pub(super) quiet: Option<Quiet>,
}

/// Told about progress: phase, bytes done, bytes in total if known. `false` cancels.
pub(super) type OnProgress<'a> = &'a dyn Fn(&str, u64, Option<u64>) -> bool;

/// Saves the machine as asked.
pub(super) fn checkpoint(
    shared: &Shared,
    request: &CheckpointRequest,
    progress: OnProgress<'_>,
) -> Result<CheckpointDone, CheckpointError> {
    let mut state = shared
        .capture
        .lock()
        .unwrap_or_else(PoisonError::into_inner);
    save(shared, request, progress, &mut state, Beside::Nothing)
}

/// Saves the machine, unless it is what it was at its head.
pub(super) fn checkpoint_if_changed(
    shared: &Shared,
    request: &CheckpointRequest,
    progress: OnProgress<'_>,
) -> Result<Option<CheckpointDone>, CheckpointError> {
    let mut state = shared
        .capture
        .lock()
        .unwrap_or_else(PoisonError::into_inner);
    if is_unchanged(shared, &state) {
        return Ok(None);
    }
    save(shared, request, progress, &mut state, Beside::Nothing).map(Some)
}

/// Brings the machine's packs down to what it needs, if they are worth it. For when nobody waits; what is killed in between
/// costs room only.
pub(super) fn compact_packs(shared: &Shared) {
    let mut state = shared
        .capture
        .lock()
        .unwrap_or_else(PoisonError::into_inner);
    if !std::mem::take(&mut state.sparse) || shared.has_ended() {
        return;
    }
    let machine = match shared.dir.read() {
        Ok(Some(machine)) => machine,
        Ok(None) => return,
        Err(error) => return tracing::warn!(%error, "packs are not compacted"),
    };
    let go_on = || !shared.has_ended() && !shared.is_undo_wanted();
    match tidy::compact(&shared.dir, &machine, state.begun_at.as_deref(), &go_on) {
        Ok(done) => tracing::info!(?done, "packs were compacted"),
        Err(error) => {
            tracing::warn!(error = %crate::error_chain::chain(&error), "packs are not compacted");
        }
    }
}

/// Saves the machine, which goes back once it is captured. The point becomes no head.
pub(super) fn keep(
    shared: &Shared,
    request: &CheckpointRequest,
    progress: OnProgress<'_>,
    state: &mut CaptureState,
    way_back: &mut WayBack<'_>,
) -> Result<KeptPoint, CheckpointError> {
    let done = save(
        shared,
        request,
        progress,
        state,
        Beside::GoingBack(way_back),
    )?;
    Ok(KeptPoint {
        id: done.id,
        short_id: done.short_id,
    })
}

/// What else is done at the instant of a capture.
enum Beside<'a, 'b> {
    Nothing,
    /// The machine leaves it.
    GoingBack(&'a mut WayBack<'b>),
    /// Other machines go on from there, with this.
    Sharing(&'a mut Option<SharedMemory>),
}

/// What machines begin with that go on from an instant.
struct SharedMemory {
    descriptors: Vec<OwnedFd>,
    /// What was written in it is not known relative to any point.
    booted: bool,
}

/// Saves the machine. Where chunks that did not change are lost, all of memory is captured: the guest still has it.
fn save(
    shared: &Shared,
    request: &CheckpointRequest,
    progress: OnProgress<'_>,
    state: &mut CaptureState,
    beside: Beside<'_, '_>,
) -> Result<CheckpointDone, CheckpointError> {
    let again = matches!(beside, Beside::Nothing) && state.base.is_some();
    match save_once(shared, request, progress, state, beside) {
        Err(error) if again && error.is_loss() => {
            tracing::warn!(error = %crate::error_chain::chain(&error), "all of memory is saved");
            state.base = None;
            state.damaged = true;
            save_once(shared, request, progress, state, Beside::Nothing)
        }
        result => result,
    }
}

fn save_once(
    shared: &Shared,
    request: &CheckpointRequest,
    progress: OnProgress<'_>,
    state: &mut CaptureState,
    beside: Beside<'_, '_>,
) -> Result<CheckpointDone, CheckpointError> {
    let (mut way_back, memory) = match beside {
        Beside::Nothing => (None, None),
        Beside::GoingBack(way_back) => (Some(way_back), None),
        Beside::Sharing(memory) => (None, Some(memory)),
    };
    let begin = Instant::now();
    if shared.has_ended() {
        return Err(CheckpointError::Ended);
    }
    if shared.rebooted.swap(false, Ordering::SeqCst) {
        state.base = None;
    }
    state.quiet = None;
    let store = Store::open(&request.store)?;
    let machine_packs = PackSet::open([shared.dir.packs()]);
    let options = CaptureOptions {
        parents: machine_packs.packs().map_err(PointError::from)?,
        ..CaptureOptions::default()
    };
    let capture = store.begin_capture(options)?;
    let output = request.output.as_deref();
    let output = output.map(|target| Output::begin(target, &capture));
    let output = output.transpose()?;
    Phase::CaptureBegun.reached();
    // An undo asks nothing of a guest that may be broken.
    let synced = match way_back {
        // Nobody waits for an autosave, and the next one is told by this what has changed.
        None if request.autosave => shared.sync_guest(quiet::ASK_PATIENCE),
        None => shared.sync_guest(SYNC_PATIENCE),
        Some(_) => None,
    };

    let mut run = Run {
        output,
        activity: synced.as_ref().and_then(|report| report.activity),
        disks_written: synced.as_ref().is_some_and(|report| report.written),
        processes: synced.map(|report| report.processes),
        share: memory.is_some(),
        ..Run::new(shared)
    };
    let job = Job {
        store: &store,
        machine_packs: &machine_packs,
        request,
        progress,
        begin,
        pauses: false,
    };
    let result = run.save(state, capture, &job, way_back.as_deref_mut());
    let result = result.inspect_err(|_| run.abort(state));
    if way_back.is_some_and(|way_back| way_back.has_left()) {
        // Its disk is another.
        return result;
    }
    let (activity, top, empty) = (run.activity, run.added_layer.clone(), run.empty_top);
    if result.is_ok() && run.switched == Switched::Yes && run.moved_head {
        state.quiet = Quiet::new(activity, top, empty);
    }
    run.note_top(state);
    if let Some(memory) = memory {
        *memory = run.memory.take();
    }
    result
}

/// How the VMM captures.
#[derive(Debug, Clone, Copy)]
struct Capturing {
    /// All of memory.
    full: bool,
    /// The machine stays where it is afterwards.
    stay: bool,
    /// Hand memory over.
    share: bool,
    /// Which is looked at once.
    once: bool,
}

/// One capture.
struct Run<'a> {
    /// The checkpoint directory, where one is asked for.
    output: Option<Output>,
    shared: &'a Shared,
    /// What had run in the guest just before.
    activity: Option<Activity>,
    /// It had written everything to its disk just before.
    disks_written: bool,
    /// The disk's new top before anything was written to it.
    empty_top: Option<LayerStamp>,
    /// The machine has the point as its head.
    moved_head: bool,
    /// What ran in the guest, as its agent listed it.
    processes: Option<Processes>,
    /// The capture's socket, once the VMM has its other end.
    socket: Option<UnixStream>,
    /// Whether the VMM has switched the disk to its new top.
    switched: Switched,
    /// That top.
    added_layer: Option<String>,
    /// What the sealed layers are being merged into.
    merged: Option<Merged>,
    /// Other machines are to go on from the instant.
    share: bool,
    /// With this.
    memory: Option<SharedMemory>,
}

/// What is asked for, and where it goes.
struct Job<'a> {
    store: &'a Store,
    /// The packs that the machine has.
    machine_packs: &'a PackSet,
    request: &'a CheckpointRequest,
    progress: OnProgress<'a>,
    begin: Instant,
    /// The machine ends afterwards, and keeps by itself what is saved.
    pauses: bool,
}

/// What a capture brought.
struct Brought {
    point: Point,
    /// Its record.
    bytes: Vec<u8>,
    /// All its chunks.
    ids: Vec<ChunkId>,
    /// The machine as it was when the capture began, with the disk's new top.
    machine: MachineFile,
    pause_micros: u64,
}

impl<'a> Run<'a> {
    fn new(shared: &'a Shared) -> Self {
        Self {
            output: None,
            shared,
            activity: None,
            disks_written: false,
            empty_top: None,
            moved_head: false,
            processes: None,
            socket: None,
            switched: Switched::Unknown,
            added_layer: None,
            merged: None,
            share: false,
            memory: None,
        }
    }

    /// Remembers which layer the VMM's disk writes to.
    fn note_top(&mut self, state: &mut CaptureState) {
        match self.switched {
            Switched::Yes => state.vmm_top = self.added_layer.take(),
            Switched::Unknown => state.vmm_top = None,
            Switched::No => {}
        }
    }
}

impl Run<'_> {
    /// Captures the machine, whose chunks go into `capture`.
    fn bring(
        &mut self,
        state: &mut CaptureState,
        capture: &Capture,
        job: &Job<'_>,
        mut way_back: Option<&mut WayBack<'_>>,
    ) -> Result<Brought, CheckpointError> {
        let &Job {
            machine_packs,
            request,
            progress,
            pauses,
            ..
        } = job;
        let mut machine = self.add_layer()?;
        self.added_layer = machine.disk.layers.last().cloned();
        let top = self.added_layer.as_ref();
        self.empty_top = top.and_then(|top| LayerStamp::of(self.shared, top));
        self.add_merged(state, &mut machine)?;
        Phase::LayerAdded.reached();
        let base = state.base.clone();
        let disk_base = BaseMap::read(&self.shared.dir.disk().join(&machine.disk.base))?;
        let elsewhere = machine.packs_elsewhere(&self.shared.default_store);
        let maps = Maps::new(capture, machine_packs, &elsewhere, &disk_base);
        let mut sink = ChunkSink::new(capture, machine.spec.memory_bytes)?;
        let leaves = way_back.is_some();
        let how = Capturing {
            full: base.is_none(),
            stay: leaves || pauses,
            share: self.share,
            once: false,
        };
        let instant = self.receive(&mut machine, how, Some(&mut sink), progress)?;
        if let Some(way_back) = &mut way_back {
            way_back.go(state);
        }
        // A machine that has left keeps its state, whoever waits for it.
        let go_on = |phase| leaves || progress(phase, 0, None);
        let memory = sink.finish(base.as_deref(), &maps)?;
        Phase::MemoryStored.reached();
        go_on("disk");
        let disk =
            disk_capture::capture_disk(&self.shared.dir, &machine, &disk_base, capture, &maps)?;
        Phase::DiskStored.reached();
        let boot = self.boot_blobs(&machine, base.as_deref(), capture, &maps)?;
        let mut record = record::assemble(
            &machine,
            record::Host {
                backend: &self.shared.backend,
                cpu: &self.shared.cpu,
                vcpus: self.shared.vcpus,
                agent_protocol: self.shared.dialer.spoken(),
                disks_written: self.disks_written,
                processes: self.processes.take(),
            },
            record::Why {
                message: &request.message,
                autosave: request.autosave,
            },
            instant.taken,
            to_records(instant.states),
            record::Parts { memory, disk, boot },
        )?;
        let ids = if pauses && !state.damaged {
            maps.complete_in_place(&mut record)?
        } else {
            let ids = maps.complete(&mut record)?;
            capture.limit_packs(&ids, MAX_PACKS_PER_POINT)?;
            ids
        };
        let (point, bytes) = Point::seal(record).map_err(PointError::from)?;
        if !go_on("publishing") {
            return Err(CheckpointError::Cancelled);
        }
        Ok(Brought {
            point,
            bytes,
            ids,
            machine,
            pause_micros: instant.pause_micros,
        })
    }

    fn save(
        &mut self,
        state: &mut CaptureState,
        capture: Capture,
        job: &Job<'_>,
        mut way_back: Option<&mut WayBack<'_>>,
    ) -> Result<CheckpointDone, CheckpointError> {
        let &Job {
            store,
            request,
            begin,
            ..
        } = job;
        let leaves = way_back.is_some();
        let brought = self.bring(state, &capture, job, way_back.as_deref_mut())?;
        let Brought {
            point,
            bytes,
            ids,
            machine,
            pause_micros,
        } = brought;
        let data_before = capture.stats();
        if let Some(way_back) = &mut way_back {
            way_back.known(&KeptPoint {
                id: point.id().to_string(),
                short_id: point.id().short(),
            });
        }
        let sealed = capture.seal()?;
        Phase::PacksSealed.reached();
        let point = Arc::new(point);
        let new = NewPoint {
            point: &point,
            record: &bytes,
            chunks: &ids,
            sealed: &sealed,
        };
        if leaves {
            self.publish(store, request, None, &machine, &new)?;
        } else {
            self.make_head(state, job, &machine, &point, &new)?;
        }
        let stats = sealed.stats();
        let data_bytes = point.record().data_bytes;
        let stored = data_before
            .data_bytes
            .saturating_sub(data_before.shared_bytes);
        Ok(CheckpointDone {
            id: point.id().to_string(),
            short_id: point.id().short(),
            output: request.output.clone(),
            pause_micros,
            saved_micros: u64::try_from(begin.elapsed().as_micros()).unwrap_or(u64::MAX),
            written_bytes: stats.written_bytes,
            data_bytes,
            shared_bytes: data_bytes.saturating_sub(stored),
            tracked: self.shared.branchable,
            warnings: warnings_of(store),
        })
    }

    /// Publishes the point and makes it the machine's head.
    fn make_head(
        &mut self,
        state: &mut CaptureState,
        job: &Job<'_>,
        machine: &MachineFile,
        point: &Arc<Point>,
        new: &NewPoint<'_>,
    ) -> Result<(), CheckpointError> {
        let pinned_before = self.pinned_packs()?;
        let record_name = record_file_name(&point.id());
        let output = self.output.take();
        let published = self
            .pin_into_machine(
                new,
                &record_name,
                (!state.damaged).then_some(job.machine_packs),
            )
            .and_then(|()| self.publish(job.store, job.request, output, machine, new));
        if let Err(error) = published {
            self.unpin(&record_name, &pinned_before);
            return Err(error);
        }
        Phase::Registered.reached();
        // The point is published and durable: it stands even if the machine cannot take it as its head.
        match self.move_head(machine, point, job.request) {
            Ok(head) => {
                self.moved_head = true;
                state.base = self.shared.branchable.then(|| point.clone());
                match self.rebase(machine, &head) {
                    Ok(()) if head.is_durable() => {
                        // A capture waits until all of memory is there: a pause that it came from is used up.
                        let records = self.shared.dir.records();
                        let is_pause = |point: &Arc<Point>| {
                            records.join(paused_file_name(&point.id())).exists()
                        };
                        state.begun_at = state.begun_at.take().filter(|point| !is_pause(point));
                        state.sparse = self.keep_history(state.begun_at.as_deref());
                    }
                    // A power failure may bring the former head back.
                    Ok(()) => {}
                    Err(error) => tracing::warn!(%error, "former layers of the disk are kept"),
                }
            }
            Err(error) => {
                tracing::error!(error = %crate::error_chain::chain(&error), "the head was not moved");
                self.unpin(&record_name, &pinned_before);
                self.abort(state);
            }
        }
        Ok(())
    }
}

/// What dead sessions left in the store and nobody could remove.
fn warnings_of(store: &Store) -> Vec<String> {
    let leftovers = store.leftovers().iter().take(MAX_WARNINGS);
    let warn = |left: &Leftover| {
        format!(
            "{} is left of a command that was killed: {}",
            crate::error_chain::place(&left.path),
            crate::error_chain::chain(&left.error)
        )
    };
    leftovers.map(warn).collect()
}

fn to_records(states: Vec<UnitState>) -> Vec<StateRecord> {
    let record =
        |state: UnitState| StateRecord::new(&state.unit, &state.kind, state.version, state.bytes);
    states.into_iter().map(record).collect()
}
