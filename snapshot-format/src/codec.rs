//! A record's body: which number each field of [`PointRecord`] has. `docs/format.md` has the same tables.

use crate::StateRecord;
use crate::chunk::ChunkRef;
use crate::fields::{FieldError, FieldReader, FieldWriter};
use crate::host::{AgentVersion, Arch, BackendKind, CpuProfile, GuestOs, MachineModel};
use crate::id::CheckpointId;
use crate::map::MapRoot;
use crate::point::DecodeError;
use crate::process::{GuestProcess, ProcessList};
use crate::record::{
    Blob, BootBlobs, DiskMap, HostContract, InFlightNote, MachineSpec, MemoryRegion, PointRecord,
};
use crate::time::WallTime;

/// Texts are bounded by the record's size while they are read; `limits` checks each one afterwards.
const ANY: usize = usize::MAX;

mod number {
    pub(super) const MACHINE: u16 = 1;
    pub(super) const TAKEN_SECONDS: u16 = 2;
    pub(super) const TAKEN_NANOS: u16 = 3;
    pub(super) const MESSAGE: u16 = 4;
    pub(super) const PARENT: u16 = 5;
    pub(super) const HOST: u16 = 6;
    pub(super) const SPEC: u16 = 7;
    pub(super) const MEMORY: u16 = 8;
    pub(super) const DISK: u16 = 9;
    pub(super) const KERNEL: u16 = 10;
    pub(super) const INITRAMFS: u16 = 11;
    pub(super) const COMMAND_LINE: u16 = 12;
    pub(super) const STATE: u16 = 13;
    pub(super) const AGENT: u16 = 14;
    pub(super) const DATA_BYTES: u16 = 15;
    pub(super) const IN_FLIGHT: u16 = 16;
    pub(super) const PROCESSES: u16 = 17;
    pub(super) const AUTOSAVE: u16 = 18;
    pub(super) const DISKS_WRITTEN: u16 = 19;
}

/// Adds the body of `record` to `writer`: every field, in rising order of numbers.
pub(crate) fn encode(record: &PointRecord, writer: &mut FieldWriter) {
    use number as n;
    writer
        .text(n::MACHINE, &record.machine)
        .u64(n::TAKEN_SECONDS, record.taken.seconds)
        .u32(n::TAKEN_NANOS, record.taken.nanos)
        .text(n::MESSAGE, &record.message);
    if let Some(parent) = &record.parent {
        writer.bytes(n::PARENT, &parent.0);
    }
    writer
        .nested(n::HOST, |w| encode_host(&record.host, w))
        .nested(n::SPEC, |w| encode_spec(&record.spec, w));
    for region in &record.memory {
        writer.nested(n::MEMORY, |w| {
            w.u64(1, region.start_gpa).u64(2, region.size_bytes);
            encode_map(3, &region.map, w);
        });
    }
    for disk in &record.disks {
        writer.nested(n::DISK, |w| {
            w.text(1, &disk.name).u64(2, disk.size_bytes);
            encode_map(3, &disk.map, w);
        });
    }
    let BootBlobs {
        kernel,
        initramfs,
        command_line,
    } = &record.boot;
    for (number, blob) in [(n::KERNEL, kernel), (n::INITRAMFS, initramfs)] {
        writer.nested(number, |w| {
            w.u64(1, blob.size_bytes);
            encode_map(2, &blob.map, w);
        });
    }
    writer.text(n::COMMAND_LINE, command_line);
    for state in &record.states {
        writer.nested(n::STATE, |w| state.encode_into(w));
    }
    writer
        .u32(n::AGENT, record.agent.0)
        .u64(n::DATA_BYTES, record.data_bytes);
    for note in &record.in_flight {
        writer.nested(n::IN_FLIGHT, |w| {
            w.text(1, &note.unit).text(2, &note.note);
        });
    }
    if let Some(list) = &record.processes {
        writer.nested(n::PROCESSES, |w| encode_processes(list, w));
    }
    if record.autosave {
        writer.bool(n::AUTOSAVE, true);
    }
    if record.disks_written {
        writer.bool(n::DISKS_WRITTEN, true);
    }
}

/// A map without data has no bytes.
fn encode_map(number: u16, map: &MapRoot, writer: &mut FieldWriter) {
    writer.nested(number, |w| {
        if !map.is_zeros() {
            w.u32(1, map.level().into()).bytes(2, &map.node().0);
        }
    });
}

fn encode_processes(list: &ProcessList, writer: &mut FieldWriter) {
    for process in &list.processes {
        writer.nested(1, |w| {
            w.u32(1, process.pid)
                .u32(2, process.parent_pid)
                .text(3, &process.command);
        });
    }
    writer.u64(2, list.unlisted);
}

fn encode_host(host: &HostContract, writer: &mut FieldWriter) {
    writer
        .u32(1, host.guest_os.number())
        .u32(2, host.arch.number())
        .u32(3, host.backend.number())
        .text(4, &host.cpu_vendor)
        .u32(5, host.cpu_profile.number())
        .u64(6, host.tsc_khz)
        .u64(7, host.page_size_bytes)
        .u32(8, host.machine_model.0);
}

fn encode_spec(spec: &MachineSpec, writer: &mut FieldWriter) {
    writer
        .u32(1, spec.vcpus)
        .u64(2, spec.memory_bytes)
        .u64(3, spec.disk_bytes);
    encode_pairs(4, &spec.environment, writer);
    writer.text(5, &spec.working_directory);
    encode_pairs(6, &spec.labels, writer);
    writer.text(7, &spec.image).text(8, &spec.kernel);
}

fn encode_pairs(number: u16, pairs: &[(String, String)], writer: &mut FieldWriter) {
    for (key, value) in pairs {
        writer.nested(number, |w| {
            w.text(1, key).text(2, value);
        });
    }
}

/// Reads a body. Takes memory in proportion to it.
pub(crate) fn decode(body: &[u8]) -> Result<PointRecord, DecodeError> {
    use number as n;
    let fields = FieldReader::parse(body).map_err(in_part("point"))?;
    let host = fields.get(n::HOST).unwrap_or_default();
    let spec = fields.get(n::SPEC).unwrap_or_default();
    let states = fields.all(n::STATE).map(StateRecord::decode);
    let mut record = PointRecord {
        host: decode_host(host).map_err(in_part("host contract"))?,
        spec: decode_spec(spec).map_err(in_part("machine spec"))?,
        memory: decode_memory(&fields)?,
        disks: decode_disks(&fields)?,
        boot: decode_boot(&fields)?,
        states: states
            .collect::<Result<_, _>>()
            .map_err(in_part("state record"))?,
        in_flight: decode_notes(&fields).map_err(in_part("note about a request in flight"))?,
        processes: decode_processes(&fields).map_err(in_part("list of processes"))?,
        ..PointRecord::default()
    };
    decode_plain(&fields, &mut record).map_err(in_part("point"))?;
    Ok(record)
}

/// The fields that stand in the body itself.
fn decode_plain(fields: &FieldReader<'_>, record: &mut PointRecord) -> Result<(), FieldError> {
    use number as n;
    record.machine = fields.text(n::MACHINE, ANY)?.to_owned();
    record.taken = WallTime {
        seconds: fields.u64(n::TAKEN_SECONDS)?,
        nanos: fields.u32(n::TAKEN_NANOS)?,
    };
    record.message = fields.text(n::MESSAGE, ANY)?.to_owned();
    if fields.get(n::PARENT).is_some() {
        record.parent = Some(CheckpointId(fields.array(n::PARENT)?));
    }
    record.agent = AgentVersion(fields.u32(n::AGENT)?);
    record.data_bytes = fields.u64(n::DATA_BYTES)?;
    record.autosave = decode_mark(fields, n::AUTOSAVE)?;
    record.disks_written = decode_mark(fields, n::DISKS_WRITTEN)?;
    Ok(())
}

/// Something that is there, as 1, or not: there is one encoding of either.
pub(crate) fn decode_mark(fields: &FieldReader<'_>, number: u16) -> Result<bool, FieldError> {
    match fields.get(number) {
        None => Ok(false),
        Some(_) if fields.bool(number)? => Ok(true),
        Some(_) => Err(FieldError::Invalid { number, value: 0 }),
    }
}

fn decode_host(bytes: &[u8]) -> Result<HostContract, FieldError> {
    let fields = FieldReader::parse(bytes)?;
    Ok(HostContract {
        guest_os: GuestOs::from_number(fields.u32(1)?),
        arch: Arch::from_number(fields.u32(2)?),
        backend: BackendKind::from_number(fields.u32(3)?),
        cpu_vendor: fields.text(4, ANY)?.to_owned(),
        cpu_profile: CpuProfile::from_number(fields.u32(5)?),
        tsc_khz: fields.u64(6)?,
        page_size_bytes: fields.u64(7)?,
        machine_model: MachineModel(fields.u32(8)?),
    })
}

fn decode_spec(bytes: &[u8]) -> Result<MachineSpec, FieldError> {
    let fields = FieldReader::parse(bytes)?;
    let text = |number| fields.text(number, ANY).map(str::to_owned);
    Ok(MachineSpec {
        vcpus: fields.u32(1)?,
        memory_bytes: fields.u64(2)?,
        disk_bytes: fields.u64(3)?,
        environment: decode_pairs(4, &fields)?,
        working_directory: text(5)?,
        labels: decode_pairs(6, &fields)?,
        image: text(7)?,
        kernel: text(8)?,
    })
}

fn decode_pairs(
    number: u16,
    fields: &FieldReader<'_>,
) -> Result<Vec<(String, String)>, FieldError> {
    let pair = |bytes| {
        let fields = FieldReader::parse(bytes)?;
        Ok((
            fields.text(1, ANY)?.to_owned(),
            fields.text(2, ANY)?.to_owned(),
        ))
    };
    fields.all(number).map(pair).collect()
}

fn decode_memory(fields: &FieldReader<'_>) -> Result<Vec<MemoryRegion>, DecodeError> {
    const PART: &str = "memory region";
    let region = |bytes| {
        let fields = FieldReader::parse(bytes).map_err(in_part(PART))?;
        Ok(MemoryRegion {
            start_gpa: fields.u64(1).map_err(in_part(PART))?,
            size_bytes: fields.u64(2).map_err(in_part(PART))?,
            map: decode_map(3, &fields).map_err(in_part(PART))?,
        })
    };
    fields.all(number::MEMORY).map(region).collect()
}

fn decode_disks(fields: &FieldReader<'_>) -> Result<Vec<DiskMap>, DecodeError> {
    const PART: &str = "disk";
    let disk = |bytes| {
        let fields = FieldReader::parse(bytes).map_err(in_part(PART))?;
        Ok(DiskMap {
            name: fields.text(1, ANY).map_err(in_part(PART))?.to_owned(),
            size_bytes: fields.u64(2).map_err(in_part(PART))?,
            map: decode_map(3, &fields).map_err(in_part(PART))?,
        })
    };
    fields.all(number::DISK).map(disk).collect()
}

fn decode_boot(fields: &FieldReader<'_>) -> Result<BootBlobs, DecodeError> {
    let command_line = fields
        .text(number::COMMAND_LINE, ANY)
        .map_err(in_part("point"))?;
    Ok(BootBlobs {
        kernel: decode_blob("kernel", number::KERNEL, fields)?,
        initramfs: decode_blob("initramfs", number::INITRAMFS, fields)?,
        command_line: command_line.to_owned(),
    })
}

fn decode_blob(
    part: &'static str,
    number: u16,
    fields: &FieldReader<'_>,
) -> Result<Blob, DecodeError> {
    let bytes = fields.get(number).unwrap_or_default();
    let fields = FieldReader::parse(bytes).map_err(in_part(part))?;
    Ok(Blob {
        size_bytes: fields.u64(1).map_err(in_part(part))?,
        map: decode_map(2, &fields).map_err(in_part(part))?,
    })
}

fn decode_notes(fields: &FieldReader<'_>) -> Result<Vec<InFlightNote>, FieldError> {
    let note = |bytes| {
        let fields = FieldReader::parse(bytes)?;
        Ok(InFlightNote {
            unit: fields.text(1, ANY)?.to_owned(),
            note: fields.text(2, ANY)?.to_owned(),
        })
    };
    fields.all(number::IN_FLIGHT).map(note).collect()
}

fn decode_processes(fields: &FieldReader<'_>) -> Result<Option<ProcessList>, FieldError> {
    let Some(bytes) = fields.get(number::PROCESSES) else {
        return Ok(None);
    };
    let fields = FieldReader::parse(bytes)?;
    let process = |bytes| {
        let fields = FieldReader::parse(bytes)?;
        Ok(GuestProcess {
            pid: fields.u32(1)?,
            parent_pid: fields.u32(2)?,
            command: fields.text(3, ANY)?.to_owned(),
        })
    };
    Ok(Some(ProcessList {
        processes: fields.all(1).map(process).collect::<Result<_, _>>()?,
        unlisted: fields.u64(2)?,
    }))
}

/// A map's topmost node. Each map has one encoding: one of zeros is no message at all, and names no level.
fn decode_map(number: u16, fields: &FieldReader<'_>) -> Result<MapRoot, FieldError> {
    let fields = FieldReader::parse(fields.get(number).unwrap_or_default())?;
    let level = fields.u8(1)?;
    let invalid = FieldError::Invalid {
        number: 1,
        value: level.into(),
    };
    if fields.get(2).is_none() {
        return match level {
            0 => Ok(MapRoot::ZEROS),
            _ => Err(FieldError::Missing { number: 2 }),
        };
    }
    let node = ChunkRef(fields.array(2)?);
    if node.is_zero() {
        return Err(FieldError::Missing { number: 2 });
    }
    MapRoot::new(level, node).ok_or(invalid)
}

fn in_part(part: &'static str) -> impl Fn(FieldError) -> DecodeError {
    move |source| DecodeError::Fields { part, source }
}
