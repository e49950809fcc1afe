//! Growing the root file system to the size of its disk, by the kernel alone.

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use rustix::fs::{major, minor, statvfs};

use super::ControlError;
use super::disk::DiskThread;
use crate::sys::ext4;

/// How long the kernel may take. It writes little, but a busy host may give it little time.
const LONGEST_RESIZE: Duration = Duration::from_secs(100);
/// The kernel counts block devices in sectors of this size.
const SECTOR_BYTES: u64 = 512;

/// Grows the ext4 file system at `/` and returns its size in bytes.
///
/// A file system that fills its disk already is left alone.
pub(super) fn resize_root(disk: &DiskThread) -> Result<u64, ControlError> {
    let root = File::open("/").map_err(ControlError::system("open the root directory"))?;
    let device = root
        .metadata()
        .map_err(ControlError::system("find the root device"))?
        .dev();
    let number = format!("{}:{}", major(device), minor(device));
    let path = format!("/sys/dev/block/{number}/size");
    let size = fs::read_to_string(&path).map_err(|source| ControlError::File {
        step: "read the size of the root disk from",
        path: path.clone().into(),
        source,
    })?;
    let sectors: u64 = size.trim().parse().map_err(|_| ControlError::Invalid {
        what: "the size of the root disk is not a number",
    })?;
    let stat = || statvfs("/").map_err(ControlError::system("measure the root file system"));
    let block_bytes = stat()?.f_frsize.max(1);
    let device_blocks = sectors * SECTOR_BYTES / block_bytes;
    // The kernel refuses to resize what had errors, even to the size that it has: such a machine must start.
    if blocks_on(&number)? < device_blocks {
        let deadline = Instant::now() + LONGEST_RESIZE;
        disk.run(deadline, move || ext4::resize(&root, device_blocks))
            .map_err(ControlError::system("resize the root file system"))?;
    }
    let now = stat()?;
    Ok(now.f_blocks * now.f_frsize)
}

/// The number of blocks of the file system on the device with this number.
fn blocks_on(number: &str) -> Result<u64, ControlError> {
    let path = format!("/sys/dev/block/{number}/uevent");
    let about = fs::read_to_string(&path).map_err(|source| ControlError::File {
        step: "read the name of the root disk from",
        path: path.into(),
        source,
    })?;
    let name = about.lines().find_map(|line| line.strip_prefix("DEVNAME="));
    let name = name.ok_or(ControlError::Invalid {
        what: "the root disk has no name",
    })?;
    let path = PathBuf::from("/dev").join(name);
    let blocks = File::open(&path).and_then(|device| ext4::block_count(&device));
    blocks.map_err(|source| ControlError::File {
        step: "read the superblock of",
        path,
        source,
    })
}
