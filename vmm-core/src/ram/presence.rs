//! Memory that is filled while it is used: which chunks are there, and who brings the others.
//!
//! A chunk that is absent is read by whoever needs it first; others that need it wait for it, and for
//! nothing else. Nobody reads or writes guest memory of a chunk before it is present.

use std::error::Error;
use std::fmt::{self, Display, Formatter};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use super::CHUNK_BYTES;
use crate::Gpa;

/// Most first uses that are remembered, see [`GuestRam::first_uses`](super::GuestRam::first_uses).
const MAX_FIRST_USES: usize = 1 << 16;

/// Number of a 64 KiB chunk of memory, counted through all regions in the layout's order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ChunkIndex(pub usize);

/// Where absent chunks come from. Called from several threads at once.
pub trait FillSource: Send + Sync {
    /// Fills `into`, which has the length of a chunk, with the chunk's bytes, verified.
    ///
    /// # Errors
    /// The chunk is lost: what the guest would need is not there, or is damaged.
    fn read_chunk(
        &self,
        chunk: ChunkIndex,
        into: &mut [u8],
    ) -> Result<(), Box<dyn Error + Send + Sync>>;
}

/// Memory of the guest that cannot be had: the machine must not go on.
#[derive(Debug, Clone)]
pub struct MemoryLost {
    /// First address of the chunk.
    pub gpa: Gpa,
    /// Which chunk it is.
    pub chunk: ChunkIndex,
    /// What the source said.
    pub source: Arc<dyn Error + Send + Sync>,
}

impl Display for MemoryLost {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "guest memory at {} is lost", self.gpa)
    }
}

/// Not derived: the source would be the `Arc`, and nobody could tell what is in it.
impl Error for MemoryLost {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(&*self.source)
    }
}

/// Told of the first chunk that is lost; on the thread that needed it, it must not wait.
pub type LostListener = Box<dyn Fn(&MemoryLost) + Send + Sync>;

/// How far filling is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FillProgress {
    /// Chunks that are not there yet.
    pub absent: usize,
    /// Whether a chunk is lost.
    pub lost: bool,
}

/// Who asks for a chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Asked {
    /// The guest or a device uses it.
    ByUse,
    /// Nobody yet.
    Ahead,
}

const PRESENT: u8 = 0;
const ABSENT: u8 = 1;
/// Somebody reads it from the source.
const READING: u8 = 2;
/// Its bytes are being copied into memory.
const PLACING: u8 = 3;
const LOST: u8 = 4;

/// The chunks of a memory, and the source of those that are absent.
pub(super) struct Presence {
    states: Vec<AtomicU8>,
    /// How many chunks are not present. Zero: nothing here is looked at.
    missing: AtomicUsize,
    filling: Mutex<Filling>,
    changed: Condvar,
}

#[derive(Default)]
struct Filling {
    source: Option<Arc<dyn FillSource>>,
    /// Counts the fills: what was read for an earlier one is not placed.
    epoch: u64,
    lost: Option<MemoryLost>,
    listener: Option<Arc<LostListener>>,
    first_uses: Vec<ChunkIndex>,
}

impl std::fmt::Debug for Presence {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Presence")
            .field("chunks", &self.states.len())
            .field("missing", &self.missing)
            .finish_non_exhaustive()
    }
}

/// What is to be done for a chunk that is not present.
enum Step {
    Done,
    Read(Arc<dyn FillSource>, u64),
}

impl Presence {
    /// All of `chunks` chunks are present.
    pub(super) fn new(chunks: usize) -> Self {
        Self {
            states: (0..chunks).map(|_| AtomicU8::new(PRESENT)).collect(),
            missing: AtomicUsize::new(0),
            filling: Mutex::default(),
            changed: Condvar::new(),
        }
    }

    /// Whether every chunk is present.
    #[inline]
    pub(super) fn is_complete(&self) -> bool {
        self.missing.load(Ordering::Acquire) == 0
    }

    pub(super) fn is_present(&self, chunk: ChunkIndex) -> bool {
        let state = self.states.get(chunk.0);
        state.is_none_or(|state| state.load(Ordering::Acquire) == PRESENT)
    }

    fn lock(&self) -> MutexGuard<'_, Filling> {
        self.filling.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(&self, guard: MutexGuard<'a, Filling>) -> MutexGuard<'a, Filling> {
        let waited = self.changed.wait(guard);
        waited.unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn set_listener(&self, listener: LostListener) {
        self.lock().listener = Some(Arc::new(listener));
    }

    pub(super) fn lost(&self) -> Option<MemoryLost> {
        self.lock().lost.clone()
    }

    pub(super) fn first_uses(&self) -> Vec<ChunkIndex> {
        self.lock().first_uses.clone()
    }

    pub(super) fn progress(&self) -> FillProgress {
        FillProgress {
            absent: self.missing.load(Ordering::Acquire),
            lost: self.lock().lost.is_some(),
        }
    }

    /// Makes `chunks` absent, and `source` the one of all that are absent. Nobody uses the memory meanwhile.
    pub(super) fn begin(
        &self,
        chunks: impl IntoIterator<Item = ChunkIndex>,
        source: Arc<dyn FillSource>,
    ) {
        let mut filling = self.lock();
        filling.source = Some(source.clone());
        filling.epoch += 1;
        filling.lost = None;
        filling.first_uses.clear();
        for index in 0..self.states.len() {
            // What is being copied is soon there.
            while self.states[index].load(Ordering::Acquire) == PLACING {
                filling = self.wait(filling);
            }
            if self.states[index].load(Ordering::Acquire) != PRESENT {
                self.states[index].store(ABSENT, Ordering::Release);
            }
        }
        // The last chunk of the fill before may have arrived meanwhile, and taken the source away.
        filling.source = Some(source);
        for chunk in chunks {
            if let Some(state) = self.states.get(chunk.0)
                && state.swap(ABSENT, Ordering::AcqRel) == PRESENT
            {
                self.missing.fetch_add(1, Ordering::AcqRel);
            }
        }
        if self.is_complete() {
            filling.source = None;
        }
        self.changed.notify_all();
    }

    /// Makes a chunk present: `place` copies its bytes into memory. Waits where another thread does that already.
    pub(super) fn ensure(
        &self,
        chunk: ChunkIndex,
        gpa: Gpa,
        asked: Asked,
        place: impl Fn(&[u8]),
    ) -> Result<(), MemoryLost> {
        while !self.is_present(chunk) {
            let Step::Read(source, epoch) = self.claim(chunk, gpa, asked)? else {
                break;
            };
            let mut bytes = vec![0; CHUNK_BYTES as usize];
            // A source that panics must not leave others waiting for ever.
            let read = catch_unwind(AssertUnwindSafe(|| source.read_chunk(chunk, &mut bytes)))
                .unwrap_or_else(|_| Err("reading it panicked".into()));
            match read {
                Ok(()) => self.place(chunk, epoch, || place(&bytes)),
                Err(error) => self.lose(chunk, epoch, gpa, error.into()),
            }
        }
        Ok(())
    }

    /// Takes the work of reading a chunk, or waits until it is done.
    fn claim(&self, chunk: ChunkIndex, gpa: Gpa, asked: Asked) -> Result<Step, MemoryLost> {
        let state = &self.states[chunk.0];
        let mut filling = self.lock();
        if asked == Asked::ByUse
            && matches!(state.load(Ordering::Acquire), ABSENT | READING)
            && filling.first_uses.len() < MAX_FIRST_USES
            && !filling.first_uses.ends_with(&[chunk])
        {
            filling.first_uses.push(chunk);
        }
        loop {
            match state.load(Ordering::Acquire) {
                PRESENT => return Ok(Step::Done),
                ABSENT => {
                    // `begin` sets it before a chunk becomes absent.
                    let source = filling.source.clone().ok_or_else(|| MemoryLost {
                        gpa,
                        chunk,
                        source: Box::<dyn Error + Send + Sync>::from("there is no source").into(),
                    })?;
                    state.store(READING, Ordering::Release);
                    return Ok(Step::Read(source, filling.epoch));
                }
                LOST => match &filling.lost {
                    Some(lost) => return Err(lost.clone()),
                    None => state.store(ABSENT, Ordering::Release),
                },
                _ => filling = self.wait(filling),
            }
        }
    }

    fn place(&self, chunk: ChunkIndex, epoch: u64, copy: impl FnOnce()) {
        let state = &self.states[chunk.0];
        let filling = self.lock();
        // Discarded meanwhile, or of an earlier fill: these bytes are not wanted any more.
        if state.load(Ordering::Acquire) != READING || filling.epoch != epoch {
            return;
        }
        state.store(PLACING, Ordering::Release);
        drop(filling);
        copy();
        let mut filling = self.lock();
        self.arrived(&mut filling, chunk);
    }

    fn arrived(&self, filling: &mut Filling, chunk: ChunkIndex) {
        self.states[chunk.0].store(PRESENT, Ordering::Release);
        if self.missing.fetch_sub(1, Ordering::AcqRel) == 1 {
            filling.source = None;
        }
        self.changed.notify_all();
    }

    fn lose(&self, chunk: ChunkIndex, epoch: u64, gpa: Gpa, source: Arc<dyn Error + Send + Sync>) {
        let state = &self.states[chunk.0];
        let mut filling = self.lock();
        if state.load(Ordering::Acquire) != READING || filling.epoch != epoch {
            return;
        }
        state.store(LOST, Ordering::Release);
        self.changed.notify_all();
        if filling.lost.is_some() {
            return;
        }
        let lost = MemoryLost { gpa, chunk, source };
        filling.lost = Some(lost.clone());
        let listener = filling.listener.clone();
        drop(filling);
        if let Some(listener) = listener {
            listener(&lost);
        }
    }

    /// The chunk's contents are given up as a whole: it counts as present, and what is being read for it is dropped.
    pub(super) fn give_up(&self, chunk: ChunkIndex) {
        if self.is_present(chunk) {
            return;
        }
        let Some(state) = self.states.get(chunk.0) else {
            return;
        };
        let mut filling = self.lock();
        loop {
            match state.load(Ordering::Acquire) {
                PRESENT => return,
                PLACING => filling = self.wait(filling),
                _ => return self.arrived(&mut filling, chunk),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, Sender, channel};
    use std::time::Duration;

    use vm_memory::{Bytes, GuestAddress};

    use super::*;
    use crate::ram::{GuestRam, MemoryRegion, RamBacking, RamLayout};

    const CHUNK: usize = CHUNK_BYTES as usize;

    /// Says which chunk is asked for, and waits for the answer: a byte, or that it is lost.
    struct Slow {
        asked: Mutex<Sender<ChunkIndex>>,
        answers: Mutex<Receiver<Option<u8>>>,
    }

    impl FillSource for Slow {
        fn read_chunk(
            &self,
            chunk: ChunkIndex,
            into: &mut [u8],
        ) -> Result<(), Box<dyn Error + Send + Sync>> {
            self.asked.lock().unwrap().send(chunk)?;
            let answer = self.answers.lock().unwrap().recv()?;
            into.fill(answer.ok_or("damaged")?);
            Ok(())
        }
    }

    fn bed() -> (GuestRam, Receiver<ChunkIndex>, Sender<Option<u8>>) {
        let region = MemoryRegion {
            start: Gpa(0),
            bytes: 2 << 20,
        };
        let layout = RamLayout::new(vec![region]).unwrap();
        let ram = GuestRam::new(layout, &RamBacking::Anonymous).unwrap();
        let (asked, rx) = channel();
        let (tx, answers) = channel();
        let source = Slow {
            asked: Mutex::new(asked),
            answers: Mutex::new(answers),
        };
        ram.begin_fill([1, 2, 3].map(ChunkIndex), Arc::new(source));
        (ram, rx, tx)
    }

    fn byte(ram: &GuestRam, chunk: usize) -> Result<u8, vm_memory::GuestMemoryError> {
        ram.read_obj(GuestAddress((chunk * CHUNK + 77) as u64))
    }

    #[test]
    fn a_chunk_is_waited_for_and_no_other() {
        let (ram, asked, answer) = bed();
        assert_eq!(byte(&ram, 0).unwrap(), 0, "this one is there");
        std::thread::scope(|scope| {
            let first = scope.spawn(|| byte(&ram, 1).unwrap());
            assert_eq!(asked.recv().unwrap(), ChunkIndex(1));
            // Another who needs it does not read it again.
            let second = scope.spawn(|| byte(&ram, 1).unwrap());
            assert_eq!(byte(&ram, 4).unwrap(), 0, "nor does this one wait");
            answer.send(Some(5)).unwrap();
            assert_eq!((first.join().unwrap(), second.join().unwrap()), (5, 5));
        });
        assert!(asked.try_recv().is_err());
        assert_eq!(ram.first_uses(), [ChunkIndex(1)]);
        assert_eq!(
            ram.fill_progress(),
            FillProgress {
                absent: 2,
                lost: false
            }
        );
        assert!(!ram.page_map(0).unwrap().is_dirty(16), "nobody wrote it");
    }

    #[test]
    fn a_discard_drops_what_is_being_read() {
        let (ram, asked, answer) = bed();
        std::thread::scope(|scope| {
            let reader = scope.spawn(|| byte(&ram, 2).unwrap());
            assert_eq!(asked.recv().unwrap(), ChunkIndex(2));
            ram.discard(Gpa(2 * CHUNK_BYTES), CHUNK_BYTES).unwrap();
            ram.write_obj(9_u8, GuestAddress(2 * CHUNK_BYTES)).unwrap();
            answer.send(Some(7)).unwrap();
            assert_eq!(reader.join().unwrap(), 0);
        });
        assert_eq!(
            ram.read_obj::<u8>(GuestAddress(2 * CHUNK_BYTES)).unwrap(),
            9
        );
        // Of a chunk that is discarded in part, the rest is what the source has.
        answer.send(Some(3)).unwrap();
        ram.discard(Gpa(3 * CHUNK_BYTES + 4096), 4096).unwrap();
        assert_eq!(byte(&ram, 3).unwrap(), 3);
        assert_eq!(
            ram.read_obj::<u8>(GuestAddress(3 * CHUNK_BYTES + 4096))
                .unwrap(),
            0
        );
    }

    #[test]
    fn a_later_fill_is_not_given_what_was_read_for_an_earlier_one() {
        let (ram, asked, answer) = bed();
        std::thread::scope(|scope| {
            let late = scope.spawn(|| ram.bring(ChunkIndex(1), Asked::Ahead).unwrap());
            assert_eq!(asked.recv().unwrap(), ChunkIndex(1));
            let (tx, _asked) = channel();
            let (more, answers) = channel();
            let source = Slow {
                asked: Mutex::new(tx),
                answers: Mutex::new(answers),
            };
            ram.begin_fill([ChunkIndex(2)], Arc::new(source));
            more.send(Some(40)).unwrap();
            more.send(Some(41)).unwrap();
            assert_eq!(
                byte(&ram, 1).unwrap(),
                40,
                "the new source has those that were absent, too"
            );
            answer.send(Some(5)).unwrap();
            late.join().unwrap();
            assert_eq!(byte(&ram, 2).unwrap(), 41);
        });
        assert_eq!(byte(&ram, 1).unwrap(), 40);
    }

    #[test]
    fn the_end_of_a_fill_takes_no_source_from_the_next() {
        struct Of(u8);
        impl FillSource for Of {
            fn read_chunk(
                &self,
                _: ChunkIndex,
                into: &mut [u8],
            ) -> Result<(), Box<dyn Error + Send + Sync>> {
                into.fill(self.0);
                Ok(())
            }
        }
        let presence = Presence::new(4);
        let ensure = |chunk: usize, place: &dyn Fn(&[u8])| {
            let gpa = Gpa(chunk as u64 * CHUNK_BYTES);
            presence.ensure(ChunkIndex(chunk), gpa, Asked::Ahead, place)
        };
        presence.begin([ChunkIndex(1)], Arc::new(Of(1)));
        let (placing, is_placing) = channel();
        let (go_on, may_go_on) = channel();
        std::thread::scope(|scope| {
            let presence = &presence;
            scope.spawn(move || {
                let place = |_: &[u8]| {
                    placing.send(()).unwrap();
                    may_go_on.recv().unwrap();
                };
                let gpa = Gpa(CHUNK_BYTES);
                presence
                    .ensure(ChunkIndex(1), gpa, Asked::Ahead, place)
                    .unwrap();
            });
            is_placing.recv().unwrap();
            scope.spawn(|| presence.begin([ChunkIndex(2)], Arc::new(Of(2))));
            // It holds the lock until it waits for the chunk that is being placed.
            while presence.lock().epoch != 2 {
                std::thread::yield_now();
            }
            go_on.send(()).unwrap();
        });
        ensure(2, &|bytes| assert_eq!(bytes[0], 2)).unwrap();
        assert!(presence.is_complete());
    }

    #[test]
    fn a_lost_chunk_is_an_error_and_never_zeros() {
        let (ram, _asked, answer) = bed();
        let (told, lost) = channel();
        let told = Mutex::new(told);
        ram.on_lost(Box::new(move |what| {
            told.lock().unwrap().send(what.clone()).unwrap()
        }));
        answer.send(None).unwrap();
        assert!(byte(&ram, 1).is_err());
        assert!(byte(&ram, 1).is_err(), "nor later");
        let lost = lost.recv_timeout(Duration::from_secs(60)).unwrap();
        assert_eq!((lost.gpa, lost.chunk), (Gpa(CHUNK_BYTES), ChunkIndex(1)));
        assert_eq!(lost.source().unwrap().to_string(), "damaged");
        assert!(ram.lost().is_some() && ram.make_present(Gpa(CHUNK_BYTES + 5)).is_err());
        // A background thread ends there, too.
        let threads = ram.fill_in_background(&[ChunkIndex(1)], 1, || ()).unwrap();
        assert!(threads.wait(Duration::MAX));
        // Whoever discards it does not need it.
        ram.discard(Gpa(CHUNK_BYTES), CHUNK_BYTES).unwrap();
        assert_eq!(byte(&ram, 1).unwrap(), 0);
    }
}
