//! The file systems that programs expect.

use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::Path;

use rustix::fs::CWD;
use rustix::io::Errno;
use rustix::mount::{MountFlags, mount};

use super::{InitError, console};

struct Mount {
    kind: &'static str,
    target: &'static str,
    flags: MountFlags,
    options: &'static str,
    /// Whether nothing works without it.
    required: bool,
}

const NO_PROGRAMS: MountFlags = MountFlags::NOSUID
    .union(MountFlags::NODEV)
    .union(MountFlags::NOEXEC);
const NO_DEVICES: MountFlags = MountFlags::NOSUID.union(MountFlags::NODEV);

/// In the order in which they are made. Nothing is mounted on `/tmp`: what is written there
/// belongs to the disk.
const MOUNTS: [Mount; 7] = [
    Mount {
        kind: "proc",
        target: "/proc",
        flags: NO_PROGRAMS,
        options: "",
        required: true,
    },
    Mount {
        kind: "sysfs",
        target: "/sys",
        flags: NO_PROGRAMS,
        options: "",
        required: true,
    },
    Mount {
        kind: "devtmpfs",
        target: "/dev",
        flags: MountFlags::NOSUID,
        options: "mode=0755",
        required: true,
    },
    Mount {
        kind: "devpts",
        target: "/dev/pts",
        flags: MountFlags::NOSUID.union(MountFlags::NOEXEC),
        options: "gid=5,mode=0620,ptmxmode=0666",
        required: true,
    },
    Mount {
        kind: "tmpfs",
        target: "/dev/shm",
        flags: NO_DEVICES,
        options: "mode=1777",
        required: true,
    },
    Mount {
        kind: "tmpfs",
        target: "/run",
        flags: NO_DEVICES,
        options: "mode=0755",
        required: true,
    },
    Mount {
        kind: "cgroup2",
        target: "/sys/fs/cgroup",
        flags: NO_PROGRAMS,
        options: "",
        required: false,
    },
];

/// Links that devtmpfs does not make.
const LINKS: [(&str, &str); 4] = [
    ("/proc/self/fd", "/dev/fd"),
    ("/proc/self/fd/0", "/dev/stdin"),
    ("/proc/self/fd/1", "/dev/stdout"),
    ("/proc/self/fd/2", "/dev/stderr"),
];

/// What the first stage needs.
pub(super) fn early() -> Result<(), InitError> {
    for wanted in MOUNTS
        .iter()
        .filter(|wanted| matches!(wanted.target, "/proc" | "/dev"))
    {
        make(wanted)?;
    }
    Ok(())
}

/// Everything, in the root file system.
pub(super) fn system() -> Result<(), InitError> {
    for wanted in &MOUNTS {
        match make(wanted) {
            Err(error) if wanted.required => return Err(error),
            Err(_) => console::say(&format!("no {}", wanted.kind)),
            Ok(()) => {}
        }
    }
    for (target, link) in LINKS {
        match symlink(target, link) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                console::say(&format!("cannot make {link}: {error}"));
            }
            _ => {}
        }
    }
    open_lock_directory();
    Ok(())
}

/// Debian's `/var/lock` points there, and anybody may make locks.
fn open_lock_directory() {
    use std::os::unix::fs::PermissionsExt;
    let lock = Path::new("/run/lock");
    let made = fs::create_dir_all(lock)
        .and_then(|()| fs::set_permissions(lock, fs::Permissions::from_mode(0o1777)));
    if let Err(error) = made {
        console::say(&format!("cannot make {}: {error}", lock.display()));
    }
}

fn make(wanted: &Mount) -> Result<(), InitError> {
    match rustix::fs::mkdirat(CWD, wanted.target, rustix::fs::Mode::from_raw_mode(0o755)) {
        // A read-only root may still have the directory; the mount will tell.
        Ok(()) | Err(Errno::EXIST | Errno::ROFS) => {}
        Err(errno) => return Err(InitError::path("make", wanted.target)(errno)),
    }
    let options = std::ffi::CString::new(wanted.options).unwrap_or_default();
    match mount(
        wanted.kind,
        wanted.target,
        wanted.kind,
        wanted.flags,
        options.as_c_str(),
    ) {
        Ok(()) | Err(Errno::BUSY) => Ok(()), // BUSY: mounted already
        Err(errno) => Err(InitError::path("mount", wanted.target)(errno)),
    }
}
