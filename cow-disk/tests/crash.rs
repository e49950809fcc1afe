//! Process death and power loss at every operation on the files.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use cow_disk::testing::{CrashFile, CrashHost};
use cow_disk::{Base, BaseReader, BlockDevice, Layer, LayeredDisk, Overlay, OverlayError};
use proptest::prelude::*;

const SECTOR: u64 = 512;
const SECTORS: usize = 12 * 8;
const DISK: u64 = SECTORS as u64 * SECTOR;
/// Outcomes of each power loss that are looked at, beside the one that is gone on from.
const FATES: u64 = 8;
/// Where the data region of a small overlay begins (`docs/format.md`).
const DATA_OFFSET: u64 = 64 << 10;

#[derive(Debug, Clone, Copy)]
enum Request {
    Write { at: u64, len: u64 },
    Zero { at: u64, len: u64 },
    WriteOfZeroes { at: u64, len: u64 },
    Discard { at: u64, len: u64 },
}

#[derive(Debug, Clone)]
enum Op {
    Do(Request),
    Flush,
    /// A flush, with requests by somebody else in the middle of its n-th sync.
    FlushDuring(usize, Vec<Request>),
    Freeze,
    Flatten,
}

fn request(span: u64) -> impl Strategy<Value = Request> {
    let sectors = move || {
        let any = (0..span, 1..12u64);
        let granules = (0..span / 8, 1..4u64).prop_map(|(at, len)| (at * 8, len * 8));
        // A few granules are hit again and again, so that states follow each other.
        let hot = (0..span.min(20), 1..9u64);
        prop_oneof![any, granules, hot]
            .prop_map(move |(at, len): (u64, u64)| (at, len.min(span - at)))
    };
    prop_oneof![
        4 => sectors().prop_map(|(at, len)| Request::Write { at, len }),
        1 => sectors().prop_map(|(at, len)| Request::Zero { at, len }),
        1 => sectors().prop_map(|(at, len)| Request::WriteOfZeroes { at, len }),
        1 => sectors().prop_map(|(at, len)| Request::Discard { at, len }),
    ]
}

/// Operations on the first `span` sectors.
fn op(span: u64) -> impl Strategy<Value = Op> {
    let during = (0..3usize, prop::collection::vec(request(span), 1..4));
    prop_oneof![
        14 => request(span).prop_map(Op::Do),
        3 => Just(Op::Flush),
        3 => during.prop_map(|(nth, requests)| Op::FlushDuring(nth, requests)),
        1 => Just(Op::Freeze),
        1 => Just(Op::Flatten),
    ]
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Crash {
    Process,
    Power,
}

/// A base that holds tags 1, 2, 3, ...
struct TaggedBase;

impl BaseReader for TaggedBase {
    fn read_at(&self, offset_bytes: u64, buf: &mut [u8]) -> std::io::Result<()> {
        for (i, byte) in buf.iter_mut().enumerate() {
            let at = offset_bytes + i as u64;
            let tag = (at / SECTOR + 1) as u32;
            *byte = tag.to_le_bytes()[(at % 4) as usize];
        }
        Ok(())
    }

    fn size_bytes(&self) -> u64 {
        DISK - 8 * SECTOR
    }
}

/// Sectors and what a request makes of them.
type Effect = Vec<(usize, u32)>;

/// Sectors hold one number all over; this one keeps what each of them may hold.
struct Model {
    current: Vec<u32>,
    /// What may be found after a power loss.
    possible: Vec<Vec<u32>>,
    next_tag: u32,
}

impl Model {
    fn new() -> Self {
        let in_base = SECTORS - 8;
        let current: Vec<u32> = (0..SECTORS)
            .map(|i| if i < in_base { i as u32 + 1 } else { 0 })
            .collect();
        Self {
            possible: current.iter().map(|tag| vec![*tag]).collect(),
            current,
            next_tag: 1000,
        }
    }

    /// The sectors a request changes and what it makes of them.
    fn effect(&mut self, request: Request) -> Effect {
        let range = match request {
            Request::Write { at, len } => {
                let tagged = (at..at + len).map(|sector| {
                    self.next_tag += 1;
                    (sector as usize, self.next_tag)
                });
                return tagged.collect();
            }
            Request::Zero { at, len } | Request::WriteOfZeroes { at, len } => at..at + len,
            Request::Discard { at, len } => at.div_ceil(8) * 8..(at + len) / 8 * 8,
        };
        range.map(|sector| (sector as usize, 0)).collect()
    }

    fn done(&mut self, effect: &[(usize, u32)]) {
        for &(sector, tag) in effect {
            self.current[sector] = tag;
            self.possible[sector].push(tag);
        }
    }

    /// A flush has ended that began when the sectors were like `then`; `during` it there were
    /// others.
    fn flushed(&mut self, then: &[u32], during: &[Effect]) {
        for (possible, tag) in self.possible.iter_mut().zip(then) {
            *possible = vec![*tag];
        }
        for &(sector, tag) in during.iter().flatten() {
            self.possible[sector].push(tag);
        }
    }

    /// Compares with what is found after a crash.
    fn check(&self, found: &[u32], crash: Crash, in_flight: &[(usize, u32)]) {
        for (sector, &tag) in found.iter().enumerate() {
            let new = in_flight.iter().find(|(at, _)| *at == sector);
            let allowed = tag == self.current[sector]
                || new.is_some_and(|(_, new)| *new == tag)
                || crash == Crash::Power && self.possible[sector].contains(&tag);
            assert!(
                allowed,
                "sector {sector} holds {tag} after {crash:?} crash, not {} or one of {:?}, {new:?}",
                self.current[sector], self.possible[sector],
            );
        }
    }

    /// Goes on from what was found.
    fn crashed(&mut self, found: &[u32], crash: Crash) {
        for (sector, &tag) in found.iter().enumerate() {
            self.current[sector] = tag;
            match crash {
                Crash::Process => self.possible[sector].push(tag),
                Crash::Power => self.possible[sector] = vec![tag],
            }
        }
    }
}

/// A disk on a crashing host, and the order of its layers, which its user records durably.
struct Machine {
    host: CrashHost,
    files: Vec<CrashFile>,
    disk: Arc<LayeredDisk>,
    model: Model,
}

/// Sends a request; false if the host has stopped.
fn send(disk: &LayeredDisk, request: Request, effect: &Effect) -> bool {
    match request {
        Request::Write { at, .. } | Request::WriteOfZeroes { at, .. } => {
            let data: Vec<u8> = effect
                .iter()
                .flat_map(|(_, tag)| tag.to_le_bytes().repeat(128))
                .collect();
            disk.write_at(at * SECTOR, &data).is_ok()
        }
        Request::Zero { at, len } => disk.write_zeroes(at * SECTOR, len * SECTOR).is_ok(),
        Request::Discard { at, len } => disk.discard(at * SECTOR, len * SECTOR).is_ok(),
    }
}

/// Opens a disk from the files of its layers.
fn open(files: &[CrashFile]) -> Result<LayeredDisk, OverlayError> {
    let (top, sealed) = files.split_last().unwrap();
    let layers = sealed
        .iter()
        .map(|file| Layer::open_shared(Arc::new(file.clone())))
        .collect::<Result<Vec<_>, _>>()?;
    let top = Overlay::open(top.clone())?;
    Ok(LayeredDisk::new(base(), layers, top).unwrap())
}

/// The numbers in all sectors.
fn read(disk: &LayeredDisk) -> Vec<u32> {
    let mut buf = vec![0; DISK as usize];
    disk.read_at(0, &mut buf).unwrap();
    buf.chunks_exact(SECTOR as usize)
        .map(|sector| {
            let tag = u32::from_le_bytes(sector[..4].try_into().unwrap());
            let whole = sector.chunks_exact(4).all(|word| word == tag.to_le_bytes());
            assert!(whole, "torn sector");
            tag
        })
        .collect()
}

/// Runs `hook` during the n-th sync from now.
fn during_sync(host: CrashHost, nth: usize, hook: impl FnOnce() + Send + 'static) {
    let Some(later) = nth.checked_sub(1) else {
        return host.during_next_sync(hook);
    };
    let again = host.clone();
    let hook: Box<dyn FnOnce() + Send> = Box::new(hook);
    host.during_next_sync(move || during_sync(again, later, hook));
}

fn base() -> Base {
    Base::reader(Arc::new(TaggedBase))
}

impl Machine {
    fn new(seed: u64) -> Self {
        let host = CrashHost::new(seed, DATA_OFFSET);
        let file = host.file();
        let top = Overlay::create(file.clone(), DISK).unwrap();
        Self {
            host,
            files: vec![file],
            disk: Arc::new(LayeredDisk::new(base(), Vec::new(), top).unwrap()),
            model: Model::new(),
        }
    }

    /// Runs an operation; if the host stops, returns what was in flight.
    fn run(&mut self, op: &Op) -> Result<(), Effect> {
        let done = match op {
            Op::Do(request) => {
                let effect = self.model.effect(*request);
                if !send(&self.disk, *request, &effect) {
                    return Err(effect);
                }
                self.model.done(&effect);
                true
            }
            Op::Flush => return self.flush_during(0, &[]),
            Op::FlushDuring(nth, requests) => return self.flush_during(*nth, requests),
            Op::Freeze => self.freeze().is_some(),
            Op::Flatten => self.flatten().is_some(),
        };
        if done { Ok(()) } else { Err(Vec::new()) }
    }

    fn flush_during(&mut self, nth: usize, requests: &[Request]) -> Result<(), Effect> {
        let then = self.model.current.clone();
        let work: Vec<_> = requests
            .iter()
            .map(|request| (*request, self.model.effect(*request)))
            .collect();
        let done = Arc::new(AtomicUsize::new(0));
        let started = Arc::new(AtomicBool::new(false));
        let hook = {
            let (disk, work) = (Arc::clone(&self.disk), work.clone());
            let (done, started) = (Arc::clone(&done), Arc::clone(&started));
            move || {
                started.store(true, Ordering::Relaxed);
                for (request, effect) in work {
                    if !send(&disk, request, &effect) {
                        return;
                    }
                    done.fetch_add(1, Ordering::Relaxed);
                }
            }
        };
        during_sync(self.host.clone(), nth, hook);
        let flushed = self.disk.flush();
        self.host.during_next_sync(|| ());
        let done = done.load(Ordering::Relaxed);
        let effects: Vec<Effect> = work.into_iter().map(|(_, effect)| effect).collect();
        effects[..done]
            .iter()
            .for_each(|effect| self.model.done(effect));
        if flushed.is_ok() {
            self.model.flushed(&then, &effects[..done]);
            return Ok(());
        }
        let in_flight = started.load(Ordering::Relaxed).then(|| effects.get(done));
        Err(in_flight.flatten().cloned().unwrap_or_default())
    }

    fn freeze(&mut self) -> Option<()> {
        let file = self.host.file();
        let top = Overlay::create(file.clone(), DISK).ok()?;
        self.disk.freeze(top).ok()?;
        self.files.push(file);
        Some(())
    }

    fn flatten(&mut self) -> Option<()> {
        let layers = self.disk.layers();
        let Some(last) = layers.last() else {
            return Some(());
        };
        let file = self.host.file();
        let into = Overlay::create(file.clone(), DISK).ok()?;
        self.disk
            .flatten(last.id(), into, &mut |_, _| ControlFlow::Continue(()))
            .ok()?;
        self.files.splice(..layers.len(), [file]);
        Some(())
    }

    /// Opens the disk again; fails only if the host stops again.
    fn open(&mut self) -> bool {
        match open(&self.files) {
            Ok(disk) => self.disk = Arc::new(disk),
            Err(error) => {
                assert!(self.host.is_stopped(), "{error:?}");
                return false;
            }
        }
        true
    }

    /// Runs the operations, dies at one of the host's, restarts, compares.
    fn live(&mut self, ops: &[Op], stop_after: u64, crash: Crash, stop_in_open: Option<u64>) {
        self.host.stop_at(self.host.operations() + stop_after);
        let mut in_flight = Vec::new();
        for op in ops {
            if let Err(effect) = self.run(op) {
                assert!(self.host.is_stopped());
                in_flight = effect;
                break;
            }
        }
        if crash == Crash::Power {
            (0..FATES).for_each(|seed| self.check_fate(seed, &in_flight));
        }
        self.restart(crash);
        if let Some(after) = stop_in_open {
            self.host.stop_at(self.host.operations() + after);
            if !self.open() {
                self.restart(crash);
            }
            self.host.restart_process();
        }
        assert!(self.open());
        // Read elsewhere: reading settles what an opening left open, and writes must cope with it.
        let found = self.read_on_fork();
        self.model.check(&found, crash, &in_flight);
        self.model.crashed(&found, crash);
    }

    fn read_on_fork(&self) -> Vec<u32> {
        let host = self.host.fork(0);
        let files: Vec<_> = self.files.iter().map(|file| file.on(&host)).collect();
        read(&open(&files).unwrap())
    }

    /// Another outcome of the power loss that is about to happen.
    fn check_fate(&self, seed: u64, in_flight: &[(usize, u32)]) {
        let host = self.host.fork(seed);
        host.restart_power();
        let files: Vec<_> = self.files.iter().map(|file| file.on(&host)).collect();
        let disk = open(&files).unwrap();
        self.model.check(&read(&disk), Crash::Power, in_flight);
    }

    fn restart(&self, crash: Crash) {
        match crash {
            Crash::Process => self.host.restart_process(),
            Crash::Power => self.host.restart_power(),
        }
    }
}

fn crash() -> impl Strategy<Value = Crash> {
    prop_oneof![Just(Crash::Process), Just(Crash::Power)]
}

type Life = (Vec<Op>, u64, Crash, Option<u64>);

fn life(span: u64) -> impl Strategy<Value = Life> {
    (
        prop::collection::vec(op(span), 1..25),
        0..60u64,
        crash(),
        prop::option::of(0..6u64),
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, ..ProptestConfig::default() })]

    /// Several lives in a row: what one crash leaves behind must not show after the next.
    #[test]
    fn no_crash_loses_what_it_must_not(
        seed: u64,
        lives in prop::collection::vec(life(SECTORS as u64), 1..5),
    ) {
        let mut machine = Machine::new(seed);
        for (ops, stop_after, crash, stop_in_open) in lives {
            machine.live(&ops, stop_after, crash, stop_in_open);
        }
    }

    /// The same on two granules only, where states follow each other more closely.
    #[test]
    fn no_crash_loses_what_it_must_not_in_two_granules(
        seed: u64,
        lives in prop::collection::vec(life(16), 1..5),
    ) {
        let mut machine = Machine::new(seed);
        for (ops, stop_after, crash, stop_in_open) in lives {
            machine.live(&ops, stop_after, crash, stop_in_open);
        }
    }
}

/// One story with every kind of request, stopped at each operation in turn.
#[test]
fn a_crash_at_each_operation() {
    let ops = [
        Op::Do(Request::Write { at: 0, len: 16 }),
        Op::Do(Request::Write { at: 19, len: 1 }),
        Op::Flush,
        Op::Do(Request::Write { at: 0, len: 3 }),
        Op::Do(Request::WriteOfZeroes { at: 16, len: 8 }),
        Op::Do(Request::Discard { at: 0, len: 16 }),
        Op::Do(Request::Write { at: 4, len: 8 }),
        Op::Flush,
        Op::Freeze,
        Op::Do(Request::Write { at: 2, len: 40 }),
        Op::Do(Request::Discard { at: 8, len: 24 }),
        Op::Do(Request::Zero { at: 30, len: 30 }),
        Op::Flush,
        Op::Do(Request::Write { at: 9, len: 1 }),
        Op::Freeze,
        Op::Flatten,
        Op::Do(Request::Write { at: 60, len: 36 }),
        Op::Flush,
        Op::Do(Request::Zero { at: 60, len: 36 }),
    ];
    let mut whole = Machine::new(1);
    whole.live(&ops, u64::MAX / 2, Crash::Process, None);
    let operations = whole.host.operations();
    assert!(operations > 60, "{operations}");
    for stop_after in 0..operations {
        for seed in 0..20 {
            for crash in [Crash::Process, Crash::Power] {
                let mut machine = Machine::new(seed);
                machine.live(&ops, stop_after, crash, None);
                machine.live(&ops, u64::MAX / 2, Crash::Power, None);
            }
        }
    }
}
