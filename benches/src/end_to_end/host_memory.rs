//! What a machine takes of the host's memory besides its guest's.

use std::fs;
use std::io;
use std::path::Path;

/// Bytes that the processes of a running machine take besides guest memory of this size, each page
/// shared with other processes by its share.
///
/// # Errors
///
/// When the processes cannot be found or looked into: this needs Linux, and the same user.
pub(super) fn beyond_guest(machine: &str, guest_bytes: u64) -> io::Result<u64> {
    let supervisor = find(|process| {
        let command = fs::read(process.join("cmdline")).unwrap_or_default();
        let words: Vec<&[u8]> = command.split(|byte| *byte == 0).collect();
        words.contains(&b"__supervisor".as_slice()) && words.contains(&machine.as_bytes())
    })?;
    let parent = format!("PPid:\t{}", file_name(&supervisor));
    let vmm = find(|process| {
        let status = fs::read_to_string(process.join("status")).unwrap_or_default();
        status.lines().any(|line| line == parent)
    })?;
    let supervisor = mappings(&fs::read_to_string(supervisor.join("smaps"))?);
    let vmm = mappings(&fs::read_to_string(vmm.join("smaps"))?);
    let all: u64 = supervisor.iter().chain(&vmm).map(|m| m.resident).sum();
    Ok(all - guest(&vmm, guest_bytes).unwrap_or_default())
}

/// A mapping's size, and how much of it is in memory, in bytes.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
struct Mapping {
    size: u64,
    resident: u64,
}

/// What of the guest's memory is resident: the largest mapping that can hold it.
fn guest(mappings: &[Mapping], guest_bytes: u64) -> Option<u64> {
    let largest = mappings.iter().max_by_key(|mapping| mapping.size)?;
    (largest.size >= guest_bytes).then_some(largest.resident)
}

/// The mappings that a `smaps` file of Linux tells (`proc_pid_smaps(5)`).
fn mappings(smaps: &str) -> Vec<Mapping> {
    let mut found: Vec<Mapping> = Vec::new();
    for line in smaps.lines() {
        let mut words = line.split_whitespace();
        let (name, value) = (words.next(), words.next());
        let bytes = || Some(value?.parse::<u64>().ok()? << 10);
        match (name, bytes()) {
            (Some("Size:"), Some(size)) => found.push(Mapping { size, resident: 0 }),
            (Some("Pss:"), Some(resident)) => {
                if let Some(mapping) = found.last_mut() {
                    mapping.resident = resident;
                }
            }
            _ => {}
        }
    }
    found
}

/// The folder of the first process for which this holds.
fn find(wanted: impl Fn(&Path) -> bool) -> io::Result<std::path::PathBuf> {
    for entry in fs::read_dir("/proc")? {
        let path = entry?.path();
        let numbered = file_name(&path).bytes().all(|byte| byte.is_ascii_digit());
        if numbered && wanted(&path) {
            return Ok(path);
        }
    }
    Err(io::Error::new(
        io::ErrorKind::NotFound,
        "no such process of the machine",
    ))
}

fn file_name(path: &Path) -> String {
    let name = path.file_name().unwrap_or_default();
    name.to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMAPS: &str = "\
7f00-7f10 rw-p 00000000 00:00 0
Size:            1048576 kB
KernelPageSize:        4 kB
Rss:               90324 kB
Pss:               90324 kB
Pss_Dirty:         90324 kB
VmFlags: rd wr mr mw me ac sd
7f20-7f30 r-xp 00000000 fe:00 1  /usr/bin/smolvm
Size:               6300 kB
Rss:                3932 kB
Pss:                2522 kB
VmFlags: rd ex mr mw me sd
";

    #[test]
    fn guest_memory_is_told_from_the_rest() {
        let found = mappings(SMAPS);
        assert_eq!(found.len(), 2);
        assert_eq!(found[1].resident, 2522 << 10);
        assert_eq!(guest(&found, 1 << 30), Some(90324 << 10));
        assert_eq!(guest(&found, 2 << 30), None);
    }
}
