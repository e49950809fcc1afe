//! The point format alone: prints what a record says, without store, chunks or any VMM.
//!
//!     cargo run -p examples --example read_point -- X.checkpoint/point.record
//!
//! Without a path it makes a small record and prints that.

use std::error::Error;
use std::fs::File;
use std::io::{BufReader, Write, stdout};

use snapshot_format::{
    Blob, BootBlobs, ChunkMap, ChunkRef, DiskMap, HostContract, MachineSpec, MemoryRegion, Point,
    PointRecord, StateRecord, WallTime, verify,
};

fn main() -> Result<(), Box<dyn Error>> {
    let point = match std::env::args_os().nth(1) {
        Some(path) => Point::read_from(BufReader::new(File::open(path)?))?,
        None => Point::seal(sample())?.0,
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
        "runs on  {:?}, CPU profile {:?}, machine model {}, taken by {:?}",
        host.architecture, host.cpu_profile, host.machine_model, host.backend
    )?;
    writeln!(
        out,
        "made of  {} vCPUs, {} bytes of memory, image {:?}, kernel {:?}",
        spec.vcpus, spec.memory_bytes, spec.image, spec.kernel
    )?;
    for (part, size_bytes, map) in record.maps() {
        writeln!(
            out,
            "{part}: {size_bytes} bytes, {} of {} chunks with data",
            map.data_len(),
            map.len()
        )?;
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
    // Only the record itself is looked at: every chunk counts as being there.
    for finding in verify(record, &|_: &ChunkRef| true) {
        writeln!(out, "{}: {finding}", finding.level)?;
    }
    Ok(())
}

/// A machine that never ran: zero memory but for one chunk.
fn sample() -> PointRecord {
    let chunk = ChunkRef([7; 32]);
    let memory_bytes = 2 << 20;
    let mut memory: ChunkMap = [chunk].into_iter().collect();
    memory.push_zeros(31);
    PointRecord {
        machine: "sample".into(),
        taken: WallTime::now(),
        message: "made by an example".into(),
        host: HostContract {
            guest_os: "linux".into(),
            architecture: "x86_64".into(),
            backend: "soft".into(),
            cpu_profile: "v2".into(),
            machine_model: 1,
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
            chunks: memory,
        }],
        disks: vec![DiskMap {
            name: "root".into(),
            size_bytes: 1 << 20,
            chunks: ChunkMap::zeros(1 << 20),
        }],
        boot: BootBlobs {
            kernel: Blob::new(100, [chunk].into_iter().collect()),
            ..BootBlobs::default()
        },
        states: vec![StateRecord::new("vcpu0", "x86-vcpu", 1, vec![])],
        data_bytes: 5,
        ..PointRecord::default()
    }
}
