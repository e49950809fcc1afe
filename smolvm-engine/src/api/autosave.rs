//! Saves that are on a machine's schedule.

use std::time::Duration;

use super::Engine;
use super::error::EngineError;
use super::place::own_default_store;
use crate::channel::control::{AutosaveNote, AutosaveOutcome, Control, ControlReply};
use crate::machine::AutosaveSchedule;
use crate::name::MachineName;
use crate::retention::Retention;

/// Bounds of the time between two autosaves.
const EVERY: std::ops::RangeInclusive<Duration> =
    Duration::from_secs(1)..=Duration::from_secs(366 * 24 * 3600);

/// The last autosave of a machine since it was started.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct LastAutosave {
    /// Seconds since 1970.
    pub unix: u64,
    /// The full id of its point; none where nothing had changed, or it failed.
    pub id: Option<String>,
    /// Why it failed, if it did.
    pub failed: Option<String>,
}

impl From<AutosaveNote> for LastAutosave {
    fn from(note: AutosaveNote) -> Self {
        let (id, failed) = match note.outcome {
            AutosaveOutcome::Saved(id) => (Some(id), None),
            AutosaveOutcome::Unchanged => (None, None),
            AutosaveOutcome::Failed(reason) => (None, Some(reason)),
        };
        let unix = note.unix;
        Self { unix, id, failed }
    }
}

impl Engine {
    /// Has a machine saved without being asked, as often as this, whenever it runs and anything changed; `None` ends that.
    ///
    /// After each such save those of its autosaves go that `keep` does not keep: points of this machine's history in the store that it
    /// is saved into. Its head stays, and so does every point that was saved otherwise.
    ///
    /// # Errors
    ///
    /// [`EngineError::Invalid`] where the time is below a second or above a year.
    pub fn set_autosave(
        &self,
        name: &MachineName,
        every: Option<Duration>,
        keep: Retention,
    ) -> Result<(), EngineError> {
        if let Some(every) = every.filter(|every| !EVERY.contains(every)) {
            return Err(EngineError::Invalid {
                what: format!("a machine cannot be saved every {every:?}"),
                hint: Some(format!(
                    "for instance: smolvm machine autosave --name {name} --every 5m"
                )),
            });
        }
        let file = self.read(name)?;
        if every.is_some() {
            own_default_store(&self.last_store(&file), self.home())?;
        }
        let dir = self.dir(name);
        let schedule = every.map(|every| AutosaveSchedule::every(every.as_secs()).keeping(keep));
        dir.change(|machine| machine.autosave = schedule)
            .visible()?;
        if !dir.is_running()? {
            return Ok(());
        }
        match self.control(name, &Control::AutosaveSet) {
            Ok((ControlReply::Done, _)) => Ok(()),
            // It reads its file when it starts.
            _ if !dir.is_running()? => Ok(()),
            Ok((other, _)) => Err(EngineError::Refused {
                name: name.clone(),
                reason: format!("unexpected answer {other:?}"),
                hint: None,
            }),
            Err(error) => Err(error),
        }
    }
}
