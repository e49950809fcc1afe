//! What a machine takes of its host: memory besides the guest's, and the processor while the guest has
//! nothing to do.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Ticks a second of the times in `/proc/PID/stat`: `USER_HZ` of every Linux since 2.6.
const TICKS_PER_SECOND: f64 = 100.0;

/// The processes of a running machine.
pub(crate) struct Processes {
    /// Folders in `/proc`. The one that has the guest's memory comes last.
    folders: Vec<PathBuf>,
}

impl Processes {
    /// Finds them by the machine's name.
    ///
    /// # Errors
    ///
    /// When there are none, or they cannot be looked into: this needs Linux, and the same user.
    pub(crate) fn of(machine: &str) -> io::Result<Self> {
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
        Ok(Self {
            folders: vec![supervisor, vmm],
        })
    }

    /// The one process that a machine consists of.
    pub(crate) fn single(id: u32) -> Self {
        Self {
            folders: vec![Path::new("/proc").join(id.to_string())],
        }
    }

    /// Their numbers.
    pub(crate) fn ids(&self) -> Vec<u32> {
        let names = self.folders.iter().map(|folder| file_name(folder));
        names.filter_map(|name| name.parse().ok()).collect()
    }

    /// The part of one processor that they use while the guest has nothing to do, and then the bytes
    /// that they take besides the guest's memory.
    ///
    /// # Errors
    ///
    /// When they are gone.
    pub(crate) fn cost(&self, idle_time: Duration, guest_bytes: u64) -> io::Result<(f64, u64)> {
        let share = self.processor_share(idle_time)?;
        Ok((share, self.memory_beyond_guest(guest_bytes)?))
    }

    /// Bytes that they take besides guest memory of this size, each page shared with other processes by
    /// its share.
    ///
    /// # Errors
    ///
    /// When they are gone.
    fn memory_beyond_guest(&self, guest_bytes: u64) -> io::Result<u64> {
        let mut all = Vec::new();
        for folder in &self.folders {
            all.push(mappings(&fs::read_to_string(folder.join("smaps"))?));
        }
        let guest = all.last().and_then(|last| guest(last, guest_bytes));
        let resident: u64 = all.iter().flatten().map(|mapping| mapping.resident).sum();
        Ok(resident - guest.unwrap_or_default())
    }

    /// The part of one processor that they use, as a fraction, over this time.
    ///
    /// # Errors
    ///
    /// When they are gone.
    fn processor_share(&self, time: Duration) -> io::Result<f64> {
        let (begin, before) = (Instant::now(), self.ticks()?);
        std::thread::sleep(time);
        let ticks = self.ticks()? - before;
        Ok(ticks as f64 / TICKS_PER_SECOND / begin.elapsed().as_secs_f64())
    }

    /// The processor time that they have used since they began.
    ///
    /// # Errors
    ///
    /// When they are gone.
    pub(crate) fn processor_time(&self) -> io::Result<Duration> {
        Ok(Duration::from_secs_f64(
            self.ticks()? as f64 / TICKS_PER_SECOND,
        ))
    }

    fn ticks(&self) -> io::Result<u64> {
        self.folders
            .iter()
            .map(|folder| {
                let stat = fs::read_to_string(folder.join("stat"))?;
                processor_ticks(&stat).ok_or_else(|| io::Error::other("no times in its stat"))
            })
            .sum()
    }
}

/// User and system time of a process that its `stat` file of Linux tells (`proc_pid_stat(5)`).
fn processor_ticks(stat: &str) -> Option<u64> {
    // The name may hold anything, spaces and brackets too; the third field follows its last bracket.
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    let user: u64 = fields.nth(11)?.parse().ok()?;
    let system: u64 = fields.next()?.parse().ok()?;
    Some(user + system)
}

/// A mapping's size, and how much of it is in memory, in bytes.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
struct Mapping {
    executable: bool,
    size: u64,
    resident: u64,
}

/// What of the guest's memory is resident: the largest mapping that can hold it. A translator's buffer
/// for code may be as large, and is executable.
fn guest(mappings: &[Mapping], guest_bytes: u64) -> Option<u64> {
    let data = mappings.iter().filter(|mapping| !mapping.executable);
    let largest = data.max_by_key(|mapping| mapping.size)?;
    (largest.size >= guest_bytes).then_some(largest.resident)
}

/// The mappings that a `smaps` file of Linux tells (`proc_pid_smaps(5)`).
fn mappings(smaps: &str) -> Vec<Mapping> {
    let mut found: Vec<Mapping> = Vec::new();
    let mut executable = false;
    for line in smaps.lines() {
        let mut words = line.split_whitespace();
        let (name, value) = (words.next(), words.next());
        let bytes = || Some(value?.parse::<u64>().ok()? << 10);
        match (name, bytes()) {
            (Some("Size:"), Some(size)) => found.push(Mapping {
                executable,
                size,
                resident: 0,
            }),
            (Some("Pss:"), Some(resident)) => {
                if let Some(mapping) = found.last_mut() {
                    mapping.resident = resident;
                }
            }
            // The line that a mapping begins with: its addresses and its permissions.
            (Some(range), _) if !range.ends_with(':') => {
                executable = value.is_some_and(|permissions| permissions.contains('x'));
            }
            _ => {}
        }
    }
    found
}

/// The folder of the first process for which this holds.
fn find(wanted: impl Fn(&Path) -> bool) -> io::Result<PathBuf> {
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
7e00-7f00 rwxp 00000000 00:00 0
Size:            4194304 kB
Rss:               70000 kB
Pss:               70000 kB
VmFlags: rd wr ex mr mw me ac sd
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
    fn processor_time_is_read_behind_any_name() {
        let stat = "7 (a) b (c) S 1 7 7 0 -1 4194560 1 0 0 0 250 31 0 0 20 0 9 0 77 1000 20";
        assert_eq!(processor_ticks(stat), Some(281));
        assert_eq!(processor_ticks("7 (a) S 1"), None);
    }

    #[test]
    fn guest_memory_is_told_from_the_rest() {
        let found = mappings(SMAPS);
        assert_eq!(found.len(), 3);
        let executable: Vec<bool> = found.iter().map(|mapping| mapping.executable).collect();
        assert_eq!(executable, [true, false, true]);
        assert_eq!(found[2].resident, 2522 << 10);
        assert_eq!(guest(&found, 1 << 30), Some(90324 << 10));
        assert_eq!(guest(&found, 2 << 30), None);
    }
}
