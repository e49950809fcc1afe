//! The first start of a machine from an image: it goes on at a booted point of its kind, or boots and leaves one behind.

use std::sync::Arc;
use std::time::Instant;

use super::checkpoint::{CheckpointError, freeze_booted};
use super::shared::Shared;
use crate::channel::branch::Alone;
use crate::error_chain::chain;
use crate::home::Home;
use crate::machine::{BootedStart, MachineDir, MachineFile, RecordedState};
use crate::phase::Phase;
use crate::restore::{BootedCache, BootedKind, BootedPoint, take_back};

/// How much nicer the threads are that make a booted point than the guest's vCPUs.
const NICENESS: i32 = 10;

/// How booted points bear on a start.
pub(super) enum Booted {
    /// Not at all.
    Unused,
    /// There is one.
    Found(BootedCache, Box<BootedPoint>),
    /// There is none: this boot makes one.
    Missing(Making),
}

/// A booted point that is to be made.
pub(super) struct Making {
    pub(super) cache: BootedCache,
    pub(super) key: String,
}

impl Booted {
    /// Looks for the booted point of a machine that starts so.
    pub(super) fn look(home: &Home, kind: &BootedKind<'_>, alone: Alone) -> Self {
        let Some(key) = kind
            .key()
            .filter(|_| alone.booted_points && is_untouched(kind.machine))
        else {
            return Self::Unused;
        };
        let cache = BootedCache::new(home);
        cache.tidy();
        match cache.find(&key, kind) {
            Some(_) if alone.cold => Self::Unused,
            Some(point) => Self::Found(cache, Box::new(point)),
            None => Self::Missing(Making { cache, key }),
        }
    }
}

/// Whether the machine is as it was made.
fn is_untouched(machine: &MachineFile) -> bool {
    machine.state == RecordedState::Created
        && machine.starts == 0
        && machine.restore.is_none()
        && machine.head.is_none()
        && machine.branched_from.is_none()
}

/// A machine that goes on at a booted point, if it can.
pub(super) struct AtBooted {
    cache: BootedCache,
    /// The machine as it is then.
    pub(super) machine: MachineFile,
    pub(super) start: BootedStart,
}

impl AtBooted {
    /// Puts the point into the machine's directory; `None` where that fails, and the machine boots.
    pub(super) fn place(
        dir: &MachineDir,
        machine: &MachineFile,
        cache: BootedCache,
        point: &BootedPoint,
    ) -> Option<Self> {
        let mut at = machine.clone();
        match point.place(dir, &mut at) {
            Ok(start) => {
                Phase::BootedPlaced.reached();
                Some(Self {
                    cache,
                    machine: at,
                    start,
                })
            }
            Err(error) => {
                tracing::warn!(error = %chain(&error), "a booted point is not used, the machine boots");
                cache.remove(point.key());
                None
            }
        }
    }

    /// Gives the point up, which was tried in vain. The machine is as it was.
    pub(super) fn give_up(self, dir: &MachineDir, why: &dyn std::error::Error) {
        tracing::warn!(error = %chain(why), "a booted point cannot be used, the machine boots");
        take_back(dir, &self.machine, &self.start);
        self.cache.remove(&self.start.entry);
    }
}

/// Takes the instant of a booted guest that nobody works in yet, and makes the point of it in the background. What fails here
/// costs nothing but the point.
pub(super) fn leave_behind(shared: &Arc<Shared>, making: Making) {
    let begin = Instant::now();
    let frozen = match freeze_booted(shared) {
        Ok(frozen) => frozen,
        Err(error @ CheckpointError::Busy) => {
            return tracing::info!(%error, "no booted point is made");
        }
        Err(error) => {
            return tracing::warn!(error = %chain(&error), "no booted point is made");
        }
    };
    tracing::debug!(took = ?begin.elapsed(), "a booted guest is frozen");
    Phase::BootedFrozen.reached();
    // The process ends after it.
    let (shared, working) = (shared.clone(), shared.begin_command());
    let spawned = std::thread::Builder::new()
        .name("booted".to_owned())
        .spawn(move || {
            if let Err(error) = rustix::process::nice(NICENESS) {
                tracing::debug!(%error, "a booted point is made at the guest's own priority");
            }
            match frozen.store(&shared, &making) {
                Ok(()) => tracing::info!("a booted point was made"),
                Err(error) if shared.has_ended() => {
                    tracing::info!(error = %chain(&error), "no booted point is made");
                }
                Err(error) => {
                    tracing::warn!(error = %chain(&error), "no booted point is made");
                }
            }
            drop(working);
        });
    if let Err(error) = spawned {
        tracing::warn!(%error, "no booted point is made");
    }
}
