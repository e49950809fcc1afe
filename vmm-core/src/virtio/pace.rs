//! When a device does its work.

use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use crate::schedule::{Schedule, WorkId};

/// Instructions between a request of the driver and its being carried out, in a machine whose time is
/// the count of instructions. About what a fast device takes at one instruction per nanosecond.
const LATENCY: u64 = 20_000;

/// When a device does its work, and what time it goes by.
pub(super) enum Pace {
    /// Worker threads do it as soon as they can; time is the host's, from this moment.
    Threads(Instant),
    /// The machine's schedule has it done at an instruction count.
    Counted {
        schedule: Arc<Schedule>,
        /// The device's place in it.
        work: OnceLock<WorkId>,
    },
}

impl std::fmt::Debug for Pace {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Threads(_) => "Threads",
            Self::Counted { .. } => "Counted",
        })
    }
}

impl Pace {
    pub(super) fn new(schedule: Option<Arc<Schedule>>) -> Self {
        match schedule {
            Some(schedule) => Self::Counted {
                schedule,
                work: OnceLock::new(),
            },
            None => Self::Threads(Instant::now()),
        }
    }

    /// Time since some moment of the past; it never goes back.
    pub(super) fn now(&self) -> Duration {
        match self {
            Self::Threads(since) => since.elapsed(),
            Self::Counted { schedule, .. } => schedule.now(),
        }
    }

    /// Whether worker threads do the work.
    pub(super) fn has_threads(&self) -> bool {
        matches!(self, Self::Threads(_))
    }

    /// Puts the device's work into the schedule.
    pub(super) fn set_work(&self, make: impl FnOnce() -> Box<dyn Fn() + Send + Sync>) {
        if let Self::Counted { schedule, work } = self {
            work.get_or_init(|| schedule.add(make()));
        }
    }

    fn planned(&self) -> Option<(&Schedule, WorkId)> {
        match self {
            Self::Counted { schedule, work } => Some((schedule, *work.get()?)),
            Self::Threads(_) => None,
        }
    }

    /// The driver asked for something. False: workers have to be woken.
    pub(super) fn plan(&self) -> bool {
        if let Some((schedule, work)) = self.planned() {
            schedule.plan_in(work, LATENCY);
        }
        !self.has_threads()
    }

    /// The host did something while no vCPU ran.
    pub(super) fn plan_now(&self) {
        if let Some((schedule, work)) = self.planned() {
            schedule.plan_in(work, 0);
        }
    }

    /// The device has to look again at `time`; a worker waits for that by itself.
    pub(super) fn plan_at(&self, time: Duration) {
        if let Some((schedule, work)) = self.planned() {
            schedule.plan(work, schedule.count_at(time));
        }
    }
}
