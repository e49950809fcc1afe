//! The processes that run a machine, found by what they hold.

use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use super::dir::MachineDir;

/// The bits of a descriptor's flags that say how it was opened, and their value for reading only.
const ACCESS_MODE: u32 = 0o3;

impl MachineDir {
    /// Kills the processes that hold the run lock: supervisor and VMM, whatever they do. Not this process, if it runs
    /// the machine in threads. Returns how many were killed.
    pub(crate) fn kill_holders(&self) -> usize {
        let Ok(lock) = fs::metadata(self.run_lock_path()) else {
            return 0;
        };
        let own = std::process::id();
        let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
        let pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
        let killed = pids.filter(|pid| *pid != own).filter(|pid| {
            // Opened first: what is found out next is about the process that is then killed, or about none.
            let process = process(*pid);
            process.is_some_and(|process| holds(*pid, &lock) && kill(*pid, &process))
        });
        killed.count()
    }
}

fn process(pid: u32) -> Option<OwnedFd> {
    let pid = Pid::from_raw(i32::try_from(pid).ok()?)?;
    pidfd_open(pid, PidfdFlags::empty()).ok()
}

/// Whether the process has the file open for writing. Of one that is not ours nothing is seen.
fn holds(pid: u32, file: &fs::Metadata) -> bool {
    let process = Path::new("/proc").join(pid.to_string());
    let descriptors = fs::read_dir(process.join("fd")).into_iter().flatten();
    descriptors.flatten().any(|entry| {
        let same = |meta: fs::Metadata| (meta.dev(), meta.ino()) == (file.dev(), file.ino());
        fs::metadata(entry.path()).is_ok_and(same)
            && is_open_for_writing(&process.join("fdinfo").join(entry.file_name()))
    })
}

fn is_open_for_writing(info: &Path) -> bool {
    let text = fs::read_to_string(info).unwrap_or_default();
    let flags = text.lines().find_map(|line| line.strip_prefix("flags:"));
    let flags = flags.and_then(|flags| u32::from_str_radix(flags.trim(), 8).ok());
    flags.is_some_and(|flags| flags & ACCESS_MODE != 0)
}

fn kill(pid: u32, process: &OwnedFd) -> bool {
    match pidfd_send_signal(process, Signal::KILL) {
        Ok(()) => {
            tracing::warn!(pid, "a process that did not end was killed");
            true
        }
        Err(error) => {
            tracing::warn!(pid, %error, "a process could not be killed");
            false
        }
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};
    use std::time::Duration;

    use super::*;

    #[test]
    fn only_who_holds_the_lock_is_killed() {
        let directory = tempfile::tempdir().unwrap();
        let dir = MachineDir::new(directory.path().to_owned());
        let lock = dir.lock_running().unwrap();
        let child = |descriptor: OwnedFd| {
            let mut command = Command::new("sleep");
            command.arg("1000").stdin(Stdio::from(descriptor));
            command.spawn().unwrap()
        };
        let mut holder = child(lock.descriptor().try_clone_to_owned().unwrap());
        let looker = fs::File::open(dir.run_lock_path()).unwrap();
        let mut looker = child(looker.into());
        drop(lock);
        assert!(!dir.wait_until_free(Duration::ZERO).unwrap());
        assert_eq!(dir.kill_holders(), 1);
        assert!(!holder.wait().unwrap().success());
        assert!(dir.wait_until_free(Duration::from_secs(60)).unwrap());
        assert!(looker.try_wait().unwrap().is_none());
        looker.kill().unwrap();
        looker.wait().unwrap();
    }
}
