//! A machine is saved into its own directory and ends. It stands from the instant on: the disk does not move on after it.
//!
//! Order: the capture, as for a checkpoint, into a store of its own in the machine's directory; its packs and its record become
//! the machine's; `machine.json` is made to say that the machine is paused, which decides it; the VMM ends. Whatever fails before
//! that leaves a machine that runs on, whatever is killed before it one whose processes were killed. Afterwards it is paused.

use std::sync::PoisonError;
use std::sync::atomic::Ordering;
use std::time::Instant;

use cas_store::{Capture, CaptureOptions, PackSet, SealedCapture, Store};
use snapshot_format::Point;

use super::publication::NewPoint;
use super::{Brought, CaptureState, CheckpointError, Job, OnProgress, Run, SYNC_PATIENCE};
use crate::channel::control::{CheckpointRequest, PauseDone};
use crate::error_chain::chain;
use crate::machine::{Change, DiskFile};
use crate::phase::Phase;
use crate::point::paused_file_name;
use crate::restore::prepare_disk;
use crate::supervisor::run::unix_now;
use crate::supervisor::shared::Shared;
use crate::supervisor::tidy;

/// What a pause left that the machine does not need.
pub(crate) struct Left {
    point: Point,
    /// Files of the disk before; none where a power failure may bring them back into use.
    former: Option<DiskFile>,
}

/// Saves the machine, which has ended when this returns.
///
/// # Errors
///
/// The machine runs on, or has ended by itself.
pub(crate) fn pause(
    shared: &Shared,
    progress: OnProgress<'_>,
) -> Result<(PauseDone, Left), CheckpointError> {
    let mut state = shared
        .capture
        .lock()
        .unwrap_or_else(PoisonError::into_inner);
    let begin = Instant::now();
    if shared.has_ended() {
        return Err(CheckpointError::Ended);
    }
    if shared.rebooted.swap(false, Ordering::SeqCst) {
        state.base = None;
    }
    state.quiet = None;
    let again = state.base.is_some();
    match pause_once(shared, progress, begin, &mut state) {
        // As for a save: the guest has what its packs have lost.
        Err(error) if again && error.is_loss() => {
            tracing::warn!(error = %chain(&error), "all of memory is saved");
            state.base = None;
            state.damaged = true;
            pause_once(shared, progress, begin, &mut state)
        }
        result => result,
    }
}

fn pause_once(
    shared: &Shared,
    progress: OnProgress<'_>,
    begin: Instant,
    state: &mut CaptureState,
) -> Result<(PauseDone, Left), CheckpointError> {
    tidy::remove_pause_store(&shared.dir)?;
    let store = Store::open(shared.dir.pause_store())?;
    let _sink = Sink { shared };
    let capture = store.begin_capture(CaptureOptions::default())?;
    Phase::CaptureBegun.reached();
    let synced = shared.sync_guest(SYNC_PATIENCE);
    let mut run = Run {
        processes: synced.map(|report| report.processes),
        ..Run::new(shared)
    };
    let machine_packs = PackSet::open([shared.dir.packs()]);
    let request = CheckpointRequest {
        store: shared.dir.pause_store(),
        output: None,
        history: 0,
        message: String::new(),
        autosave: false,
    };
    let job = Job {
        store: &store,
        machine_packs: &machine_packs,
        request: &request,
        progress,
        begin,
        pauses: true,
    };
    let paused = run.pause(state, capture, &job);
    match paused {
        Ok(done) => {
            // The capture's socket is open until the VMM is gone: closed before, the machine would run on.
            shared.quit_vmm();
            shared.wait_finished();
            Phase::PauseEnded.reached();
            Ok(done)
        }
        Err(error) => {
            run.abort(state);
            run.note_top(state);
            Err(error)
        }
    }
}

/// Takes the store of a pause away; what the machine needs of it has other names by then.
struct Sink<'a> {
    shared: &'a Shared,
}

impl Drop for Sink<'_> {
    fn drop(&mut self) {
        if let Err(error) = tidy::remove_pause_store(&self.shared.dir) {
            tracing::warn!(error = %chain(&error), "the store of a pause is left for the next start");
        }
    }
}

impl Run<'_> {
    fn pause(
        &mut self,
        state: &mut CaptureState,
        capture: Capture,
        job: &Job<'_>,
    ) -> Result<(PauseDone, Left), CheckpointError> {
        let brought = self.bring(state, &capture, job, None)?;
        let sealed = capture.seal()?;
        Phase::PacksSealed.reached();
        let record_name = paused_file_name(&brought.point.id());
        let pinned_before = self.pinned_packs()?;
        let new = NewPoint {
            point: &brought.point,
            record: &brought.bytes,
            chunks: &brought.ids,
            sealed: &sealed,
        };
        let decided = self
            .pin_into_machine(
                &new,
                &record_name,
                (!state.damaged).then_some(job.machine_packs),
            )
            .and_then(|()| self.decide(&brought.point));
        match decided {
            Ok(former) => Ok(told(brought, former, &sealed, job)),
            Err(error) => {
                self.unpin(&record_name, &pinned_before);
                Err(error)
            }
        }
    }

    /// Makes the machine's file say that the machine is paused. Returns the files of the disk before.
    fn decide(&self, point: &Point) -> Result<Option<DiskFile>, CheckpointError> {
        let dir = &self.shared.dir;
        let disk = prepare_disk(dir, point)?;
        let mut former = None;
        let change = dir.change(|machine| {
            former = Some(machine.disk.clone());
            disk.put_pause_into(machine, point, unix_now());
        });
        disk.settle(&change);
        let durable = matches!(change, Change::Done(_));
        change.visible()?;
        Phase::PauseDecided.reached();
        Ok(former.filter(|_| durable))
    }
}

fn told(
    brought: Brought,
    former: Option<DiskFile>,
    sealed: &SealedCapture,
    job: &Job<'_>,
) -> (PauseDone, Left) {
    let point = brought.point;
    let done = PauseDone {
        saved_micros: u64::try_from(job.begin.elapsed().as_micros()).unwrap_or(u64::MAX),
        written_bytes: sealed.stats().written_bytes,
        data_bytes: point.record().data_bytes,
    };
    (done, Left { point, former })
}

/// Takes away what the machine does not need now that it is paused. What is killed in between costs room only.
pub(crate) fn tidy_paused(shared: &Shared, left: Left) {
    let Left { point, former } = left;
    let Some(former) = former else {
        return;
    };
    for name in former.layers.iter().chain([&former.base]) {
        if let Err(error) = std::fs::remove_file(shared.dir.disk().join(name)) {
            tracing::warn!(%name, %error, "a former file of the disk was not removed");
        }
    }
    let machine = match shared.dir.read() {
        Ok(Some(machine)) => machine,
        Ok(None) => return,
        Err(error) => return tracing::warn!(%error, "packs are not compacted"),
    };
    let kept = tidy::keep_history(&shared.dir, &machine, Some(&point)).and_then(|kept| {
        if kept.is_sparse() {
            let done = tidy::compact(&shared.dir, &machine, Some(&point), &|| true)?;
            tracing::info!(?done, "packs were compacted");
        }
        Ok(())
    });
    if let Err(error) = kept {
        tracing::warn!(error = %chain(&error), "what the machine does not need is kept");
    }
}
