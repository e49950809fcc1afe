use std::error::Error;
use std::sync::Arc;

use proptest::prelude::*;

use super::*;
use crate::Gpa;
use crate::hypervisor::Vm;
use crate::ram::{ChunkIndex, FillSource, MemoryRegion, RamBacking, RamLayout, SharedPart};

const REGION: u64 = 2 << 20;
const HIGH: u64 = 1 << 32;
const TOTAL: usize = 2 * REGION as usize;
const PAGE: usize = PAGE_BYTES as usize;
const CHUNK: usize = CHUNK_BYTES as usize;

/// A VM that keeps no log of its own.
struct NoLog;

impl Vm for NoLog {}

/// The address of an offset in both regions, one after the other.
fn gpa(at: usize) -> u64 {
    let at = at as u64;
    if at < REGION { at } else { HIGH + at - REGION }
}

fn layout() -> RamLayout {
    let region = |start| MemoryRegion {
        start: Gpa(start),
        bytes: REGION,
    };
    RamLayout::new(vec![region(0), region(HIGH)]).unwrap()
}

/// A machine's memory, with what a plain array says of it.
struct Machine {
    ram: GuestRam,
    tracker: DirtyTracker,
    naive: Vec<u8>,
}

impl Machine {
    fn new() -> Self {
        let ram = GuestRam::new(layout(), &RamBacking::Anonymous).unwrap();
        let tracker = DirtyTracker::new(ram.clone(), Arc::new(NoLog));
        tracker.start().unwrap();
        let naive = vec![0; TOTAL];
        Self {
            ram,
            tracker,
            naive,
        }
    }

    /// Another machine that goes on from `shared`, by way of descriptors as another process has them.
    fn child(shared: &SharedRam, naive: &[u8]) -> Self {
        let files = shared
            .files()
            .iter()
            .map(|file| file.try_clone().unwrap())
            .collect();
        let shared = SharedRam::from_parts(layout(), files, &shared.parts()).unwrap();
        let ram = shared.map().unwrap();
        let tracker = DirtyTracker::new(ram.clone(), Arc::new(NoLog));
        tracker.start().unwrap();
        tracker.begin_on(shared).unwrap();
        let naive = naive.to_vec();
        Self {
            ram,
            tracker,
            naive,
        }
    }

    fn write(&mut self, at: usize, bytes: &[u8]) {
        let bytes = &bytes[..bytes.len().min(REGION as usize - at % REGION as usize)];
        self.ram.write_slice(bytes, GuestAddress(gpa(at))).unwrap();
        self.naive[at..at + bytes.len()].copy_from_slice(bytes);
    }

    fn discard(&mut self, page: usize, pages: usize) {
        let at = page * PAGE;
        let bytes = (pages * PAGE).min(REGION as usize - at % REGION as usize);
        self.tracker.discard(Gpa(gpa(at)), bytes as u64).unwrap();
        self.naive[at..at + bytes].fill(0);
    }

    fn memory(&self) -> Vec<u8> {
        let mut bytes = vec![0; TOTAL];
        let (low, high) = bytes.split_at_mut(REGION as usize);
        self.ram.read_slice(low, GuestAddress(0)).unwrap();
        self.ram.read_slice(high, GuestAddress(HIGH)).unwrap();
        bytes
    }
}

/// A plain array as the source of memory.
struct Image(Vec<u8>);

impl FillSource for Image {
    fn read_chunk(
        &self,
        chunk: ChunkIndex,
        into: &mut [u8],
    ) -> Result<(), Box<dyn Error + Send + Sync>> {
        into.copy_from_slice(&self.0[chunk.0 * CHUNK..][..CHUNK]);
        Ok(())
    }
}

#[derive(Debug, Clone)]
enum Op {
    Write {
        at: usize,
        bytes: Vec<u8>,
    },
    Discard {
        page: usize,
        pages: usize,
    },
    /// Chunks get other contents, which come on demand.
    Fill {
        chunks: Vec<usize>,
        with: u8,
    },
    /// A save in between, which takes what was written for itself.
    Save,
    /// A copy that is given up.
    Abandon,
    /// A copy, some writes while it goes on, and the rest: one more machine.
    Branch {
        during: Vec<(usize, u8)>,
    },
}

fn op() -> impl Strategy<Value = Op> {
    let at = 0..TOTAL;
    prop_oneof![
        6 => (at.clone(), prop::collection::vec(any::<u8>(), 1..9000))
            .prop_map(|(at, bytes)| Op::Write { at, bytes }),
        2 => (0..TOTAL / PAGE, 1..40_usize).prop_map(|(page, pages)| Op::Discard { page, pages }),
        1 => (prop::collection::vec(0..TOTAL / CHUNK, 1..5), any::<u8>())
            .prop_map(|(chunks, with)| Op::Fill { chunks, with }),
        1 => Just(Op::Save),
        1 => Just(Op::Abandon),
        3 => prop::collection::vec((at, any::<u8>()), 0..5).prop_map(|during| Op::Branch { during }),
    ]
}

fn apply(machines: &mut Vec<Machine>, which: usize, op: Op) {
    let which = which % machines.len();
    let machine = &mut machines[which];
    match op {
        Op::Write { at, bytes } => machine.write(at, &bytes),
        Op::Discard { page, pages } => machine.discard(page, pages),
        Op::Fill { chunks, with } => {
            let mut image = machine.naive.clone();
            for chunk in &chunks {
                image[chunk * CHUNK..(chunk + 1) * CHUNK].fill(with);
            }
            // A machine that runs is not filled while chunks are absent: everything is brought before.
            machine.memory();
            machine.naive.clone_from(&image);
            let chunks = chunks.into_iter().map(ChunkIndex);
            machine.ram.begin_fill(chunks, Arc::new(Image(image)));
        }
        Op::Save => drop(machine.tracker.take().unwrap()),
        Op::Abandon => drop(
            Freeze::begin(&machine.tracker)
                .unwrap()
                .copy_written()
                .unwrap(),
        ),
        Op::Branch { during } => {
            let mut freeze = Freeze::begin(&machine.tracker).unwrap();
            freeze.copy_written().unwrap();
            for (at, byte) in during {
                machine.write(at, &[byte; 5000]);
            }
            freeze.copy_written().unwrap();
            let frozen = machine.naive.clone();
            // The machine runs on while the layer is sealed.
            machine.write(4096, &[0xee; 100]);
            let shared = freeze.finish().unwrap();
            machines.push(Machine::child(&shared, &frozen));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]
    #[test]
    fn machines_that_branch_are_plain_arrays(
        ops in prop::collection::vec((any::<usize>(), op()), 1..40),
    ) {
        let mut machines = vec![Machine::new()];
        for (which, op) in ops {
            apply(&mut machines, which, op);
        }
        for machine in &machines {
            let memory = machine.memory();
            let differs = (0..TOTAL).find(|at| memory[*at] != machine.naive[*at]);
            prop_assert_eq!(differs, None);
        }
    }
}

#[test]
fn a_freeze_copies_what_was_written_since_the_last() {
    let mut machine = Machine::new();
    machine.write(0, &vec![1; 32 * CHUNK]);
    let mut freeze = Freeze::begin(&machine.tracker).unwrap();
    let first = freeze.copy_written().unwrap();
    assert!(first.pages >= 32 * 16, "{first:?}");
    let shared = freeze.finish().unwrap();
    // One page in each of two chunks; a save in between does not hide them.
    machine.write(5 * CHUNK, &[2]);
    assert_eq!(
        machine.tracker.take().unwrap().len(),
        32 * 16,
        "the first save takes all"
    );
    machine.write(9 * CHUNK + 4096, &[3]);
    let mut freeze = Freeze::begin(&machine.tracker).unwrap();
    let bytes = 2 * CHUNK_BYTES;
    assert_eq!(freeze.copy_written().unwrap(), Copied { pages: 2, bytes });
    assert_eq!(
        freeze.copy_written().unwrap(),
        Copied { pages: 0, bytes: 0 }
    );
    machine.write(5 * CHUNK, &[4]);
    // Of a chunk that was copied, only what was written again.
    let bytes = PAGE_BYTES;
    assert_eq!(freeze.copy_written().unwrap(), Copied { pages: 1, bytes });
    let second = freeze.finish().unwrap();
    assert_eq!(
        machine.tracker.take().unwrap().len(),
        2,
        "a freeze hides nothing from a save"
    );
    assert_eq!((shared.files().len(), second.files().len()), (1, 2));
    let child = Machine::child(&second, &machine.naive);
    assert_eq!(child.memory(), machine.naive);
}

#[test]
fn a_freeze_that_nobody_wants_any_more_takes_nothing() {
    let mut machine = Machine::new();
    machine.write(0, &vec![1; 8 * CHUNK]);
    let mut freeze = Freeze::begin(&machine.tracker).unwrap();
    let asked = std::cell::Cell::new(0);
    let wanted = || {
        asked.set(asked.get() + 1);
        asked.get() < 4
    };
    let given_up = freeze.copy_written_while(&wanted);
    assert!(matches!(given_up, Err(FreezeError::GivenUp)));
    assert_eq!(asked.get(), 4, "it is asked at each chunk");
    drop(freeze);
    // The next one is complete.
    let mut freeze = Freeze::begin(&machine.tracker).unwrap();
    freeze.copy_written().unwrap();
    let child = Machine::child(&freeze.finish().unwrap(), &machine.naive);
    assert_eq!(child.memory(), machine.naive);
}

#[test]
fn a_chain_of_branches_keeps_few_layers_and_little_dead_memory() {
    let mut machine = Machine::new();
    machine.write(0, &vec![1; 2 << 20]);
    for round in 0..100_usize {
        machine.write(round * 7 % 32 * CHUNK, &[round as u8; 100]);
        let mut freeze = Freeze::begin(&machine.tracker).unwrap();
        freeze.copy_written().unwrap();
        let shared = freeze.finish().unwrap();
        let (layers, held) = (shared.files().len(), shared.held_bytes());
        assert!(
            layers <= 2 && held <= shared.used_bytes() * 6 / 5 + (4 << 20),
            "{layers}, {held}"
        );
        machine = Machine::child(&shared, &machine.naive);
    }
    assert_eq!(machine.memory(), machine.naive);
}

#[test]
fn parts_that_do_not_fit_are_refused() {
    let mut machine = Machine::new();
    machine.write(0, &[1; 100]);
    let mut freeze = Freeze::begin(&machine.tracker).unwrap();
    freeze.copy_written().unwrap();
    let shared = freeze.finish().unwrap();
    let [part] = shared.parts()[..] else {
        panic!("{:?}", shared.parts());
    };
    let open = |part| {
        let files = shared
            .files()
            .iter()
            .map(|file| file.try_clone().unwrap())
            .collect();
        SharedRam::from_parts(layout(), files, &[part])
    };
    assert!(open(part).is_ok());
    for wrong in [
        SharedPart {
            gpa: Gpa(4096),
            ..part
        },
        SharedPart {
            gpa: Gpa(REGION),
            ..part
        },
        SharedPart {
            gpa: Gpa(u64::MAX - CHUNK_BYTES + 1),
            ..part
        },
        SharedPart {
            bytes: 2 * CHUNK_BYTES,
            ..part
        },
        SharedPart {
            offset: CHUNK_BYTES,
            ..part
        },
        SharedPart {
            offset: u64::MAX - CHUNK_BYTES + 1,
            ..part
        },
        SharedPart { file: 1, ..part },
    ] {
        let refused = open(wrong);
        assert!(
            matches!(refused, Err(SharedRamError::Part { .. })),
            "{wrong:?}"
        );
    }
    // A file that somebody could cut would kill whoever maps it.
    let open = tempfile::tempfile().unwrap();
    open.set_len(CHUNK_BYTES).unwrap();
    assert!(SharedRam::from_parts(layout(), vec![open], &[part]).is_err());
}
