//! How a machine ended, in its file.

use super::run::StartError;
use super::shared::Shared;
use crate::channel::messages::EndReason;
use crate::error_chain::chain;
use crate::machine::{MachineDir, MachineFile, RecordedState};

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
    let state = match shared.verdict() {
        Some(reason) => RecordedState::Failed { reason },
        None => state,
    };
    let record = |machine: &mut MachineFile| {
        // It is saved: its end is none of the machine's.
        if matches!(machine.state, RecordedState::Paused { .. }) {
            return;
        }
        machine.state = match state {
            RecordedState::Damaged { reason } => damage(machine, &reason),
            state => state,
        };
    };
    if let Err(error) = shared.dir.change(record).visible() {
        tracing::error!(error = %chain(&error), "the machine's end is not recorded");
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
pub(super) fn damaged(dir: &MachineDir, reason: &str) -> StartError {
    let mut told = reason.to_owned();
    let change = dir.change(|machine| {
        machine.state = damage(machine, reason);
        if let RecordedState::Damaged { reason } = &machine.state {
            told.clone_from(reason);
        }
    });
    match change.visible() {
        Ok(_) => StartError::Damaged(told),
        Err(error) => error.into(),
    }
}
