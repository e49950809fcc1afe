//! The end of the machine: processes, file systems, power.

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use rustix::mount::{MountFlags, UnmountFlags, mount_remount, unmount};
use rustix::system::{RebootCommand, reboot};

use crate::sys::signal;

/// How often to look whether all processes have gone.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// What comes after the end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    /// Nothing.
    PowerOff,
    /// A new boot.
    Reboot,
}

impl End {
    pub(crate) fn announcement(self) -> &'static str {
        match self {
            Self::PowerOff => "powering off",
            Self::Reboot => "rebooting",
        }
    }
}

/// Ends every process but the agent, writes the file systems, and powers off or reboots.
///
/// Processes have `grace` between SIGTERM and SIGKILL. Returns only if the kernel refuses.
pub(crate) fn end_machine(end: End, grace: Duration) -> rustix::io::Result<()> {
    signal::everyone(libc::SIGTERM);
    signal::everyone(libc::SIGCONT);
    let until = Instant::now() + grace;
    while others_run() && Instant::now() < until {
        thread::sleep(LOOK_EVERY);
    }
    signal::everyone(libc::SIGKILL);
    rustix::fs::sync();
    unmount_all();
    rustix::fs::sync();
    let command = match end {
        End::PowerOff => RebootCommand::PowerOff,
        End::Reboot => RebootCommand::Restart,
    };
    reboot(command)
}

/// Whether any process is left that SIGTERM was meant for: not PID 1, not this one, no kernel
/// thread and no zombie, which both have an empty command line.
fn others_run() -> bool {
    let Ok(entries) = fs::read_dir("/proc") else {
        return false;
    };
    let own = std::process::id();
    entries.flatten().any(|entry| {
        let name = entry.file_name();
        let pid: Option<u32> = name.to_str().and_then(|name| name.parse().ok());
        pid.is_some_and(|pid| pid > 1 && pid != own)
            && fs::read(entry.path().join("cmdline")).is_ok_and(|line| !line.is_empty())
    })
}

/// Unmounts what can be, latest first, and leaves the root file system read-only.
fn unmount_all() {
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let targets: Vec<&str> = mounts
        .lines()
        .filter_map(|line| line.split(' ').nth(1))
        .filter(|target| !matches!(*target, "/" | "/proc" | "/dev"))
        .collect();
    for target in targets.iter().rev() {
        // What is still in use has been synced.
        let _ = unmount(*target, UnmountFlags::empty());
    }
    // A file system that stays writable has been synced and has a journal.
    let _ = mount_remount("/", MountFlags::RDONLY, "");
}
