//! The point format alone: prints what a record says, without store, chunks or any VMM.
//!
//!     cargo run -p examples --example read_point -- X.checkpoint/point.record
//!
//! Without a path it makes a small record and prints that.

use std::error::Error;
use std::fs::File;
use std::io::{BufReader, Write, stdout};

use snapshot_format::{
    Arch, BackendKind, Blob, BootBlobs, ChunkRef, CpuProfile, DiskMap, GuestOs, HostContract,
    MachineModel, MachineSpec, MapNodes, MapRoot, MemoryRegion, Point, PointRecord, StateRecord,
    WallTime, verify,
};

fn main() -> Result<(), Box<dyn Error>> {
    let point = match std::env::args_os().nth(1) {
        Some(path) => Point::read_from(BufReader::new(File::open(path)?))?,
        None => Point::seal(sample()?)?.0,
    };
    print(&point, &mut stdout().lock())?;
    Ok(())
}

fn print(point: &Point, out: &mut impl Write) -> std::io::Result<()> {
    let record = point.record();
    let (host, spec) = (&record.host, &record.spec);
    writeln!(out, "point    {}", point.id())?;
    match record.parent {
        Some(parent) => writeln!(out, "parent   {parent}")?,
        None => writeln!(out, "parent   none")?,
    }
    writeln!(out, "machine  {:?}, taken {}", record.machine, record.taken)?;
    writeln!(out, "message  {:?}", record.message)?;
    writeln!(
        out,
        "runs on  {}, CPU profile {}, machine model {}, taken by {}",
        host.arch, host.cpu_profile, host.machine_model, host.backend
    )?;
    writeln!(
        out,
        "made of  {} vCPUs, {} bytes of memory, image {:?}, kernel {:?}",
        spec.vcpus, spec.memory_bytes, spec.image, spec.kernel
    )?;
    for part in record.parts() {
        let (name, size_bytes, map) = (part.part, part.size_bytes, part.map);
        match map.is_zeros() {
            true => writeln!(out, "{name}: {size_bytes} bytes of zeros")?,
            false => writeln!(out, "{name}: {size_bytes} bytes, map {:.12}", map.node())?,
        }
    }
    for state in &record.states {
        let StateRecord {
            unit,
            kind,
            version,
            bytes,
        } = state;
        writeln!(
            out,
            "state    {unit:?}: {kind:?} version {version}, {} bytes",
            bytes.len()
        )?;
    }
    // Only the record itself is looked at, not its chunks.
    for finding in verify(record) {
        writeln!(out, "{}: {finding}", finding.level)?;
    }
    Ok(())
}

/// A machine that never ran: zero memory but for one chunk.
fn sample() -> Result<PointRecord, Box<dyn Error>> {
    let chunk = ChunkRef([7; 32]);
    let memory_bytes = 2 << 20;
    // The nodes of the maps would be stored as chunks, too.
    let map = MapNodes::new().build([(0, chunk)])?;
    Ok(PointRecord {
        machine: "sample".into(),
        taken: WallTime::now(),
        message: "made by an example".into(),
        host: HostContract {
            guest_os: GuestOs::Linux,
            arch: Arch::X86_64,
            backend: BackendKind::Soft,
            cpu_profile: CpuProfile::V2,
            machine_model: MachineModel(1),
            ..HostContract::default()
        },
        spec: MachineSpec {
            vcpus: 1,
            memory_bytes,
            disk_bytes: 1 << 20,
            ..MachineSpec::default()
        },
        memory: vec![MemoryRegion {
            start_gpa: 0,
            size_bytes: memory_bytes,
            map,
        }],
        disks: vec![DiskMap {
            name: "root".into(),
            size_bytes: 1 << 20,
            map: MapRoot::ZEROS,
        }],
        boot: BootBlobs {
            kernel: Blob::new(100, map),
            ..BootBlobs::default()
        },
        states: vec![StateRecord::new("vcpu0", "x86-vcpu", 1, vec![])],
        data_bytes: 5,
        ..PointRecord::default()
    })
}
