//! Whether a record makes sense: a list of everything that is wrong, not only the first.

mod chunks;
mod problem;

use std::collections::HashSet;

use crate::StateRecord;
use crate::record::{MemoryRegion, PointRecord};

pub use chunks::{ChunkLookup, verify_chunks};
pub use problem::{Finding, Level, Problem};

/// Missing chunks of one part that are named one by one; more are counted.
pub const MAX_NAMED_CHUNKS: u64 = 16;

/// Name of the disk that every machine has.
pub const ROOT_DISK: &str = "root";
/// Kinds of state records of vCPUs end so, whatever the architecture.
const VCPU_KIND_SUFFIX: &str = "-vcpu";

/// Everything that is wrong with stored bytes; nothing if they are a sound record. Its chunks are not looked at.
#[must_use]
pub fn verify_bytes(bytes: &[u8]) -> Vec<Finding> {
    let record = match PointRecord::decode(bytes) {
        Ok(record) => record,
        Err(error) => return vec![finding(Problem::Unreadable(error))],
    };
    let mut findings = verify(&record);
    if record.encode().is_ok_and(|again| again != bytes) {
        findings.push(finding(Problem::OtherEncoding));
    }
    findings
}

/// Everything that is wrong with a record by itself: parts that do not fit one another. [`verify_chunks`] looks at its
/// maps and chunks.
///
/// A restore relies on a record for which neither has findings of [`Level::Error`].
#[must_use]
pub fn verify(record: &PointRecord) -> Vec<Finding> {
    let mut problems = Vec::new();
    verify_names(record, &mut problems);
    verify_memory(record, &mut problems);
    verify_disks(record, &mut problems);
    verify_units(record, &mut problems);
    verify_vcpus(record, &mut problems);
    if record.boot.kernel.size_bytes == 0 {
        problems.push(Problem::NoKernel);
    }
    problems.into_iter().map(finding).collect()
}

/// State records that a reader does not know. `newest` gives the newest version of a kind that it reads.
#[must_use]
pub fn verify_states(states: &[StateRecord], newest: &dyn Fn(&str) -> Option<u32>) -> Vec<Finding> {
    let problem = |state: &StateRecord| {
        let (unit, kind) = (state.unit.clone(), state.kind.clone());
        let found = state.version;
        match newest(&kind) {
            None => Some(Problem::UnknownKind { unit, kind }),
            Some(newest) if found == 0 || found > newest => Some(Problem::UnknownStateVersion {
                unit,
                kind,
                found,
                newest,
            }),
            Some(_) => None,
        }
    };
    states.iter().filter_map(problem).map(finding).collect()
}

fn finding(problem: Problem) -> Finding {
    Finding {
        level: problem.level(),
        problem,
    }
}

fn verify_names(record: &PointRecord, problems: &mut Vec<Problem>) {
    let host = &record.host;
    let named = [
        ("machine", !record.machine.is_empty()),
        ("architecture", host.arch.number() != 0),
        ("CPU profile", host.cpu_profile.number() != 0),
    ];
    let nameless = named.into_iter().filter(|(_, named)| !named);
    problems.extend(nameless.map(|(what, _)| Problem::Nameless { what }));
}

fn verify_memory(record: &PointRecord, problems: &mut Vec<Problem>) {
    let found = record
        .memory
        .iter()
        .fold(0, |sum: u64, region| sum.saturating_add(region.size_bytes));
    let expected = record.spec.memory_bytes;
    if found != expected {
        problems.push(Problem::MemorySize { found, expected });
    }
    let end = |region: &MemoryRegion| region.start_gpa.saturating_add(region.size_bytes);
    for (index, pair) in record.memory.windows(2).enumerate() {
        if end(&pair[0]) > pair[1].start_gpa {
            problems.push(Problem::RegionOrder { index: index + 1 });
        }
    }
}

fn verify_disks(record: &PointRecord, problems: &mut Vec<Problem>) {
    match record.disk(ROOT_DISK) {
        None => problems.push(Problem::NoRootDisk),
        Some(root) if root.size_bytes != record.spec.disk_bytes => {
            let (found, expected) = (root.size_bytes, record.spec.disk_bytes);
            problems.push(Problem::RootDiskSize { found, expected });
        }
        Some(_) => {}
    }
    let mut seen = HashSet::new();
    let again = record.disks.iter().filter(|disk| !seen.insert(&disk.name));
    problems.extend(again.map(|disk| Problem::DuplicateDisk {
        name: disk.name.clone(),
    }));
}

fn verify_units(record: &PointRecord, problems: &mut Vec<Problem>) {
    let mut seen = HashSet::new();
    for state in &record.states {
        if state.unit.is_empty() {
            problems.push(Problem::NamelessUnit);
        } else if !seen.insert(state.unit.as_str()) {
            problems.push(Problem::DuplicateUnit {
                unit: state.unit.clone(),
            });
        }
    }
    for note in &record.in_flight {
        if !seen.contains(note.unit.as_str()) {
            problems.push(Problem::InFlightUnit {
                unit: note.unit.clone(),
            });
        }
    }
}

fn verify_vcpus(record: &PointRecord, problems: &mut Vec<Problem>) {
    if record.spec.vcpus == 0 {
        problems.push(Problem::NoVcpus);
    }
    let expected: Vec<String> = (0..record.spec.vcpus).map(|n| format!("vcpu{n}")).collect();
    let is_vcpu = |state: &&StateRecord| state.kind.ends_with(VCPU_KIND_SUFFIX);
    let found: HashSet<&str> = record
        .states
        .iter()
        .filter(is_vcpu)
        .map(|state| state.unit.as_str())
        .collect();
    for unit in &expected {
        if !found.contains(unit.as_str()) {
            problems.push(Problem::MissingVcpu { unit: unit.clone() });
        }
    }
    for state in record.states.iter().filter(is_vcpu) {
        if !expected.contains(&state.unit) {
            problems.push(Problem::ExtraVcpu {
                unit: state.unit.clone(),
            });
        }
    }
}
