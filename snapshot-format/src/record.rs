//! What a point holds, as data.

use crate::StateRecord;
use crate::host::{AgentVersion, Arch, BackendKind, CpuProfile, GuestOs, MachineModel};
use crate::id::CheckpointId;
use crate::map::MapRoot;
use crate::process::ProcessList;
use crate::time::WallTime;

/// A saved moment of a machine: memory, disks, device and vCPU state, and what is needed to run them again.
///
/// Plain data that a caller fills and reads. Values from a decoded record are within the limits of
/// [`limits`](crate::limits), but otherwise untrusted: [`verify`](crate::verify()) tells whether they fit one another.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PointRecord {
    /// Name of the machine when it was saved.
    pub machine: String,
    /// Wall time of the pause.
    pub taken: WallTime,
    /// The user's message; empty if there is none.
    pub message: String,
    /// The point that the machine was last saved to or restored from.
    pub parent: Option<CheckpointId>,
    /// What a host must offer to run this point.
    pub host: HostContract,
    /// What the user asked for when the machine was made.
    pub spec: MachineSpec,
    /// Guest memory, in rising order of addresses.
    pub memory: Vec<MemoryRegion>,
    /// Disks; the first is `root`.
    pub disks: Vec<DiskMap>,
    /// What a cold start boots.
    pub boot: BootBlobs,
    /// State of vCPUs and devices, in the order in which it was saved.
    pub states: Vec<StateRecord>,
    /// Version of the protocol that the guest's agent speaks.
    pub agent: AgentVersion,
    /// Bytes of memory and disks that are not zero, before compression.
    pub data_bytes: u64,
    /// Requests that were in flight at the pause.
    pub in_flight: Vec<InFlightNote>,
    /// What ran in the guest; nothing where its agent did not say.
    pub processes: Option<ProcessList>,
    /// It was saved on a schedule, not because somebody asked for it.
    pub autosave: bool,
    /// Shortly before the pause the guest had written everything to its disks that it was to write. Otherwise files that were changed
    /// before may be whole in its memory only.
    pub disks_written: bool,
}

/// What a host must offer to run a point, and what it was saved on.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HostContract {
    /// Operating system of the guest.
    pub guest_os: GuestOs,
    /// Architecture of the guest.
    pub arch: Arch,
    /// Backend that ran the machine.
    pub backend: BackendKind,
    /// Vendor string that the guest's CPUID gives: `AuthenticAMD`.
    pub cpu_vendor: String,
    /// CPU profile.
    pub cpu_profile: CpuProfile,
    /// Rate of the guest's time stamp counter in kHz; 0 where there is none.
    pub tsc_khz: u64,
    /// Page size of the host in bytes.
    pub page_size_bytes: u64,
    /// Version of the machine model.
    pub machine_model: MachineModel,
}

/// What a machine was made of, so that a restored one keeps it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MachineSpec {
    /// Number of vCPUs.
    pub vcpus: u32,
    /// Guest memory in bytes.
    pub memory_bytes: u64,
    /// Root disk in bytes.
    pub disk_bytes: u64,
    /// Environment variables of commands, in order.
    pub environment: Vec<(String, String)>,
    /// Directory in which commands start; empty for the default.
    pub working_directory: String,
    /// Labels, in order.
    pub labels: Vec<(String, String)>,
    /// Name of the image, for display.
    pub image: String,
    /// Name of the kernel, for display.
    pub kernel: String,
}

/// One contiguous range of guest memory.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MemoryRegion {
    /// Its first guest physical address.
    pub start_gpa: u64,
    /// Its size in bytes.
    pub size_bytes: u64,
    /// Its chunks, one for each 64 KiB.
    pub map: MapRoot,
}

/// The whole content of one disk.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DiskMap {
    /// Name of the disk: `root` for the root disk.
    pub name: String,
    /// Its size in bytes.
    pub size_bytes: u64,
    /// Its chunks, one for each 64 KiB.
    pub map: MapRoot,
}

/// Kernel, initramfs and command line of a cold start.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct BootBlobs {
    /// The kernel, as it is loaded.
    pub kernel: Blob,
    /// The initramfs; of size 0 where there is none.
    pub initramfs: Blob,
    /// The kernel's command line.
    pub command_line: String,
}

/// A file in chunks.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Blob {
    /// Its size in bytes.
    pub size_bytes: u64,
    /// Its chunks, one for each 64 KiB; the last may be shorter.
    pub map: MapRoot,
}

/// Something that a device had begun and not finished at the pause: a restored copy begins it again.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct InFlightNote {
    /// The unit that will begin it again: `blk0`.
    pub unit: String,
    /// What it is, for people: `flush`. What the unit needs is in its own state record.
    pub note: String,
}

impl PointRecord {
    /// The state of `unit`.
    #[must_use]
    pub fn state(&self, unit: &str) -> Option<&StateRecord> {
        self.states.iter().find(|state| state.unit == unit)
    }

    /// The disk called `name`.
    #[must_use]
    pub fn disk(&self, name: &str) -> Option<&DiskMap> {
        self.disks.iter().find(|disk| disk.name == name)
    }

    /// Everything that consists of chunks: memory, disks, kernel, initramfs, in that order.
    pub fn parts(&self) -> impl Iterator<Item = PartMap> + '_ {
        let memory = self.memory.iter().enumerate().map(|(index, region)| {
            let part = Part::Memory { index };
            PartMap::new(part, region.size_bytes, region.map)
        });
        let disks = self.disks.iter().enumerate().map(|(index, disk)| {
            let part = Part::Disk { index };
            PartMap::new(part, disk.size_bytes, disk.map)
        });
        let BootBlobs {
            kernel, initramfs, ..
        } = &self.boot;
        let blobs = [(Part::Kernel, kernel), (Part::Initramfs, initramfs)]
            .map(|(part, blob)| PartMap::new(part, blob.size_bytes, blob.map));
        memory.chain(disks).chain(blobs)
    }
}

/// A part of a point, its size and its map.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PartMap {
    /// Which part.
    pub part: Part,
    /// Its size in bytes.
    pub size_bytes: u64,
    /// Its chunks.
    pub map: MapRoot,
}

impl PartMap {
    fn new(part: Part, size_bytes: u64, map: MapRoot) -> Self {
        Self {
            part,
            size_bytes,
            map,
        }
    }
}

/// A part of a point that consists of chunks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Part {
    /// A memory region.
    Memory {
        /// Its place in [`PointRecord::memory`].
        index: usize,
    },
    /// A disk.
    Disk {
        /// Its place in [`PointRecord::disks`].
        index: usize,
    },
    /// The kernel.
    Kernel,
    /// The initramfs.
    Initramfs,
}

impl std::fmt::Display for Part {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Memory { index } => write!(f, "memory region {index}"),
            Self::Disk { index } => write!(f, "disk {index}"),
            Self::Kernel => f.write_str("kernel"),
            Self::Initramfs => f.write_str("initramfs"),
        }
    }
}

impl Blob {
    /// A blob of `size_bytes` in these chunks.
    #[must_use]
    pub fn new(size_bytes: u64, map: MapRoot) -> Self {
        Self { size_bytes, map }
    }
}
