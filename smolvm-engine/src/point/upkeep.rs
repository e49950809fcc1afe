//! Giving points of a store up, and the room that only they needed.

use cas_store::{PointId, PruneOptions, PruneReport, PruneStep, RepackOptions, Store, StoreError};

use crate::machine::ChunksOf;
use crate::phase::Phase;

/// Part of a pack, in percent, that nobody needs any more and for which the rest is written anew.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Thoroughness {
    /// Nobody waits, and it may happen often.
    Cheap,
    /// Room is asked for: at most a tenth of what is left is of no use.
    Thorough,
}

/// Gives up points of a store, and the data that nobody needs.
pub(crate) fn prune(
    store: &Store,
    give_up: Vec<PointId>,
    thoroughness: Thoroughness,
    dry_run: bool,
) -> Result<PruneReport, StoreError> {
    let dead_percent = match thoroughness {
        Thoroughness::Cheap => 50,
        Thoroughness::Thorough => 10,
    };
    let options = PruneOptions {
        give_up,
        repack: RepackOptions {
            dead_percent,
            ..RepackOptions::default()
        },
        dry_run,
    };
    store.prune(&ChunksOf(store.chunks()), &options, &mut |step| {
        let phase = match step {
            PruneStep::PointsGone => Phase::PointsGivenUp,
            PruneStep::PacksSwept => Phase::PacksSwept,
            PruneStep::PacksWritten => Phase::PacksRewritten,
            PruneStep::DirectoriesChanged => Phase::DirectoriesRelinked,
            PruneStep::PacksReplaced => Phase::PacksReplaced,
            _ => return,
        };
        phase.reached();
    })
}
