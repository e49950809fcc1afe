//! A record's body: which number each field of [`PointRecord`] has. `docs/format.md` has the same tables.

use crate::StateRecord;
use crate::chunk_map::{ChunkMap, MapError};
use crate::fields::{FieldError, FieldReader, FieldWriter};
use crate::id::CheckpointId;
use crate::point::DecodeError;
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
    pub(super) const AGENT_PROTOCOL: u16 = 14;
    pub(super) const DATA_BYTES: u16 = 15;
    pub(super) const IN_FLIGHT: u16 = 16;
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
            w.append(3, |out| region.chunks.encode_into(out));
        });
    }
    for disk in &record.disks {
        writer.nested(n::DISK, |w| {
            w.text(1, &disk.name).u64(2, disk.size_bytes);
            w.append(3, |out| disk.chunks.encode_into(out));
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
            w.append(2, |out| blob.chunks.encode_into(out));
        });
    }
    writer.text(n::COMMAND_LINE, command_line);
    for state in &record.states {
        writer.nested(n::STATE, |w| state.encode_into(w));
    }
    writer
        .u32(n::AGENT_PROTOCOL, record.agent_protocol)
        .u64(n::DATA_BYTES, record.data_bytes);
    for note in &record.in_flight {
        writer.nested(n::IN_FLIGHT, |w| {
            w.text(1, &note.unit).text(2, &note.note);
        });
    }
}

fn encode_host(host: &HostContract, writer: &mut FieldWriter) {
    writer
        .text(1, &host.guest_os)
        .text(2, &host.architecture)
        .text(3, &host.backend)
        .text(4, &host.cpu_vendor)
        .text(5, &host.cpu_profile)
        .u64(6, host.tsc_khz)
        .u64(7, host.page_size_bytes)
        .u32(8, host.machine_model);
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
    record.agent_protocol = fields.u32(n::AGENT_PROTOCOL)?;
    record.data_bytes = fields.u64(n::DATA_BYTES)?;
    Ok(())
}

fn decode_host(bytes: &[u8]) -> Result<HostContract, FieldError> {
    let fields = FieldReader::parse(bytes)?;
    let text = |number| fields.text(number, ANY).map(str::to_owned);
    Ok(HostContract {
        guest_os: text(1)?,
        architecture: text(2)?,
        backend: text(3)?,
        cpu_vendor: text(4)?,
        cpu_profile: text(5)?,
        tsc_khz: fields.u64(6)?,
        page_size_bytes: fields.u64(7)?,
        machine_model: fields.u32(8)?,
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
            chunks: decode_map(PART, 3, &fields)?,
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
            chunks: decode_map(PART, 3, &fields)?,
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
        chunks: decode_map(part, 2, &fields)?,
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

fn decode_map(
    part: &'static str,
    number: u16,
    fields: &FieldReader<'_>,
) -> Result<ChunkMap, DecodeError> {
    let map = ChunkMap::decode(fields.get(number).unwrap_or_default());
    map.map_err(|source: MapError| DecodeError::Map { part, source })
}

fn in_part(part: &'static str) -> impl Fn(FieldError) -> DecodeError {
    move |source| DecodeError::Fields { part, source }
}
