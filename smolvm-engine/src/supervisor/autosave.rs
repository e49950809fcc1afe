//! Saves that are on the machine's schedule.

use std::sync::Arc;
use std::time::Duration;

use super::checkpoint::{CheckpointError, checkpoint_if_changed, compact_packs};
use super::run::unix_now;
use super::shared::{Live, Shared};
use crate::channel::control::{AutosaveNote, AutosaveOutcome, CheckpointRequest};
use crate::error_chain::chain;
use crate::machine::{AutosaveSchedule, MachineFile};

/// How often a machine without a schedule is looked at; it is told when it gets one.
const LOOK: Duration = Duration::from_secs(3600);

/// Saves the machine on its schedule until it ends.
pub(super) fn spawn(shared: &Arc<Shared>) {
    let shared = shared.clone();
    let spawned = std::thread::Builder::new()
        .name("autosave".to_owned())
        .spawn(move || follow(&shared));
    if let Err(error) = spawned {
        tracing::error!(%error, "the machine is not saved on its schedule");
    }
}

fn follow(shared: &Arc<Shared>) {
    while !shared.has_ended() {
        let set = shared.autosaves_set();
        let schedule = schedule(shared);
        let pause = schedule.map_or(LOOK, |schedule| Duration::from_secs(schedule.every_seconds));
        let over = |live: &Live| live.end.is_some() || live.autosaves_set != set;
        if !shared.wait(pause, over) && schedule.is_some() {
            look(shared);
        }
    }
}

fn schedule(shared: &Shared) -> Option<AutosaveSchedule> {
    match shared.dir.read() {
        Ok(machine) => machine?.autosave,
        Err(error) => {
            tracing::warn!(error = %chain(&error), "the schedule of saves cannot be read");
            None
        }
    }
}

/// Saves the machine if it changed, and notes what became of that.
fn look(shared: &Arc<Shared>) {
    // A guest that is being set up is no state to go back to.
    if !shared.is_ready() && shared.trouble().is_none() {
        return;
    }
    let _saving = shared.begin_save();
    let outcome = match save(shared) {
        Ok(Some(id)) => AutosaveOutcome::Saved(id),
        Ok(None) => AutosaveOutcome::Unchanged,
        // Both are no fault: the end is told elsewhere, an undo leaves nothing to be saved.
        Err(CheckpointError::Ended | CheckpointError::Undone) => return,
        Err(error) => {
            let error = chain(&error);
            tracing::warn!(%error, "the machine was not saved on its schedule");
            AutosaveOutcome::Failed(error)
        }
    };
    compact_packs(shared);
    let unix = unix_now();
    shared.change(|live| live.autosave = Some(AutosaveNote { unix, outcome }));
}

/// The full id of the new point; none where nothing changed.
fn save(shared: &Shared) -> Result<Option<String>, CheckpointError> {
    let machine = shared.dir.read()?.ok_or(CheckpointError::Ended)?;
    let request = request(shared, machine);
    let saved = checkpoint_if_changed(shared, &request, &|_, _, _| true)?;
    Ok(saved.map(|done| done.id))
}

fn request(shared: &Shared, machine: MachineFile) -> CheckpointRequest {
    CheckpointRequest {
        store: machine
            .store
            .unwrap_or_else(|| shared.default_store.clone()),
        output: None,
        history: machine.history,
        message: String::new(),
        autosave: true,
    }
}
