//! How a machine ended, in its file.

use super::run::StartError;
use super::shared::Shared;
use crate::channel::messages::EndReason;
use crate::machine::{MachineDir, MachineDirError, MachineFile, RecordedState};

/// Digits of an id that a message shows.
const SHORT_ID_DIGITS: usize = 12;

/// Records the end of a run.
pub(super) fn record_end(shared: &Shared, reason: &EndReason) {
    let state = match reason {
        EndReason::PowerOff | EndReason::Asked => RecordedState::Stopped,
        EndReason::Panic(reason) => RecordedState::Failed {
            reason: format!("kernel panic: {reason}"),
        },
        EndReason::Crashed(reason) => RecordedState::Failed {
            reason: reason.clone(),
        },
        // Whose it is only the machine's file says.
        EndReason::Damaged(reason) => RecordedState::Damaged {
            reason: reason.clone(),
        },
    };
    let record = |machine: &mut MachineFile| {
        machine.state = match state {
            RecordedState::Damaged { reason } => damage(machine, &reason),
            state => state,
        };
    };
    if let Err(error) = change_file(&shared.dir, record) {
        tracing::error!(%error, "the machine's end is not recorded");
    }
}

/// The state of a machine that has lost a chunk.
fn damage(machine: &MachineFile, reason: &str) -> RecordedState {
    let reason = match machine
        .head
        .as_ref()
        .and_then(|head| head.get(..SHORT_ID_DIGITS))
    {
        Some(point) => format!("{reason}, needed by point {point}"),
        None => format!("{reason}, needed by its image"),
    };
    RecordedState::Damaged { reason }
}

/// Records that the machine cannot start for want of a chunk.
pub(super) fn damaged(dir: &MachineDir, mut machine: MachineFile, reason: &str) -> StartError {
    let state = damage(&machine, reason);
    let RecordedState::Damaged { reason } = &state else {
        return StartError::Vmm(reason.to_owned());
    };
    let error = StartError::Damaged(reason.clone());
    machine.state = state;
    match dir.write(&machine) {
        Ok(()) => error,
        Err(error) => error.into(),
    }
}

/// Changes the machine's file, if there is one.
pub(super) fn change_file(
    dir: &MachineDir,
    change: impl FnOnce(&mut MachineFile),
) -> Result<(), MachineDirError> {
    if let Some(mut machine) = dir.read()? {
        change(&mut machine);
        dir.write(&machine)?;
    }
    Ok(())
}
