//! A deterministic machine, and what can be told of it.

use std::io;
use std::sync::{Arc, Mutex};

use sha2::{Digest, Sha256};
use soft_backend::SoftOptions;
use vm_memory::{Bytes, GuestAddress};
use vmm_core::host_side::BlockBackend;
use vmm_core::hypervisor::Hypervisor;
use vmm_core::machine::{BuiltMachine, MachineBuilder, RunningMachine, X86MachineRecord};
use vmm_core::ram::{GuestRam, RamBacking};
use vmm_core::testing::{MemoryDisk, pvh_kernel};
use vmm_core::x86::boot::BootImage;
use vmm_core::x86::{self, CpuProfile};

use crate::guest_code::{ADDRESS, CODE};

const RAM_BYTES: u64 = 32 << 20;
const DISK_BYTES: usize = 1 << 20;

/// A disk that notes every write, in order.
pub(crate) struct WrittenDisk {
    disk: MemoryDisk,
    writes: Mutex<(u64, Sha256)>,
}

impl WrittenDisk {
    fn note(&self, what: &[u8], offset: u64, data: &[u8]) {
        let mut writes = self.writes.lock().unwrap();
        writes.0 += 1;
        writes.1.update(what);
        writes.1.update(offset.to_le_bytes());
        writes.1.update(data);
    }
}

impl BlockBackend for WrittenDisk {
    fn size_bytes(&self) -> u64 {
        self.disk.size_bytes()
    }
    fn read_only(&self) -> bool {
        false
    }
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        self.disk.read_at(offset, buffer)
    }
    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.note(b"write", offset, data);
        self.disk.write_at(offset, data)
    }
    fn flush(&self) -> io::Result<()> {
        self.note(b"flush", 0, &[]);
        self.disk.flush()
    }
    fn discard(&self, offset: u64, length: u64) -> io::Result<()> {
        self.note(b"discard", offset, &length.to_le_bytes());
        self.disk.discard(offset, length)
    }
    fn write_zeroes(&self, offset: u64, length: u64) -> io::Result<()> {
        self.note(b"zeroes", offset, &length.to_le_bytes());
        self.disk.write_zeroes(offset, length)
    }
}

/// All that a guest is, at one instruction count.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Picture {
    pub(crate) count: u64,
    /// Digest of each unit's saved state: vCPUs, clock, IOAPIC, devices.
    pub(crate) units: Vec<(String, String)>,
    pub(crate) ram: String,
    /// How many disk writes there were, and the digest of all of them in order.
    pub(crate) writes: (u64, String),
}

pub(crate) struct Machine {
    pub(crate) running: RunningMachine,
    pub(crate) disk: Arc<WrittenDisk>,
}

fn hex(digest: Sha256) -> String {
    digest
        .finalize()
        .iter()
        .map(|b| format!("{b:02x}"))
        .collect()
}

impl Machine {
    /// The guest, before its first instruction.
    pub(crate) fn new(vcpus: u8, seed: u64) -> Self {
        Self::translating(vcpus, seed, SoftOptions::default().translate_after)
    }

    /// The same, its code translated after so many runs.
    pub(crate) fn translating(vcpus: u8, seed: u64, after: Option<u16>) -> Self {
        let (built, disk) = Self::build_translating(vcpus, seed, after);
        let kernel = pvh_kernel(ADDRESS, CODE, Some(ADDRESS));
        let running = built
            .boot(&BootImage {
                kernel: &kernel,
                initramfs: None,
                command_line: "",
            })
            .unwrap();
        Machine { running, disk }
    }

    pub(crate) fn build(vcpus: u8, seed: u64) -> (BuiltMachine, Arc<WrittenDisk>) {
        Self::build_translating(vcpus, seed, SoftOptions::default().translate_after)
    }

    fn build_translating(
        vcpus: u8,
        seed: u64,
        after: Option<u16>,
    ) -> (BuiltMachine, Arc<WrittenDisk>) {
        let options = SoftOptions::default()
            .with_deterministic(true)
            .with_translate_after(after);
        let soft = soft_backend::open(options).unwrap();
        let host = soft.capabilities().x86.clone().unwrap();
        let (cpuid, msrs) = x86::build_profile(CpuProfile::V2, &host.cpuid).unwrap();
        let record = X86MachineRecord {
            cpuid,
            msrs,
            tsc_khz: host.tsc_khz,
        };
        let ram = GuestRam::new(x86::ram_layout(RAM_BYTES).unwrap(), &RamBacking::Anonymous);
        let disk = Arc::new(WrittenDisk {
            disk: MemoryDisk::new(DISK_BYTES, false),
            writes: Mutex::new((0, Sha256::new())),
        });
        let built = MachineBuilder::new(ram.unwrap(), vcpus, record)
            .root_disk(disk.clone())
            .seed(seed)
            .build(&soft)
            .unwrap();
        (built, disk)
    }

    pub(crate) fn read_u32(&self, gpa: u64) -> u32 {
        self.running.ram().read_obj(GuestAddress(gpa)).unwrap()
    }

    pub(crate) fn copy_ram_to(&self, other: &GuestRam) {
        let mut ram = vec![0; RAM_BYTES as usize];
        self.running
            .ram()
            .read_slice(&mut ram, GuestAddress(0))
            .unwrap();
        other.write_slice(&ram, GuestAddress(0)).unwrap();
    }

    pub(crate) fn picture(&mut self) -> Picture {
        let count = self.running.instruction_count().unwrap();
        let mut ram = vec![0; RAM_BYTES as usize];
        self.running
            .ram()
            .read_slice(&mut ram, GuestAddress(0))
            .unwrap();
        let records = self.running.pause().unwrap().save().unwrap();
        let writes = self.disk.writes.lock().unwrap();
        let digest = |bytes: &[u8]| hex(Sha256::new_with_prefix(bytes));
        Picture {
            count,
            units: records
                .iter()
                .map(|record| (record.unit.clone(), digest(&record.bytes)))
                .collect(),
            ram: digest(&ram),
            writes: (writes.0, hex(writes.1.clone())),
        }
    }
}
