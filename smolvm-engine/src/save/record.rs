//! The record of a point, put together from what a capture brought.

use agent_protocol::message::Processes;
use snapshot_format::{
    AgentVersion, Arch, BootBlobs, DiskMap, GuestOs, GuestProcess, HostContract, LimitError,
    MachineModel, MachineSpec, MemoryRegion, PointRecord, ProcessList, StateRecord, UnknownName,
    WallTime,
};
use thiserror::Error;
use vmm_core::machine::X86MachineRecord;
use vmm_core::unit::UnitError;

use crate::machine::{MachineFile, MachineOrigin};

/// Why there is no record.
#[derive(Debug, Error)]
pub(crate) enum RecordError {
    #[error(transparent)]
    Unit(#[from] UnitError),
    #[error("what runs the machine has no number in a record")]
    Host(#[from] UnknownName),
    #[error("the id of the head is damaged")]
    Head(#[from] snapshot_format::InvalidId),
}

/// What runs the machine.
pub(crate) struct Host<'a> {
    /// Backend by name.
    pub(crate) backend: &'a str,
    /// CPU profile by name.
    pub(crate) cpu: &'a str,
    pub(crate) vcpus: u8,
    /// The newest protocol that the guest's agent speaks; 0 when it never answered.
    pub(crate) agent_protocol: u16,
    /// The guest had written everything to its disk.
    pub(crate) disks_written: bool,
    /// What ran in the guest, if its agent has said so.
    pub(crate) processes: Option<Processes>,
}

/// The agent's list as a record holds it. Names come from the guest: they may be any bytes.
fn listed(processes: Processes) -> ProcessList {
    let list = processes.list.into_iter().map(|process| GuestProcess {
        pid: process.pid,
        parent_pid: process.ppid,
        command: process.comm.escape_ascii().to_string(),
    });
    let mut listed = ProcessList::bounded(list);
    listed.unlisted += u64::from(processes.unlisted);
    listed
}

/// Why a machine is saved.
pub(crate) struct Why<'a> {
    /// The user's message.
    pub(crate) message: &'a str,
    /// It is on the machine's schedule.
    pub(crate) autosave: bool,
}

/// Everything that consists of chunks.
pub(crate) struct Parts {
    pub(crate) memory: Vec<MemoryRegion>,
    pub(crate) disk: Vec<DiskMap>,
    pub(crate) boot: BootBlobs,
}

/// Puts the record together.
pub(crate) fn assemble(
    machine: &MachineFile,
    host: Host<'_>,
    why: Why<'_>,
    taken: WallTime,
    states: Vec<StateRecord>,
    parts: Parts,
) -> Result<PointRecord, RecordError> {
    let cpu = X86MachineRecord::find(&states)?;
    Ok(PointRecord {
        machine: machine.name.to_string(),
        taken,
        message: why.message.to_owned(),
        parent: machine.head.as_deref().map(str::parse).transpose()?,
        host: HostContract {
            guest_os: GuestOs::Linux,
            arch: Arch::X86_64,
            backend: host.backend.parse()?,
            cpu_vendor: cpu.vendor(),
            cpu_profile: host.cpu.parse()?,
            tsc_khz: cpu.tsc_khz.into(),
            page_size_bytes: 4096,
            machine_model: MachineModel(1),
        },
        spec: spec_of(machine, host.vcpus),
        memory: parts.memory,
        disks: parts.disk,
        boot: parts.boot,
        states,
        agent: AgentVersion(host.agent_protocol.into()),
        // Counted when the maps are complete.
        data_bytes: 0,
        in_flight: Vec::new(),
        processes: host.processes.map(listed),
        autosave: why.autosave,
        disks_written: host.disks_written,
    })
}

/// Whether a machine's points are within the limits of the format, as far as that is known when it is made.
///
/// # Errors
/// The first limit that is exceeded.
pub(crate) fn check_limits(machine: &MachineFile) -> Result<(), LimitError> {
    spec_of(machine, machine.spec.cpus.unwrap_or(1)).check()
}

fn spec_of(machine: &MachineFile, vcpus: u8) -> MachineSpec {
    let pairs = |map: &std::collections::BTreeMap<String, String>| {
        map.iter()
            .map(|(key, value)| (key.clone(), value.clone()))
            .collect()
    };
    let (image, kernel) = match &machine.origin {
        MachineOrigin::Image { image, kernel } => (image.clone(), kernel.clone()),
        MachineOrigin::Point { .. } => (String::new(), String::new()),
    };
    MachineSpec {
        vcpus: vcpus.into(),
        memory_bytes: machine.spec.memory_bytes,
        disk_bytes: machine.spec.disk_bytes,
        environment: pairs(&machine.spec.environment),
        working_directory: machine.spec.working_directory.clone().unwrap_or_default(),
        labels: pairs(&machine.spec.labels),
        image,
        kernel,
    }
}
