//! The root disk, and the way out of the initramfs.

use std::ffi::CString;
use std::fs;
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::inotify;
use rustix::mount::{MountFlags, UnmountFlags, mount, mount_move, unmount};
use rustix::time::Timespec;

use super::InitError;
use super::command_line::CommandLine;

const NEW_ROOT: &str = "/newroot";
/// Longest wait for the disk to appear.
const DISK_TIME: Duration = Duration::from_secs(30);
/// Magic numbers of the file systems that an initramfs is, `linux/magic.h`.
const RAMFS_MAGIC: u64 = 0x8584_58f6;
const TMPFS_MAGIC: u64 = 0x0102_1994;

/// Whether the root file system is still the kernel's own.
pub(super) fn in_initramfs() -> bool {
    #[allow(clippy::unnecessary_cast, clippy::cast_sign_loss)] // signed on some architectures
    let magic = rustix::fs::statfs("/").map(|stat| stat.f_type as u64);
    matches!(magic, Ok(RAMFS_MAGIC | TMPFS_MAGIC))
}

/// Mounts the root disk and makes it the root of this process.
pub(super) fn switch_to(options: &CommandLine) -> Result<(), InitError> {
    let device = PathBuf::from(&options.root);
    wait_for(&device)?;
    fs::create_dir_all(NEW_ROOT).map_err(InitError::path("make", NEW_ROOT))?;
    let flags = CString::new(options.root_flags.as_str()).unwrap_or_default();
    let none = MountFlags::empty();
    mount(
        device.as_path(),
        NEW_ROOT,
        options.root_type.as_str(),
        none,
        flags.as_c_str(),
    )
    .map_err(InitError::path("mount the root disk", &device))?;
    for early in ["/proc", "/dev"] {
        // In use by our own console at least: goes when nobody uses it any more.
        unmount(early, UnmountFlags::DETACH).map_err(InitError::path("unmount", early))?;
    }
    free_initramfs();
    std::env::set_current_dir(NEW_ROOT).map_err(InitError::path("enter", NEW_ROOT))?;
    mount_move(".", "/").map_err(InitError::path("move the root disk to", "/"))?;
    rustix::process::chroot(".").map_err(InitError::path("change the root to", NEW_ROOT))?;
    std::env::set_current_dir("/").map_err(InitError::path("enter", "/"))
}

/// Waits until `device` is a block device; watches its directory meanwhile.
fn wait_for(device: &Path) -> Result<(), InitError> {
    let watch = inotify::init(inotify::CreateFlags::CLOEXEC | inotify::CreateFlags::NONBLOCK)
        .map_err(InitError::system("watch for the root disk"))?;
    let directory = device.parent().unwrap_or(Path::new("/dev"));
    inotify::add_watch(&watch, directory, inotify::WatchFlags::CREATE)
        .map_err(InitError::path("watch", directory))?;
    let until = Instant::now() + DISK_TIME;
    loop {
        if fs::metadata(device).is_ok_and(|meta| meta.file_type().is_block_device()) {
            return Ok(());
        }
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(InitError::NoRootDisk {
                path: device.into(),
                limit: DISK_TIME,
            });
        }
        let timeout = Timespec {
            tv_sec: i64::try_from(left.as_secs()).unwrap_or(0),
            tv_nsec: left.subsec_nanos().into(),
        };
        let mut polled = [PollFd::new(&watch, PollFlags::IN)];
        // Interrupted or timed out: the loop looks again either way.
        let _ = poll(&mut polled, Some(&timeout));
        let mut events = [0; 4096];
        // Only clears the queue.
        let _ = rustix::io::read(&watch, &mut events);
    }
}

/// The program that runs. It stays in memory in any case, and keeps its name: only what has one can be mounted elsewhere.
const OWN_PROGRAM: &str = "/init";

/// Gives the initramfs's memory back, but for the program that runs.
fn free_initramfs() {
    let Ok(root) = fs::metadata("/") else { return };
    // What cannot be removed only costs memory.
    let _ = remove_below(Path::new("/"), root.dev());
}

fn remove_below(directory: &Path, device: u64) -> io::Result<()> {
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        let meta = fs::symlink_metadata(&path)?;
        if meta.dev() != device || path == Path::new(OWN_PROGRAM) {
            continue; // the new root, or another mount
        }
        if meta.is_dir() {
            remove_below(&path, device)?;
            fs::remove_dir(&path)?;
        } else {
            fs::remove_file(&path)?;
        }
    }
    Ok(())
}
