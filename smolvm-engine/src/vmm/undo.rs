//! A machine goes back to a point in place: its process, its VM and its threads stay.
//!
//! What differs from the point is known: the chunks written since the point that memory was equal to, and the chunks in which
//! that point and the target differ. Most of it is read and verified while the guest runs. Then the machine stands, the supervisor
//! makes the target the machine's own in its file, and only after that anything is changed here.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cas_store::{ChunkId, MAX_CHUNK_BYTES, ReadError, for_all};
use cow_disk::LayeredDisk;
use snapshot_format::{ChunkRef, MapReader, MemoryRegion, Point, PointRecord};
use thiserror::Error;
use vm_memory::{Bytes, GuestAddress, GuestMemoryError};
use vmm_core::Gpa;
use vmm_core::machine::{MachineError, PausedMachine, RunningMachine};
use vmm_core::ram::{GuestRam, PAGE_BYTES, RamError};
use vmm_core::tracker::{DirtySet, TrackerError};

use super::fill::Nodes;
use super::read_ahead::ReadAhead;
use super::start::{Parts, StartError, read_all};
use crate::channel::undo::{GoBackDescriptors, GoBackEvent, GoBackRequest, Unreadable};
use crate::channel::{self, ChannelError};
use crate::error_chain::chain;
use crate::machine::{ChunkSource, MapReadError};
use crate::phase::Phase;

/// Size in bytes of a chunk.
const CHUNK_BYTES: u64 = MAX_CHUNK_BYTES as u64;
/// Most chunks that are read before anything is changed: 256 MiB. The others are read as they are put back.
const MAX_READ_AHEAD: usize = 4096;
/// How long the supervisor may take to decide while the machine stands.
const DECISION_PATIENCE: Duration = Duration::from_secs(60);

/// Why a machine did not go back in place.
#[derive(Debug, Error)]
pub(super) enum UndoError {
    #[error("a descriptor is missing")]
    Descriptor,
    #[error(transparent)]
    Start(#[from] StartError),
    #[error("the point's record")]
    Record(#[from] snapshot_format::DecodeError),
    #[error("the point's memory is not of this machine's size")]
    Layout,
    #[error("memory at {:#x}", gpa.0)]
    Chunk {
        gpa: Gpa,
        #[source]
        source: ReadError,
    },
    #[error("the map of its memory")]
    Map(#[from] MapReadError),
    #[error("no memory for what is read ahead")]
    ReadAhead(#[from] std::io::Error),
    #[error("written pages are not tracked")]
    Untracked,
    #[error(transparent)]
    Tracker(#[from] TrackerError),
    #[error(transparent)]
    Machine(#[from] MachineError),
    #[error("guest memory cannot be written")]
    Memory(#[from] GuestMemoryError),
    #[error(transparent)]
    Ram(#[from] RamError),
    #[error("the supervisor gave it up")]
    Channel(#[from] ChannelError),
}

impl UndoError {
    fn unreadable(&self) -> Option<Unreadable> {
        let pack = match self {
            Self::Chunk { source, .. } => match source {
                ReadError::DamagedChunk { path, .. } | ReadError::DamagedPack { path, .. } => {
                    Some(path.clone())
                }
                _ => None,
            },
            Self::Map(_) => None,
            _ => return None,
        };
        Some(Unreadable { pack })
    }
}

/// What the supervisor gave for it.
pub(super) struct Files {
    socket: UnixStream,
    target: PointRecord,
    /// The point that memory was equal to; without it nothing is known about what differs.
    base: Option<PointRecord>,
    disk: Arc<LayeredDisk>,
    source: ChunkSource,
}

impl Files {
    /// Opens everything; the socket stays open where that fails.
    pub(super) fn open(
        parts: &Parts,
        descriptors: Vec<OwnedFd>,
        booted: bool,
    ) -> Result<Self, (Option<UnixStream>, UndoError)> {
        let mut descriptors: Vec<_> = descriptors.into_iter().map(Some).collect();
        let mut take = |number: usize| descriptors.get_mut(number).and_then(Option::take);
        let Some(socket) = take(GoBackDescriptors::SOCKET).map(UnixStream::from) else {
            return Err((None, UndoError::Descriptor));
        };
        let opened = open_point(
            parts,
            take(GoBackDescriptors::TARGET),
            take(GoBackDescriptors::MAP),
            take(GoBackDescriptors::LAYER),
            take(GoBackDescriptors::BASE),
        );
        match opened {
            Ok((target, base, disk, source)) => Ok(Self {
                socket,
                target,
                // What changed since a boot is known relative to no point.
                base: base.filter(|_| !booted),
                disk,
                source,
            }),
            Err(error) => Err((Some(socket), error)),
        }
    }
}

type Opened = (
    PointRecord,
    Option<PointRecord>,
    Arc<LayeredDisk>,
    ChunkSource,
);

fn open_point(
    parts: &Parts,
    target: Option<OwnedFd>,
    map: Option<OwnedFd>,
    layer: Option<OwnedFd>,
    base: Option<OwnedFd>,
) -> Result<Opened, UndoError> {
    let (Some(target), Some(map), Some(layer)) = (target, map, layer) else {
        return Err(UndoError::Descriptor);
    };
    let record = |file: OwnedFd| -> Result<PointRecord, UndoError> {
        let bytes = read_all(&File::from(file), "point's record")?;
        Ok(Point::decode(&bytes)?.into_record())
    };
    Ok((
        record(target)?,
        base.map(record).transpose()?,
        parts.disk_over(map, layer.into())?,
        parts.chunks()?,
    ))
}

/// Says that nothing came of it.
pub(super) fn tell_failure(socket: &UnixStream, error: &UndoError, between: bool) {
    let failed = GoBackEvent::Failed {
        message: chain(error),
        between,
        unreadable: error.unreadable(),
    };
    if let Err(error) = channel::send(socket, &failed, &[]) {
        tracing::debug!(%error, "nobody waits for an undo that failed");
    }
}

/// How it ended.
pub(super) enum Outcome {
    /// The machine is at the point, and runs; its disk is this one.
    Back(Arc<LayeredDisk>),
    /// It is where it was, and runs.
    Same,
    /// It is between two states, and stands.
    Between,
}

/// Takes the machine back. `taken` are pages that were written since the base, but are not in the tracker.
pub(super) fn go_back(
    machine: &mut RunningMachine,
    parts: &Parts,
    files: Files,
    taken: Option<DirtySet>,
) -> Outcome {
    let mut written = taken.unwrap_or_else(|| DirtySet::empty(machine.ram()));
    let mut changed = false;
    match run(machine, parts, &files, &mut written, &mut changed) {
        Ok(()) => Outcome::Back(files.disk),
        Err(error) => {
            if !changed {
                machine.tracker().give_back(&written);
            }
            tell_failure(&files.socket, &error, changed);
            if changed {
                Outcome::Between
            } else {
                Outcome::Same
            }
        }
    }
}

fn run(
    machine: &mut RunningMachine,
    parts: &Parts,
    files: &Files,
    written: &mut DirtySet,
    changed: &mut bool,
) -> Result<(), UndoError> {
    if !parts.tracked() {
        return Err(UndoError::Untracked);
    }
    machine.check(&files.target.states)?;
    parts.check_rate(&files.target)?;
    // Afterwards the packs that memory still comes from may go.
    parts.wait_for_memory(|| still_wanted(&files.socket))?;
    let target = Target::new(machine.ram(), &files.target, &files.source)?;
    let whole = match &files.base {
        Some(base) => target.differing_from(base)?,
        None => target.all_chunks(machine.ram())?,
    };
    written.merge(&machine.tracker().take()?);
    let mut different = whole.clone();
    different.extend(chunks_of(written));
    let early = target.read(&different)?;

    let begin = Instant::now();
    let mut paused = machine.pause()?;
    let last = paused.tracker().take()?;
    written.merge(&last);
    let late: Vec<Gpa> = chunks_of(&last)
        .filter(|gpa| !different.contains(gpa))
        .collect();
    different.extend(late.iter().copied());
    let late = target.read(&late.into_iter().collect())?;
    Phase::UndoReady.reached();
    channel::send(&files.socket, &GoBackEvent::Ready, &[])?;
    files
        .socket
        .set_read_timeout(Some(DECISION_PATIENCE))
        .map_err(ChannelError::Io)?;
    let GoBackRequest::Decided = channel::receive(&files.socket)?.message;

    *changed = true;
    let difference = Difference {
        chunks: &different,
        whole: &whole,
        written,
    };
    target.put_back(paused.ram(), &difference, &[early, late])?;
    Phase::UndoMemoryBack.reached();
    load(&mut paused, parts, files)?;
    paused.resume()?;
    let pause_micros = u64::try_from(begin.elapsed().as_micros()).unwrap_or(u64::MAX);
    Phase::UndoneInPlace.reached();
    let back = GoBackEvent::Back {
        pause_micros,
        chunks: different.len() as u64,
    };
    // The machine is there, whoever is left to hear it.
    if let Err(error) = channel::send(&files.socket, &back, &[]) {
        tracing::debug!(%error, "nobody waits for the machine to be back");
    }
    Ok(())
}

/// Tells the supervisor that this goes on, unless it gave the undo up.
fn still_wanted(socket: &UnixStream) -> Result<(), ChannelError> {
    if channel::is_readable(socket, Duration::ZERO)? {
        // It says nothing before it hears that the machine is ready: this is its end.
        return Err(ChannelError::Closed);
    }
    channel::send(socket, &GoBackEvent::Waiting, &[])
}

/// Memory is what it was: so become the disk and every unit.
fn load(paused: &mut PausedMachine<'_>, parts: &Parts, files: &Files) -> Result<(), UndoError> {
    let none = DirtySet::empty(paused.ram());
    paused.tracker().reset_to(&none)?;
    paused.exchange_root_disk(parts.root_disk(files.disk.clone()))?;
    Ok(paused.load(&files.target.states)?)
}

fn chunks_of(set: &DirtySet) -> impl Iterator<Item = Gpa> + '_ {
    set.units(CHUNK_BYTES)
}

type Chunks = BTreeSet<Gpa>;

/// What may differ from a point.
struct Difference<'a> {
    /// Chunks in which anything does.
    chunks: &'a Chunks,
    /// Those of them that are others at the point than they were before pages were written.
    whole: &'a Chunks,
    /// Pages that were written.
    written: &'a DirtySet,
}

impl Difference<'_> {
    /// Writes what may differ in a chunk. Other pages stay untouched: what is known of them, as translated code, holds on.
    fn write(&self, ram: &GuestRam, gpa: Gpa, chunk: &[u8]) -> Result<(), GuestMemoryError> {
        if self.whole.contains(&gpa) {
            return ram.write_slice(chunk, GuestAddress(gpa.0));
        }
        let pages = (gpa.0..).step_by(PAGE_BYTES as usize);
        for (page, bytes) in pages.zip(chunk.chunks(PAGE_BYTES as usize)) {
            if self.written.contains(Gpa(page)) {
                ram.write_slice(bytes, GuestAddress(page))?;
            }
        }
        Ok(())
    }
}

/// The memory of the point.
struct Target<'a> {
    record: &'a PointRecord,
    source: &'a ChunkSource,
    maps: MapReader<Nodes<'a>>,
}

impl<'a> Target<'a> {
    fn new(
        ram: &GuestRam,
        record: &'a PointRecord,
        source: &'a ChunkSource,
    ) -> Result<Self, UndoError> {
        let regions = ram.layout().regions();
        let same = regions.len() == record.memory.len()
            && regions.iter().zip(&record.memory).all(|(region, saved)| {
                region.start.0 == saved.start_gpa && region.bytes == saved.size_bytes
            });
        if !same {
            return Err(UndoError::Layout);
        }
        Ok(Self {
            record,
            source,
            maps: MapReader::new(Nodes(source)),
        })
    }

    fn chunk(&self, gpa: Gpa) -> Result<ChunkRef, UndoError> {
        let region = self.record.memory.iter().find(|region| {
            (region.start_gpa..region.start_gpa + region.size_bytes).contains(&gpa.0)
        });
        let region = region.ok_or(UndoError::Layout)?;
        let index = (gpa.0 - region.start_gpa) / CHUNK_BYTES;
        Ok(self.maps.get(&region.map, index)?)
    }

    /// The chunks of a region that are not zero, by address.
    fn data_of(&self, region: &MemoryRegion) -> Result<BTreeMap<Gpa, ChunkRef>, UndoError> {
        let data = self.maps.data(&region.map);
        data.map(|found| {
            let (index, chunk) = found?;
            let offset = index.checked_mul(CHUNK_BYTES);
            let offset = offset.filter(|offset| *offset < region.size_bytes);
            let offset = offset.ok_or(UndoError::Layout)?;
            Ok((Gpa(region.start_gpa + offset), chunk))
        })
        .collect()
    }

    /// The chunks that are others in `base`.
    fn differing_from(&self, base: &PointRecord) -> Result<Chunks, UndoError> {
        let mut different = Chunks::new();
        if base.memory.len() != self.record.memory.len() {
            return Err(UndoError::Layout);
        }
        for (here, there) in self.record.memory.iter().zip(&base.memory) {
            if here.map == there.map {
                continue;
            }
            let (here, there) = (self.data_of(here)?, self.data_of(there)?);
            let other = here
                .iter()
                .filter(|(gpa, chunk)| there.get(gpa) != Some(*chunk));
            different.extend(other.map(|(gpa, _)| *gpa));
            different.extend(there.into_keys().filter(|gpa| !here.contains_key(gpa)));
        }
        Ok(different)
    }

    /// Every chunk that holds anything, there or now.
    fn all_chunks(&self, ram: &GuestRam) -> Result<Chunks, UndoError> {
        let used = DirtySet::populated(ram).unwrap_or_else(|_| DirtySet::full(ram));
        let mut all: Chunks = chunks_of(&used).collect();
        for region in &self.record.memory {
            all.extend(self.data_of(region)?.into_keys());
        }
        Ok(all)
    }

    /// Reads chunks, verified, as many as are read ahead. Chunks of zeros need no reading.
    fn read(&self, chunks: &Chunks) -> Result<ReadAhead, UndoError> {
        let mut jobs = Vec::new();
        for gpa in chunks {
            let chunk = self.chunk(*gpa)?;
            if !chunk.is_zero() && jobs.len() < MAX_READ_AHEAD {
                jobs.push((*gpa, chunk));
            }
        }
        ReadAhead::new(&jobs, |gpa, chunk, bytes| self.get(gpa, chunk, bytes))
    }

    fn get(&self, gpa: Gpa, chunk: &ChunkRef, bytes: &mut [u8]) -> Result<usize, UndoError> {
        let length = self.source.get(&ChunkId(chunk.0), bytes);
        length.map_err(|source| UndoError::Chunk { gpa, source })
    }

    /// Makes memory what it was, in the chunks that differ; nobody else uses it.
    fn put_back(
        &self,
        ram: &GuestRam,
        difference: &Difference<'_>,
        ahead: &[ReadAhead],
    ) -> Result<(), UndoError> {
        let mut later = Vec::new();
        for gpa in difference.chunks {
            if let Some(bytes) = ahead.iter().find_map(|ahead| ahead.get(*gpa)) {
                difference.write(ram, *gpa, bytes)?;
                continue;
            }
            let chunk = self.chunk(*gpa)?;
            if chunk.is_zero() {
                ram.discard(*gpa, CHUNK_BYTES)?;
            } else {
                later.push((*gpa, chunk));
            }
        }
        let written = for_all(&later, |(gpa, chunk), bytes| {
            let length = self.get(*gpa, chunk, bytes)?;
            Ok::<_, UndoError>(difference.write(ram, *gpa, &bytes[..length])?)
        });
        match written {
            Ok(_) => Ok(()),
            Err(failures) => Err(failures.cause(|_| false)),
        }
    }
}
