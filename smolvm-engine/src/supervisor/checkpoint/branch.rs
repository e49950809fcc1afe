//! Letting other machines go on from a running one: memory is frozen and handed over, the disk's layers are linked.

use std::path::Path;
use std::sync::PoisonError;
use std::sync::atomic::Ordering;

use super::dialogue::Moment;
use super::{
    Beside, CaptureState, Capturing, CheckpointError, OnProgress, Run, SharedMemory, save,
};
use crate::channel::branch::{BranchDone, BranchRequest, StartAsChild};
use crate::channel::control::CheckpointDone;
use crate::machine::{MachineDir, MachineFile, link_machine};
use crate::phase::Phase;
use crate::supervisor::shared::Shared;

use std::os::fd::OwnedFd;

/// What the children begin with.
pub(crate) struct Branched {
    /// Their directories are filled with this.
    pub(crate) done: BranchDone,
    /// See [`crate::channel::capture::CaptureEvent::Shared`].
    pub(crate) descriptors: Vec<OwnedFd>,
}

/// Freezes the machine, which runs on, and fills the directories of its children.
///
/// # Errors
///
/// The machine runs on; what is in the directories is of no use.
pub(crate) fn branch(
    shared: &Shared,
    request: &BranchRequest,
    progress: OnProgress<'_>,
) -> Result<Branched, CheckpointError> {
    let mut state = shared
        .capture
        .lock()
        .unwrap_or_else(PoisonError::into_inner);
    if !shared.branchable {
        return Err(CheckpointError::Untracked);
    }
    let mut memory = None;
    let (saved, pause_micros) = match &request.checkpoint {
        None => (None, share(shared, progress, &mut state, &mut memory)?),
        Some(checkpoint) => {
            let beside = Beside::Sharing(&mut memory);
            let saved = save(shared, checkpoint, progress, &mut state, beside)?;
            let pause_micros = saved.pause_micros;
            (Some(saved), pause_micros)
        }
    };
    let handed_on = hand_on(shared, request, &state, memory, saved.as_ref());
    let (machine, base, descriptors) = handed_on.map_err(|error| match &saved {
        None => error,
        Some(saved) => CheckpointError::OnlySaved {
            saved: match &saved.output {
                Some(output) => format!("{} ({})", output.display(), saved.short_id),
                None => saved.short_id.clone(),
            },
            source: Box::new(error),
        },
    })?;
    Ok(Branched {
        done: BranchDone {
            machine,
            vcpus: shared.vcpus,
            cpu: shared.cpu.clone(),
            child: StartAsChild {
                base,
                interpret: shared.interpret,
            },
            pause_micros,
            saved,
        },
        descriptors,
    })
}

/// Fills the children's directories; returns the machine as it is in them, the point that their memory is compared with, and
/// what they begin with.
fn hand_on(
    shared: &Shared,
    request: &BranchRequest,
    state: &CaptureState,
    memory: Option<SharedMemory>,
    saved: Option<&CheckpointDone>,
) -> Result<(MachineFile, Option<String>, Vec<OwnedFd>), CheckpointError> {
    let nothing = || CheckpointError::Vmm("it shared nothing".to_owned());
    let SharedMemory {
        descriptors,
        booted,
    } = memory.ok_or_else(nothing)?;
    Phase::BranchFrozen.reached();
    // With a point of this instant nothing counts as written since, but only if it is the head.
    let is_base = |id: &String| saved.is_none_or(|saved| saved.id == *id);
    let base = state.base.as_ref().map(|base| base.id().to_string());
    let base = base.filter(|id| !booted && is_base(id));
    let machine = shared.dir.read()?.ok_or(CheckpointError::Ended)?;
    let machine = as_of(machine, state.vmm_top.as_deref())?;
    for child in &request.children {
        link_child(&shared.dir, &machine, child)?;
    }
    Phase::BranchLinked.reached();
    Ok((machine, base, descriptors))
}

/// Freezes memory and disk; returns how long the machine stood still, in microseconds.
fn share(
    shared: &Shared,
    progress: OnProgress<'_>,
    state: &mut CaptureState,
    memory: &mut Option<SharedMemory>,
) -> Result<u64, CheckpointError> {
    if shared.has_ended() {
        return Err(CheckpointError::Ended);
    }
    if shared.rebooted.load(Ordering::SeqCst) {
        state.base = None;
    }
    let mut run = Run::new(shared);
    let shared = run.share(state, false, progress);
    let shared = shared.inspect_err(|_| run.abort(state));
    run.note_top(state);
    *memory = run.memory.take();
    Ok(shared?.pause_micros)
}

impl Run<'_> {
    pub(super) fn share(
        &mut self,
        state: &CaptureState,
        once: bool,
        progress: OnProgress<'_>,
    ) -> Result<Moment, CheckpointError> {
        let mut machine = self.add_layer()?;
        self.added_layer = machine.disk.layers.last().cloned();
        self.add_merged(state, &mut machine)?;
        let how = Capturing {
            full: false,
            stay: false,
            share: true,
            once,
        };
        self.receive(&mut machine, how, None, progress)
    }
}

/// The machine with the disk as it was when `top` became its top.
pub(super) fn as_of(
    mut machine: MachineFile,
    top: Option<&str>,
) -> Result<MachineFile, CheckpointError> {
    let at = machine
        .disk
        .layers
        .iter()
        .position(|layer| Some(layer.as_str()) == top);
    let at = at.ok_or_else(|| CheckpointError::Vmm("the disk's layers are unknown".to_owned()))?;
    machine.disk.layers.truncate(at);
    let own = format!("layer-{}", machine.disk.next);
    machine.disk.layers.push(own);
    machine.disk.next += 1;
    Ok(machine)
}

/// Puts all that a child needs into its directory.
fn link_child(
    dir: &MachineDir,
    machine: &MachineFile,
    child: &Path,
) -> Result<(), CheckpointError> {
    let child = MachineDir::new(child.to_owned());
    Ok(link_machine(dir, machine, &child)?)
}
