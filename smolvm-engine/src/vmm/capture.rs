//! Capturing a machine while it runs.
//!
//! Rounds of pre-copy bring most of memory out while the guest goes on; the chunks of the last, small
//! round are kept here. Then the machine is paused: registers and devices are read, the disk gets a
//! new top, the kept copies are patched with what was written since. It runs again before anything of
//! that is sent.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::ops::ControlFlow;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use cow_disk::{FrozenView, LayerError, LayeredDisk, Overlay, OverlayError};
use snapshot_format::StateRecord;
use thiserror::Error;
use vm_memory::{Bytes, GuestAddress, GuestMemoryError};
use vmm_core::Gpa;
use vmm_core::machine::{MachineError, PausedMachine, RunningMachine};
use vmm_core::ram::{GuestRam, PAGE_BYTES};
use vmm_core::tracker::{DirtySet, TrackerError};

use super::branch::{ShareError, Sharing};
use super::capture_socket::CaptureSocket;
use crate::channel::ChannelError;
use crate::channel::capture::{BeginCapture, CaptureEvent, CapturedChunk, UnitState};
use crate::phase::Phase;

/// Size in bytes of a chunk.
const CHUNK_BYTES: u64 = 64 << 10;
/// Most chunks kept for the pause: 128 MiB.
const MAX_KEPT_CHUNKS: usize = 2048;
/// Most rounds of pre-copy after the first.
const MAX_ROUNDS: usize = 3;
/// Chunks announced in one message.
const BATCH: usize = 64;

/// Why a capture failed.
#[derive(Debug, Error)]
pub(super) enum CaptureError {
    #[error(transparent)]
    Machine(#[from] MachineError),
    #[error(transparent)]
    Tracker(#[from] TrackerError),
    #[error("guest memory cannot be read")]
    Memory(#[from] GuestMemoryError),
    #[error("the new layer of the disk")]
    Overlay(#[from] OverlayError),
    #[error(transparent)]
    Layer(#[from] LayerError),
    #[error("the window cannot be written")]
    Window(#[source] io::Error),
    #[error("the supervisor gave the capture up")]
    Channel(#[from] ChannelError),
    #[error("the guest was reset when the save began; save it again")]
    Reset,
    #[error("the guest has ended")]
    GuestEnded,
    #[error("the disk's layers cannot be merged")]
    Merge(#[source] LayerError),
    #[error("memory cannot be shared")]
    Share(#[from] ShareError),
    #[error("no window for the point")]
    NoWindow,
}

/// What a capture took, until it is over.
pub(super) struct Captured {
    /// Pages that count as written again if it fails.
    taken: DirtySet,
    /// The disk at the instant.
    pub(super) frozen: FrozenView,
    /// The machine stands since.
    stays: bool,
}

impl Captured {
    /// Undoes what the capture took from the machine's tracker; a machine that it left standing runs on. One that was
    /// reset meanwhile has another tracker.
    pub(super) fn give_back(&self, machine: &mut RunningMachine) {
        machine.tracker().give_back(&self.taken);
        if self.stays
            && let Err(error) = machine.pause().and_then(PausedMachine::resume)
        {
            tracing::error!(%error, "the machine does not run on");
        }
    }

    /// The pages that it took: what changed since the point before.
    pub(super) fn into_taken(self) -> DirtySet {
        self.taken
    }
}

/// A capture that failed: nothing is lost, what was taken is given back.
pub(super) struct Failed {
    pub(super) error: CaptureError,
    /// The disk writes to its new top already.
    pub(super) switched: bool,
}

/// What a capture works with.
pub(super) struct CaptureSetup<'a> {
    pub(super) disk: &'a LayeredDisk,
    pub(super) request: BeginCapture,
    /// Written pages are tracked.
    pub(super) tracked: bool,
    /// Memory that is shared with the supervisor, where a point is to be made.
    pub(super) window: Option<&'a File>,
    /// What was written is not known relative to any point.
    pub(super) booted: bool,
    /// The disk's new top layer.
    pub(super) top: File,
    /// What its sealed layers are merged into first.
    pub(super) merged: Option<File>,
    /// The guest has ended.
    pub(super) ended: &'a AtomicBool,
}

/// What a capture has done so far that a failure must undo or name.
struct Progress {
    taken: DirtySet,
    /// The disk writes to its new top already.
    switched: bool,
}

/// Captures the machine; chunks and states go over `socket`.
pub(super) fn capture(
    machine: &mut RunningMachine,
    setup: CaptureSetup<'_>,
    socket: &CaptureSocket,
) -> Result<Captured, Failed> {
    let mut progress = Progress {
        taken: DirtySet::empty(machine.ram()),
        switched: false,
    };
    let stays = setup.request.stay;
    let result = run(machine, setup, &mut progress, socket);
    let Progress { taken, switched } = progress;
    match result {
        Ok(frozen) => Ok(Captured {
            taken,
            frozen,
            stays,
        }),
        Err(error) => {
            machine.tracker().give_back(&taken);
            Err(Failed { error, switched })
        }
    }
}

fn run(
    machine: &mut RunningMachine,
    setup: CaptureSetup<'_>,
    progress: &mut Progress,
    socket: &CaptureSocket,
) -> Result<FrozenView, CaptureError> {
    let CaptureSetup {
        disk,
        request:
            BeginCapture {
                full,
                stay,
                slots,
                point,
                share,
                once,
                ..
            },
        tracked,
        window,
        booted,
        top,
        merged,
        ended,
    } = setup;
    if let Some(merged) = merged {
        merge(disk, merged, socket)?;
    }
    let ram = machine.ram().clone();
    let top = Overlay::open(top)?;
    let mut sender = match (point, window) {
        (true, Some(window)) => Some(Sender::new(&ram, window, slots, socket, ended)),
        (true, None) => return Err(CaptureError::NoWindow),
        (false, _) => None,
    };
    let mut kept = Kept::default();
    // First: what is written while all of memory is copied is left for the pre-copy, not for the pause.
    let mut sharing = share.then(|| Sharing::begin(machine, socket)).transpose()?;
    if let Some(sender) = &mut sender
        && tracked
    {
        pre_copy(machine, full, &mut progress.taken, sender, &mut kept)?;
        if let Some(sharing) = &mut sharing {
            sharing.copy_more(socket)?;
        }
    }
    Phase::PreCopied.reached();
    let begin = Instant::now();
    let paused = machine.pause()?;
    Phase::Paused.reached();
    let last = match (point, tracked, full) {
        (false, ..) => DirtySet::empty(paused.ram()),
        (true, true, _) => paused.tracker().take()?,
        (true, false, true) => all_used(paused.ram()),
        (true, false, false) => DirtySet::full(paused.ram()),
    };
    progress.taken.merge(&last);
    if let Some(sharing) = &mut sharing {
        sharing.copy_last(&paused, booted && !point)?;
    }
    let states = paused.save()?;
    let frozen = disk.freeze(top)?;
    progress.switched = true;
    Phase::DiskSwitched.reached();
    if let Some(sender) = &mut sender {
        // From here on the moment is whole, whatever becomes of the guest.
        sender.ended = None;
        if tracked {
            kept.patch(paused.ram(), &last, sender)?;
        } else {
            // Without tracking, what is written during the copy would be missed: the pause lasts.
            sender.send_set(&last)?;
        }
    }
    let instant = SystemTime::now();
    let standing = if stay {
        Some(paused)
    } else {
        paused.resume()?;
        None
    };
    let pause_micros = u64::try_from(begin.elapsed().as_micros()).unwrap_or(u64::MAX);
    Phase::Resumed.reached();
    let states: Vec<UnitState> = states.into_iter().map(to_message).collect();
    if let Some(sharing) = sharing {
        sharing.hand_over(states.clone(), once, socket)?;
    }
    if let Some(mut sender) = sender {
        sender.send_kept(&kept)?;
        sender.flush()?;
    }
    let since = instant.duration_since(UNIX_EPOCH).unwrap_or_default();
    socket.send(CaptureEvent::Frozen {
        states,
        pause_micros,
        taken: (since.as_secs(), since.subsec_nanos()),
    })?;
    socket.send(CaptureEvent::MemoryDone)?;
    if let Some(paused) = standing {
        paused.stay();
    }
    Ok(frozen)
}

fn to_message(record: StateRecord) -> UnitState {
    let StateRecord {
        unit,
        kind,
        version,
        bytes,
    } = record;
    UnitState {
        unit,
        kind,
        version,
        bytes,
    }
}

/// Makes the disk's sealed layers one.
fn merge(disk: &LayeredDisk, into: File, socket: &CaptureSocket) -> Result<(), CaptureError> {
    if let Some(newest) = disk.layers().last() {
        let given_up = &mut |_, _| match socket.freed_slots() {
            Ok(_) => ControlFlow::Continue(()),
            Err(_) => ControlFlow::Break(()),
        };
        disk.flatten(newest.id(), Overlay::open(into)?, given_up)
            .map_err(CaptureError::Merge)?;
    }
    Ok(socket.send(CaptureEvent::Merged)?)
}

/// All pages that may hold anything. Memory that was never touched is not read: that would cost time, and page tables.
fn all_used(ram: &GuestRam) -> DirtySet {
    DirtySet::populated(ram).unwrap_or_else(|error| {
        tracing::debug!(%error, "all of memory is read");
        DirtySet::full(ram)
    })
}

/// Brings out what is written, again and again, until little is left; that is kept.
fn pre_copy(
    machine: &RunningMachine,
    full: bool,
    taken: &mut DirtySet,
    sender: &mut Sender<'_>,
    kept: &mut Kept,
) -> Result<(), CaptureError> {
    let tracker = machine.tracker();
    let mut round = tracker.take()?;
    taken.merge(&round);
    if full {
        // What is written from now on is in the next round.
        round = all_used(machine.ram());
    }
    sender.announce(&round)?;
    for _ in 0..MAX_ROUNDS {
        if round.units(CHUNK_BYTES).take(MAX_KEPT_CHUNKS + 1).count() <= MAX_KEPT_CHUNKS / 2 {
            break;
        }
        sender.send_set(&round)?;
        sender.flush()?;
        round = tracker.take()?;
        taken.merge(&round);
    }
    let mut units = round.units(CHUNK_BYTES);
    for gpa in units.by_ref().take(MAX_KEPT_CHUNKS) {
        kept.copy(machine.ram(), gpa)?;
    }
    // A writer that is too hot for the rounds: the rest goes out now and may go out again.
    for gpa in units {
        sender.send_unit(gpa)?;
    }
    Ok(())
}

/// Copies of chunks that are completed in the pause.
#[derive(Default)]
struct Kept {
    chunks: BTreeMap<Gpa, Box<[u8]>>,
}

impl Kept {
    fn copy(&mut self, ram: &GuestRam, gpa: Gpa) -> Result<(), CaptureError> {
        let mut bytes = vec![0; CHUNK_BYTES as usize].into_boxed_slice();
        ram.read_slice(&mut bytes, gpa.into())?;
        self.chunks.insert(gpa, bytes);
        Ok(())
    }

    /// Brings the copies up to date with the pages of `last`; the machine is paused. What does not
    /// fit is sent at once, at the price of a longer pause.
    fn patch(
        &mut self,
        ram: &GuestRam,
        last: &DirtySet,
        sender: &mut Sender<'_>,
    ) -> Result<(), CaptureError> {
        let mut whole = None;
        for page in last.pages() {
            let unit = Gpa(page.0 & !(CHUNK_BYTES - 1));
            if whole == Some(unit) {
                continue;
            }
            if let Some(bytes) = self.chunks.get_mut(&unit) {
                let at = (page.0 - unit.0) as usize;
                ram.read_slice(&mut bytes[at..at + PAGE_BYTES as usize], page.into())?;
                continue;
            }
            whole = Some(unit);
            if self.chunks.len() < MAX_KEPT_CHUNKS {
                self.copy(ram, unit)?;
            } else {
                sender.send_unit(unit)?;
            }
        }
        Ok(())
    }
}

/// Puts chunks into the window and announces them.
struct Sender<'a> {
    ram: &'a GuestRam,
    window: &'a File,
    /// The one that was freed last is filled next: what was just used is in the processor's cache, and memory.
    free: Vec<u32>,
    batch: Vec<CapturedChunk>,
    buffer: Vec<u8>,
    socket: &'a CaptureSocket,
    /// Says that the guest has ended, where that ends the capture.
    ended: Option<&'a AtomicBool>,
}

impl<'a> Sender<'a> {
    fn new(
        ram: &'a GuestRam,
        window: &'a File,
        slots: u32,
        socket: &'a CaptureSocket,
        ended: &'a AtomicBool,
    ) -> Self {
        Self {
            ram,
            window,
            free: (0..slots).rev().collect(),
            batch: Vec::new(),
            buffer: vec![0; CHUNK_BYTES as usize],
            socket,
            ended: Some(ended),
        }
    }

    /// Tells how much is to come, but for what is written meanwhile.
    fn announce(&mut self, set: &DirtySet) -> Result<(), CaptureError> {
        let bytes = set.units(CHUNK_BYTES).count() as u64 * CHUNK_BYTES;
        Ok(self.socket.send(CaptureEvent::ToCome { bytes })?)
    }

    fn send_set(&mut self, set: &DirtySet) -> Result<(), CaptureError> {
        set.units(CHUNK_BYTES)
            .try_for_each(|gpa| self.send_unit(gpa))
    }

    fn send_unit(&mut self, gpa: Gpa) -> Result<(), CaptureError> {
        let mut buffer = std::mem::take(&mut self.buffer);
        let result = self
            .ram
            .read_slice(&mut buffer, GuestAddress(gpa.0))
            .map_err(CaptureError::from)
            .and_then(|()| self.send_bytes(gpa, &buffer));
        self.buffer = buffer;
        result
    }

    fn send_kept(&mut self, kept: &Kept) -> Result<(), CaptureError> {
        kept.chunks
            .iter()
            .try_for_each(|(gpa, bytes)| self.send_bytes(*gpa, bytes))
    }

    fn send_bytes(&mut self, gpa: Gpa, bytes: &[u8]) -> Result<(), CaptureError> {
        let chunk = self.number_of(gpa);
        let slot = if cas_store::is_zero(bytes) {
            None
        } else {
            let slot = self.take_slot()?;
            self.window
                .write_all_at(bytes, u64::from(slot) * CHUNK_BYTES)
                .map_err(CaptureError::Window)?;
            Some(slot)
        };
        self.batch.push(CapturedChunk { chunk, slot });
        if self.batch.len() >= BATCH {
            self.flush()?;
        }
        Ok(())
    }

    /// The chunk's number over all regions.
    fn number_of(&self, gpa: Gpa) -> u64 {
        let mut before = 0;
        for region in self.ram.layout().regions() {
            if region.contains(gpa) {
                return before + (gpa.0 - region.start.0) / CHUNK_BYTES;
            }
            before += region.bytes / CHUNK_BYTES;
        }
        before
    }

    fn take_slot(&mut self) -> Result<u32, CaptureError> {
        loop {
            if let Some(slot) = self.free.pop() {
                return Ok(slot);
            }
            // The supervisor can free only what it knows of.
            self.flush()?;
            self.free.extend(self.socket.wait_free_slots()?);
        }
    }

    fn flush(&mut self) -> Result<(), CaptureError> {
        if self.ended.is_some_and(|ended| ended.load(Ordering::SeqCst)) {
            return Err(CaptureError::GuestEnded);
        }
        self.free.extend(self.socket.freed_slots()?);
        if !self.batch.is_empty() {
            self.socket
                .send(CaptureEvent::Chunks(std::mem::take(&mut self.batch)))?;
        }
        Ok(())
    }
}
