use std::sync::{Arc, Weak};

use super::running::{Events, MachineEvent};
use crate::schedule::{Schedule, WorkId};

/// Stops a deterministic machine at an instruction count.
pub(super) struct StopAt {
    schedule: Arc<Schedule>,
    work: WorkId,
}

impl StopAt {
    /// Enters the stop into the schedule. Made before the devices, it comes before their work of the
    /// same count.
    pub(super) fn new(schedule: Arc<Schedule>, events: &Arc<Events>) -> Self {
        let events = Arc::downgrade(events);
        let stop = move || {
            if let Some(events) = Weak::upgrade(&events) {
                events.report(MachineEvent::CountReached);
            }
        };
        let work = schedule.add(Box::new(stop));
        Self { schedule, work }
    }

    pub(super) fn plan(&self, count: u64) {
        self.schedule.plan(self.work, count);
    }

    pub(super) fn cancel(&self) {
        self.schedule.cancel(self.work);
    }

    pub(super) fn count(&self) -> u64 {
        self.schedule.count()
    }
}
