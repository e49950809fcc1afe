//! Guest memory against a plain array of bytes: any order of writes, discards, files, captures and undos, while
//! chunks come on demand and in the background.

use std::error::Error;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use proptest::prelude::*;
use vm_memory::{Bytes, GuestAddress};

use super::*;
use crate::hypervisor::Vm;
use crate::tracker::{DirtySet, DirtyTracker};

const REGION: u64 = 2 << 20;
const HIGH: u64 = 1 << 32;
const TOTAL: usize = 2 * REGION as usize;
const PAGE: usize = PAGE_BYTES as usize;
const CHUNK: usize = CHUNK_BYTES as usize;

/// A VM that keeps no log of its own.
struct NoLog;

impl Vm for NoLog {}

/// A point's memory.
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
    /// A private file mapping behind some chunks, whose contents the last save has, too.
    MapFile {
        chunk: usize,
        chunks: usize,
        seed: u8,
    },
    /// What changed since the last save is added to it.
    Capture {
        in_background: bool,
    },
    /// Back to the last save; `eager` chunks at once, the others on demand, and some that did not change, too.
    Undo {
        eager: usize,
        more: Vec<usize>,
    },
    Read {
        at: usize,
        bytes: usize,
    },
}

fn op() -> impl Strategy<Value = Op> {
    let page = 0..TOTAL / PAGE;
    let chunk = 0..TOTAL / CHUNK;
    prop_oneof![
        6 => (0..TOTAL, prop::collection::vec(any::<u8>(), 1..9000))
            .prop_map(|(at, bytes)| Op::Write { at, bytes }),
        4 => (page, 1..40_usize).prop_map(|(page, pages)| Op::Discard { page, pages }),
        1 => (chunk.clone(), 1..6_usize, any::<u8>())
            .prop_map(|(chunk, chunks, seed)| Op::MapFile { chunk, chunks, seed }),
        2 => any::<bool>().prop_map(|in_background| Op::Capture { in_background }),
        2 => (0..4_usize, prop::collection::vec(chunk, 0..12))
            .prop_map(|(eager, more)| Op::Undo { eager, more }),
        3 => (0..TOTAL, 1..9000_usize).prop_map(|(at, bytes)| Op::Read { at, bytes }),
    ]
}

/// The address of an offset in the array: the array is both regions, one after the other.
fn gpa(at: usize) -> u64 {
    let at = at as u64;
    if at < REGION { at } else { HIGH + at - REGION }
}

/// `bytes`, cut at the end of the region that holds `at`.
fn cut(at: usize, bytes: usize) -> usize {
    bytes.min(REGION as usize - at % REGION as usize)
}

struct Bed {
    ram: GuestRam,
    tracker: DirtyTracker,
    naive: Vec<u8>,
    saved: Vec<u8>,
    background: Option<BackgroundFill>,
}

impl Bed {
    fn new() -> Self {
        let region = |start| MemoryRegion {
            start: Gpa(start),
            bytes: REGION,
        };
        let layout = RamLayout::new(vec![region(0), region(HIGH)]).unwrap();
        let ram = GuestRam::new(layout, &RamBacking::Anonymous).unwrap();
        let tracker = DirtyTracker::new(ram.clone(), Arc::new(NoLog));
        tracker.start().unwrap();
        Self {
            ram,
            tracker,
            naive: vec![0; TOTAL],
            saved: vec![0; TOTAL],
            background: None,
        }
    }

    fn read(&self, at: usize, bytes: usize) -> Vec<u8> {
        let mut read = vec![0; bytes];
        self.ram
            .read_slice(&mut read, GuestAddress(gpa(at)))
            .unwrap();
        read
    }

    fn apply(&mut self, op: Op) {
        match op {
            Op::Write { at, mut bytes } => {
                bytes.truncate(cut(at, bytes.len()));
                self.ram.write_slice(&bytes, GuestAddress(gpa(at))).unwrap();
                self.naive[at..at + bytes.len()].copy_from_slice(&bytes);
            }
            Op::Discard { page, pages } => {
                let bytes = cut(page * PAGE, pages * PAGE);
                self.tracker
                    .discard(Gpa(gpa(page * PAGE)), bytes as u64)
                    .unwrap();
                self.naive[page * PAGE..][..bytes].fill(0);
            }
            Op::MapFile {
                chunk,
                chunks,
                seed,
            } => self.map_file(chunk * CHUNK, chunks, seed),
            Op::Capture { in_background } => self.capture(in_background),
            Op::Undo { eager, more } => self.undo(eager, more),
            Op::Read { at, bytes } => {
                let bytes = cut(at, bytes);
                assert_eq!(self.read(at, bytes), self.naive[at..at + bytes]);
            }
        }
    }

    fn map_file(&mut self, at: usize, chunks: usize, seed: u8) {
        let bytes = cut(at, chunks * CHUNK);
        let contents: Vec<u8> = (0..bytes).map(|i| (i / 512) as u8 ^ seed).collect();
        let file = Arc::new(tempfile::tempfile().unwrap());
        // The mapping begins inside the file.
        file.write_all_at(&contents, CHUNK_BYTES).unwrap();
        let part = FileRange {
            file,
            offset: CHUNK_BYTES,
        };
        self.ram.map_file(Gpa(gpa(at)), bytes as u64, part).unwrap();
        self.naive[at..at + bytes].copy_from_slice(&contents);
        self.saved[at..at + bytes].copy_from_slice(&contents);
    }

    fn capture(&mut self, in_background: bool) {
        for page in self.tracker.take().unwrap().pages() {
            let at = if page.0 < HIGH {
                page.0
            } else {
                page.0 - HIGH + REGION
            } as usize;
            let bytes = self.read(at, PAGE);
            self.saved[at..at + PAGE].copy_from_slice(&bytes);
        }
        let differs = (0..TOTAL).find(|at| self.saved[*at] != self.naive[*at]);
        assert_eq!(differs, None, "a save is complete");
        if in_background {
            self.background = Some(
                self.ram
                    .fill_in_background(&[ChunkIndex(9)], 2, || ())
                    .unwrap(),
            );
        }
    }

    fn undo(&mut self, eager: usize, more: Vec<usize>) {
        let chunk = |index: usize| index * CHUNK..(index + 1) * CHUNK;
        let mut changed: Vec<usize> = (0..TOTAL / CHUNK)
            .filter(|index| self.naive[chunk(*index)] != self.saved[chunk(*index)])
            .collect();
        let lazy = changed.split_off(eager.min(changed.len()));
        for index in changed {
            let bytes = &self.saved[chunk(index)];
            self.ram
                .write_slice(bytes, GuestAddress(gpa(index * CHUNK)))
                .unwrap();
        }
        let source = Arc::new(Image(self.saved.clone()));
        let lazy = lazy.into_iter().chain(more).map(ChunkIndex);
        self.ram.begin_fill(lazy, source);
        self.tracker.reset_to(&DirtySet::empty(&self.ram)).unwrap();
        self.naive = self.saved.clone();
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]
    #[test]
    fn memory_is_a_plain_array(ops in prop::collection::vec(op(), 1..50)) {
        let mut bed = Bed::new();
        for op in ops {
            bed.apply(op);
        }
        bed.background = None;
        let differs = bed.read(0, REGION as usize) != bed.naive[..REGION as usize]
            || bed.read(REGION as usize, REGION as usize) != bed.naive[REGION as usize..];
        prop_assert!(!differs);
        prop_assert!(bed.ram.is_complete(), "everything was read");
        // What was filled in does not count as written, and what was written does.
        bed.capture(false);
        let extents: usize = [0, 1].iter().map(|region| bed.ram.extents(*region).len()).sum();
        prop_assert!(extents <= MAX_EXTENTS);
    }
}
