//! Whether anything changed since a machine was saved.

use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime};

use agent_protocol::message::Activity;

use super::CaptureState;
use crate::supervisor::shared::Shared;

/// How long the guest may take to say what has run in it.
pub(super) const ASK_PATIENCE: Duration = Duration::from_secs(2);

/// What a machine was when its head was saved.
pub(in crate::supervisor) struct Quiet {
    /// What had run in the guest just before the instant: what ran in between counts as a change.
    activity: Activity,
    /// The layer that takes the writes since.
    top: String,
    /// That layer when it was empty.
    empty: LayerStamp,
}

impl Quiet {
    pub(super) fn new(
        activity: Option<Activity>,
        top: Option<String>,
        empty: Option<LayerStamp>,
    ) -> Option<Self> {
        Some(Self {
            activity: activity?,
            top: top?,
            empty: empty?,
        })
    }
}

/// What the host knows of a layer's file: another one after any write to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct LayerStamp {
    modified: SystemTime,
    blocks: u64,
}

impl LayerStamp {
    /// `None` where the host does not say.
    pub(super) fn of(shared: &Shared, layer: &str) -> Option<Self> {
        use std::os::unix::fs::MetadataExt;
        let file = std::fs::metadata(shared.dir.disk().join(layer)).ok()?;
        Some(Self {
            modified: file.modified().ok()?,
            blocks: file.blocks(),
        })
    }
}

/// Whether the machine is what it was at its head: nothing was written to its disk, and nothing ran but its agent and the
/// kernel's own threads. A guest that does not say so counts as changed.
pub(super) fn is_unchanged(shared: &Shared, state: &CaptureState) -> bool {
    let Some(quiet) = &state.quiet else {
        return false;
    };
    if shared.rebooted.load(Ordering::SeqCst) || state.vmm_top.as_ref() != Some(&quiet.top) {
        return false;
    }
    // Syncs first: what waits in the guest's page cache is a change of the disk.
    let report = shared.sync_guest(ASK_PATIENCE);
    let activity = report.filter(|report| report.written);
    let activity = activity.and_then(|report| report.activity);
    activity == Some(quiet.activity) && LayerStamp::of(shared, &quiet.top) == Some(quiet.empty)
}
