//! Time as a count of instructions, and what happens at which count: the deterministic form of a
//! machine.
//!
//! A backend that has an [`InstructionClock`] runs one vCPU at a time in a fixed order, and takes all
//! time from the number of instructions that were retired. The devices of such a machine have no
//! threads: what a driver asks for is carried out by an [`Agenda`], at a count that follows from the
//! count of the request, on whatever thread runs the vCPU at that moment. Neither the host's clock nor
//! its scheduler has a say, so the same input gives the same machine, instruction by instruction.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

/// A backend's count of retired instructions; the only time of a deterministic machine.
///
/// Time in which all vCPUs wait is jumped over: the count then moves to the next event without
/// instructions.
pub trait InstructionClock: Send + Sync {
    /// Instructions so far, of all vCPUs. Callable from an exit handler (where it says when the access
    /// happened), from an [`Agenda`]'s work, and while no vCPU runs.
    fn count(&self) -> u64;

    /// How many instructions make a second of the guest's time.
    fn per_second(&self) -> u64;

    /// Gives the machine's agenda to the backend, which asks it before each piece of guest code.
    fn follow(&self, agenda: Weak<dyn Agenda>);

    /// The agenda has something earlier than before: a running vCPU asks it again at once.
    fn agenda_changed(&self);
}

/// What is to happen at which instruction count.
pub trait Agenda: Send + Sync {
    /// The count of the earliest work.
    fn next(&self) -> Option<u64>;

    /// Carries out, in a fixed order, all work whose count has come. Called between two instructions,
    /// by a thread that no vCPU runs beside of and that holds no lock.
    fn carry_out(&self, count: u64);
}

/// Work that comes up again and again, such as serving a device.
type Work = Box<dyn Fn() + Send + Sync>;

/// The agenda of a machine: a fixed list of works, each planned at most once at a time.
pub(crate) struct Schedule {
    clock: Arc<dyn crate::hypervisor::Vm>,
    entries: Mutex<Vec<Entry>>,
}

struct Entry {
    at: Option<u64>,
    work: Arc<Work>,
}

/// Names a work of a [`Schedule`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct WorkId(usize);

impl Schedule {
    /// The schedule of a machine over `vm`, if that counts instructions.
    pub(crate) fn new(vm: &Arc<dyn crate::hypervisor::Vm>) -> Option<Arc<Self>> {
        let clock = vm.instruction_clock()?;
        let schedule = Arc::new(Self {
            clock: vm.clone(),
            entries: Mutex::default(),
        });
        let agenda: Arc<dyn Agenda> = schedule.clone();
        clock.follow(Arc::downgrade(&agenda));
        Some(schedule)
    }

    fn entries(&self) -> MutexGuard<'_, Vec<Entry>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a work. Works of the same count are carried out in the order in which they were added.
    pub(crate) fn add(&self, work: Work) -> WorkId {
        let mut entries = self.entries();
        entries.push(Entry {
            at: None,
            work: Arc::new(work),
        });
        WorkId(entries.len() - 1)
    }

    /// Plans a work for a count, or for what it is planned for already if that is earlier.
    pub(crate) fn plan(&self, id: WorkId, at: u64) {
        let mut entries = self.entries();
        let entry = &mut entries[id.0];
        if entry.at.is_some_and(|planned| planned <= at) {
            return;
        }
        entry.at = Some(at);
        drop(entries);
        if let Some(clock) = self.clock.instruction_clock() {
            clock.agenda_changed();
        }
    }

    /// Plans a work `instructions` from now.
    pub(crate) fn plan_in(&self, id: WorkId, instructions: u64) {
        self.plan(id, self.count().saturating_add(instructions));
    }

    /// Takes a plan back.
    pub(crate) fn cancel(&self, id: WorkId) {
        self.entries()[id.0].at = None;
    }

    /// Instructions so far.
    pub(crate) fn count(&self) -> u64 {
        let clock = self.clock.instruction_clock();
        clock.map_or(0, InstructionClock::count)
    }

    fn per_second(&self) -> u128 {
        let clock = self.clock.instruction_clock();
        clock.map_or(1, InstructionClock::per_second).max(1).into()
    }

    /// The guest's time.
    pub(crate) fn now(&self) -> Duration {
        let nanoseconds = u128::from(self.count()) * 1_000_000_000 / self.per_second();
        Duration::from_nanos(u64::try_from(nanoseconds).unwrap_or(u64::MAX))
    }

    /// The first count at which [`now`](Self::now) is `time` or later.
    pub(crate) fn count_at(&self, time: Duration) -> u64 {
        let count = (time.as_nanos() * self.per_second()).div_ceil(1_000_000_000);
        u64::try_from(count).unwrap_or(u64::MAX)
    }

    /// Takes the first work whose count has come.
    fn take_due(&self, count: u64) -> Option<Arc<Work>> {
        let mut entries = self.entries();
        let due = entries
            .iter_mut()
            .filter(|entry| entry.at.is_some_and(|at| at <= count))
            .min_by_key(|entry| entry.at)?;
        due.at = None;
        Some(due.work.clone())
    }
}

impl Agenda for Schedule {
    fn next(&self) -> Option<u64> {
        self.entries().iter().filter_map(|entry| entry.at).min()
    }

    fn carry_out(&self, count: u64) {
        // A work may plan others, itself included, for later.
        while let Some(work) = self.take_due(count) {
            work();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;
    use crate::hypervisor::Vm;

    /// A clock at 2 GHz that is set by hand.
    #[derive(Default)]
    struct Clock {
        count: AtomicU64,
        changes: AtomicU64,
    }

    impl Vm for Clock {
        fn instruction_clock(&self) -> Option<&dyn InstructionClock> {
            Some(self)
        }
    }

    impl InstructionClock for Clock {
        fn count(&self) -> u64 {
            self.count.load(Ordering::SeqCst)
        }
        fn per_second(&self) -> u64 {
            2_000_000_000
        }
        fn follow(&self, _: Weak<dyn Agenda>) {}
        fn agenda_changed(&self) {
            self.changes.fetch_add(1, Ordering::SeqCst);
        }
    }

    #[test]
    fn works_come_in_the_order_of_their_counts_then_of_their_addition() {
        let clock = Arc::new(Clock::default());
        let vm: Arc<dyn Vm> = clock.clone();
        let schedule = Schedule::new(&vm).unwrap();
        let done: Arc<Mutex<Vec<usize>>> = Arc::default();
        let ids: Vec<WorkId> = (0..4)
            .map(|n| {
                let done = done.clone();
                schedule.add(Box::new(move || done.lock().unwrap().push(n)))
            })
            .collect();
        for (id, at) in [(3, 50), (2, 20), (1, 20), (0, 90), (3, 60)] {
            schedule.plan(ids[id], at);
        }
        assert_eq!(schedule.next(), Some(20));
        assert_eq!(
            clock.changes.load(Ordering::SeqCst),
            4,
            "60 is later than 50"
        );
        schedule.carry_out(19);
        assert!(done.lock().unwrap().is_empty());
        schedule.carry_out(55);
        assert_eq!(*done.lock().unwrap(), [1, 2, 3]);
        schedule.cancel(ids[0]);
        assert_eq!(schedule.next(), None);
    }

    #[test]
    fn counts_are_times() {
        let clock = Arc::new(Clock::default());
        let vm: Arc<dyn Vm> = clock.clone();
        let schedule = Schedule::new(&vm).unwrap();
        clock.count.store(3_000_000_001, Ordering::SeqCst);
        assert_eq!(schedule.now(), Duration::from_nanos(1_500_000_000));
        assert_eq!(
            schedule.count_at(Duration::from_nanos(1_500_000_001)),
            3_000_000_002
        );
    }
}
