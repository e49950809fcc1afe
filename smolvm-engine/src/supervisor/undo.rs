//! A machine that runs is left for a point: its state is kept if that is wanted, then it ends.

use std::sync::Arc;
use std::time::Duration;

use super::checkpoint::{CheckpointError, OnProgress, checkpoint};
use super::shared::Shared;
use crate::channel::control::{UndoAnswer, UndoRequest};
use crate::phase::Phase;

/// How long the end of a VMM may take to be noted after a capture failed by it.
const END_PATIENCE: Duration = Duration::from_secs(1);

/// Keeps the state if asked to, and ends the machine.
///
/// # Errors
///
/// The state could not be kept although CPU and memory are there: the machine runs on then.
pub(super) fn undo(
    shared: &Arc<Shared>,
    request: &UndoRequest,
    progress: OnProgress<'_>,
) -> Result<UndoAnswer, CheckpointError> {
    let mut answer = UndoAnswer {
        kept: None,
        lost: None,
    };
    if let Some(keep) = &request.keep {
        match checkpoint(shared, keep, progress) {
            Ok(done) => answer.kept = Some(done),
            Err(error) if shared.wait_end(END_PATIENCE) => {
                tracing::info!(%error, "the state cannot be kept");
                answer.lost = Some("it ended before it was saved".to_owned());
            }
            Err(error) => return Err(error),
        }
    }
    Phase::StateKept.reached();
    shared.quit_vmm();
    shared.wait_finished();
    Ok(answer)
}
