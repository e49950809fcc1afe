//! From a message and its descriptors to a running machine.

use std::fs::File;
use std::io::{self, Read, Seek};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use cow_disk::{Base, LayerError, LayerId, LayeredDisk, OverlayError};
use snapshot_format::{Point, PointRecord};
use thiserror::Error;
use vmm_core::host_side::BlockBackend;
use vmm_core::hypervisor::{Hypervisor, HypervisorError, X86Capabilities};
use vmm_core::machine::{
    BuiltMachine, EventListener, MachineBuilder, MachineError, RunningMachine, VsockConfig,
    X86MachineRecord,
};
use vmm_core::ram::{
    BackgroundFill, GuestRam, RamBacking, RamError, RamLayoutError, SharedRamError,
};
use vmm_core::tracker::TrackerError;
use vmm_core::unit::UnitError;
use vmm_core::x86::boot::BootImage;
use vmm_core::x86::{self, ProfileError};

use super::branch::BranchPoint;
use super::console::ConsoleSink;
use super::dial::DialSocket;
use super::disk::{FullNote, RootDisk, WriteLog};
use super::fill::{FillError, fill, fill_while_it_runs};
use crate::backend::{self, BackendError, TscMismatch};
use crate::channel::messages::{ConsoleNote, StartDescriptors, StartMachine};
use crate::machine::{
    BaseMap, BaseMapError, BoundedLog, ChunkBase, ChunkSource, HeldDirectory, OnDamage,
};
use crate::phase::Phase;

/// Largest kernel or initramfs in bytes.
const MAX_BOOT_FILE_BYTES: u64 = 1 << 30;
/// How often whoever waits for a point's memory is asked whether that is still wanted.
const MEMORY_LOOK: Duration = Duration::from_millis(100);

/// Why a machine could not be started.
#[derive(Debug, Error)]
pub(crate) enum StartError {
    #[error("a descriptor is missing: number {0}")]
    MissingDescriptor(usize),
    #[error("cannot read the {part}")]
    Read {
        part: &'static str,
        #[source]
        source: io::Error,
    },
    #[error(transparent)]
    Base(#[from] BaseMapError),
    #[error(transparent)]
    Overlay(#[from] OverlayError),
    #[error(transparent)]
    Layer(#[from] LayerError),
    #[error(transparent)]
    Backend(#[from] BackendError),
    #[error(transparent)]
    Hypervisor(#[from] HypervisorError),
    #[error(transparent)]
    Tsc(#[from] TscMismatch),
    #[error(transparent)]
    Profile(#[from] ProfileError),
    #[error(transparent)]
    Layout(#[from] RamLayoutError),
    #[error(transparent)]
    Ram(#[from] RamError),
    #[error(transparent)]
    Machine(#[from] MachineError),
    #[error(transparent)]
    Tracker(#[from] TrackerError),
    #[error("this backend runs no x86-64 guests")]
    NoX86,
    #[error("the point's record")]
    Record(#[from] snapshot_format::DecodeError),
    #[error(transparent)]
    Unit(#[from] UnitError),
    #[error("the point's memory cannot be restored")]
    Fill(#[from] FillError),
    #[error("a branch without the state that it begins with")]
    NoInheritance,
    #[error("the state that a branch begins with")]
    Inheritance(#[from] serde_json::Error),
    #[error("the memory that a branch begins with")]
    Shared(#[from] SharedRamError),
}

/// What outlives a reset of the guest.
pub(crate) struct Parts {
    request: StartMachine,
    // Read again at each boot: in memory they would take as much as a small guest.
    kernel: File,
    initramfs: File,
    console: File,
    dial: Arc<DialSocket>,
    disk: Arc<LayeredDisk>,
    /// Told when a chunk of the disk is lost.
    on_damage: OnDamage,
    /// Of a deterministic machine.
    writes: Option<Arc<WriteLog>>,
    /// What of its disk did not fit onto the host.
    full: Arc<FullNote>,
    hypervisor: Box<dyn Hypervisor>,
    /// The point to go on at, until that was tried.
    restore: Mutex<Option<PointRecord>>,
    /// The instant of another machine to go on from, until that was tried.
    branch: Mutex<Option<BranchPoint>>,
    /// What is written from the first start on is known relative to a point.
    begins_at_point: bool,
    /// Brings a restored machine's memory while it runs.
    filling: Mutex<Option<BackgroundFill>>,
    /// The machine's directory.
    directory: OwnedFd,
    /// Held until everything above is closed.
    _lock: OwnedFd,
}

impl Parts {
    /// Opens everything that the message and its descriptors name.
    pub(crate) fn open(
        request: StartMachine,
        descriptors: Vec<OwnedFd>,
        on_damage: OnDamage,
    ) -> Result<Self, StartError> {
        let mut files = descriptors.into_iter();
        let mut next = |number| files.next().ok_or(StartError::MissingDescriptor(number));
        let kernel = File::from(next(StartDescriptors::KERNEL)?);
        let initramfs = File::from(next(StartDescriptors::INITRAMFS)?);
        let console = File::from(next(StartDescriptors::CONSOLE)?);
        let dial = UnixStream::from(next(StartDescriptors::DIAL)?);
        let map = read_all(&next(StartDescriptors::BASE_MAP)?.into(), "disk's base")?;
        let lock = next(StartDescriptors::LOCK)?;
        let directory = next(StartDescriptors::DIRECTORY)?;
        let mut rest: Vec<OwnedFd> = files.collect();
        let branch = match request.inherited {
            Some(count) => {
                let inherited = rest.split_off(rest.len().saturating_sub(count));
                let layout = x86::ram_layout(request.memory_bytes)?;
                Some(BranchPoint::open(layout, inherited)?)
            }
            None => None,
        };
        let mut layers: Vec<File> = rest.into_iter().map(File::from).collect();
        let restore = match layers.pop_if(|_| request.restore) {
            Some(record) => Some(Point::decode(&read_all(&record, "point's record")?)?),
            None => None,
        };
        let top = layers
            .pop()
            .ok_or(StartError::MissingDescriptor(StartDescriptors::LAYERS))?;
        let base = BaseMap::decode(&map)?;
        let base =
            ChunkBase::new(chunks_in(&directory, &request)?, base).on_damage(on_damage.clone());
        let disk = LayeredDisk::from_files(Base::reader(Arc::new(base)), layers, top)?;
        Ok(Self {
            kernel,
            initramfs,
            console,
            dial: Arc::new(DialSocket::new(dial)),
            disk: Arc::new(disk),
            full: Arc::default(),
            on_damage,
            begins_at_point: restore.is_some()
                || branch.as_ref().is_some_and(|branch| !branch.booted),
            restore: Mutex::new(restore.map(Point::into_record)),
            branch: Mutex::new(branch),
            filling: Mutex::default(),
            directory,
            _lock: lock,
            writes: request.deterministic.map(|_| Arc::default()),
            hypervisor: backend::open_for(
                request.backend,
                request.interpret,
                request.deterministic.is_some(),
            )?,
            request,
        })
    }

    /// Builds the machine with fresh memory; restores the point or goes on from the machine if there is one to go on at, else boots.
    pub(crate) fn start(
        &self,
        on_event: EventListener,
        on_note: Box<dyn Fn(ConsoleNote) + Send>,
    ) -> Result<RunningMachine, StartError> {
        let (restore, branch) = (take(&self.restore), take(&self.branch));
        match (restore, branch) {
            (Some(point), _) => self.restore(&point, on_event, on_note),
            (None, Some(branch)) => self.go_on(branch, on_event, on_note),
            (None, None) => self.boot(on_event, on_note),
        }
    }

    fn boot(
        &self,
        on_event: EventListener,
        on_note: Box<dyn Fn(ConsoleNote) + Send>,
    ) -> Result<RunningMachine, StartError> {
        // A guest that was reset needs nothing of the point any more.
        *self.filling() = None;
        let cpu = self.cpu()?;
        let (cpuid, msrs) = x86::build_profile(self.request.cpu.parse()?, &cpu.cpuid)?;
        let record = X86MachineRecord {
            cpuid,
            msrs,
            tsc_khz: cpu.tsc_khz,
        };
        let machine = self.build(record, on_event, on_note)?;
        if self.request.branchable {
            machine.tracker().start()?;
        }
        Ok(machine.boot(&BootImage {
            kernel: &read_all(&self.kernel, "kernel")?,
            initramfs: Some(&read_all(&self.initramfs, "initramfs")?),
            command_line: &self.request.command_line,
        })?)
    }

    fn restore(
        &self,
        point: &PointRecord,
        on_event: EventListener,
        on_note: Box<dyn Fn(ConsoleNote) + Send>,
    ) -> Result<RunningMachine, StartError> {
        let record = X86MachineRecord::find(&point.states)?;
        x86::check_profile(&record.cpuid, &self.cpu()?.cpuid)?;
        backend::check_tsc(record.tsc_khz, self.cpu()?)?;
        let machine = self.build(record, on_event, on_note)?;
        let (ram, source) = (machine.ram().clone(), self.chunks()?);
        // The instructions of a deterministic machine take the same time wherever its memory comes from, but nothing is gained.
        if machine.waits_for_memory() && self.request.deterministic.is_none() {
            let filling = fill_while_it_runs(&ram, point, source, self.on_damage.clone())?;
            *self.filling() = Some(filling);
        } else {
            fill(&ram, point, &source)?;
        }
        Phase::MemoryFilled.reached();
        // From here on: what was filled in is what the point holds, so it does not count as written.
        machine.tracker().start()?;
        if !self.request.branchable {
            machine.tracker().stop()?;
        }
        let running = machine.restore(&point.states).map_err(|error| {
            // A unit that needed memory says only that there was none.
            let lost = ram.lost().map(FillError::Lost);
            lost.map_or(StartError::Machine(error), StartError::Fill)
        })?;
        Phase::GuestRuns.reached();
        Ok(running)
    }

    /// Goes on from another machine's instant.
    fn go_on(
        &self,
        branch: BranchPoint,
        on_event: EventListener,
        on_note: Box<dyn Fn(ConsoleNote) + Send>,
    ) -> Result<RunningMachine, StartError> {
        let record = X86MachineRecord::find(&branch.states)?;
        x86::check_profile(&record.cpuid, &self.cpu()?.cpuid)?;
        backend::check_tsc(record.tsc_khz, self.cpu()?)?;
        let machine = self.build_with(branch.memory.map()?, record, on_event, on_note)?;
        let (tracker, written) = (machine.tracker().clone(), branch.written(machine.ram()));
        tracker.start()?;
        tracker.begin_on(branch.memory)?;
        tracker.reset_to(&written)?;
        if !self.request.branchable {
            tracker.stop()?;
        }
        let running = machine.restore(&branch.states)?;
        Phase::GuestRuns.reached();
        Ok(running)
    }

    fn filling(&self) -> MutexGuard<'_, Option<BackgroundFill>> {
        let filling = self.filling.lock();
        filling.unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until memory does not depend on the point's packs any more, or a chunk turned out to be lost, and asks `wanted`
    /// again and again meanwhile.
    ///
    /// # Errors
    /// What `wanted` says against waiting on.
    pub(super) fn wait_for_memory<E>(
        &self,
        mut wanted: impl FnMut() -> Result<(), E>,
    ) -> Result<(), E> {
        let mut filling = self.filling();
        while let Some(threads) = &*filling {
            wanted()?;
            if threads.wait(MEMORY_LOOK) {
                *filling = None;
            }
        }
        Ok(())
    }

    /// Whether the guest of a point keeps its time here.
    pub(super) fn check_rate(&self, point: &PointRecord) -> Result<(), StartError> {
        let record = X86MachineRecord::find(&point.states)?;
        Ok(backend::check_tsc(record.tsc_khz, self.cpu()?)?)
    }

    fn cpu(&self) -> Result<&X86Capabilities, StartError> {
        self.hypervisor
            .capabilities()
            .x86
            .as_ref()
            .ok_or(StartError::NoX86)
    }

    fn build(
        &self,
        record: X86MachineRecord,
        on_event: EventListener,
        on_note: Box<dyn Fn(ConsoleNote) + Send>,
    ) -> Result<BuiltMachine, StartError> {
        let layout = x86::ram_layout(self.request.memory_bytes)?;
        let ram = GuestRam::new(layout, &RamBacking::Anonymous)?;
        self.build_with(ram, record, on_event, on_note)
    }

    fn build_with(
        &self,
        ram: GuestRam,
        record: X86MachineRecord,
        on_event: EventListener,
        on_note: Box<dyn Fn(ConsoleNote) + Send>,
    ) -> Result<BuiltMachine, StartError> {
        let console = self.console.try_clone();
        let console = console.map_err(|source| StartError::Read {
            part: "console",
            source,
        })?;
        Ok(MachineBuilder::new(ram, self.request.vcpus, record)
            .console(Box::new(ConsoleSink::new(
                BoundedLog::new(console),
                on_note,
            )))
            .seed(self.request.deterministic.unwrap_or_default())
            .root_disk(self.root_disk(self.disk.clone()))
            .vsock(VsockConfig {
                cid: self.request.vsock_cid,
                backend: self.dial.clone(),
            })
            .on_event(on_event)
            .build(&*self.hypervisor)?)
    }

    /// Whether what is written from the first start on is known relative to a point.
    pub(super) fn begins_at_point(&self) -> bool {
        self.begins_at_point
    }

    /// What of the disk did not fit onto the host.
    pub(super) fn full(&self) -> &FullNote {
        &self.full
    }

    /// A disk as the machine's root disk.
    pub(super) fn root_disk(&self, disk: Arc<LayeredDisk>) -> Arc<dyn BlockBackend> {
        Arc::new(RootDisk {
            disk,
            log: self.writes.clone(),
            full: self.full.clone(),
        })
    }

    /// A disk of an empty layer over this map.
    pub(super) fn disk_over(
        &self,
        map: OwnedFd,
        layer: File,
    ) -> Result<Arc<LayeredDisk>, StartError> {
        let map = BaseMap::decode(&read_all(&map.into(), "disk's base")?)?;
        let base = ChunkBase::new(self.chunks()?, map).on_damage(self.on_damage.clone());
        let disk = LayeredDisk::from_files(Base::reader(Arc::new(base)), Vec::new(), layer)?;
        Ok(Arc::new(disk))
    }

    /// The machine's chunks.
    pub(super) fn chunks(&self) -> Result<ChunkSource, StartError> {
        chunks_in(&self.directory, &self.request)
    }

    /// The machine's root disk is this one now.
    pub(super) fn set_disk(&mut self, disk: Arc<LayeredDisk>) {
        self.disk = disk;
    }

    /// The root disk.
    pub(super) fn disk(&self) -> &LayeredDisk {
        &self.disk
    }

    /// Of a deterministic machine: the digest of all that was written to the disk so far.
    pub(crate) fn disk_writes(&self) -> [u8; 32] {
        self.writes.as_ref().map_or([0; 32], |log| log.digest())
    }

    /// Whether written pages are tracked.
    pub(super) fn tracked(&self) -> bool {
        self.request.branchable
    }

    /// Puts a new base under the disk that holds all that its layers up to `through` hold.
    pub(super) fn rebase(&self, map: OwnedFd, through: LayerId) -> Result<(), StartError> {
        let base = BaseMap::decode(&read_all(&map.into(), "disk's base")?)?;
        let base = ChunkBase::new(self.chunks()?, base).on_damage(self.on_damage.clone());
        self.disk.rebase(Base::reader(Arc::new(base)), through)?;
        Ok(())
    }

    /// Makes what the guest wrote durable.
    pub(super) fn flush_disk(&self) {
        if let Err(error) = cow_disk::BlockDevice::flush(&*self.disk) {
            tracing::error!(%error, "the disk could not be flushed at the end");
        }
    }
}

fn take<T>(what: &Mutex<Option<T>>) -> Option<T> {
    let mut what = what.lock().unwrap_or_else(PoisonError::into_inner);
    what.take()
}

/// Reads a file from its beginning, wherever its position is.
pub(super) fn read_all(mut file: &File, part: &'static str) -> Result<Vec<u8>, StartError> {
    let mut read = || -> io::Result<Vec<u8>> {
        file.rewind()?;
        let length = file.metadata()?.len().min(MAX_BOOT_FILE_BYTES);
        let mut bytes = Vec::with_capacity(length.try_into().unwrap_or(0));
        file.take(MAX_BOOT_FILE_BYTES).read_to_end(&mut bytes)?;
        Ok(bytes)
    };
    read().map_err(|source| StartError::Read { part, source })
}

fn chunks_in(directory: &OwnedFd, request: &StartMachine) -> Result<ChunkSource, StartError> {
    let directory = directory.try_clone().map_err(|source| StartError::Read {
        part: "directory",
        source,
    })?;
    let others = request.other_pack_directories.clone();
    Ok(ChunkSource::held(HeldDirectory::of(directory), others))
}
