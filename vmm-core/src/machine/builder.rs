use std::io::{self, Read, Write};
use std::sync::mpsc::Receiver;
use std::sync::{Arc, Mutex};

use snapshot_format::StateRecord;
use thiserror::Error;

use super::exits::MachineExits;
use super::running::{EventListener, Events, MachineEvent, RunningMachine};
use super::stop_at::StopAt;
use super::vcpu_thread::{Rendezvous, VcpuThread};
use super::x86_record::X86MachineRecord;
use crate::bus::{Bus, BusDevice, BusOverlap};
use crate::cpu_state::VcpuState;
use crate::entropy::SeededEntropy;
use crate::host_side::{BlockBackend, VsockBackend};
use crate::hypervisor::{ArchSpec, Hypervisor, HypervisorError, Vm, VmSpec, X86Spec};
use crate::irq::{Gsi, IrqLine};
use crate::power::PowerControl;
use crate::ram::GuestRam;
use crate::schedule::Schedule;
use crate::serial::Serial;
use crate::tracker::{DirtyTracker, TrackerError};
use crate::unit::UnitError;
use crate::virtio::{
    Balloon, Blk, BlkError, Rng, VirtioDevice, VirtioMmio, Vsock, VsockError, slots,
};
use crate::vmgenid::{GENERATION_ID_BYTES, VmGenId, VmGenIdError};
use crate::x86::acpi::{self, MmioWindow};
use crate::x86::boot::{self, BootError, BootImage};
use crate::x86::{IOAPIC_BASE, IOAPIC_PINS, Ioapic, MAX_VCPUS, X86VcpuState, layout};

/// Why a machine could not be built, started, saved or restored.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum MachineError {
    /// The backend failed.
    #[error(transparent)]
    Hypervisor(#[from] HypervisorError),
    /// The number of vCPUs is not possible.
    #[error("a machine has 1 to {limit} vCPUs, not {requested}")]
    Vcpus {
        /// vCPUs asked for.
        requested: u8,
        /// The most there may be.
        limit: u8,
    },
    /// The kernel could not be loaded.
    #[error(transparent)]
    Boot(#[from] BootError),
    /// A unit's state could not be saved or restored.
    #[error(transparent)]
    Unit(#[from] UnitError),
    /// Dirty tracking failed.
    #[error(transparent)]
    Tracker(#[from] TrackerError),
    /// The root disk cannot be a virtio disk.
    #[error(transparent)]
    Blk(#[from] BlkError),
    /// The vsock device cannot be made.
    #[error(transparent)]
    Vsock(#[from] VsockError),
    /// There is no memory where the generation id belongs.
    #[error(transparent)]
    GenerationId(#[from] VmGenIdError),
    /// Two devices want the same addresses.
    #[error(transparent)]
    Bus(#[from] BusOverlap),
    /// A device's threads or descriptors could not be made.
    #[error("device {unit} cannot be made")]
    Device {
        /// The device.
        unit: &'static str,
        /// The host's answer.
        #[source]
        source: io::Error,
    },
    /// An event has ended the machine.
    #[error("the machine has ended and does not run again")]
    Ended,
    /// What was asked for needs a machine whose time is a count of instructions.
    #[error("this machine's time is the host's: it cannot run to an instruction count")]
    NotDeterministic,
    /// Memory is not complete, and the backend cannot wait for what is missing.
    #[error("memory has to be filled before this backend runs the machine")]
    MemoryAbsent,
    /// The machine lacks a part that every machine has.
    #[error("a machine needs a {0}")]
    Missing(&'static str),
}

/// The vsock device of a machine.
pub struct VsockConfig {
    /// The guest's context id, at least 3.
    pub cid: u64,
    /// The host's side.
    pub backend: Arc<dyn VsockBackend>,
}

/// Collects what a machine is made of.
///
/// Machine model 1: everything else, such as addresses and interrupts, is fixed.
pub struct MachineBuilder {
    ram: GuestRam,
    vcpus: u8,
    record: X86MachineRecord,
    console: Box<dyn Write + Send>,
    root_disk: Option<Arc<dyn BlockBackend>>,
    vsock: Option<VsockConfig>,
    entropy: Option<Box<dyn Read + Send>>,
    listener: Option<EventListener>,
    seed: u64,
}

impl MachineBuilder {
    /// A machine with this memory, so many vCPUs and this CPU; it still needs a root disk.
    pub fn new(ram: GuestRam, vcpus: u8, record: X86MachineRecord) -> Self {
        Self {
            ram,
            vcpus,
            record,
            console: Box::new(io::sink()),
            root_disk: None,
            vsock: None,
            entropy: None,
            listener: None,
            seed: 0,
        }
    }

    /// Where the serial console's output goes; nowhere without it.
    pub fn console(mut self, sink: Box<dyn Write + Send>) -> Self {
        self.console = sink;
        self
    }

    /// The root disk.
    pub fn root_disk(mut self, disk: Arc<dyn BlockBackend>) -> Self {
        self.root_disk = Some(disk);
        self
    }

    /// The vsock device; a machine without one has none.
    pub fn vsock(mut self, vsock: VsockConfig) -> Self {
        self.vsock = Some(vsock);
        self
    }

    /// What everything that is random in a deterministic machine follows from; of no meaning in
    /// others.
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    /// Where generation id and entropy device read; without it the host's generator, in a
    /// deterministic machine the [seed](Self::seed).
    pub fn entropy(mut self, source: Box<dyn Read + Send>) -> Self {
        self.entropy = Some(source);
        self
    }

    /// Whom to tell that an event waits; without it the owner asks
    /// [`RunningMachine::next_event`] by itself.
    pub fn on_event(mut self, listener: EventListener) -> Self {
        self.listener = Some(listener);
        self
    }

    /// Makes VM, devices and vCPU threads. Nothing runs yet.
    pub fn build(self, hypervisor: &dyn Hypervisor) -> Result<BuiltMachine, MachineError> {
        if self.vcpus == 0 || self.vcpus > MAX_VCPUS {
            return Err(MachineError::Vcpus {
                requested: self.vcpus,
                limit: MAX_VCPUS,
            });
        }
        let created = hypervisor.create_vm(&VmSpec {
            ram: self.ram.clone(),
            vcpus: self.vcpus,
            arch: ArchSpec::X86(X86Spec {
                cpuid: self.record.cpuid.clone(),
                msrs: self.record.msrs.clone(),
                tsc_khz: self.record.tsc_khz,
            }),
        })?;
        let vm = created.vm;
        let tracker = DirtyTracker::new(self.ram.clone(), vm.clone());
        let rendezvous = Arc::new(Rendezvous::default());
        let (events, receiver) = Events::new(rendezvous.clone(), self.listener);
        // Not held by the memory, which outlives the machine.
        let on_lost = Arc::downgrade(&events);
        self.ram.on_lost(Box::new(move |_| {
            if let Some(events) = on_lost.upgrade() {
                events.report(MachineEvent::MemoryLost);
            }
        }));

        let schedule = Schedule::new(&vm);
        let stop_at = schedule
            .as_ref()
            .map(|schedule| StopAt::new(schedule.clone(), &events));
        let mut board = Board::new(&vm, self.ram.clone(), schedule)?;
        let serial = board.add_serial(self.console)?;
        board.add_power(events.clone())?;
        let disk = self.root_disk.ok_or(MachineError::Missing("root disk"))?;
        let root_disk = Arc::new(Blk::new(disk, "root")?);
        board.add_virtio("blk0", slots::ROOT_DISK, root_disk.clone())?;
        if let Some(VsockConfig { cid, backend }) = self.vsock {
            let mut vsock = Vsock::new(cid, backend)?;
            if board.schedule.is_some() {
                vsock =
                    vsock.with_first_port(SeededEntropy::new(self.seed, "vsock").next_u64() as u32);
            }
            board.add_virtio("vsock0", slots::VSOCK, Arc::new(vsock))?;
        }
        let mut entropy = match self.entropy {
            Some(source) => source,
            None if board.schedule.is_some() => Box::new(SeededEntropy::new(self.seed, "rng")),
            None => Rng::host_source().map_err(|source| MachineError::Device {
                unit: "rng0",
                source,
            })?,
        };
        let generation = board.add_generation_id(random_id(&mut entropy)?)?;
        let new_generation = random_id(&mut entropy)?;
        let later_generations: Box<dyn Read + Send> = match board.schedule {
            Some(_) => Box::new(SeededEntropy::new(self.seed, "vmgenid")),
            None => Rng::host_source().map_err(|source| MachineError::Device {
                unit: "vmgenid",
                source,
            })?,
        };
        let rng = Arc::new(Rng::from_source(entropy));
        board.add_virtio("rng0", slots::RNG, rng)?;
        let balloon = Arc::new(Balloon::new(tracker.clone()));
        board.add_virtio("balloon0", slots::BALLOON, balloon.clone())?;

        let exits = MachineExits {
            ports: board.ports,
            mmio: board.mmio,
            ioapic: board.ioapic.clone(),
        };
        let mut vcpus = Vec::new();
        for binder in created.vcpus {
            let reporter = events.clone();
            let on_stop = Arc::new(move |index, stop| reporter.report_stop(index, stop));
            let thread = VcpuThread::spawn(binder, exits.clone(), rendezvous.clone(), on_stop)?;
            events.add_kicker(thread.kicker());
            vcpus.push(thread);
        }
        Ok(BuiltMachine {
            vcpus,
            slots: board.slots,
            vm,
            ram: self.ram,
            tracker,
            record: self.record,
            ioapic: board.ioapic,
            serial,
            generation,
            new_generation,
            later_generations: Mutex::new(later_generations),
            root_disk,
            balloon,
            rendezvous,
            events,
            stop_at,
            receiver: Some(receiver),
        })
    }
}

/// The buses while devices are put on them.
struct Board {
    ram: GuestRam,
    ports: Bus,
    mmio: Bus,
    ioapic: Arc<Ioapic>,
    slots: Vec<Arc<VirtioMmio>>,
    /// Of a deterministic machine.
    schedule: Option<Arc<Schedule>>,
}

impl Board {
    fn new(
        vm: &Arc<dyn Vm>,
        ram: GuestRam,
        schedule: Option<Arc<Schedule>>,
    ) -> Result<Self, MachineError> {
        let ioapic = Ioapic::new(vm.clone());
        let mut mmio = Bus::new();
        mmio.insert(IOAPIC_BASE.0, layout::IOAPIC_BYTES, ioapic.clone())?;
        Ok(Self {
            ram,
            ports: Bus::new(),
            mmio,
            ioapic,
            slots: Vec::new(),
            schedule,
        })
    }

    fn line(&self, gsi: Gsi) -> Arc<dyn IrqLine> {
        debug_assert!(
            (gsi.0 as usize) < IOAPIC_PINS,
            "the slot table fits the IOAPIC"
        );
        self.ioapic
            .line(gsi)
            .unwrap_or_else(|| Arc::new(Unconnected))
    }

    fn add_serial(&mut self, sink: Box<dyn Write + Send>) -> Result<Arc<Serial>, MachineError> {
        let line = self.line(Gsi(layout::SERIAL_GSI));
        let made = match self.schedule {
            Some(_) => Serial::lossless(sink, line),
            None => Serial::new(sink, line),
        };
        let serial = Arc::new(made.map_err(|source| MachineError::Device {
            unit: "serial0",
            source,
        })?);
        let start = layout::SERIAL_PORT.into();
        self.ports
            .insert(start, layout::SERIAL_PORTS.into(), serial.clone())?;
        Ok(serial)
    }

    fn add_generation_id(&self, id: [u8; GENERATION_ID_BYTES]) -> Result<VmGenId, MachineError> {
        let line = self.line(Gsi(layout::GENERATION_GSI));
        let ram = self.ram.clone();
        Ok(VmGenId::new(ram, layout::GENERATION_ID, line, id)?)
    }

    fn add_power(&mut self, events: Arc<Events>) -> Result<(), MachineError> {
        let power = PowerControl::new(Arc::new(move |event| events.report_power(event)));
        let power: Arc<dyn BusDevice> = Arc::new(power);
        let (start, length) = (crate::power::POWER_PORT, crate::power::POWER_PORT_BYTES);
        Ok(self.ports.insert(start, length, power)?)
    }

    fn add_virtio(
        &mut self,
        unit: &'static str,
        slot: u8,
        device: Arc<dyn VirtioDevice>,
    ) -> Result<(), MachineError> {
        let line = self.line(slots::gsi(slot));
        let wiring = (self.ram.clone(), line);
        let slot_device = VirtioMmio::paced(unit, slot, device, wiring, self.schedule.clone())
            .map_err(|source| MachineError::Device { unit, source })?;
        let slot_device = Arc::new(slot_device);
        self.mmio.insert(
            slots::mmio_base(slot).0,
            slots::MMIO_BYTES,
            slot_device.clone(),
        )?;
        self.slots.push(slot_device);
        Ok(())
    }
}

pub(super) fn random_id(source: &mut dyn Read) -> Result<[u8; GENERATION_ID_BYTES], MachineError> {
    let mut id = [0; GENERATION_ID_BYTES];
    match source.read_exact(&mut id) {
        Ok(()) => Ok(id),
        Err(source) => Err(MachineError::Device {
            unit: "vmgenid",
            source,
        }),
    }
}

/// A line that leads nowhere.
struct Unconnected;

impl IrqLine for Unconnected {
    fn pulse(&self) {}
}

/// A machine that has not run yet.
pub struct BuiltMachine {
    // Declared in the order of ending: vCPU threads first, then devices, then the VM.
    pub(super) vcpus: Vec<VcpuThread>,
    pub(super) slots: Vec<Arc<VirtioMmio>>,
    pub(super) vm: Arc<dyn Vm>,
    pub(super) ram: GuestRam,
    pub(super) tracker: DirtyTracker,
    pub(super) record: X86MachineRecord,
    pub(super) ioapic: Arc<Ioapic>,
    pub(super) serial: Arc<Serial>,
    pub(super) generation: VmGenId,
    /// The id after a restore.
    new_generation: [u8; GENERATION_ID_BYTES],
    /// Where the ids after later returns to the past come from.
    pub(super) later_generations: Mutex<Box<dyn Read + Send>>,
    pub(super) root_disk: Arc<Blk>,
    pub(super) balloon: Arc<Balloon>,
    pub(super) rendezvous: Arc<Rendezvous>,
    pub(super) events: Arc<Events>,
    /// Of a deterministic machine.
    pub(super) stop_at: Option<StopAt>,
    receiver: Option<Receiver<MachineEvent>>,
}

impl BuiltMachine {
    /// The guest's memory, to be filled before a restore.
    pub fn ram(&self) -> &GuestRam {
        &self.ram
    }

    /// Whether the machine may run while memory is being filled
    /// ([`GuestRam::begin_fill`]).
    pub fn waits_for_memory(&self) -> bool {
        self.vm.checks_presence()
    }

    /// The guest's written pages; tracking may begin before the machine runs.
    pub fn tracker(&self) -> &DirtyTracker {
        &self.tracker
    }

    /// Places a kernel in memory and starts the first vCPU in it.
    pub fn boot(self, image: &BootImage<'_>) -> Result<RunningMachine, MachineError> {
        let windows: Vec<MmioWindow> = self.slots.iter().map(|slot| window(slot.slot())).collect();
        let tables = acpi::tables(self.vcpus.len() as u8, &windows);
        let entry = boot::load(&self.ram, image, &tables)?;
        for (index, thread) in (0_u8..).zip(&self.vcpus) {
            let state = if index == 0 {
                entry.clone()
            } else {
                X86VcpuState::reset(index)
            };
            thread.load(VcpuState::X86(Box::new(state)))?;
        }
        self.start()
    }

    /// Puts every unit into its saved state, in the order: vCPUs (each with its TSC), clock, interrupt
    /// controller and devices, gives the machine a new generation id and lets it run. Guest memory was
    /// filled before, or is being filled.
    pub fn restore(self, records: &[StateRecord]) -> Result<RunningMachine, MachineError> {
        self.load_units(records, self.new_generation)?;
        self.start()
    }

    fn start(mut self) -> Result<RunningMachine, MachineError> {
        let receiver = self
            .receiver
            .take()
            .ok_or(MachineError::Missing("event channel"))?;
        RunningMachine::start(self, receiver)
    }
}

fn window(slot: u8) -> MmioWindow {
    MmioWindow {
        slot,
        base: slots::mmio_base(slot).0 as u32,
        bytes: slots::MMIO_BYTES as u32,
        gsi: slots::gsi(slot).0,
    }
}
