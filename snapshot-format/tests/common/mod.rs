//! A record in which every field has a value of its own.

#![allow(dead_code)] // Each test program uses some of it.

use snapshot_format::*;

/// A reference that `seed` determines.
pub(crate) fn chunk(seed: u8) -> ChunkRef {
    ChunkRef([seed; 32])
}

/// Where the chunks of the fixtures' parts are.
pub(crate) const LOW_MEMORY: [(u64, u8); 3] = [(0, 1), (1, 2), (31, 3)];
pub(crate) const DISK: [(u64, u8); 1] = [(1, 4)];
pub(crate) const KERNEL: [(u64, u8); 2] = [(0, 5), (1, 6)];
pub(crate) const INITRAMFS: [(u64, u8); 1] = [(0, 7)];

/// The nodes of the maps of [`full_record`].
pub(crate) fn full_nodes() -> MapNodes {
    let mut nodes = MapNodes::new();
    for chunks in [&LOW_MEMORY[..], &DISK, &KERNEL, &INITRAMFS] {
        map_of(&mut nodes, chunks);
    }
    nodes
}

fn map_of(nodes: &mut MapNodes, chunks: &[(u64, u8)]) -> MapRoot {
    let chunks = chunks.iter().map(|(index, seed)| (*index, chunk(*seed)));
    nodes.build(chunks).unwrap()
}

/// The record of the fixtures: never changed, since `fixtures/v1-full.record` holds its bytes.
pub(crate) fn full_record() -> PointRecord {
    let mut nodes = MapNodes::new();
    let mut map = |chunks: &[(u64, u8)]| map_of(&mut nodes, chunks);
    PointRecord {
        machine: "worker".into(),
        taken: WallTime::new(1_790_564_465, 123_456_789).unwrap(),
        message: "before migrate \u{2014} \u{fc}".into(),
        parent: Some(CheckpointId([0xab; 32])),
        host: HostContract {
            guest_os: GuestOs::Linux,
            arch: Arch::X86_64,
            backend: BackendKind::Soft,
            cpu_vendor: "AuthenticAMD".into(),
            cpu_profile: CpuProfile::V2,
            tsc_khz: 2_400_000,
            page_size_bytes: 4096,
            machine_model: MachineModel(1),
        },
        spec: MachineSpec {
            vcpus: 2,
            memory_bytes: 4 << 20,
            disk_bytes: 4 << 20,
            environment: vec![pair("PATH", "/bin"), pair("EMPTY", "")],
            working_directory: "/srv".into(),
            labels: vec![pair("job", "7")],
            image: "debian".into(),
            kernel: "6.1-cloud".into(),
        },
        memory: vec![
            MemoryRegion {
                start_gpa: 0,
                size_bytes: 2 << 20,
                map: map(&LOW_MEMORY),
            },
            MemoryRegion {
                start_gpa: 4 << 30,
                size_bytes: 2 << 20,
                map: MapRoot::ZEROS,
            },
        ],
        disks: vec![DiskMap {
            name: "root".into(),
            size_bytes: 4 << 20,
            map: map(&DISK),
        }],
        boot: BootBlobs {
            kernel: Blob::new(65_537, map(&KERNEL)),
            initramfs: Blob::new(100, map(&INITRAMFS)),
            command_line: "console=ttyS0 root=/dev/vda".into(),
        },
        states: vec![
            StateRecord::new("vcpu0", "x86-vcpu", 1, vec![1, 2, 3]),
            StateRecord::new("vcpu1", "x86-vcpu", 1, vec![]),
            StateRecord::new("blk0", "virtio-blk", 3, vec![0; 300]),
        ],
        agent: AgentVersion(1),
        data_bytes: 420_478_976,
        in_flight: vec![InFlightNote {
            unit: "blk0".into(),
            note: "flush".into(),
        }],
        processes: Some(ProcessList {
            processes: vec![process(1, 0, "/smolvm-agent"), process(77, 1, "sleep 5")],
            unlisted: 3,
        }),
        autosave: false,
        disks_written: false,
    }
}

fn process(pid: u32, parent_pid: u32, command: &str) -> GuestProcess {
    GuestProcess {
        pid,
        parent_pid,
        command: command.into(),
    }
}

fn pair(key: &str, value: &str) -> (String, String) {
    (key.into(), value.into())
}
