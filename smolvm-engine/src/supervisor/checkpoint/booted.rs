//! A booted point: the instant of a machine whose guest has booted, before anybody works in it, in the cache for others.
//!
//! The machine stands still for a moment, as for a branch; what it goes on to do is its own. The point is put together behind it, from the
//! frozen memory, and holds nothing of the machine that it is from: no name, no environment, no labels.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Read;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::{Arc, TryLockError};

use cas_store::{
    Capture, CaptureOptions, PackId, PackSet, Store, StoreError, for_all, pack_file_name,
};
use snapshot_format::{CHUNK_BYTES, ChunkRef, DiskMap, MemoryRegion, Point};
use vmm_core::Gpa;
use vmm_core::ram::{SharedPart, SharedRam};
use vmm_core::x86::ram_layout;

use super::boot::boot_blobs;
use super::branch::as_of;
use super::dialogue::Moment;
use super::{CheckpointError, Run, SharedMemory, to_records};
use crate::channel::branch::Inheritance;
use crate::file_error::FileError;
use crate::home::make_private_dir;
use crate::machine::{BaseMap, MachineFile, without_hostname};
use crate::phase::Phase;
use crate::point::{CheckpointDir, PointError, write_synced};
use crate::save::chunk_sink::memory_regions;
use crate::save::maps::Maps;
use crate::save::{disk_capture, record};
use crate::supervisor::booted::Making;
use crate::supervisor::shared::Shared;

/// Largest description of a frozen machine in bytes.
const MAX_INHERITANCE_BYTES: u64 = 64 << 20;
/// Chunks of memory that are stored before it is asked whether that is still wanted.
const CHUNKS_AT_A_TIME: usize = 64;
/// Name of the machine in a booted point.
const NOBODY: &str = "booted";

/// A booted machine at one instant.
pub(in crate::supervisor) struct FrozenBoot {
    /// As it was then, its disk below the last layer.
    machine: MachineFile,
    memory: SharedRam,
    moment: Moment,
}

/// Freezes the machine, which runs on. Whoever starts it waits for this, so it does not wait for a save.
///
/// # Errors
///
/// The machine runs on.
pub(in crate::supervisor) fn freeze_booted(shared: &Shared) -> Result<FrozenBoot, CheckpointError> {
    let mut state = match shared.capture.try_lock() {
        Ok(state) => state,
        Err(TryLockError::Poisoned(state)) => state.into_inner(),
        Err(TryLockError::WouldBlock) => return Err(CheckpointError::Busy),
    };
    let mut run = Run::new(shared);
    let go_on = &|_: &str, _, _| !shared.has_ended();
    let moment = run.share(&state, true, go_on);
    let moment = moment.inspect_err(|_| run.abort(&mut state));
    run.note_top(&mut state);
    let nothing = || CheckpointError::Vmm("it shared nothing".to_owned());
    let moment = moment?;
    let SharedMemory { descriptors, .. } = run.memory.take().ok_or_else(nothing)?;
    let machine = shared.dir.read()?.ok_or(CheckpointError::Ended)?;
    Ok(FrozenBoot {
        memory: open_memory(descriptors, machine.spec.memory_bytes)?,
        machine: as_of(machine, state.vmm_top.as_deref())?,
        moment,
    })
}

/// The memory that the VMM has handed over.
fn open_memory(descriptors: Vec<OwnedFd>, memory_bytes: u64) -> Result<SharedRam, CheckpointError> {
    let mut files = descriptors.into_iter().map(File::from);
    let nothing = || CheckpointError::Vmm("it shared nothing".to_owned());
    let description = files.next().ok_or_else(nothing)?;
    let mut bytes = Vec::new();
    description
        .take(MAX_INHERITANCE_BYTES)
        .read_to_end(&mut bytes)
        .map_err(FileError::at("read", Path::new("the VMM's memory")))?;
    let Inheritance { parts, .. } = serde_json::from_slice(&bytes)?;
    let parts: Vec<SharedPart> = parts
        .into_iter()
        .map(|part| SharedPart {
            gpa: Gpa(part.gpa),
            bytes: part.bytes,
            file: part.file,
            offset: part.offset,
        })
        .collect();
    let layout = ram_layout(memory_bytes).map_err(crate::save::chunk_sink::SinkError::from)?;
    Ok(SharedRam::from_parts(layout, files.collect(), &parts)?)
}

impl FrozenBoot {
    /// Makes the point of it, and puts that into the cache.
    ///
    /// # Errors
    ///
    /// Nothing is left.
    pub(in crate::supervisor) fn store(
        mut self,
        shared: &Shared,
        making: &Making,
    ) -> Result<(), CheckpointError> {
        let staging = making.cache.begin()?;
        let entry = CheckpointDir::new(staging.path());
        make_private_dir(&entry.packs())?;
        let store_dir = staging.path().join("store");
        let store = Store::open(&store_dir)?;
        // By itself: a machine keeps this part as long as it has its disk, the other one until it boots.
        let (disk, disk_packs) = self.store_disk(shared, &store)?;
        link_packs(&store, &disk_packs, &entry)?;
        Phase::BootedDiskStored.reached();
        let options = CaptureOptions {
            parents: disk_packs,
            ..CaptureOptions::default()
        };
        let capture = store.begin_capture(options)?;
        let machine_packs = PackSet::open([shared.dir.packs(), entry.packs()]);
        let maps = Maps::new(&capture, &machine_packs, &[], &BaseMap::default());
        let memory = self.store_memory(shared, &capture, &maps)?;
        let machine = self.nobodys();
        let line = machine.command_line.clone();
        let boot = boot_blobs(&shared.dir, line, &capture, &maps)?;
        let mut record = record::assemble(
            &machine,
            record::Host {
                backend: &shared.backend,
                cpu: &shared.cpu,
                vcpus: shared.vcpus,
                agent_protocol: shared.dialer.spoken(),
                disks_written: false,
                processes: None,
            },
            record::Why {
                message: "",
                autosave: false,
            },
            self.moment.taken,
            to_records(std::mem::take(&mut self.moment.states)),
            record::Parts { memory, disk, boot },
        )?;
        maps.count(&mut record)?;
        let (_, bytes) = Point::seal(record).map_err(PointError::from)?;
        go_on(shared)?;
        let sealed = capture.seal()?;
        link_packs(&store, sealed.packs(), &entry)?;
        write_synced(&entry.record(), &bytes)?;
        drop(sealed);
        drop(store);
        fs::remove_dir_all(&store_dir).map_err(FileError::at("remove", &store_dir))?;
        Phase::BootedStored.reached();
        go_on(shared)?;
        Ok(making.cache.publish(staging, &making.key)?)
    }

    /// What boot has written to the disk, and the nodes of the disk's map.
    fn store_disk(
        &self,
        shared: &Shared,
        store: &Store,
    ) -> Result<(Vec<DiskMap>, Vec<PackId>), CheckpointError> {
        let (dir, machine) = (&shared.dir, &self.machine);
        let capture = store.begin_capture(CaptureOptions::default())?;
        let base = BaseMap::read(&dir.disk().join(&machine.disk.base))?;
        let machine_packs = PackSet::open([dir.packs()]);
        let maps = Maps::new(&capture, &machine_packs, &[], &base);
        let disk = disk_capture::capture_disk(dir, machine, &base, &capture, &maps)?;
        for part in &disk {
            maps.put_base_nodes(&part.map)?;
        }
        let sealed = capture.seal()?;
        Ok((disk, sealed.packs().to_vec()))
    }

    fn store_memory(
        &self,
        shared: &Shared,
        capture: &Capture,
        maps: &Maps<'_>,
    ) -> Result<Vec<MemoryRegion>, CheckpointError> {
        let (layout, files) = (self.memory.layout(), self.memory.files());
        let mut jobs = Vec::new();
        for part in self.memory.parts() {
            for done in (0..part.bytes).step_by(CHUNK_BYTES as usize) {
                let outside = || CheckpointError::Vmm("memory outside of memory".to_owned());
                let chunk = layout
                    .chunk_at(Gpa(part.gpa.0 + done))
                    .ok_or_else(outside)?;
                jobs.push((chunk.0 as u64, part.file, part.offset + done));
            }
        }
        let mut chunks = BTreeMap::new();
        for some in jobs.chunks(CHUNKS_AT_A_TIME) {
            go_on(shared)?;
            let stored = for_all(some, |&(chunk, file, offset), bytes| {
                let file: &Arc<File> = &files[file];
                file.read_exact_at(bytes, offset)
                    .map_err(FileError::at("read", Path::new("frozen memory")))?;
                Ok((chunk, ChunkRef(capture.put(bytes)?.0)))
            });
            let stored = stored.map_err(|failures| {
                failures.cause(|error| {
                    matches!(error, CheckpointError::Store(StoreError::CaptureFailed))
                })
            })?;
            chunks.extend(stored);
        }
        Ok(memory_regions(layout, chunks, None, maps)?)
    }

    /// The machine without anything that is its own.
    fn nobodys(&self) -> MachineFile {
        let mut machine = self.machine.clone();
        if let Ok(name) = NOBODY.parse() {
            machine.name = name;
        }
        machine.command_line = without_hostname(&machine.command_line);
        machine.spec.environment.clear();
        machine.spec.labels.clear();
        machine.spec.working_directory = None;
        machine.head = None;
        machine
    }
}

/// Gives the work up once the machine has ended: whoever ended it waits.
fn go_on(shared: &Shared) -> Result<(), CheckpointError> {
    match shared.has_ended() {
        true => Err(CheckpointError::Ended),
        false => Ok(()),
    }
}

/// Puts packs of the store into the entry.
fn link_packs(store: &Store, packs: &[PackId], entry: &CheckpointDir) -> Result<(), FileError> {
    for pack in packs {
        let name = pack_file_name(pack);
        let to = entry.packs().join(&name);
        fs::hard_link(store.packs_dir().join(&name), &to).map_err(FileError::at("link", &to))?;
    }
    Ok(())
}
