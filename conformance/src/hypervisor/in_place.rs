//! Machines that go back to a saved state without a new VM, and memory that comes while they run.

use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use snapshot_format::StateRecord;
use vm_memory::{Bytes, GuestAddress};
use vmm_core::Gpa;
use vmm_core::hypervisor::Hypervisor;
use vmm_core::machine::{MachineError, MachineEvent, RunningMachine};
use vmm_core::ram::{CHUNK_BYTES, ChunkIndex, FillSource, PAGE_BYTES};
use vmm_core::testing::MemoryDisk;
use vmm_core::tracker::DirtySet;
use vmm_core::x86::layout::GENERATION_ID;

use crate::guest::machine::{
    COUNTED_PAGES, COUNTERS, DISK_BYTES, OFF, build, comparable, count, counting, memory,
    wait_for_a_round,
};

/// A moment of a machine.
struct Moment {
    records: Vec<StateRecord>,
    memory: Vec<u8>,
}

/// Saves a machine's state and memory; no page counts as written afterwards.
fn save(machine: &mut RunningMachine) -> Moment {
    let paused = machine.pause().expect("it stands");
    let moment = Moment {
        records: paused.save().expect("it is saved"),
        memory: memory(paused.ram()),
    };
    paused.tracker().take().expect("the set is read");
    paused.resume().expect("it runs on");
    moment
}

/// Puts the machine back: the pages that were written since, then the state. `check` sees it before it runs on.
fn go_back(machine: &mut RunningMachine, to: &Moment, check: impl FnOnce(Moment)) {
    let mut paused = machine.pause().expect("it stands");
    for page in paused.tracker().take().expect("the set is read").pages() {
        let bytes = &to.memory[page.0 as usize..][..PAGE_BYTES as usize];
        let written = paused.ram().write_slice(bytes, GuestAddress(page.0));
        written.expect("the page is in memory");
    }
    let none = DirtySet::empty(paused.ram());
    paused.tracker().reset_to(&none).expect("tracking is set");
    paused.load(&to.records).expect("the state loads");
    check(Moment {
        records: paused.save().expect("it is saved"),
        memory: memory(paused.ram()),
    });
    paused.resume().expect("it runs on");
}

/// That two moments are one; the page of the generation id changes by intention.
fn assert_same(now: &Moment, then: &Moment) {
    for (now, then) in comparable(&now.records)
        .iter()
        .zip(&comparable(&then.records))
    {
        assert_eq!(now, then, "unit {}", then.unit);
    }
    let outside = |at: &usize| *at as u64 & !(PAGE_BYTES - 1) != GENERATION_ID.0;
    let mut all = (0..then.memory.len()).filter(outside);
    let differs = all.find(|at| now.memory[*at] != then.memory[*at]);
    assert_eq!(differs, None, "first difference");
}

/// A machine that ran on is what it was: state and memory. Again and again.
pub fn a_machine_goes_back(hypervisor: &dyn Hypervisor) {
    let (mut machine, _disk) = counting(hypervisor);
    wait_for_a_round(&mut machine);
    let first = save(&mut machine);
    // The state after a first return: it has the interrupt of the new generation id.
    let mut then = None;
    go_back(&mut machine, &first, |now| then = Some(now));
    let then = then.expect("it was looked at");
    for round in 0..3 {
        wait_for_a_round(&mut machine);
        let noise = [round; 9000];
        let there = GuestAddress(0x180_0000);
        machine.ram().write_slice(&noise, there).expect("written");
        machine
            .tracker()
            .discard(Gpa(COUNTERS), 2 * PAGE_BYTES)
            .expect("discarded");
        machine.console_input(b"not read in the past");
        go_back(&mut machine, &then, |now| assert_same(&now, &then));
        let id = GuestAddress(GENERATION_ID.0);
        let new: [u8; 16] = machine.ram().read_obj(id).expect("the id");
        assert_ne!(
            new,
            then.memory[GENERATION_ID.0 as usize..][..16],
            "a new id"
        );
    }
    wait_for_a_round(&mut machine);
    let paused = machine.pause().expect("it stands");
    let set = paused.tracker().take().expect("the set is read");
    assert!(set.contains(GENERATION_ID), "its page counts");
    let counted = (0..COUNTED_PAGES).map(|page| Gpa(COUNTERS + page * PAGE_BYTES));
    assert!(counted.into_iter().all(|page| set.contains(page)));
    assert!(
        set.len() <= COUNTED_PAGES + 1,
        "and nothing that was put back"
    );
}

/// A machine that ended goes back and runs; its old end is not told again.
pub fn a_machine_that_ended_goes_back(hypervisor: &dyn Hypervisor) {
    let (mut machine, _disk) = counting(hypervisor);
    wait_for_a_round(&mut machine);
    let then = save(&mut machine);
    for heard_by_pause in [false, true, false] {
        machine
            .ram()
            .write_obj(1_u32, GuestAddress(OFF))
            .expect("written");
        if heard_by_pause {
            // Its owner does not ask what it was.
            while !matches!(machine.pause(), Err(MachineError::Ended)) {
                std::thread::sleep(Duration::from_millis(5));
            }
        } else {
            let mut event = None;
            while event.is_none() {
                event = machine.next_event(Duration::from_secs(1));
            }
            assert_eq!(event, Some(MachineEvent::PowerOff));
            // Looked at, in both ways to let it go: its devices are at rest once.
            drop(machine.pause().expect("it stands"));
            let paused = machine.pause().expect("it stands");
            paused.resume().expect("nothing runs");
        }
        go_back(&mut machine, &then, |_| ());
        wait_for_a_round(&mut machine);
        assert_eq!(machine.next_event(Duration::ZERO), None, "an old end");
    }
}

/// A state of another machine is refused, and the machine does not run with half of it.
pub fn a_foreign_state_is_refused(hypervisor: &dyn Hypervisor) {
    let (mut machine, _disk) = counting(hypervisor);
    wait_for_a_round(&mut machine);
    let then = save(&mut machine);
    let mut paused = machine.pause().expect("it stands");
    let mut less = then.records.clone();
    less.pop();
    assert!(matches!(paused.load(&less), Err(MachineError::Unit(_))));
    paused.resume().expect("nothing runs");
    let before = count(&machine, 0);
    std::thread::sleep(Duration::from_millis(5));
    assert_eq!(count(&machine, 0), before, "it stands");
    go_back(&mut machine, &then, |_| ());
    wait_for_a_round(&mut machine);
}

/// The disk under a machine that stands is exchanged for another of its size only.
pub fn the_disk_is_exchanged(hypervisor: &dyn Hypervisor) {
    let (mut machine, disk) = counting(hypervisor);
    let paused = machine.pause().expect("it stands");
    for (bytes, read_only) in [(DISK_BYTES / 2, false), (DISK_BYTES, true)] {
        let wrong = Arc::new(MemoryDisk::new(bytes, read_only));
        assert!(matches!(
            paused.exchange_root_disk(wrong),
            Err(MachineError::Blk(_))
        ));
    }
    let other = Arc::new(MemoryDisk::new(DISK_BYTES, false));
    let before = paused.exchange_root_disk(other).expect("exchanged");
    before.write_at(0, &[7; 512]).expect("written");
    assert_eq!(disk.contents()[0], 7, "the one that was there comes back");
}

/// A saved moment as the source of memory; `lost` cannot be had.
struct Saved {
    memory: Vec<u8>,
    lost: Option<ChunkIndex>,
    read: AtomicUsize,
}

impl FillSource for Saved {
    fn read_chunk(
        &self,
        chunk: ChunkIndex,
        into: &mut [u8],
    ) -> Result<(), Box<dyn Error + Send + Sync>> {
        if self.lost == Some(chunk) {
            return Err("this chunk is damaged".into());
        }
        self.read.fetch_add(1, Ordering::SeqCst);
        into.copy_from_slice(
            &self.memory[chunk.0 * CHUNK_BYTES as usize..][..CHUNK_BYTES as usize],
        );
        Ok(())
    }
}

/// A machine over the memory of `then` that comes while it runs. `None`: this backend wants it filled before.
fn lazily(
    hypervisor: &dyn Hypervisor,
    then: &Moment,
    lost: Option<ChunkIndex>,
) -> Option<(RunningMachine, Arc<Saved>)> {
    let (built, _disk) = build(hypervisor);
    let source = Arc::new(Saved {
        memory: then.memory.clone(),
        lost,
        read: AtomicUsize::default(),
    });
    let chunks = built.ram().layout().chunks();
    built
        .ram()
        .begin_fill((0..chunks).map(ChunkIndex), source.clone());
    built.tracker().start().expect("tracking starts");
    match built.restore(&then.records) {
        Ok(machine) => Some((machine, source)),
        Err(MachineError::MemoryAbsent) if hypervisor.name() != "soft" => None,
        Err(error) => panic!("{error}"),
    }
}

/// Memory comes when it is used, in the background, and for whoever saves; it is what it was.
pub fn memory_comes_while_the_guest_runs(hypervisor: &dyn Hypervisor) {
    let (mut source, _disk) = counting(hypervisor);
    wait_for_a_round(&mut source);
    let then = save(&mut source);
    drop(source);
    let Some((mut machine, saved)) = lazily(hypervisor, &then, None) else {
        return;
    };
    wait_for_a_round(&mut machine);
    let chunks = machine.ram().layout().chunks();
    let used = machine.ram().first_uses();
    assert!(
        used.contains(&ChunkIndex(ADDRESS_CHUNK)),
        "the guest's code: {used:?}"
    );
    assert!(
        saved.read.load(Ordering::SeqCst) < chunks / 2,
        "only what is used was read"
    );
    // A return while it is filled: what changed comes on demand, too.
    let mut paused = machine.pause().expect("it stands");
    let set = paused.tracker().take().expect("the set is read");
    let layout = paused.ram().layout().clone();
    let changed: Vec<_> = set
        .units(CHUNK_BYTES)
        .filter_map(|gpa| layout.chunk_at(gpa))
        .collect();
    paused.ram().begin_fill(changed, saved.clone());
    paused
        .tracker()
        .reset_to(&DirtySet::empty(paused.ram()))
        .expect("tracking is set");
    paused.load(&then.records).expect("the state loads");
    paused.resume().expect("it runs on");
    wait_for_a_round(&mut machine);
    let fill = machine
        .ram()
        .fill_in_background(&used, 2, || ())
        .expect("threads");
    wait_for_a_round(&mut machine);
    while !fill.wait(Duration::from_secs(1)) {}
    assert!(machine.ram().is_complete());
    let paused = machine.pause().expect("it stands");
    let set = paused.tracker().take().expect("the set is read");
    let counted = COUNTERS..COUNTERS + COUNTED_PAGES * PAGE_BYTES;
    assert!(
        set.pages()
            .all(|page| counted.contains(&page.0) || page == GENERATION_ID)
    );
    let now = memory(paused.ram());
    let page = |at: usize| Gpa(at as u64 & !(PAGE_BYTES - 1));
    let differs =
        (0..now.len()).find(|at| now[*at] != then.memory[*at] && !set.contains(page(*at)));
    assert_eq!(
        differs, None,
        "first difference in a page that nobody wrote"
    );
}

const ADDRESS_CHUNK: usize = 0x100_0000 / CHUNK_BYTES as usize;

/// A guest that needs a chunk which cannot be had never sees anything else in its place.
pub fn lost_memory_ends_the_machine(hypervisor: &dyn Hypervisor) {
    let (mut source, _disk) = counting(hypervisor);
    wait_for_a_round(&mut source);
    let then = save(&mut source);
    drop(source);
    for gpa in [COUNTERS + 0x2_0000, 0x100_0000] {
        let lost = ChunkIndex((gpa / CHUNK_BYTES) as usize);
        let Some((mut machine, _)) = lazily(hypervisor, &then, Some(lost)) else {
            return;
        };
        let mut event = None;
        while event.is_none() {
            event = machine.next_event(Duration::from_secs(1));
        }
        assert_eq!(event, Some(MachineEvent::MemoryLost));
        let what = machine.ram().lost().expect("it is named");
        assert_eq!((what.gpa, what.chunk), (Gpa(gpa), lost));
        assert_eq!(what.source.to_string(), "this chunk is damaged");
        assert!(machine.ram().read_obj::<u8>(GuestAddress(gpa)).is_err());
    }
}
