//! Saves that are on the machine's schedule.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use cas_store::{PointId, Store};
use snapshot_format::{CheckpointId, LineageEntry};

use super::checkpoint::{CheckpointError, checkpoint_if_changed, compact_packs};
use super::run::unix_now;
use super::shared::{Live, Shared};
use crate::channel::control::{AutosaveNote, AutosaveOutcome, CheckpointRequest};
use crate::error_chain::chain;
use crate::machine::{AutosaveSchedule, MachineFile};
use crate::point::{PointError, StoreLog, Thoroughness, prune};
use crate::retention::Retention;

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
    let saving = shared.begin_save();
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
    let is_saved = matches!(outcome, AutosaveOutcome::Saved(_));
    shared.change(|live| live.autosave = Some(AutosaveNote { unix, outcome }));
    // Whoever waits for the save need not wait for this: what is cut off here is ended after the next one.
    drop(saving);
    if is_saved && let Err(error) = thin_out(shared) {
        tracing::warn!(error = %chain(&error), "autosaves that are not to be kept stay");
    }
}

/// Gives up the autosaves that the schedule does not keep, and the data that nothing else needs.
fn thin_out(shared: &Shared) -> Result<(), CheckpointError> {
    let machine = shared.dir.read()?.ok_or(CheckpointError::Ended)?;
    let keep = machine.autosave.map(|schedule| schedule.keep);
    let (Some(keep), Some(head)) = (keep.filter(|keep| !keep.is_empty()), &machine.head) else {
        return Ok(());
    };
    let head: CheckpointId = head.parse().map_err(PointError::Id)?;
    let store = Store::open(store_of(shared, &machine))?;
    let log = StoreLog::read(&store)?;
    let given_up = superfluous(&log, &head, &|name| machine.is_or_was(name), &keep);
    if given_up.is_empty() {
        return Ok(());
    }
    let done = prune(&store, given_up, Thoroughness::Cheap, false)?;
    let (points, freed_bytes) = (done.given_up.len(), done.freed_bytes());
    tracing::info!(points, freed_bytes, "autosaves were given up");
    Ok(())
}

/// The autosaves of the machine's own history that the rule does not keep. The head is none of them.
fn superfluous(
    log: &StoreLog,
    head: &CheckpointId,
    is_own_name: &dyn Fn(&str) -> bool,
    keep: &Retention,
) -> Vec<PointId> {
    // A machine of another time or home may have had the name.
    let family = log.family(head);
    let of_machine = |line: &LineageEntry| line.autosave && is_own_name(&line.machine);
    let mut autosaves = log.kept();
    autosaves.retain(|line| of_machine(line) && family.contains(&line.id));
    let taken: Vec<u64> = autosaves.iter().map(|line| line.taken.seconds).collect();
    let judged = autosaves.iter().zip(keep.judge(&taken));
    judged
        .filter(|(line, rules)| rules.is_empty() && line.id != *head)
        .map(|(line, _)| PointId(line.id.0))
        .collect()
}

/// The full id of the new point; none where nothing changed.
fn save(shared: &Shared) -> Result<Option<String>, CheckpointError> {
    let machine = shared.dir.read()?.ok_or(CheckpointError::Ended)?;
    let request = request(shared, machine);
    let saved = checkpoint_if_changed(shared, &request, &|_, _, _| true)?;
    Ok(saved.map(|done| done.id))
}

/// The store that it was last saved into, else the default one.
fn store_of(shared: &Shared, machine: &MachineFile) -> PathBuf {
    let last = machine.store.clone();
    last.unwrap_or_else(|| shared.default_store.clone())
}

fn request(shared: &Shared, machine: MachineFile) -> CheckpointRequest {
    CheckpointRequest {
        store: store_of(shared, &machine),
        output: None,
        history: machine.history,
        message: String::new(),
        autosave: true,
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;

    use snapshot_format::WallTime;

    use super::*;

    #[test]
    fn only_autosaves_of_the_machine_s_own_history_go_and_never_its_head() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(folder.path()).unwrap();
        let put = |number: u8, parent: Option<u8>, machine: &str, autosave: bool, kept: bool| {
            let id = |number| CheckpointId([number; 32]);
            let line = LineageEntry {
                id: id(number),
                parent: parent.map(id),
                taken: WallTime::new(u64::from(number) * 10, 0).unwrap(),
                machine: machine.to_owned(),
                message: String::new(),
                data_bytes: 0,
                autosave,
            };
            let point = PointId([number; 32]);
            store.put_point(&point, b"record", &line.to_line()).unwrap();
            if !kept {
                store.remove_point(&point).unwrap();
            }
        };
        // A machine of former times, with the same name.
        put(1, None, "m", true, true);
        put(2, Some(1), "m", true, true);
        // Its own: one that was asked for, one that is gone, a fork, and one of another name.
        put(10, None, "m", false, true);
        put(11, Some(10), "m", true, true);
        put(12, Some(11), "m", true, false);
        put(13, Some(12), "m", true, true);
        put(14, Some(12), "m", true, true);
        put(15, Some(14), "other", true, true);
        put(16, Some(14), "m", true, true);
        let log = StoreLog::read(&store).unwrap();
        let of = |head: u8, last: u32| -> Vec<u8> {
            let keep = Retention {
                last: NonZeroU32::new(last),
                ..Retention::default()
            };
            let head = CheckpointId([head; 32]);
            let given_up = superfluous(&log, &head, &|name| name == "m", &keep);
            given_up.iter().map(|id| id.0[0]).collect()
        };
        assert_eq!(of(16, 1), [11, 13, 14]);
        assert_eq!(of(16, 2), [11, 13]);
        assert_eq!(of(16, 9), [0_u8; 0]);
        // It went back.
        assert_eq!(of(13, 1), [11, 14]);
        assert_eq!(of(10, 1), [11, 13, 14]);
    }
}
