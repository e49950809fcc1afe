//! What a record may hold. The same limits bind writers and readers, so that nothing is saved that cannot be read.

use thiserror::Error;

use crate::chunk::chunks_in;
use crate::map::MapRoot;
use crate::record::{MachineSpec, Part, PointRecord};
use crate::time::WallTime;

/// Longest record in bytes: more than all its parts at their limits.
pub const MAX_RECORD_BYTES: u64 = 72 << 20;
/// Most guest memory in bytes: 1 TiB.
pub const MAX_MEMORY_BYTES: u64 = 1 << 40;
/// Largest disk in bytes: 8 TiB.
pub const MAX_DISK_BYTES: u64 = 8 << 40;
/// Largest kernel or initramfs in bytes: 4 GiB.
pub const MAX_BLOB_BYTES: u64 = 4 << 30;
/// Most vCPUs.
pub const MAX_VCPUS: u32 = 16;
/// Most disks.
pub const MAX_DISKS: usize = 64;
/// Most memory regions.
pub const MAX_MEMORY_REGIONS: usize = 64;
/// Most state records.
pub const MAX_STATE_RECORDS: usize = 1024;
/// Most bytes in the state records of a point together.
pub const MAX_STATE_TOTAL_BYTES: usize = 64 << 20;
/// Most environment variables.
pub const MAX_ENVIRONMENT: usize = 4096;
/// Most bytes in the names and values of environment variables together.
pub const MAX_ENVIRONMENT_BYTES: usize = 1 << 20;
/// Most labels.
pub const MAX_LABELS: usize = 1024;
/// Most bytes in the names and values of labels together.
pub const MAX_LABELS_BYTES: usize = 256 << 10;
/// Most notes about requests in flight.
pub const MAX_IN_FLIGHT: usize = 4096;
/// Longest machine name in bytes.
pub const MAX_MACHINE_NAME_BYTES: usize = 63;
/// Longest name of a disk, CPU vendor, image or kernel in bytes.
pub const MAX_NAME_BYTES: usize = 255;
/// Longest message of a checkpoint in bytes.
pub const MAX_MESSAGE_BYTES: usize = 4096;
/// Longest note about a request in flight in bytes.
pub const MAX_NOTE_BYTES: usize = 255;
/// Most processes in the list of what ran in the guest.
pub const MAX_PROCESSES: usize = 4096;
/// Longest command line of such a process in bytes; longer ones are cut.
pub const MAX_COMMAND_BYTES: usize = 256;
/// Longest command line, path, label or other text in bytes.
pub const MAX_TEXT_BYTES: usize = 64 << 10;
/// Longest value of an environment variable in bytes: the most that Linux passes to a program.
pub const MAX_VALUE_BYTES: usize = 128 << 10;

/// A record that is too large in some way, or a value without meaning.
#[derive(Debug, Error, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum LimitError {
    /// Something is larger than its limit.
    #[error("{what} is {value}, at most {limit} is allowed")]
    TooMuch {
        /// What, with its unit.
        what: &'static str,
        /// What it is.
        value: u64,
        /// The limit.
        limit: u64,
    },
    /// A memory region does not fit the address space.
    #[error("memory region at {start_gpa:#x} of {size_bytes} bytes does not fit the address space")]
    RegionWraps {
        /// Its first guest physical address.
        start_gpa: u64,
        /// Its size in bytes.
        size_bytes: u64,
    },
    /// A map that names chunks beyond the end of its part.
    #[error("the chunk map of {part} is of level {level}, more than its {size_bytes} bytes take")]
    MapLevel {
        /// Which part.
        part: Part,
        /// The level of its topmost node.
        level: u8,
        /// The part's size in bytes.
        size_bytes: u64,
    },
    /// Nanoseconds of a second, or a year after 9999.
    #[error("{seconds} s and {nanos} ns is no wall time before the year 10000")]
    Time {
        /// Seconds since 1970.
        seconds: u64,
        /// Nanoseconds.
        nanos: u32,
    },
}

/// Checks every limit except the record's encoded size.
pub(crate) fn check(record: &PointRecord) -> Result<(), LimitError> {
    let PointRecord {
        machine,
        taken,
        message,
        ..
    } = record;
    at_most(
        "the length of the machine's name in bytes",
        machine.len(),
        MAX_MACHINE_NAME_BYTES,
    )?;
    at_most(
        "the length of the message in bytes",
        message.len(),
        MAX_MESSAGE_BYTES,
    )?;
    if WallTime::new(taken.seconds, taken.nanos).is_none() {
        return Err(LimitError::Time {
            seconds: taken.seconds,
            nanos: taken.nanos,
        });
    }
    at_most(
        "the length of the CPU vendor in bytes",
        record.host.cpu_vendor.len(),
        MAX_NAME_BYTES,
    )?;
    check_spec(&record.spec)?;
    check_memory(record)?;
    check_disks(record)?;
    check_boot(record)?;
    for found in record.parts() {
        check_map(found.part, found.size_bytes, &found.map)?;
    }
    check_states(record)?;
    check_notes(record)?;
    check_processes(record)
}

impl MachineSpec {
    /// Checks the limits of a spec, so that a machine that is made can be saved.
    ///
    /// # Errors
    /// The first limit that is exceeded.
    pub fn check(&self) -> Result<(), LimitError> {
        check_spec(self)
    }
}

fn check_spec(spec: &MachineSpec) -> Result<(), LimitError> {
    at_most("the number of vCPUs", spec.vcpus, MAX_VCPUS)?;
    at_most(
        "the memory of the machine in bytes",
        spec.memory_bytes,
        MAX_MEMORY_BYTES,
    )?;
    at_most(
        "the disk of the machine in bytes",
        spec.disk_bytes,
        MAX_DISK_BYTES,
    )?;
    at_most(
        "the length of the working directory in bytes",
        spec.working_directory.len(),
        MAX_TEXT_BYTES,
    )?;
    for text in [&spec.image, &spec.kernel] {
        at_most(
            "the length of an image or kernel name in bytes",
            text.len(),
            MAX_NAME_BYTES,
        )?;
    }
    at_most(
        "the number of environment variables",
        spec.environment.len(),
        MAX_ENVIRONMENT,
    )?;
    at_most("the number of labels", spec.labels.len(), MAX_LABELS)?;
    for (key, value) in spec.environment.iter().chain(&spec.labels) {
        at_most(
            "the length of a variable's or label's name in bytes",
            key.len(),
            MAX_TEXT_BYTES,
        )?;
        at_most(
            "the length of a variable's or label's value in bytes",
            value.len(),
            MAX_VALUE_BYTES,
        )?;
    }
    at_most(
        "the length of all environment variables in bytes",
        total_bytes(&spec.environment),
        MAX_ENVIRONMENT_BYTES,
    )?;
    at_most(
        "the length of all labels in bytes",
        total_bytes(&spec.labels),
        MAX_LABELS_BYTES,
    )
}

fn total_bytes(pairs: &[(String, String)]) -> usize {
    pairs
        .iter()
        .map(|(key, value)| key.len() + value.len())
        .sum()
}

fn check_memory(record: &PointRecord) -> Result<(), LimitError> {
    at_most(
        "the number of memory regions",
        record.memory.len(),
        MAX_MEMORY_REGIONS,
    )?;
    let mut total = 0u64;
    for region in &record.memory {
        let (start_gpa, size_bytes) = (region.start_gpa, region.size_bytes);
        if start_gpa.checked_add(size_bytes).is_none() {
            return Err(LimitError::RegionWraps {
                start_gpa,
                size_bytes,
            });
        }
        total = total.saturating_add(size_bytes);
        at_most(
            "the size of all memory regions in bytes",
            total,
            MAX_MEMORY_BYTES,
        )?;
    }
    Ok(())
}

fn check_disks(record: &PointRecord) -> Result<(), LimitError> {
    at_most("the number of disks", record.disks.len(), MAX_DISKS)?;
    for disk in &record.disks {
        at_most(
            "the length of a disk's name in bytes",
            disk.name.len(),
            MAX_NAME_BYTES,
        )?;
        at_most(
            "the size of a disk in bytes",
            disk.size_bytes,
            MAX_DISK_BYTES,
        )?;
    }
    Ok(())
}

fn check_boot(record: &PointRecord) -> Result<(), LimitError> {
    let boot = &record.boot;
    at_most(
        "the length of the kernel's command line in bytes",
        boot.command_line.len(),
        MAX_TEXT_BYTES,
    )?;
    for blob in [&boot.kernel, &boot.initramfs] {
        at_most(
            "the size of the kernel or initramfs in bytes",
            blob.size_bytes,
            MAX_BLOB_BYTES,
        )?;
    }
    Ok(())
}

fn check_states(record: &PointRecord) -> Result<(), LimitError> {
    at_most(
        "the number of state records",
        record.states.len(),
        MAX_STATE_RECORDS,
    )?;
    let mut total = 0;
    for state in &record.states {
        for name in [&state.unit, &state.kind] {
            at_most(
                "the length of a unit's name or kind in bytes",
                name.len(),
                crate::state_record::MAX_NAME_BYTES,
            )?;
        }
        at_most(
            "the size of a state record in bytes",
            state.bytes.len(),
            crate::state_record::MAX_STATE_BYTES,
        )?;
        total += state.bytes.len();
    }
    at_most(
        "the size of all state records in bytes",
        total,
        MAX_STATE_TOTAL_BYTES,
    )
}

fn check_notes(record: &PointRecord) -> Result<(), LimitError> {
    at_most(
        "the number of requests in flight",
        record.in_flight.len(),
        MAX_IN_FLIGHT,
    )?;
    for note in &record.in_flight {
        at_most(
            "the length of a unit's name in bytes",
            note.unit.len(),
            MAX_NAME_BYTES,
        )?;
        at_most(
            "the length of a note in bytes",
            note.note.len(),
            MAX_NOTE_BYTES,
        )?;
    }
    Ok(())
}

fn check_processes(record: &PointRecord) -> Result<(), LimitError> {
    let processes = record.processes.iter().flat_map(|list| &list.processes);
    at_most(
        "the number of processes",
        processes.clone().count(),
        MAX_PROCESSES,
    )?;
    for process in processes {
        at_most(
            "the length of a process's command in bytes",
            process.command.len(),
            MAX_COMMAND_BYTES,
        )?;
    }
    Ok(())
}

fn check_map(part: Part, size_bytes: u64, map: &MapRoot) -> Result<(), LimitError> {
    if map.fits(chunks_in(size_bytes)) {
        return Ok(());
    }
    Err(LimitError::MapLevel {
        part,
        level: map.level(),
        size_bytes,
    })
}

/// `value` against `limit`, both in whatever integers they come.
pub(crate) fn at_most<V, L>(what: &'static str, value: V, limit: L) -> Result<(), LimitError>
where
    u64: TryFrom<V> + TryFrom<L>,
{
    let value = u64::try_from(value).unwrap_or(u64::MAX);
    let limit = u64::try_from(limit).unwrap_or(0);
    if value > limit {
        return Err(LimitError::TooMuch { what, value, limit });
    }
    Ok(())
}
