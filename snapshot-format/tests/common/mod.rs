//! A record in which every field has a value of its own.

use snapshot_format::*;

/// A reference that `seed` determines.
pub(crate) fn chunk(seed: u8) -> ChunkRef {
    ChunkRef([seed; 32])
}

/// The record of the fixtures: never changed, since `fixtures/v1-full.record` holds its bytes.
pub(crate) fn full_record() -> PointRecord {
    let mut low = ChunkMap::new();
    low.extend([chunk(1), chunk(2)]);
    low.push_zeros(29);
    low.push(chunk(3));
    let mut disk: ChunkMap = [ChunkRef::ZERO, chunk(4), ChunkRef::ZERO]
        .into_iter()
        .collect();
    disk.push_zeros(61);
    PointRecord {
        machine: "worker".into(),
        taken: WallTime::new(1_790_564_465, 123_456_789).unwrap(),
        message: "before migrate \u{2014} \u{fc}".into(),
        parent: Some(CheckpointId([0xab; 32])),
        host: HostContract {
            guest_os: "linux".into(),
            architecture: "x86_64".into(),
            backend: "soft".into(),
            cpu_vendor: "AuthenticAMD".into(),
            cpu_profile: "v2".into(),
            tsc_khz: 2_400_000,
            page_size_bytes: 4096,
            machine_model: 1,
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
                chunks: low,
            },
            MemoryRegion {
                start_gpa: 4 << 30,
                size_bytes: 2 << 20,
                chunks: ChunkMap::zeros(2 << 20),
            },
        ],
        disks: vec![DiskMap {
            name: "root".into(),
            size_bytes: 4 << 20,
            chunks: disk,
        }],
        boot: BootBlobs {
            kernel: Blob::new(65_537, [chunk(5), chunk(6)].into_iter().collect()),
            initramfs: Blob::new(100, [chunk(7)].into_iter().collect()),
            command_line: "console=ttyS0 root=/dev/vda".into(),
        },
        states: vec![
            StateRecord::new("vcpu0", "x86-vcpu", 1, vec![1, 2, 3]),
            StateRecord::new("vcpu1", "x86-vcpu", 1, vec![]),
            StateRecord::new("blk0", "virtio-blk", 3, vec![0; 300]),
        ],
        agent_protocol: 1,
        data_bytes: 420_478_976,
        in_flight: vec![InFlightNote {
            unit: "blk0".into(),
            note: "flush".into(),
        }],
    }
}

fn pair(key: &str, value: &str) -> (String, String) {
    (key.into(), value.into())
}
